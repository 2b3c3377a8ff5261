// Measures how fast deltas of 16-bit parameters are encoded and decoded. Used by main.cpp.
#include "codec/delta.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/random.hpp"
#include "base/units.hpp"
#include "bench/micro/benchmarks.hpp"
#include "memory/buffer.hpp"
#include "shard/partition.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

namespace nearstep::bench {

namespace {

using codec::Kernels;
using shard::kTileElems;

constexpr std::size_t kMessageTiles = 16;
constexpr std::size_t kMessageElems = kMessageTiles * kTileElems;
constexpr std::size_t kMessageBytes = kMessageElems * sizeof(std::uint16_t);

// Shares of a step's parameters.
struct Shares {
    double changed;
    double escaped;  // changed by more than one unit in the last place
};

// Shares seen in steps of a 124M model at learning rates from 0 to 6e-4, and a full change.
constexpr std::array kShares = {Shares{0, 0},         Shares{0.015, 0.002}, Shares{0.049, 0.007},
                                Shares{0.126, 0.024}, Shares{0.25, 0.06},   Shares{0.76, 0.46},
                                Shares{1, 1}};

class DeltaWork {
public:
    DeltaWork(const MicroOptions& options, const Shares& shares, const Kernels& kernels)
        : kernels_(kernels),
          messages_(round_up(options.parameters, kMessageElems) / kMessageElems),
          room_bytes_(codec::message_room_bytes(kMessageTiles)),
          old_(messages_ * kMessageBytes),
          fresh_(old_.size()),
          copy_(old_.size()),
          rooms_(messages_ * room_bytes_) {
        fill(shares, old_.as<std::uint16_t>(), fresh_.as<std::uint16_t>());
    }

    void copy_old() { std::memcpy(copy_.span().data(), old_.span().data(), copy_.size()); }

    void encode() {
        encoded_bytes_ = 0;
        for (std::size_t message = 0; message < messages_; ++message) {
            encoded_bytes_ += write(message, room(message), kernels_);
        }
    }

    void decode() {
        for (std::size_t message = 0; message < messages_; ++message) {
            const codec::DeltaReader reader(room(message), tiles_of(message), kernels_);
            const auto fault =
                reader.apply_to(copy_.span().subspan(message * kMessageBytes, kMessageBytes));
            if (fault) {
                throw Error(*fault);
            }
        }
    }

    void digest() {
        constexpr std::size_t kTileBytes = kTileElems * sizeof(std::uint16_t);
        for (std::size_t at = 0; at < fresh_.size(); at += kTileBytes) {
            benchmark::DoNotOptimize(xxh3(fresh_.span().subspan(at, kTileBytes)));
        }
    }

    // Checks the parameters, and the first message against the scalar kernels'.
    void verify() {
        copy_old();
        encode();
        decode();
        std::vector<std::uint64_t> memory(room_bytes_ / sizeof(std::uint64_t));
        const std::span<std::byte> first = std::as_writable_bytes(std::span(memory));
        const std::size_t bytes = write(0, first, codec::kernels().front());
        if (std::memcmp(memory.data(), room(0).data(), bytes) != 0 ||
            !std::ranges::equal(copy_.span(), fresh_.span())) {
            throw Error(text("The kernels ", kernels_.name, " do not give the bits of the scalar ",
                             "ones: do not train on this CPU, and report it."));
        }
    }

    std::size_t bytes() const { return old_.size(); }
    double bytes_per_parameter() const {
        return static_cast<double>(encoded_bytes_) / static_cast<double>(messages_ * kMessageElems);
    }

private:
    // Every message repeats the first one's parameters.
    static void fill(const Shares& shares, std::span<std::uint16_t> old,
                     std::span<std::uint16_t> fresh) {
        for (std::size_t i = 0; i < kMessageElems; ++i) {
            const std::uint64_t bits = random_bits(1, 0, i);
            const double draw = random_uniform(1, 1, i);
            const int unit = (bits & 1U) != 0 ? 1 : -1;
            const int jump = draw < shares.escaped ? 2 + static_cast<int>((bits >> 1U) % 100) : 1;
            old[i] = static_cast<std::uint16_t>(bits >> 32U);
            fresh[i] =
                static_cast<std::uint16_t>(draw < shares.changed ? old[i] + unit * jump : old[i]);
        }
        for (std::size_t at = kMessageElems; at < old.size(); at += kMessageElems) {
            std::ranges::copy(old.first(kMessageElems), old.data() + at);
            std::ranges::copy(fresh.first(kMessageElems), fresh.data() + at);
        }
    }

    // Returns the message's bytes.
    std::size_t write(std::size_t message, std::span<std::byte> to, const Kernels& kernels) {
        codec::DeltaWriter writer(to, tiles_of(message), kernels);
        for (std::size_t tile = 0; tile < kMessageTiles; ++tile) {
            const std::size_t at = message * kMessageElems + tile * kTileElems;
            writer.add(&old_.as<std::uint16_t>()[at], &fresh_.as<std::uint16_t>()[at]);
        }
        return writer.finish();
    }

    static shard::TileRange tiles_of(std::size_t message) {
        return {message * kMessageTiles, (message + 1) * kMessageTiles};
    }
    std::span<std::byte> room(std::size_t message) {
        return rooms_.span().subspan(message * room_bytes_, room_bytes_);
    }

    Kernels kernels_;
    std::size_t messages_;
    std::size_t room_bytes_;
    memory::Buffer old_;
    memory::Buffer fresh_;
    memory::Buffer copy_;
    memory::Buffer rooms_;
    std::size_t encoded_bytes_ = 0;
};

void add_pass(const std::string& name, const MicroOptions& options, const Shares& shares,
              const Kernels& kernels, void (DeltaWork::*pass)()) {
    benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
        DeltaWork work(options, shares, kernels);
        work.verify();
        for (auto _ : state) {
            if (pass == &DeltaWork::decode) {  // which needs the old parameters
                state.PauseTiming();
                work.copy_old();
                state.ResumeTiming();
            }
            (work.*pass)();
        }
        state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(work.bytes()));
        state.counters["bytes_per_parameter"] = work.bytes_per_parameter();
    })->Unit(benchmark::kMillisecond);
}

}  // namespace

void add_deltas(const MicroOptions& options) {
    const std::vector<Kernels>& all = codec::kernels();
    add_pass("delta/copy", options, kShares.front(), all.back(), &DeltaWork::copy_old);
    add_pass("delta/digest", options, kShares.front(), all.back(), &DeltaWork::digest);
    for (const Shares& shares : kShares) {
        for (const Kernels& kernels : variants_of(options, all)) {
            const std::string row = text("delta/", shares.changed, "/", kernels.name);
            add_pass(row + "/encode", options, shares, kernels, &DeltaWork::encode);
            add_pass(row + "/decode", options, shares, kernels, &DeltaWork::decode);
        }
    }
}

}  // namespace nearstep::bench
