// Calls HDF5 and turns its errors into exceptions. Used by the rest of this module.
#include "checkpoint/h5.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <charconv>
#include <string_view>

namespace nearstep::h5 {

namespace {

// Must run before the first call of the library, so every function that opens a file calls it. It
// turns off the printing of errors to stderr, which a thread-safe build sets per thread. It also
// turns off the clean-up at exit, which crashes on a file that failed to close, as on a full disk;
// handles close everything else.
void enter_library() {
    H5dont_atexit();
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

// The library's words on one line: of a failed call of the system its reason, without offsets and
// addresses.
std::string shortened(std::string words) {
    const std::string before = "error message = '";
    const std::size_t place = words.find(before);
    const std::size_t begin = place + before.size();
    if (place != std::string::npos) {
        const std::string reason = words.substr(begin, words.find('\'', begin) - begin);
        words = words.substr(0, words.find(": time = ")) + " (" + reason + ")";
    }
    std::ranges::replace(words, '\n', ' ');
    return words;
}

// The errno in the library's words; 0 if there is none. The name of a file may precede it.
int errno_in(std::string_view words) {
    constexpr std::string_view kErrno = "errno = ";
    int code = 0;
    if (const std::size_t at = words.rfind(kErrno); at != std::string_view::npos) {
        std::from_chars(words.data() + at + kErrno.size(), words.data() + words.size(), code);
    }
    return code;
}

struct Reason {
    std::string words = "no reason given";
    int code = 0;
};

herr_t keep_first(unsigned depth, const H5E_error2_t* error, void* out) {
    if (depth == 0 && error->desc != nullptr) {
        *static_cast<Reason*>(out) = {shortened(error->desc), errno_in(error->desc)};
    }
    return 0;
}

Properties access_properties() {
    Properties access = make_properties(H5P_FILE_ACCESS);
    // Since version 1.8 object headers have checksums.
    check(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V18, H5F_LIBVER_LATEST),
          "set a file's version");
    check(H5Pset_file_locking(access.get(), false, true), "turn file locking off");
    return access;
}

Datatype make_string_type() {
    Datatype type(check(H5Tcopy(H5T_C_S1), "copy a type"));
    check(H5Tset_size(type.get(), H5T_VARIABLE), "make a string type");
    check(H5Tset_cset(type.get(), H5T_CSET_UTF8), "make a string type");
    return type;
}

// Reading other types as variable-length strings would return invalid pointers.
void expect_strings(hid_t type, const std::string& name) {
    if (H5Tis_variable_str(type) <= 0) {
        throw Hdf5Error(
            text("HDF5 cannot read ", name, ": it holds no strings of variable length."));
    }
}

// Copies a string that the library allocated, and frees it.
std::string take(char* value) {
    std::string taken = value == nullptr ? "" : value;
    H5free_memory(value);
    return taken;
}

// The path of the file that holds a dataset.
std::string file_of(const Dataset& dataset) {
    const auto bytes = H5Fget_name(dataset.get(), nullptr, 0);
    std::string path(bytes < 0 ? 0 : static_cast<std::size_t>(bytes), '\0');
    H5Fget_name(dataset.get(), path.data(), path.size() + 1);
    return path;
}

Space select(const Dataset& dataset, const Part& part) {
    Space space(check(H5Dget_space(dataset.get()), "read a dataset's extent"));
    if (!part.start.empty()) {
        check(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, part.start.data(), nullptr,
                                  part.count.data(), nullptr),
              "select a part of a dataset");
    }
    return space;
}

}  // namespace

void fail(const std::string& attempt) {
    Reason reason;
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_first, &reason);
    throw Hdf5Error(text("HDF5 cannot ", attempt, ": ", reason.words, "."), reason.code);
}

Properties make_properties(hid_t kind) {
    return Properties(check(H5Pcreate(kind), "make a property list"));
}

File create_file(const std::string& path, std::size_t user_bytes) {
    enter_library();
    const Properties creation = make_properties(H5P_FILE_CREATE);
    check(H5Pset_userblock(creation.get(), user_bytes), "set a user block");
    check(H5Pset_link_creation_order(creation.get(), H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED),
          "track the order of creation");
    const Properties access = access_properties();
    return File(check(H5Fcreate(path.c_str(), H5F_ACC_EXCL, creation.get(), access.get()),
                      text("create ", path)));
}

File open_file(const std::string& path) {
    enter_library();
    const Properties access = access_properties();
    return File(check(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()), text("open ", path)));
}

void close_file(File file, const std::string& path) {
    check(H5Fflush(file.get(), H5F_SCOPE_LOCAL), text("write ", path));
    file.reset();
}

Space make_space(std::span<const hsize_t> extent) {
    return Space(check(H5Screate_simple(static_cast<int>(extent.size()), extent.data(), nullptr),
                       "make an extent"));
}

Group make_group(hid_t at, const std::string& name) {
    return Group(check(H5Gcreate2(at, name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                       text("create group ", name)));
}

Dataset make_dataset(hid_t at, const std::string& name, hid_t type,
                     std::span<const hsize_t> extent) {
    const Properties creation = make_properties(H5P_DATASET_CREATE);
    check(H5Pset_layout(creation.get(), H5D_CONTIGUOUS), "set a layout");
    check(H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY), "set an allocation time");
    check(H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER), "set a fill time");
    const Space space = make_space(extent);
    return Dataset(check(
        H5Dcreate2(at, name.c_str(), type, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT),
        text("create dataset ", name)));
}

Dataset open_dataset(hid_t at, const std::string& name) {
    return Dataset(check(H5Dopen2(at, name.c_str(), H5P_DEFAULT), text("open dataset ", name)));
}

std::vector<hsize_t> extent_of(const Dataset& dataset) {
    const Space space(check(H5Dget_space(dataset.get()), "read a dataset's extent"));
    const int dimensions =
        check(H5Sget_simple_extent_ndims(space.get()), "read a dataset's extent");
    std::vector<hsize_t> extent(static_cast<std::size_t>(dimensions));
    check(H5Sget_simple_extent_dims(space.get(), extent.data(), nullptr),
          "read a dataset's extent");
    return extent;
}

std::size_t elems_of(const Dataset& dataset) {
    const Space space(check(H5Dget_space(dataset.get()), "read a dataset's extent"));
    return static_cast<std::size_t>(
        check(H5Sget_simple_extent_npoints(space.get()), "read a dataset's extent"));
}

void write_part(const Dataset& dataset, const Part& part, hid_t memory_type, const void* data) {
    const std::string attempt = text("write to ", file_of(dataset));
    const Space memory = make_space(part.count);
    const Space place = select(dataset, part);
    check(H5Dwrite(dataset.get(), memory_type, memory.get(), place.get(), H5P_DEFAULT, data),
          attempt);
}

void read_part(const Dataset& dataset, const Part& part, hid_t memory_type, void* data) {
    const std::string attempt = text("read from ", file_of(dataset));
    const Space memory = make_space(part.count);
    const Space place = select(dataset, part);
    check(H5Dread(dataset.get(), memory_type, memory.get(), place.get(), H5P_DEFAULT, data),
          attempt);
}

Datatype make_fp16() {
    Datatype type(check(H5Tcopy(H5T_IEEE_F32LE), "copy a type"));
    check(H5Tset_fields(type.get(), 15, 10, 5, 0, 10), "make a 16-bit type");
    check(H5Tset_size(type.get(), 2), "make a 16-bit type");
    check(H5Tset_ebias(type.get(), 15), "make a 16-bit type");
    return type;
}

void write_values(hid_t at, const std::string& name, hid_t type, std::span<const hsize_t> extent,
                  const void* values) {
    const Space space = make_space(extent);
    const Dataset dataset(check(
        H5Dcreate2(at, name.c_str(), type, space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
        text("create dataset ", name)));
    if (elems_of(dataset) > 0) {
        check(H5Dwrite(dataset.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values),
              text("write dataset ", name));
    }
}

std::size_t stored_elems_of(const Dataset& dataset, std::size_t least_bytes) {
    const std::size_t elems = elems_of(dataset);
    const hsize_t stored = H5Dget_storage_size(dataset.get());
    if (elems > stored / least_bytes) {
        throw Hdf5Error(text("HDF5 cannot read a table of ", elems, " entries: only ", stored,
                             " bytes are stored for it."));
    }
    return elems;
}

void read_values(const Dataset& dataset, hid_t type, void* values) {
    if (elems_of(dataset) > 0) {
        check(H5Dread(dataset.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values),
              "read a dataset");
    }
}

void write_strings(hid_t at, const std::string& name, const std::vector<std::string>& values) {
    std::vector<const char*> pointers(values.size());
    std::ranges::transform(values, pointers.begin(),
                           [](const std::string& v) { return v.c_str(); });
    const std::vector<hsize_t> extent = {values.size()};
    write_values(at, name, make_string_type().get(), extent, pointers.data());
}

std::vector<std::string> read_strings(hid_t at, const std::string& name) {
    const Dataset dataset = open_dataset(at, name);
    const Datatype stored(check(H5Dget_type(dataset.get()), text("read dataset ", name)));
    expect_strings(stored.get(), name);
    std::vector<char*> pointers(stored_elems_of(dataset, H5Tget_size(stored.get())));
    read_values(dataset, make_string_type().get(), pointers.data());
    std::vector<std::string> values(pointers.size());
    std::ranges::transform(pointers, values.begin(), take);
    return values;
}

void write_attribute(hid_t object, const std::string& name, hid_t type, const void* value) {
    const Space space(check(H5Screate(H5S_SCALAR), "make an extent"));
    const Attribute attribute(
        check(H5Acreate2(object, name.c_str(), type, space.get(), H5P_DEFAULT, H5P_DEFAULT),
              text("create attribute ", name)));
    check(H5Awrite(attribute.get(), type, value), text("write attribute ", name));
}

bool has_attribute(hid_t object, const std::string& name) {
    return check(H5Aexists(object, name.c_str()), text("look for attribute ", name)) > 0;
}

void read_attribute(hid_t object, const std::string& name, hid_t type, void* value) {
    const Attribute attribute(
        check(H5Aopen(object, name.c_str(), H5P_DEFAULT), text("open attribute ", name)));
    const Space space(check(H5Aget_space(attribute.get()), text("read attribute ", name)));
    if (H5Sget_simple_extent_npoints(space.get()) != 1) {
        throw Hdf5Error(text("HDF5 cannot read attribute ", name, ": it is not one value."));
    }
    check(H5Aread(attribute.get(), type, value), text("read attribute ", name));
}

void write_text(hid_t object, const std::string& name, const std::string& value) {
    const char* pointer = value.c_str();
    write_attribute(object, name, make_string_type().get(), static_cast<const void*>(&pointer));
}

std::string read_text(hid_t object, const std::string& name) {
    {
        const Attribute attribute(
            check(H5Aopen(object, name.c_str(), H5P_DEFAULT), text("open attribute ", name)));
        const Datatype stored(check(H5Aget_type(attribute.get()), text("read attribute ", name)));
        expect_strings(stored.get(), name);
    }
    char* pointer = nullptr;
    read_attribute(object, name, make_string_type().get(), static_cast<void*>(&pointer));
    return take(pointer);
}

}  // namespace nearstep::h5
