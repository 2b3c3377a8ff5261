// Feeds recorded gradients to the engine: recorded_gradients FILE FOLDER CODEC STEPS. FILE has fp32
// numbers: the start values, then the gradients of each step, rank by rank. Prints the digest of
// the masters. recorded_worker.py does the same from Python.
#include "base/error.hpp"
#include "mpi/session.hpp"
#include "nearstep/run.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

using namespace nearstep;

namespace {

constexpr std::size_t kRows = 300;
constexpr std::size_t kColumns = 257;
constexpr std::size_t kElems = kRows * kColumns + kRows;

std::vector<float> read_floats(std::ifstream& file) {
    std::vector<float> values(kElems);
    file.read(reinterpret_cast<char*>(values.data()), kElems * sizeof(float));
    if (!file) {
        throw ConfigError("The file of gradients is too short.");
    }
    return values;
}

engine::Layout weight_and_bias() {
    return {.tensors = {{.name = "weight", .shape = {kRows, kColumns}, .offset = 0, .group = 0},
                        {.name = "bias", .shape = {kRows}, .offset = kRows * kColumns, .group = 1}},
            .blocks = {{0, kElems}},
            .elems = kElems,
            .dtype = Dtype::fp32};
}

}  // namespace

int main(int /*argc*/, char** argv) {
    const mpi::Session session;
    const auto world = mpi::Communicator::world(std::chrono::seconds(60));
    std::ifstream file(argv[1], std::ios::binary);
    const std::vector<float> start = read_floats(file);
    config::EngineSettings settings;
    settings.compress.codec = parse_word<config::PayloadCodec>("codec", argv[3]);
    settings.mode = settings.compress.codec == config::PayloadCodec::dense ? config::Mode::su_o
                                                                           : config::Mode::su_o_c;
    settings.csd.path = {argv[2]};
    auto run = engine::Run::open(world, settings, weight_and_bias(),
                                 {.kind = engine::StartRequest::Kind::fresh},
                                 {.model = "recorded", .seed = 1}, {});
    engine::Run* const engine = &run;
    run.begin([&](std::size_t first, std::span<float> masters) {
        std::copy_n(start.begin() + static_cast<std::ptrdiff_t>(first), masters.size(),
                    masters.begin());
    });
    for (int step = 0; step < std::stoi(argv[4]); ++step) {
        engine->begin_forward();
        const shard::ElementRange all{0, kElems};
        engine->await_parameters(0, {&all, 1}, {});
        engine->end_pass();
        if (engine->is_under_way()) {
            engine->finish();
            engine->commit();
        }
        engine->begin_backward(
            {.groups = {{.rate = 1e-2, .decay = 0.1}, {.rate = 1e-2}}, .clip_norm = 1});
        for (int rank = 0; rank < world.size(); ++rank) {
            std::vector<float> gradient = read_floats(file);
            if (rank == world.rank()) {
                std::ranges::transform(
                    gradient, engine->gradient_space(0).begin(),
                    [&](float value) { return value / static_cast<float>(world.size()); });
            }
        }
        engine->put_gradient(0);
        engine->end_gradients();
        engine->update();
    }
    engine->finish();
    engine->commit();
    if (const std::uint64_t digest = engine->masters_digest(); world.rank() == 0) {
        std::printf("%llu\n", static_cast<unsigned long long>(digest));
    }
}
