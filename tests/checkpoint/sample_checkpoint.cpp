// Writes a small checkpoint of four ranks. Used by the tests in this folder.
#include "checkpoint/sample_checkpoint.hpp"

#include "base/random.hpp"
#include "support/places.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

namespace nearstep::checkpoint {

std::vector<std::vector<shard::TileRange>> sample_ranges() {
    return {{{0, 2}, {4, 5}}, {{2, 3}}, {{3, 4}, {5, 7}}, {}};
}

std::vector<float> sample_values(std::uint64_t seed, std::uint64_t array) {
    std::vector<float> values(kTiles * shard::kTileElems);
    for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<float>(random_uniform(seed, array, i)) - 0.5F;
    }
    const std::uint32_t bits = 0x7FC01234U;
    std::memcpy(&values[100], &bits, sizeof bits);
    return values;
}

std::vector<TensorPlace> sample_tensors() {
    return {{.name = "wte.weight", .shape = {301, 333}, .offset = 0},
            {.name = "h.0.attn.bias", .shape = {17}, .offset = 100233},
            {.name = "h.0.attn.c_attn.weight", .shape = {3, 211, 257}, .offset = 100250},
            {.name = "h.0.scale", .shape = {}, .offset = 262931},
            {.name = "ln_f.weight", .shape = {65536}, .offset = 4 * shard::kTileElems + 1000},
            {.name = "ln_f.bias", .shape = {2, 10}, .offset = kParameters - 20}};
}

Description sample_description(std::int64_t step) {
    Description about;
    about.step = step;
    about.generation = step - 1;
    about.loss_scale = 4096.5;
    about.good_steps = 19;
    about.norm = 1.0 / 7;
    about.missed = step > 2 ? store::MissedUpdates{0, 2, 2, 1} : store::MissedUpdates{};
    about.run = "fedcba9876543210";
    about.parents = {{.run = "0123456789abcdef", .step = 3}};
    about.seed = 0xFFFFFFFFFFFFFFF1U;
    about.data = "00112233445566aa";
    about.dtype = "fp16";
    about.threads = "3";
    about.config = "[train]\nsteps = 40  # \"quoted\", ü\n";
    about.model = "gpt2 layers=2 width=64";
    about.commit = "0123abcd+";
    about.parameters = kParameters;
    about.tensors = sample_tensors();
    return about;
}

std::vector<RankFileRecord> write_rank_files(const std::string& folder, std::int64_t step,
                                             int attempt, std::uint64_t seed) {
    const std::vector<std::vector<float>> arrays = {sample_values(seed, 0), sample_values(seed, 1),
                                                    sample_values(seed, 2)};
    std::vector<RankFileRecord> records;
    const auto ranges = sample_ranges();
    for (std::size_t rank = 0; rank < ranges.size(); ++rank) {
        auto writer =
            RankFileWriter::make(folder, step, attempt, static_cast<int>(rank), ranges[rank]);
        std::vector<shard::TileRange> backwards = ranges[rank];
        std::reverse(backwards.begin(), backwards.end());
        for (const shard::TileRange& range : backwards) {
            const auto part = [&](std::size_t array) {
                return std::span(arrays[array])
                    .subspan(range.begin * shard::kTileElems, range.size() * shard::kTileElems);
            };
            writer->write(range, {.master = part(0), .moment1 = part(1), .moment2 = part(2)});
        }
        records.push_back(writer->finish());
    }
    return records;
}

std::string write_checkpoint(const std::string& folder, std::int64_t step, std::uint64_t seed) {
    const int attempt = next_attempt(folder, step);
    const std::vector<RankFileRecord> records = write_rank_files(folder, step, attempt, seed);
    return publish(folder, sample_description(step), attempt, sample_ranges(), records);
}

State read_tiles(Reader& reader, shard::TileRange tiles) {
    const std::vector<float> zeros(tiles.size() * shard::kTileElems);
    State state{.master = zeros, .moment1 = zeros, .moment2 = zeros};
    reader.read(tiles,
                {.master = state.master, .moment1 = state.moment1, .moment2 = state.moment2});
    return state;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

void expect_values(Reader& reader, shard::TileRange tiles, std::uint64_t seed) {
    const State state = read_tiles(reader, tiles);
    const auto part = [&](const std::vector<float>& all) {
        return std::span(all).subspan(tiles.begin * shard::kTileElems,
                                      tiles.size() * shard::kTileElems);
    };
    EXPECT_TRUE(same_bits(state.master, part(sample_values(seed, 0)))) << "tile " << tiles.begin;
    EXPECT_TRUE(same_bits(state.moment1, part(sample_values(seed, 1)))) << "tile " << tiles.begin;
    EXPECT_TRUE(same_bits(state.moment2, part(sample_values(seed, 2)))) << "tile " << tiles.begin;
}

int run_python(const std::string& words) {
    return std::system((std::string(test::kPython) + " " + words).c_str());
}

bool has_h5py() { return run_python("-c 'import h5py, numpy' 2>/dev/null") == 0; }

std::vector<std::string> InFolder::files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
        names.push_back(entry.path().filename().string());
    }
    return names;
}

void export_alone(const std::string& index, const std::string& out, const ExportSettings& settings,
                  const ModelTexts& texts) {
    const auto alone = mpi::Communicator::alone(std::chrono::seconds(60));
    export_checkpoint(alone, index, out, settings, [&](const Description&) { return texts; });
}

void export_folder_alone(const std::string& index, const std::string& folder,
                         std::size_t shard_bytes) {
    const auto alone = mpi::Communicator::alone(std::chrono::seconds(60));
    export_safetensors(alone, index, folder, Dtype::fp32, shard_bytes,
                       [](const Description&) { return ModelTexts(); });
}

}  // namespace nearstep::checkpoint
