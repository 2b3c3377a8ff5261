// Writes a checkpoint's masters as one HDF5 file. Used by the command export.
#include "checkpoint/export.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/output_file.hpp"
#include "checkpoint/checkpoint_files.hpp"
#include "checkpoint/masters.hpp"
#include "checkpoint/seal.hpp"
#include "checkpoint/slab.hpp"
#include "store/storage_folder.hpp"

#include <filesystem>
#include <ostream>
#include <system_error>
#include <utility>

namespace nearstep::checkpoint {

namespace {

namespace fs = std::filesystem;

void check_place(const std::string& index_path, const std::string& out_path) {
    const std::string name = fs::path(out_path).filename().string();
    std::error_code ignored;
    if (name.empty() || fs::is_directory(out_path, ignored)) {
        throw ConfigError(
            text("Cannot export to ", out_path, ": it is a folder. Name a file in it."));
    }
    if (!fs::is_directory(store::folder_of(out_path), ignored)) {
        throw ConfigError(text("Cannot export to ", out_path, ": there is no folder ",
                               store::folder_of(out_path), ". Make it first, or name another."));
    }
    if (parse_name(name) || fs::equivalent(index_path, out_path, ignored)) {
        throw ConfigError(
            text("Cannot export to ", out_path, ": ", name,
                 " is how a file of a checkpoint is named. Choose another name, like model.h5."));
    }
}

void write_tensor(const h5::File& file, const TensorPlace& tensor, Masters& masters, Dtype dtype) {
    const h5::Datatype type = dtype == Dtype::fp16
                                  ? h5::make_fp16()
                                  : h5::Datatype(h5::check(H5Tcopy(H5T_IEEE_F32LE), "copy a type"));
    const std::vector<hsize_t> extent(tensor.shape.begin(), tensor.shape.end());
    h5::Dataset dataset = h5::make_dataset(file.get(), tensor.name, type.get(), extent);
    Xxh3Stream digest;
    masters.convert(tensor, dtype, [&](std::size_t done, std::span<const std::byte> values) {
        write_flat(dataset, tensor.shape, done, values.size() / size_bytes(dtype), type.get(),
                   size_bytes(dtype), values.data());
        digest.add(values);
    });
    h5::write_number(dataset.get(), "xxh3", digest.digest());
    h5::finish(std::move(dataset), H5Dclose, text("write ", tensor.name));
}

void write_export(const std::string& path, Reader& reader, Dtype dtype) {
    const Description& about = reader.description();
    h5::File file = h5::create_file(path, kSealBytes, 0666);
    h5::write_text(file.get(), "format", kExportFormat.name);
    h5::write_number<std::int64_t>(file.get(), "format_version", kExportFormat.version);
    h5::write_number(file.get(), "step", about.step);
    h5::write_number<std::uint64_t>(file.get(), "parameters", about.parameters);
    h5::write_text(file.get(), "config", about.config);
    h5::write_text(file.get(), "model", about.model);
    h5::write_text(file.get(), "commit", about.commit);
    h5::write_text(file.get(), "site", about.site);

    Masters masters(reader);
    for (const TensorPlace& tensor : in_order(about.tensors)) {
        write_tensor(file, tensor, masters, dtype);
    }
    h5::close_file(std::move(file), path);
    seal_file(path, kExportFormat);
}

void read_back(const std::string& path) {
    drop_cached(path);
    try {
        std::ostream nowhere(nullptr);
        inspect(path, nowhere);
    } catch (const ConfigError& fault) {
        refuse_read_back(path, fault.what());
    }
}

}  // namespace

void export_checkpoint(const std::string& index_path, const std::string& out_path, Dtype dtype) {
    if (dtype == Dtype::bf16) {
        throw ConfigError("Cannot export in bf16: HDF5 has no such type. Choose f32 or f16.");
    }
    const std::unique_ptr<Reader> reader = Reader::open(index_path);
    check_place(index_path, out_path);
    PartialFile file(regular_output(out_path, "An export"));
    report_unwritten(out_path, reader->description().parameters * size_bytes(dtype),
                     [&] { write_export(file.partial_path(), *reader, dtype); });
    sync_file(file.partial_path());
    read_back(file.partial_path());
    file.commit();
}

}  // namespace nearstep::checkpoint
