// Prints and verifies a checkpoint or an export. Used by the command inspect.
#include "base/error.hpp"
#include "base/units.hpp"
#include "checkpoint/export.hpp"
#include "checkpoint/exported_file.hpp"
#include "checkpoint/h5_reader.hpp"
#include "checkpoint/index.hpp"
#include "checkpoint/rank_file.hpp"
#include "checkpoint/seal.hpp"
#include "checkpoint/tensor_extent.hpp"

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
    std::size_t programs = 0;
    for (std::size_t rank = 0; rank < about.programs.size(); ++rank) {
        if (about.programs[rank].bytes > 0) {
            out << (programs++ == 0 ? "what programs keep:\n" : "") << "  "
                << program_file_of(index, rank) << " "
                << human_bytes(static_cast<double>(about.programs[rank].bytes)) << "\n";
        }
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
        for (const int rank : reader->residual_ranks(tile)) {
            reader->read_residual(rank, tile, arrays.first(kTileElems));
        }
    }
    for (std::size_t rank = 0; rank < about.programs.size(); ++rank) {
        reader->program(static_cast<int>(rank));
    }
    out << "checksums: the index, " << index.files.size() << " rank files"
        << (programs > 0 ? text(", ", programs, " files of programs") : "") << " and "
        << tiles * kArrays << " tiles are as they were written\n";
}

void print_notes(std::ostream& out, h5::StoredFile& file, const std::string& name) {
    for (const char* note : {"layout", "ties"}) {
        if (file.has_attribute(note, name)) {
            out << "    " << note << ": " << joined(file.texts(file.attribute(note, name))) << "\n";
        }
    }
}

void inspect_datasets(const std::string& path, std::ostream& out) {
    h5::StoredFile file(path);
    Description about;
    about.step = h5::read_number<std::int64_t>(file, "step");
    about.parameters = h5::read_number<std::uint64_t>(file, "parameters");
    about.config = h5::read_text(file, "config");
    about.model = h5::read_text(file, "model");
    about.commit = h5::read_text(file, "commit");
    about.site = h5::read_text(file, "site");
    out << "export " << path << "\n"
        << "step " << about.step << "\n";
    print_origin(out, about);
    out << "tensors (name, shape, elements):\n";
    const std::vector<std::string> names = datasets_of(file);
    for (const std::string& name : names) {
        const h5::Array dataset = file.dataset(name);
        const std::vector<std::int64_t> shape(dataset.extent.begin(), dataset.extent.end());
        if (dataset.kind == h5::Kind::text || !elems_within(shape, file.file().size())) {
            report_damage(path, text("dataset ", name, " is no tensor"));
        }
        if (digest_of(file, dataset) != h5::read_number<std::uint64_t>(file, "xxh3", name)) {
            report_damage(path, text("the checksum of ", name, " does not match"));
        }
        print_tensor(out, name, shape);
        print_notes(out, file, name);
    }
    out << "checksums: the file and its " << names.size() << " datasets are as they were written\n";
}

void inspect_export(const std::string& path, std::ostream& out) {
    report_damage_in(path, [&] {
        if (has_version(path, kExportFormat)) {
            h5::StoredFile file(path);
            verify_seal(path, kExportFormat, elements_of(file));
        } else {
            verify_seal(path, kOldExportFormat);
        }
        inspect_datasets(path, out);
    });
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
