// Prints and verifies a checkpoint or an export. Used by the command inspect.
#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/units.hpp"
#include "checkpoint/export.hpp"
#include "checkpoint/index.hpp"
#include "checkpoint/rank_file.hpp"
#include "checkpoint/seal.hpp"
#include "checkpoint/slab.hpp"

#include <algorithm>
#include <filesystem>
#include <ostream>
#include <sstream>
#include <system_error>

namespace nearstep::checkpoint {

namespace {

using shard::kTileElems;

void print_tensor(std::ostream& out, const std::string& name, std::span<const std::int64_t> shape) {
    out << "  " << name << " [" << joined(shape) << "] " << elems_of(shape) << "\n";
}

void print_origin(std::ostream& out, const Description& about) {
    out << "model: " << about.model << "\n"
        << "commit: " << about.commit << "\n"
        << "site: " << about.site << "\n"
        << "parameters: " << about.parameters << "\n"
        << "config:\n";
    std::istringstream lines(about.config);
    for (std::string line; std::getline(lines, line);) {
        out << "  " << line << "\n";
    }
}

void inspect_checkpoint(const std::string& path, std::ostream& out) {
    const Index index = read_index(path);
    const std::unique_ptr<Reader> reader = Reader::open(path);
    const Description& about = reader->description();
    out << "checkpoint " << path << "\n"
        << "step " << about.step << ", generation " << about.generation << ", loss scale "
        << about.loss_scale << ", good steps " << about.good_steps << ", seed " << about.seed
        << "\n";
    if (!about.missed.empty()) {
        out << "updates that tensors missed (first-last:updates): "
            << store::print_missed(about.missed) << "\n";
    }
    print_origin(out, about);
    out << "rank files:\n";
    for (std::size_t rank = 0; rank < index.files.size(); ++rank) {
        out << "  " << index.files[rank] << " "
            << human_bytes(static_cast<double>(index.records[rank].file_bytes)) << "\n";
    }
    out << "tensors (name, shape, elements):\n";
    for (const TensorPlace& tensor : about.tensors) {
        print_tensor(out, tensor.name, tensor.shape);
    }
    std::vector<float> state(kArrays * kTileElems);
    const std::span<float> arrays(state);
    const std::size_t tiles = shard::tiles_of(about.parameters);
    for (std::size_t tile = 0; tile < tiles; ++tile) {
        reader->read({.begin = tile, .end = tile + 1},
                     {.master = arrays.subspan(0, kTileElems),
                      .moment1 = arrays.subspan(kTileElems, kTileElems),
                      .moment2 = arrays.subspan(2 * kTileElems, kTileElems)});
    }
    out << "checksums: the index, " << index.files.size() << " rank files and " << tiles * kArrays
        << " tiles are as they were written\n";
}

// Reads the whole dataset and returns the digest of its bytes.
std::uint64_t digest_of(const h5::Dataset& dataset, std::span<const std::int64_t> shape) {
    const h5::Datatype type(h5::check(H5Dget_type(dataset.get()), "read a dataset's type"));
    const std::size_t elem_bytes = H5Tget_size(type.get());
    if (H5Tget_class(type.get()) != H5T_FLOAT || elem_bytes > sizeof(double)) {
        throw Hdf5Error("HDF5 cannot read a dataset: it does not hold floating-point numbers.");
    }
    Xxh3Stream digest;
    std::vector<std::byte> bytes;
    const std::size_t elems = elems_of(shape);
    for (std::size_t done = 0; done < elems;) {
        const std::size_t count = std::min(elems - done, kTileElems);
        bytes.resize(count * elem_bytes);
        read_flat(dataset, shape, done, count, type.get(), elem_bytes, bytes.data());
        digest.add(bytes);
        done += count;
    }
    return digest.digest();
}

// Names of the links in the file's root, in creation order.
std::vector<std::string> names_in(const h5::File& file) {
    H5G_info_t root{};
    h5::check(H5Gget_info(file.get(), &root), "list a file");
    std::vector<std::string> names;
    for (hsize_t i = 0; i < root.nlinks; ++i) {
        const auto name_of = [&](char* name, std::size_t bytes) {
            return h5::check(H5Lget_name_by_idx(file.get(), "/", H5_INDEX_CRT_ORDER, H5_ITER_INC, i,
                                                name, bytes, H5P_DEFAULT),
                             "list a file");
        };
        std::string name(static_cast<std::size_t>(name_of(nullptr, 0)), '\0');
        name_of(name.data(), name.size() + 1);
        names.push_back(name);
    }
    return names;
}

void inspect_datasets(const std::string& path, const h5::File& file, std::ostream& out) {
    Description about;
    about.step = h5::read_number<std::int64_t>(file.get(), "step");
    about.parameters = h5::read_number<std::uint64_t>(file.get(), "parameters");
    about.config = h5::read_text(file.get(), "config");
    about.model = h5::read_text(file.get(), "model");
    about.commit = h5::read_text(file.get(), "commit");
    about.site = h5::read_text(file.get(), "site");
    out << "export " << path << "\n"
        << "step " << about.step << "\n";
    print_origin(out, about);
    out << "tensors (name, shape, elements):\n";
    const std::vector<std::string> names = names_in(file);
    for (const std::string& name : names) {
        const h5::Dataset dataset = h5::open_dataset(file.get(), name);
        const std::vector<hsize_t> extent = h5::extent_of(dataset);
        const std::vector<std::int64_t> shape(extent.begin(), extent.end());
        if (!elems_within(shape, std::min(about.parameters, h5::stored_elems_of(dataset, 1)))) {
            report_damage(path, text("dataset ", name, " is larger than what it says of itself"));
        }
        if (digest_of(dataset, shape) != h5::read_number<std::uint64_t>(dataset.get(), "xxh3")) {
            report_damage(path, text("the checksum of ", name, " does not match"));
        }
        print_tensor(out, name, shape);
    }
    out << "checksums: the file and its " << names.size() << " datasets are as they were written\n";
}

void inspect_export(const std::string& path, std::ostream& out) {
    verify_seal(path, kExportFormat);
    report_damage_in(path, [&] { inspect_datasets(path, h5::open_file(path), out); });
}

}  // namespace

void inspect(const std::string& path, std::ostream& out) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(path, error)) {
        throw ConfigError(text("There is no file ", path,
                               " to inspect. Name a checkpoint's index or an export."));
    }
    if (has_format(path, kIndexFormat)) {
        inspect_checkpoint(path, out);
    } else if (has_format(path, kExportFormat)) {
        inspect_export(path, out);
    } else {
        throw ConfigError(text("The file ", path,
                               " is neither a checkpoint's index nor an export. Name a file like ",
                               "step-00000020.h5, or one that nearstep export wrote."));
    }
}

}  // namespace nearstep::checkpoint
