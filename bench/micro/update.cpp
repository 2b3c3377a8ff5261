// Measures how fast engines update state in memory. Used by main.cpp.
#include "base/error.hpp"
#include "base/machine.hpp"
#include "base/random.hpp"
#include "base/units.hpp"
#include "bench/micro/benchmarks.hpp"
#include "csd/optimizer.hpp"
#include "csd/state_format.hpp"
#include "csd/update_engine.hpp"
#include "memory/buffer.hpp"
#include "shard/partition.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

namespace nearstep::bench {

namespace {

using csd::StateFormat;
using csd::UpdateEngine;
using shard::kTileElems;

constexpr std::size_t kSubgroupTiles = 16;
constexpr std::size_t kSubgroupElems = kSubgroupTiles * kTileElems;
constexpr std::size_t kHalfBytes = 2;  // of a bf16 gradient or parameter

arith::UpdateScalars scalars_of(const std::string& optimizer) {
    arith::UpdateScalars scalars;
    scalars.optimizer = parse_word<csd::Optimizer>("optimizer", optimizer);
    scalars.step_size = 1e-4F;
    scalars.decay_factor = 1 - 1e-5F;
    scalars.gradient_decay = 0.1F;
    scalars.random_key = 1;
    return scalars;
}

// Subgroups of 16 tiles, stored as on a device. Threads may update different subgroups at once.
class UpdateWork {
public:
    UpdateWork(StateFormat format, const arith::UpdateScalars& scalars, std::size_t subgroups)
        : format_(format),
          scalars_(scalars),
          subgroups_(subgroups),
          payload_bytes_(csd::state_bytes(format, kSubgroupTiles)),
          state_(subgroups * payload_bytes_),
          gradients_(subgroups * kSubgroupElems * kHalfBytes),
          parameters_(gradients_.size()) {
        fill_first();
        for (std::size_t s = 1; s < subgroups; ++s) {
            std::ranges::copy(payload(0), payload(s).begin());
            std::ranges::copy(halves(gradients_, 0), halves(gradients_, s).begin());
        }
    }

    // Part `part` of `parts` of the subgroups.
    void update(const UpdateEngine& engine, std::size_t part, std::size_t parts) {
        for (std::size_t s = subgroups_ * part / parts; s < subgroups_ * (part + 1) / parts; ++s) {
            update(engine, s, payload(s), halves(parameters_, s));
        }
    }

    // Compares an update of the first and of the last subgroup with the scalar engine's.
    void verify(const UpdateEngine& engine) {
        for (const std::size_t subgroup : {std::size_t{0}, subgroups_ - 1}) {
            std::vector<float> aligned(payload_bytes_ / sizeof(float));
            const std::span<std::byte> state = std::as_writable_bytes(std::span(aligned));
            std::ranges::copy(payload(subgroup), state.begin());
            std::vector<std::uint16_t> values(kSubgroupElems);
            const std::span<std::byte> out = std::as_writable_bytes(std::span(values));
            update(csd::engines().front(), subgroup, state, out);
            update(engine, subgroup, payload(subgroup), halves(parameters_, subgroup));
            if (!std::ranges::equal(payload(subgroup), state) ||
                !std::ranges::equal(halves(parameters_, subgroup), out)) {
                throw Error(text("The engine ", engine.name, " does not give the bits of the ",
                                 "scalar engine in subgroup ", subgroup,
                                 ": do not train on this CPU, and report it."));
            }
        }
    }

    std::size_t elems() const { return subgroups_ * kSubgroupElems; }

    // Bytes moved by an update: state both ways without moments that the optimizer does not use,
    // gradients in, parameters out.
    std::size_t touched_bytes() const {
        const std::size_t moments =
            payload_bytes_ - kSubgroupElems * (format_ == StateFormat::compact ? 2 : 4);
        const bool has_both = uses_moment1(scalars_.optimizer) && uses_moment2(scalars_.optimizer);
        const std::size_t state = payload_bytes_ - (has_both ? 0 : moments / 2);
        return subgroups_ * (2 * state + 2 * kSubgroupElems * kHalfBytes);
    }

private:
    void fill_first() {
        std::vector<float> master(kSubgroupElems);
        std::vector<float> moment1(kSubgroupElems);
        std::vector<float> moment2(kSubgroupElems);
        const std::span<std::uint16_t> gradient = gradients_.as<std::uint16_t>();
        for (std::size_t i = 0; i < kSubgroupElems; ++i) {
            const auto value = [i](std::uint64_t stream) {
                return static_cast<float>(random_uniform(1, stream, i) - 0.5);
            };
            master[i] = 0.1F * value(0);
            moment1[i] = 1e-3F * value(1);
            moment2[i] = 1e-5F * value(2) * value(2);
            gradient[i] = to_bf16(1e-2F * value(3));
        }
        csd::narrow(format_, {master, moment1, moment2}, payload(0));
    }

    void update(const UpdateEngine& engine, std::size_t subgroup, std::span<std::byte> state,
                std::span<std::byte> out) {
        csd::UpdateRun run;
        run.format = format_;
        run.gradient_dtype = Dtype::bf16;
        run.count = kTileElems;
        run.streams = true;  // as in training
        for (std::size_t tile = 0; tile < kSubgroupTiles; ++tile) {
            const std::size_t at = tile * kTileElems * kHalfBytes;
            run.state = csd::state_of_tile(format_, state, kSubgroupTiles, tile);
            run.gradient = halves(gradients_, subgroup).data() + at;
            run.parameters = out.data() + at;
            run.key = arith::tile_key(scalars_.random_key, subgroup * kSubgroupTiles + tile);
            engine.update(scalars_, run);
        }
    }

    std::span<std::byte> payload(std::size_t subgroup) {
        return state_.span().subspan(subgroup * payload_bytes_, payload_bytes_);
    }
    static std::span<std::byte> halves(memory::Buffer& buffer, std::size_t subgroup) {
        constexpr std::size_t kBytes = kSubgroupElems * kHalfBytes;
        return buffer.span().subspan(subgroup * kBytes, kBytes);
    }

    StateFormat format_;
    arith::UpdateScalars scalars_;
    std::size_t subgroups_;
    std::size_t payload_bytes_;
    memory::Buffer state_;
    memory::Buffer gradients_;
    memory::Buffer parameters_;
};

// The first thread makes the data of all; Google Benchmark starts the others' loops afterwards.
template <typename Data>
using Shared = std::shared_ptr<std::unique_ptr<Data>>;

void add_update(const MicroOptions& options, StateFormat format, const std::string& optimizer,
                const UpdateEngine& engine, int threads) {
    const std::size_t subgroups =
        std::max(static_cast<std::size_t>(threads),
                 round_up(options.parameters, kSubgroupElems) / kSubgroupElems);
    const auto shared = Shared<UpdateWork>(new std::unique_ptr<UpdateWork>);
    const std::string name =
        text("update/", csd::name_of(format), "/", optimizer, "/", engine.name);
    benchmark::RegisterBenchmark(
        name.c_str(),
        [=](benchmark::State& state) {
            if (state.thread_index() == 0) {
                *shared = std::make_unique<UpdateWork>(format, scalars_of(optimizer), subgroups);
                (*shared)->verify(engine);
            }
            for (auto _ : state) {
                (*shared)->update(engine, static_cast<std::size_t>(state.thread_index()),
                                  static_cast<std::size_t>(state.threads()));
            }
            if (state.thread_index() == 0) {
                const auto bytes = static_cast<std::int64_t>((*shared)->touched_bytes());
                const auto elems = static_cast<std::int64_t>((*shared)->elems());
                state.SetBytesProcessed(state.iterations() * bytes);
                state.SetItemsProcessed(state.iterations() * elems);
                shared->reset();
            }
        })
        ->Threads(threads)
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
}

// The rate at which the same number of bytes can be read and written.
void add_in_place(const MicroOptions& options, int threads) {
    const auto shared = Shared<memory::Buffer>(new std::unique_ptr<memory::Buffer>);
    const std::size_t bytes = round_up(options.parameters * 12, sizeof(std::uint64_t));
    benchmark::RegisterBenchmark(
        "update/in_place",
        [=](benchmark::State& state) {
            if (state.thread_index() == 0) {
                *shared = std::make_unique<memory::Buffer>(bytes);
            }
            const auto part = static_cast<std::size_t>(state.thread_index());
            const std::size_t each =
                bytes / sizeof(std::uint64_t) / static_cast<std::size_t>(threads);
            for (auto _ : state) {
                csd::best_engine().increment(
                    (*shared)->as<std::uint64_t>().subspan(part * each, each).data(), each);
            }
            state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(2 * each) *
                                    static_cast<std::int64_t>(sizeof(std::uint64_t)));
            if (state.thread_index() == 0) {
                shared->reset();
            }
        })
        ->Threads(threads)
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
}

}  // namespace

void add_updates(const MicroOptions& options) {
    const std::vector<std::string> optimizers = {"adam", "sgd", "adagrad", "lion", "adamw"};
    std::vector<int> counts = {1};
    if (const int all = usable_cores(); all > 1) {
        counts.push_back(all);
    }
    for (const int threads : counts) {
        add_in_place(options, threads);
        for (const StateFormat format : csd::kStateFormats) {
            for (const std::string& optimizer : variants_of(options, optimizers)) {
                for (const UpdateEngine& engine : variants_of(options, csd::engines())) {
                    add_update(options, format, optimizer, engine, threads);
                }
            }
        }
    }
}

}  // namespace nearstep::bench
