#include "codec/topk.hpp"

#include "base/error.hpp"
#include "shard/partition.hpp"

#include <array>
#include <cmath>
#include <cstring>

namespace nearstep::codec {

namespace {

constexpr std::uint32_t kMagnitude = 0x7FFFFFFFU;

// The key above which all elements are kept, and how many of those equal to it.
struct Threshold {
    std::uint32_t key = 0;
    std::size_t ties = 0;
};

// The `kept`-th largest magnitude, by radix selection on the bits of the absolute value, whose
// order is that of the magnitudes: 11, 10 and 10 bits.
Threshold select(std::span<const float> tile, std::size_t kept) {
    struct Digit {
        unsigned shift;
        unsigned bits;
    };
    constexpr std::array<Digit, 3> kDigits = {Digit{20, 11}, Digit{10, 10}, Digit{0, 10}};
    std::array<std::uint32_t, 2048> histogram{};
    std::uint32_t prefix = 0;
    std::uint32_t prefix_mask = 0;
    std::size_t wanted = kept;
    for (const Digit digit : kDigits) {
        histogram.fill(0);
        const std::uint32_t digit_mask = (1U << digit.bits) - 1U;
        for (const float value : tile) {
            const std::uint32_t key = bits_of(value) & kMagnitude;
            if ((key & prefix_mask) == prefix) {
                ++histogram[(key >> digit.shift) & digit_mask];
            }
        }
        std::uint32_t bucket = digit_mask;
        while (histogram[bucket] < wanted) {
            wanted -= histogram[bucket];
            --bucket;
        }
        prefix |= bucket << digit.shift;
        prefix_mask |= digit_mask << digit.shift;
    }
    return {prefix, wanted};
}

}  // namespace

TopkCodec::TopkCodec(double keep, Dtype dtype)
    : kept_(static_cast<std::size_t>(
          std::ceil(keep * static_cast<double>(shard::kTileElems) - 1e-9))),
      is_fp16_(dtype == Dtype::fp16) {
    if (!(keep > 0 && keep <= 1)) {
        throw ConfigError(text("compress.keep is ", keep,
                               ": give the share of elements to keep, above 0 and at most 1."));
    }
}

void TopkCodec::encode(std::span<const float> tile, std::span<std::byte> payload) const {
    expects(tile.size() == shard::kTileElems, "a codec encodes whole tiles");
    expects(payload.size() == payload_bytes(), "a payload has its codec's size");
    const Threshold threshold = select(tile, kept_);
    std::byte* indices = payload.data();
    std::byte* values = payload.data() + 2 * kept_;
    std::size_t ties = threshold.ties;
    for (std::size_t i = 0; i < tile.size(); ++i) {
        const std::uint32_t key = bits_of(tile[i]) & kMagnitude;
        if (key < threshold.key || (key == threshold.key && ties == 0)) {
            continue;
        }
        ties -= key == threshold.key ? 1U : 0U;
        const auto index = static_cast<std::uint16_t>(i);
        const std::uint16_t value = is_fp16_ ? to_fp16(tile[i]) : to_bf16(tile[i]);
        std::memcpy(indices, &index, sizeof index);
        std::memcpy(values, &value, sizeof value);
        indices += sizeof index;
        values += sizeof value;
    }
}

void TopkCodec::decode_add(std::span<const std::byte> payload, std::span<float> sum) const {
    expects(sum.size() == shard::kTileElems, "a codec decodes whole tiles");
    expects(payload.size() == payload_bytes(), "a payload has its codec's size");
    const std::byte* indices = payload.data();
    const std::byte* values = payload.data() + 2 * kept_;
    for (std::size_t i = 0; i < kept_; ++i) {
        std::uint16_t index = 0;
        std::uint16_t value = 0;
        std::memcpy(&index, indices + 2 * i, sizeof index);
        std::memcpy(&value, values + 2 * i, sizeof value);
        sum[index] += is_fp16_ ? from_fp16(value) : from_bf16(value);
    }
}

}  // namespace nearstep::codec
