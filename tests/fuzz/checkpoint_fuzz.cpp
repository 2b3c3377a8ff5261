// A checkpoint's index and rank files. Anybody may have written them, with a right seal.
#include "base/error.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/export.hpp"
#include "checkpoint/exported_file.hpp"
#include "checkpoint/h5.hpp"
#include "checkpoint/seal.hpp"
#include "fuzz.hpp"
#include "h5_edits.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

namespace nearstep::fuzz {

namespace {

namespace fs = std::filesystem;
using shard::kTileElems;

constexpr std::size_t kTiles = 3;
constexpr std::size_t kChangedRank = 1;

const std::vector<std::string> kInIndex = {"tensors/name",
                                           "tensors/offset",
                                           "tensors/dimensions",
                                           "tensors/shape",
                                           "ranks/file",
                                           "ranks/file_bytes",
                                           "ranks/tiles_xxh3",
                                           "ranges",
                                           "@parameters",
                                           "@step",
                                           "@generation",
                                           "@loss_scale",
                                           "@good_steps",
                                           "@norm",
                                           "@missed",
                                           "@seed",
                                           "@run",
                                           "@config",
                                           "@format_version"};
const std::vector<std::string> kInExport = {"a", "b", "@parameters", "@step", "@config", "@model"};
const std::vector<std::string> kInRankFile = {"tiles",          "tile_xxh3",    "master",
                                              "moment1",        "moment2",      "residual",
                                              "residual_tiles", "residual_xxh3"};

// A checkpoint of two ranks, as bytes; the second rank has a residual.
struct Sample {
    std::vector<std::pair<std::string, std::string>> files = {};  // names and bytes, the index last
};

std::string bytes_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

Sample make_sample() {
    const std::string folder = scratch_folder() + "/sample";
    const std::vector<std::vector<shard::TileRange>> ranges = {{{0, 1}, {2, 3}}, {{1, 2}}};
    const std::vector<float> values(2 * kTileElems, 0.5F);
    std::vector<checkpoint::RankFileRecord> records;
    for (std::size_t rank = 0; rank < ranges.size(); ++rank) {
        const std::vector<std::size_t> residuals(rank, 1);
        const auto writer = checkpoint::RankFileWriter::make(folder, 20, 0, static_cast<int>(rank),
                                                             ranges[rank], residuals);
        for (const shard::TileRange& range : ranges[rank]) {
            const auto part = std::span(values).first(range.size() * kTileElems);
            writer->write(range, {.master = part, .moment1 = part, .moment2 = part});
        }
        for (const std::size_t tile : residuals) {
            writer->write_residual(tile, std::span(values).first(kTileElems));
        }
        records.push_back(writer->finish());
    }
    checkpoint::Description about;
    about.step = 20;
    about.generation = 19;
    about.run = "fedcba9876543210";
    about.missed = {0, 2};
    about.config = "[train]\nsteps = 40\n";
    about.model = "gpt layers=2";
    about.parameters = (kTiles - 1) * kTileElems + 17;
    about.tensors = {{.name = "a", .shape = {301, 33}, .offset = 0},
                     {.name = "b", .shape = {17}, .offset = 100'000}};
    const std::string index = checkpoint::publish(folder, about, 0, ranges, records);
    Sample sample;
    for (const auto& entry : fs::directory_iterator(folder)) {
        sample.files.emplace_back(entry.path().filename().string(),
                                  bytes_of(entry.path().string()));
    }
    std::sort(sample.files.begin(), sample.files.end());
    std::stable_partition(sample.files.begin(), sample.files.end(), [&](const auto& file) {
        return file.first != fs::path(index).filename();
    });
    return sample;
}

const Sample& sample() {
    static const Sample made = make_sample();
    return made;
}

// Keeps the changed rank file from being refused for its size.
void record_size(const std::string& index, std::uint64_t bytes) {
    {
        const h5::File file(H5Fopen(index.c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
        const h5::Dataset sizes(H5Dopen2(file.get(), "ranks/file_bytes", H5P_DEFAULT));
        h5::write_part(sizes, {.start = {kChangedRank}, .count = {1}}, H5T_NATIVE_UINT64, &bytes);
    }
    checkpoint::seal_file(index, checkpoint::kIndexFormat);
}

void use(const std::string& index) {
    const auto reader = checkpoint::Reader::open(index);
    std::vector<float> state(4 * kTileElems);
    const auto part = [&](std::size_t i) {
        return std::span(state).subspan(i * kTileElems, kTileElems);
    };
    const std::size_t tiles =
        std::min(shard::tiles_of(reader->description().parameters), kTiles + 1);
    for (std::size_t tile = 0; tile < tiles; ++tile) {
        // All arrays of one tile are enough, and faster.
        const bool is_whole = tile == kChangedRank;
        const std::span<float> none;
        reader->read({.begin = tile, .end = tile + 1}, {.master = part(0),
                                                        .moment1 = is_whole ? part(1) : none,
                                                        .moment2 = is_whole ? part(2) : none});
        for (const int rank : reader->residual_ranks(tile)) {
            reader->read_residual(rank, tile, part(3));
        }
    }
    for (const checkpoint::TensorPlace& tensor : reader->description().tensors) {
        std::size_t elems = 1;
        for (const std::int64_t dimension : tensor.shape) {
            require(dimension > 0, "tensors have elements");
            elems *= static_cast<std::size_t>(dimension);
        }
        require(tensor.offset + elems <= reader->description().parameters,
                "tensors lie in the parameter vector");
    }
}

// Reads an export as `nearstep inspect` does.
void read_export(Input& input) {
    static const std::string whole = [] {
        const std::string path = scratch_folder() + "/whole.h5";
        static_cast<void>(sample());
        checkpoint::export_checkpoint(mpi::Communicator::alone(std::chrono::seconds(60)),
                                      scratch_folder() + "/sample/step-00000020.h5", path, {},
                                      [](const auto&) { return checkpoint::ModelTexts(); });
        return bytes_of(path);
    }();
    const std::string path = scratch_folder() + "/export.h5";
    write_file(path, whole);
    if (input.flag()) {
        std::string edited = whole;
        edit(input, std::as_writable_bytes(std::span(edited)));
        write_file(path, edited);
    } else {
        edit_h5(input, path, kInExport);
    }
    // A file without its elements' places is refused before its seal is looked at.
    try {
        h5::StoredFile file(path);
        checkpoint::seal_file(path, checkpoint::kExportFormat, checkpoint::elements_of(file));
    } catch (const Error&) {
        checkpoint::seal_file(path, checkpoint::kExportFormat);
    }
    std::ostringstream out;
    checkpoint::inspect(path, out);
}

enum class Kind : std::uint8_t {
    index_objects,
    rank_objects,
    index_bytes,
    rank_bytes,
    export_objects
};

}  // namespace

std::vector<std::string> seeds() {
    std::vector<std::string> all;
    const auto begin = [](Kind kind) { return Output().number(static_cast<std::uint8_t>(kind)); };
    for (std::uint8_t name = 0; name < kInIndex.size(); ++name) {
        all.push_back(begin(Kind::index_objects)
                          .number(name)
                          .rest(std::string("\1\0\0\1\x10\x20\0\3\1\2\3", 11)));
        all.push_back(begin(Kind::index_objects)
                          .number(name)
                          .rest(std::string("\0\x09\1\2\3\4\5\6\7\7\7", 11)));
    }
    for (std::uint8_t name = 0; name < kInRankFile.size(); ++name) {
        all.push_back(begin(Kind::rank_objects)
                          .number(name)
                          .rest(std::string("\1\0\0\1\x10\x20\0\3\1\2\3", 11)));
    }
    for (std::uint8_t name = 0; name < kInExport.size(); ++name) {
        all.push_back(begin(Kind::export_objects)
                          .number(std::uint8_t{0})
                          .number(name)
                          .rest(std::string("\1\0\2\2\x10\x20\x8\x1F\3\1\2\3", 12)));
    }
    for (std::uint32_t at = 512; at < 12'000; at += 250) {
        all.push_back(begin(Kind::index_bytes)
                          .number(std::uint8_t{1})
                          .number(at)
                          .number(std::uint8_t{1})
                          .rest("x"));
    }
    all.push_back(
        begin(Kind::rank_bytes).number(std::uint32_t{60}).number(std::uint8_t{1}).rest("x"));
    return all;
}

void read(Bytes bytes) {
    static bool is_rank_file_whole = false;
    Input input(bytes);
    const auto kind = static_cast<Kind>(input.choice(5));
    if (kind == Kind::export_objects) {
        return read_export(input);
    }
    const std::string folder = scratch_folder() + "/now";
    fs::create_directories(folder);
    if (!is_rank_file_whole) {
        for (const auto& [name, content] : sample().files) {
            write_file(folder + "/" + name, content);
        }
        is_rank_file_whole = true;
    }
    const std::string index = folder + "/" + sample().files.back().first;
    const auto& [changed_name, changed] = sample().files.at(kChangedRank);
    const std::string rank_file = folder + "/" + changed_name;
    std::string content = sample().files.back().second;
    if (kind == Kind::index_bytes) {
        const bool is_sealed = input.flag();
        edit(input, std::as_writable_bytes(std::span(content)));
        if (is_sealed) {
            checkpoint::seal(std::as_writable_bytes(std::span(content)), checkpoint::kIndexFormat);
        }
    }
    write_file(index, content);
    if (kind == Kind::index_objects) {
        edit_h5(input, index, kInIndex);
        checkpoint::seal_file(index, checkpoint::kIndexFormat);
    } else if (kind == Kind::rank_objects) {
        is_rank_file_whole = false;
        edit_h5(input, rank_file, kInRankFile);
        record_size(index, fs::file_size(rank_file));
    } else if (kind == Kind::rank_bytes) {
        is_rank_file_whole = false;
        std::string edited = changed;
        edit(input, std::as_writable_bytes(std::span(edited)));
        write_file(rank_file, edited);
    }
    use(index);
}

}  // namespace nearstep::fuzz

// Ignores memory that HDF5 keeps after a failure.
extern "C" const char* __lsan_default_suppressions() { return "leak:^H5\n"; }
