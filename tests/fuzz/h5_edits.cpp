// Changes objects of an HDF5 file as an input says. Used by fuzz targets.
#include "h5_edits.hpp"

#include "base/error.hpp"
#include "checkpoint/h5.hpp"

#include <algorithm>
#include <array>

namespace nearstep::fuzz {

namespace {

// Limit of bytes written; the rest of a dataset is never allocated.
constexpr std::size_t kMostWritten = 4096;

h5::Datatype string_type(std::size_t bytes) {
    h5::Datatype type(H5Tcopy(H5T_C_S1));
    H5Tset_size(type.get(), bytes);
    return type;
}

// Numbers, both kinds of strings, a compound, and shorter integers.
h5::Datatype type_of(std::size_t choice) {
    const std::array numbers = {H5T_STD_U64LE, H5T_STD_I64LE, H5T_IEEE_F32LE, H5T_IEEE_F64BE,
                                H5T_STD_I8LE};
    if (choice < numbers.size()) {
        return h5::Datatype(H5Tcopy(numbers.at(choice)));
    }
    if (choice == numbers.size()) {
        return string_type(H5T_VARIABLE);
    }
    if (choice == numbers.size() + 1) {
        return string_type(5);
    }
    h5::Datatype pair(H5Tcreate(H5T_COMPOUND, 16));
    H5Tinsert(pair.get(), "a", 0, H5T_STD_U64LE);
    H5Tinsert(pair.get(), "b", 8, H5T_STD_U64LE);
    return pair;
}

h5::Space space_of(Input& input) {
    const std::size_t dimensions = input.choice(4);
    std::vector<hsize_t> extent;
    for (std::size_t i = 0; i < dimensions; ++i) {
        const auto base = input.number<std::uint8_t>();
        extent.push_back(static_cast<hsize_t>(base) << input.choice(56));
    }
    return h5::Space(dimensions == 0
                         ? H5Screate(H5S_SCALAR)
                         : H5Screate_simple(static_cast<int>(dimensions), extent.data(), nullptr));
}

// Numbers at limits, and any others.
std::vector<std::uint64_t> values_of(Input& input) {
    std::vector<std::uint64_t> values(input.choice(40));
    for (std::uint64_t& value : values) {
        const auto small = input.number<std::uint8_t>();
        value = small < 0xF0   ? small
                : small < 0xF8 ? ~std::uint64_t{0} << (small & 0x3FU)
                               : input.number<std::uint64_t>();
    }
    return values;
}

bool is_small(const h5::Space& space, const h5::Datatype& type) {
    const hssize_t points = H5Sget_simple_extent_npoints(space.get());
    return points >= 0 &&
           static_cast<std::size_t>(points) <= kMostWritten / H5Tget_size(type.get());
}

void write_strings(hid_t object, bool is_attribute, Input& input, std::size_t count) {
    std::vector<std::string> words(count);
    std::vector<const char*> pointers;
    for (std::string& word : words) {
        word = input.part();
        pointers.push_back(word.c_str());
    }
    const h5::Datatype type = string_type(H5T_VARIABLE);
    if (is_attribute) {
        H5Awrite(object, type.get(), static_cast<const void*>(pointers.data()));
    } else {
        H5Dwrite(object, type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT,
                 static_cast<const void*>(pointers.data()));
    }
}

void write_values(hid_t object, bool is_attribute, const h5::Datatype& type, const h5::Space& space,
                  Input& input) {
    if (!is_small(space, type)) {
        return;
    }
    const auto points = static_cast<std::size_t>(H5Sget_simple_extent_npoints(space.get()));
    if (H5Tis_variable_str(type.get()) > 0) {
        return write_strings(object, is_attribute, input, points);
    }
    std::vector<std::uint64_t> values = values_of(input);
    values.resize(kMostWritten / 8 + 1);
    if (is_attribute) {
        H5Awrite(object, type.get(), values.data());
    } else {
        H5Dwrite(object, type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
    }
}

void replace_attribute(Input& input, hid_t file, const std::string& name) {
    H5Adelete(file, name.c_str());
    if (input.flag()) {
        return;
    }
    const h5::Datatype type = type_of(input.choice(8));
    const h5::Space space = space_of(input);
    if (!is_small(space, type)) {  // the library would allocate it now
        return;
    }
    const h5::Attribute attribute(
        H5Acreate2(file, name.c_str(), type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT));
    if (attribute) {
        write_values(attribute.get(), true, type, space, input);
    }
}

void replace_dataset(Input& input, hid_t file, const std::string& name) {
    H5Ldelete(file, name.c_str(), H5P_DEFAULT);
    if (input.flag()) {
        return;
    }
    const h5::Datatype type = type_of(input.choice(8));
    const h5::Space space = space_of(input);
    const h5::Properties creation(H5Pcreate(H5P_DATASET_CREATE));
    const int dimensions = H5Sget_simple_extent_ndims(space.get());
    if (input.flag() && dimensions > 0) {
        const std::vector<hsize_t> chunk(static_cast<std::size_t>(dimensions), 16);
        H5Pset_chunk(creation.get(), dimensions, chunk.data());
    }
    H5Pset_alloc_time(creation.get(),
                      is_small(space, type) ? H5D_ALLOC_TIME_DEFAULT : H5D_ALLOC_TIME_LATE);
    const h5::Dataset dataset(H5Dcreate2(file, name.c_str(), type.get(), space.get(), H5P_DEFAULT,
                                         creation.get(), H5P_DEFAULT));
    if (dataset) {
        write_values(dataset.get(), false, type, space, input);
    }
}

// Writes new values with the same type and extent.
void overwrite(Input& input, hid_t file, const std::string& name) {
    const h5::Dataset dataset(H5Dopen2(file, name.c_str(), H5P_DEFAULT));
    if (dataset) {
        const h5::Datatype type(H5Dget_type(dataset.get()));
        const h5::Space space(H5Dget_space(dataset.get()));
        write_values(dataset.get(), false, type, space, input);
    }
}

}  // namespace

void edit_h5(Input& input, const std::string& path, const std::vector<std::string>& names) {
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    const h5::File file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
    while (file && !input.is_at_end()) {
        const std::string& name = names[input.choice(names.size())];
        const bool is_new = input.flag();
        if (name.starts_with('@')) {
            replace_attribute(input, file.get(), name.substr(1));
        } else if (is_new) {
            replace_dataset(input, file.get(), name);
        } else {
            overwrite(input, file.get(), name);
        }
    }
}

}  // namespace nearstep::fuzz
