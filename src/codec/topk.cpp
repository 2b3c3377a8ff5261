// The gradient codec topk on a CPU; gpu_topk.cu encodes the same on a GPU. Made by make_codec().
#include "base/error.hpp"
#include "base/wording.hpp"
#include "codec/codec.hpp"
#include "shard/partition.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>

namespace nearstep::codec {

namespace {

using shard::kTileElems;

// Keys are the bits of magnitudes: they have the same order.
struct Digit {
    unsigned shift;
    unsigned bits;
};
constexpr std::array<Digit, 3> kDigits = {Digit{20, 11}, Digit{10, 10}, Digit{0, 10}};
constexpr std::size_t kBuckets = 2048;

using Marks = std::array<std::uint64_t, kTileElems / 64>;

// Indices in a tile, ascending.
struct Candidates {
    static constexpr std::size_t kAtOnce = 4;
    std::size_t count = 0;
    std::array<std::uint16_t, kTileElems + kAtOnce> at;  // undefined behind `count`
};

// Most words have few marks. Always writing four keeps branches predictable.
void list_marked(const Marks& marks, Candidates& candidates) {
    std::uint16_t* to = candidates.at.data();
    for (std::size_t word = 0; word < marks.size(); ++word) {
        std::uint64_t bits = marks[word];
        const int count = std::popcount(bits);
        const auto first = static_cast<std::uint32_t>(word * 64);
        std::uint16_t* next = to;
        do {
            for (std::size_t i = 0; i < Candidates::kAtOnce; ++i) {
                const auto bit = static_cast<std::uint32_t>(std::countr_zero(bits));
                next[i] = static_cast<std::uint16_t>(first + bit);
                bits &= bits - 1;
            }
            next += Candidates::kAtOnce;
        } while (bits != 0);
        to += count;
    }
    candidates.count = static_cast<std::size_t>(to - candidates.at.data());
}

std::uint32_t key_of(float value) { return arith::magnitude_bits(value); }

// Samples one of each 64 elements, at irregular positions that no gradient pattern matches. A
// larger sample would give fewer candidates but load every cache line of the tile before the
// marking does.
constexpr std::size_t kSampleEvery = 64;
constexpr std::size_t kSamples = kTileElems / kSampleEvery;

std::size_t sample_at(std::size_t i) { return i * kSampleEvery + ((i * 23) ^ (i >> 6U)) % 64; }

// Lists a superset of the `kept` largest elements, usually not much larger: all elements that reach
// a bound which enough samples reach.
void list_candidates(const Kernels& kernels, std::span<const float> tile, std::size_t kept,
                     Candidates& candidates) {
    Marks marks;
    std::array<std::uint16_t, kBuckets> histogram{};
    for (std::size_t i = 0; i < kSamples; ++i) {
        ++histogram.at(key_of(tile[sample_at(i)]) >> kDigits[0].shift);
    }
    const double share = static_cast<double>(kept) / kSampleEvery;
    auto wanted = static_cast<std::size_t>(share + 3 * std::sqrt(share) + 2);
    std::size_t bucket = kBuckets;
    for (std::size_t above = 0;; wanted *= 4) {
        while (bucket > 0 && above < wanted) {
            --bucket;
            above += histogram[bucket];
        }
        kernels.mark(tile.data(), static_cast<std::uint32_t>(bucket << kDigits[0].shift),
                     marks.data(), tile.size());
        const std::size_t found = std::transform_reduce(
            marks.begin(), marks.end(), std::size_t{0}, std::plus<>(),
            [](std::uint64_t bits) { return static_cast<std::size_t>(std::popcount(bits)); });
        if (found >= kept) {  // always true for bucket 0, which all elements reach
            return list_marked(marks, candidates);
        }
    }
}

// Elements above `key` are all kept; of those equal to it, `ties`.
struct Threshold {
    std::uint32_t key = 0;
    std::size_t ties = 0;
};

// Finds the `kept`-th largest key of the candidates by radix selection.
Threshold select(std::span<const float> tile, const Candidates& candidates, std::size_t kept) {
    std::array<std::uint32_t, kBuckets> histogram{};
    Threshold threshold{0, kept};
    std::uint32_t prefix_mask = 0;
    for (const Digit digit : kDigits) {
        histogram.fill(0);
        const std::uint32_t digit_mask = (1U << digit.bits) - 1U;
        for (std::size_t i = 0; i < candidates.count; ++i) {
            const std::uint32_t key = key_of(tile[candidates.at[i]]);
            histogram[(key >> digit.shift) & digit_mask] +=
                (key & prefix_mask) == threshold.key ? 1U : 0U;
        }
        std::uint32_t bucket = digit_mask;
        while (histogram[bucket] < threshold.ties) {
            threshold.ties -= histogram[bucket];
            --bucket;
        }
        threshold.key |= bucket << digit.shift;
        prefix_mask |= digit_mask << digit.shift;
    }
    return threshold;
}

[[noreturn]] void refuse_order() {
    throw Error(text(
        "The indices of a tile's gradient do not ascend: the payload was damaged on its way. Start "
        "again with ",
        Term::resume, "; if it happens again, test this machine's memory and network."));
}

class TopkCodec : public Codec {
public:
    TopkCodec(const CodecSettings& settings, std::size_t kept)
        : Codec(settings,
                KernelForm{settings.dtype == Dtype::fp16 ? arith::GradientCodec::topk_fp16
                                                         : arith::GradientCodec::topk_bf16,
                           static_cast<std::uint32_t>(kept)},
                4 * kept),
          kept_(kept),
          is_fp16_(settings.dtype == Dtype::fp16) {}

private:
    void encode_tile(std::span<const float> tile, std::byte* payload,
                     arith::TileKey key) const override;
    void add_decoded(const std::byte* payload, std::size_t first,
                     std::span<float> sum) const override;

    std::size_t kept_;  // q
    bool is_fp16_;
};

void TopkCodec::encode_tile(std::span<const float> tile, std::byte* payload,
                            arith::TileKey /*key*/) const {
    Candidates candidates;
    list_candidates(kernels(), tile, kept_, candidates);
    const Threshold threshold = select(tile, candidates, kept_);
    auto* indices = reinterpret_cast<std::uint16_t*>(payload);
    std::uint16_t* values = indices + kept_;
    std::size_t ties = threshold.ties;
    // Always write the candidate and advance only if it is taken: this avoids a branch.
    for (std::size_t i = 0, taken = 0; taken < kept_; ++i) {
        const std::uint16_t index = candidates.at[i];
        const float value = tile[index];
        const std::uint32_t key = key_of(value);
        const std::size_t tie = key == threshold.key && ties > 0 ? 1 : 0;
        indices[taken] = index;
        values[taken] = is_fp16_ ? to_fp16(value) : to_bf16(value);
        taken += tie + (key > threshold.key ? 1U : 0U);
        ties -= tie;
    }
}

void TopkCodec::add_decoded(const std::byte* payload, std::size_t first,
                            std::span<float> sum) const {
    const auto* indices = reinterpret_cast<const std::uint16_t*>(payload);
    const std::uint16_t* values = indices + kept_;
    const std::uint16_t* begin = std::lower_bound(indices, values, first);
    const std::uint16_t* end = std::lower_bound(begin, values, first + sum.size());
    for (const std::uint16_t* index = begin; index != end; ++index) {
        const std::size_t at = *index - first;  // wraps around to a large number before `first`
        if (at >= sum.size()) {
            refuse_order();
        }
        const std::uint16_t value = values[index - indices];
        sum[at] += is_fp16_ ? from_fp16(value) : from_bf16(value);
    }
}

}  // namespace

std::unique_ptr<Codec> make_topk_codec(const CodecSettings& settings) {
    if (!(settings.keep > 0 && settings.keep <= 1)) {
        throw ConfigError(text("compress.keep is ", settings.keep,
                               ": give the share of elements to keep, above 0 and at most 1."));
    }
    const double kept = std::ceil(settings.keep * static_cast<double>(kTileElems) - 1e-9);
    return std::make_unique<TopkCodec>(settings, static_cast<std::size_t>(kept));
}

}  // namespace nearstep::codec
