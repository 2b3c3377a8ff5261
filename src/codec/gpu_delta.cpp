#include "codec/gpu_delta.hpp"

#include "arith/xxh3_keys.hpp"
#include "base/error.hpp"
#include "codec/gpu_delta_kernels.hpp"
#include "codec/gpu_kernels.hpp"

#include <algorithm>

namespace nearstep::codec {

namespace {

DeltaDigestKeys digest_keys() {
    DeltaDigestKeys keys{};
    std::copy(std::begin(arith::kXxhSecret), std::end(arith::kXxhSecret),
              std::begin(keys.of_words));
    for (std::uint32_t i = 0; i < kDigestSums; ++i) {
        keys.of_last_word[i] = arith::xxh_secret(arith::kXxhLastKey + 8 * i);
        keys.of_merge[i] = arith::xxh_secret(arith::kXxhMergeKey + 8 * i);
    }
    return keys;
}

}  // namespace

std::optional<std::string> start_deltas(std::span<const GpuDelta> deltas,
                                        const memory::Stream& stream) {
    expects(deltas.size() <= kMostDeltas, "at most 64 messages are applied at once");
    DeltaMessages messages{};
    std::size_t most_tiles = 0;
    for (const GpuDelta& delta : deltas) {
        expects(is_aligned(delta.message, 16) && is_aligned(delta.parameters, 16) &&
                    is_aligned(delta.verdict, 4),
                "message, parameters and verdict are aligned");
        if (auto fault = delta.reader->fault_of_table()) {
            return fault;
        }
        messages.of[messages.count] = {
            .bytes = delta.message,
            .tiles = static_cast<std::uint32_t>(delta.reader->tiles().size()),
            .parameters = delta.parameters,
            .verdict = delta.verdict};
        messages.count += 1;
        most_tiles = std::max(most_tiles, delta.reader->tiles().size());
    }
    if (most_tiles > 0) {
        static const DeltaDigestKeys keys = digest_keys();
        apply_deltas(messages, static_cast<unsigned>(most_tiles), keys, stream.handle());
    }
    return std::nullopt;
}

std::optional<std::string> fault_of(const DeltaReader& reader, std::uint32_t verdict) {
    if (verdict == 0) {
        return std::nullopt;
    }
    const std::size_t tiles = reader.tiles().size();
    expects(verdict <= tiles, "a verdict counts the tiles from the first wrong one on");
    return reader.fault_of_tile(tiles - verdict);
}

}  // namespace nearstep::codec
