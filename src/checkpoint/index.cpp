// Reads and writes the index of a checkpoint. Used by checkpoint.cpp, owner.cpp and inspect.cpp.
#include "checkpoint/index.hpp"

#include "base/descriptor.hpp"
#include "base/error.hpp"
#include "base/folder_tree.hpp"
#include "base/plain_file.hpp"
#include "checkpoint/checkpoint_files.hpp"
#include "checkpoint/h5.hpp"
#include "checkpoint/h5_reader.hpp"
#include "checkpoint/rank_file.hpp"
#include "checkpoint/seal.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

namespace nearstep::checkpoint {

namespace {

using shard::kTileElems;
using shard::TileRange;

// Writes virtual datasets that map the rows of the rank files in tile order.
void write_views(const h5::File& file, const Index& index) {
    const h5::Group state = h5::make_group(file.get(), "state");
    const std::size_t tiles = shard::tiles_of(index.description.parameters);
    const h5::Space whole = h5::make_space(std::vector<hsize_t>{tiles, kTileElems});
    for (const std::string name : {"master", "moment1", "moment2"}) {
        const h5::Properties creation = h5::make_properties(H5P_DATASET_CREATE);
        // Missing rows read as NaN.
        const float nan = std::numeric_limits<float>::quiet_NaN();
        h5::check(H5Pset_fill_value(creation.get(), H5T_NATIVE_FLOAT, &nan), "set a fill value");
        for (std::size_t rank = 0; rank < index.files.size(); ++rank) {
            std::size_t rows = 0;
            for (const TileRange& range : index.ranges[rank]) {
                rows += range.size();
            }
            const h5::Space source = h5::make_space(std::vector<hsize_t>{rows, kTileElems});
            std::size_t row = 0;
            for (const TileRange& range : index.ranges[rank]) {
                const std::vector<hsize_t> from = {row, 0};
                const std::vector<hsize_t> to = {range.begin, 0};
                const std::vector<hsize_t> count = {range.size(), kTileElems};
                h5::check(H5Sselect_hyperslab(source.get(), H5S_SELECT_SET, from.data(), nullptr,
                                              count.data(), nullptr),
                          "select rows");
                h5::check(H5Sselect_hyperslab(whole.get(), H5S_SELECT_SET, to.data(), nullptr,
                                              count.data(), nullptr),
                          "select rows");
                h5::check(H5Pset_virtual(creation.get(), whole.get(), index.files[rank].c_str(),
                                         ("/" + name).c_str(), source.get()),
                          "map rows");
                row += range.size();
            }
        }
        const h5::Dataset view(
            h5::check(H5Dcreate2(state.get(), name.c_str(), H5T_IEEE_F32LE, whole.get(),
                                 H5P_DEFAULT, creation.get(), H5P_DEFAULT),
                      "create a virtual dataset"));
    }
}

void write_text_if_any(const h5::File& file, const char* name, const std::string& value) {
    if (!value.empty()) {
        h5::write_text(file.get(), name, value);
    }
}

// Empty for an older index, which lacks it.
std::string read_text_if_any(h5::StoredFile& file, const char* name) {
    return file.has_attribute(name) ? h5::read_text(file, name) : "";
}

void write_description(const h5::File& file, const Description& about) {
    h5::write_text(file.get(), "format", kIndexFormat.name);
    h5::write_number<std::int64_t>(file.get(), "format_version", kIndexFormat.version);
    h5::write_number(file.get(), "step", about.step);
    h5::write_number(file.get(), "generation", about.generation);
    h5::write_number(file.get(), "loss_scale", about.loss_scale);
    h5::write_number(file.get(), "good_steps", about.good_steps);
    if (about.norm > 0) {
        h5::write_number(file.get(), "norm", about.norm);
    }
    write_text_if_any(file, "missed", store::print_missed(about.missed));
    h5::write_number(file.get(), "seed", about.seed);
    h5::write_number<std::uint64_t>(file.get(), "parameters", about.parameters);
    h5::write_text(file.get(), "run", about.run);
    write_text_if_any(file, "parents", store::print_parents(about.parents));
    write_text_if_any(file, "data", about.data);
    write_text_if_any(file, "dtype", about.dtype);
    write_text_if_any(file, "threads", about.threads);
    h5::write_text(file.get(), "config", about.config);
    h5::write_text(file.get(), "model", about.model);
    h5::write_text(file.get(), "commit", about.commit);
    h5::write_text(file.get(), "site", about.site);

    std::vector<std::string> names;
    std::vector<std::uint64_t> offsets;
    std::vector<std::int64_t> dimensions;
    std::size_t width = 1;
    for (const TensorPlace& tensor : about.tensors) {
        names.push_back(tensor.name);
        offsets.push_back(tensor.offset);
        dimensions.push_back(static_cast<std::int64_t>(tensor.shape.size()));
        width = std::max(width, tensor.shape.size());
    }
    std::vector<std::int64_t> shapes(names.size() * width);  // a row per tensor, padded with 0
    for (std::size_t i = 0; i < names.size(); ++i) {
        const std::vector<std::int64_t>& shape = about.tensors[i].shape;
        std::ranges::copy(shape, shapes.data() + i * width);
    }
    const h5::Group table = h5::make_group(file.get(), "tensors");
    const std::vector<hsize_t> rows = {names.size()};
    h5::write_strings(table.get(), "name", names);
    h5::write_numbers<std::uint64_t>(table.get(), "offset", rows, offsets);
    h5::write_numbers<std::int64_t>(table.get(), "dimensions", rows, dimensions);
    h5::write_numbers<std::int64_t>(table.get(), "shape", std::vector<hsize_t>{names.size(), width},
                                    shapes);
}

Description read_description(h5::StoredFile& file) {
    Description about;
    about.step = h5::read_number<std::int64_t>(file, "step");
    about.generation = h5::read_number<std::int64_t>(file, "generation");
    about.loss_scale = h5::read_number<double>(file, "loss_scale");
    about.good_steps = h5::read_number<std::int64_t>(file, "good_steps");
    if (file.has_attribute("norm")) {
        about.norm = h5::read_number<double>(file, "norm");
    }
    const auto missed = store::parse_missed(read_text_if_any(file, "missed"));
    if (!missed) {
        throw Hdf5Error("The attribute missed does not list tensors with numbers of updates.");
    }
    about.missed = *missed;
    about.seed = h5::read_number<std::uint64_t>(file, "seed");
    about.parameters = h5::read_number<std::uint64_t>(file, "parameters");
    about.run = h5::read_text(file, "run");
    const auto parents = store::parse_parents(read_text_if_any(file, "parents"));
    if (!parents) {
        throw Hdf5Error("The attribute parents is not a list of runs with steps.");
    }
    about.parents = *parents;
    about.data = read_text_if_any(file, "data");
    about.dtype = read_text_if_any(file, "dtype");
    about.threads = read_text_if_any(file, "threads");
    about.config = h5::read_text(file, "config");
    about.model = h5::read_text(file, "model");
    about.commit = h5::read_text(file, "commit");
    about.site = h5::read_text(file, "site");

    const auto names = h5::read_strings(file, "tensors/name");
    const auto offsets = h5::read_numbers<std::uint64_t>(file, "tensors/offset");
    const auto dimensions = h5::read_numbers<std::int64_t>(file, "tensors/dimensions");
    const auto shapes = h5::read_numbers<std::int64_t>(file, "tensors/shape");
    const std::size_t width = names.empty() ? 0 : shapes.size() / names.size();
    if (offsets.size() != names.size() || dimensions.size() != names.size() ||
        std::ranges::any_of(dimensions, [&](std::int64_t count) {
            return count < 0 || static_cast<std::uint64_t>(count) > width;
        })) {
        throw Hdf5Error("The table of tensors has columns of different lengths.");
    }
    for (std::size_t i = 0; i < names.size(); ++i) {
        const std::int64_t* shape = shapes.data() + i * width;
        about.tensors.push_back(
            {.name = names[i], .shape = {shape, shape + dimensions[i]}, .offset = offsets[i]});
    }
    return about;
}

void write_programs(const h5::File& file, const std::vector<store::ProgramRecord>& programs) {
    std::vector<std::uint64_t> bytes;
    std::vector<std::uint64_t> digests;
    for (const store::ProgramRecord& program : programs) {
        bytes.push_back(program.bytes);
        digests.push_back(program.xxh3);
    }
    h5::write_number<std::uint64_t>(file.get(), "programs", programs.size());
    const h5::Group table = h5::make_group(file.get(), "program");
    const std::vector<hsize_t> rows = {programs.size()};
    h5::write_numbers<std::uint64_t>(table.get(), "bytes", rows, bytes);
    h5::write_numbers<std::uint64_t>(table.get(), "xxh3", rows, digests);
}

// Empty for an index of version 0.2.0, or of a client that keeps nothing.
std::vector<store::ProgramRecord> read_programs(h5::StoredFile& file, std::int64_t step) {
    if (!file.has_attribute("programs")) {
        return {};
    }
    const auto bytes = h5::read_numbers<std::uint64_t>(file, "program/bytes");
    const auto digests = h5::read_numbers<std::uint64_t>(file, "program/xxh3");
    if (bytes.size() != digests.size() ||
        bytes.size() != h5::read_number<std::uint64_t>(file, "programs")) {
        throw Hdf5Error("The table of what programs kept has columns of different lengths.");
    }
    std::vector<store::ProgramRecord> programs;
    for (std::size_t rank = 0; rank < bytes.size(); ++rank) {
        programs.push_back({.step = step, .bytes = bytes[rank], .xxh3 = digests[rank]});
    }
    return programs;
}

void write_ranks(const h5::File& file, const Index& index) {
    std::vector<std::uint64_t> bytes;
    std::vector<std::uint64_t> digests;
    std::vector<std::uint64_t> ranges;  // rank, begin, end
    for (std::size_t rank = 0; rank < index.files.size(); ++rank) {
        bytes.push_back(index.records[rank].file_bytes);
        digests.push_back(index.records[rank].tiles_xxh3);
        for (const TileRange& range : index.ranges[rank]) {
            ranges.insert(ranges.end(), {rank, range.begin, range.end});
        }
    }
    const h5::Group table = h5::make_group(file.get(), "ranks");
    const std::vector<hsize_t> rows = {index.files.size()};
    h5::write_strings(table.get(), "file", index.files);
    h5::write_numbers<std::uint64_t>(table.get(), "file_bytes", rows, bytes);
    h5::write_numbers<std::uint64_t>(table.get(), "tiles_xxh3", rows, digests);
    h5::write_numbers<std::uint64_t>(file.get(), "ranges",
                                     std::vector<hsize_t>{ranges.size() / 3, 3}, ranges);
}

void read_ranks(h5::StoredFile& file, Index& index) {
    index.files = h5::read_strings(file, "ranks/file");
    const auto bytes = h5::read_numbers<std::uint64_t>(file, "ranks/file_bytes");
    const auto digests = h5::read_numbers<std::uint64_t>(file, "ranks/tiles_xxh3");
    if (bytes.size() != index.files.size() || digests.size() != index.files.size()) {
        throw Hdf5Error("The table of rank files has columns of different lengths.");
    }
    for (std::size_t rank = 0; rank < index.files.size(); ++rank) {
        index.records.push_back({.file_bytes = bytes[rank], .tiles_xxh3 = digests[rank]});
    }
    index.ranges.resize(index.files.size());
    const auto ranges = h5::read_numbers<std::uint64_t>(file, "ranges");
    for (std::size_t i = 0; i + 2 < ranges.size(); i += 3) {
        if (ranges[i] >= index.files.size()) {
            throw Hdf5Error(text("Tiles belong to rank ", ranges[i], ", which has no file."));
        }
        index.ranges[ranges[i]].push_back({.begin = ranges[i + 1], .end = ranges[i + 2]});
    }
}

}  // namespace

std::string program_file_of(const Index& index, std::size_t rank) {
    const auto name = parse_name(index.files.at(rank));
    expects(name && name->kind == FileKind::rank_file, "an index names rank files");
    return program_file_name(name->step, name->attempt, static_cast<int>(rank));
}

std::vector<std::byte> write_index(const std::string& path, const Index& index) {
    h5::File file = h5::create_in_memory(kSealBytes);
    write_description(file, index.description);
    write_ranks(file, index);
    if (!index.description.programs.empty()) {
        write_programs(file, index.description.programs);
    }
    write_views(file, index);
    std::vector<std::byte> image = h5::image_of(std::move(file), kSealBytes);
    seal(image, kIndexFormat);
    const Descriptor out(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                                kCheckpointMode));
    if (!out || write_all(out, image) != 0) {
        refuse_write(path, errno, image.size());
    }
    return image;
}

Index read_index(const std::string& path) {
    std::error_code error;
    if (!is_present(path) || !std::filesystem::is_regular_file(path, error)) {
        throw ConfigError(text("There is no checkpoint ", path,
                               ". Name the index of one, a file like step-00000020.h5."));
    }
    if (!has_format(path, kIndexFormat)) {
        throw ConfigError(text("The file ", path,
                               " is not the index of a checkpoint, or cannot be read. Name a file ",
                               "like step-00000020.h5."));
    }
    verify_seal(path, kIndexFormat);
    Index index;
    report_damage_in(path, [&] {
        h5::StoredFile file(path);
        index.description = read_description(file);
        read_ranks(file, index);
        index.description.programs = read_programs(file, index.description.step);
        if (const auto fault = find_fault(index)) {
            throw Hdf5Error(*fault);
        }
    });
    return index;
}

}  // namespace nearstep::checkpoint
