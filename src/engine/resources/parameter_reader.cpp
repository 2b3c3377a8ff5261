// Reads pieces of several subgroups at once and rounds them. Called by the engine for a client
// whose parameters stay in storage.
#include "engine/resources/parameter_reader.hpp"

#include "base/error.hpp"
#include "base/units.hpp"
#include "memory/buffer.hpp"

#include <algorithm>
#include <array>

namespace nearstep::engine {

namespace {

constexpr std::size_t kInFlight = 16;            // pieces
constexpr std::size_t kPieceElems = 512 * KiB;   // 1 MiB of 16-bit masters
constexpr std::size_t kRoundedAtOnce = 4 * KiB;  // elements, in the cache
static_assert(kPieceElems % csd::Device::kReadElems == 0, "pieces are whole pages");

// Masters that are under way to `to`, or to memory from which they are rounded there.
struct ReadPiece {
    std::span<std::byte> to;
    memory::Buffer stored;
    Ticket ticket;  // last, because it waits for the memory's reads
};

// Rounds masters to parameters exactly as the update rounds a new master.
void round(Dtype stored, std::span<const std::byte> from, Dtype dtype, std::span<std::byte> to) {
    alignas(64) std::array<float, kRoundedAtOnce> values;  // NOLINT: filled before it is read
    const std::size_t elems = to.size() / size_bytes(dtype);
    for (std::size_t at = 0; at < elems; at += values.size()) {
        const std::size_t count = std::min(values.size(), elems - at);
        convert_to_fp32(stored, from.data() + at * size_bytes(stored), values.data(), count);
        convert_from_fp32(values.data(), dtype, to.data() + at * size_bytes(dtype), count);
    }
}

}  // namespace

ParameterReader::Sources::const_iterator ParameterReader::source_of(std::size_t element) const {
    return std::ranges::upper_bound(
        sources_, element, {}, [](const auto& one) { return one.tiles.end * shard::kTileElems; });
}

bool ParameterReader::can_copy() const {
    return stored_ == dtype_ && std::ranges::all_of(sources_, [](const auto& one) {
               return one.device->shows_masters();
           });
}

void ParameterReader::copy(shard::ElementRange range, std::span<std::byte> to,
                           const memory::Stream* stream) const {
    const std::size_t element_bytes = size_bytes(dtype_);
    expects(to.size() == (range.end - range.begin) * element_bytes,
            "the memory has the size of the parameters");
    auto source = source_of(range.begin);
    for (std::size_t at = range.begin; at < range.end; ++source) {
        expects(source != sources_.end(), "the devices hold all parameters");
        const std::size_t next = std::min(range.end, source->tiles.end * shard::kTileElems);
        const auto masters =
            source->device->masters_in_memory(source->index, generation_)
                .subspan((at - source->first_elem()) * element_bytes, (next - at) * element_bytes);
        const auto place = to.subspan((at - range.begin) * element_bytes, masters.size());
        if (stream != nullptr) {
            memory::copy_to_gpu(place, masters, *stream);
        } else {
            std::ranges::copy(masters, place.begin());
        }
        at = next;
    }
}

void ParameterReader::read(shard::ElementRange range, std::span<std::byte> to) const {
    const std::size_t element_bytes = size_bytes(dtype_);
    expects(range.begin % csd::Device::kReadElems == 0 && range.end % csd::Device::kReadElems == 0,
            "parameters are read in whole pages");
    expects(to.size() == (range.end - range.begin) * element_bytes,
            "the memory has the size of the parameters");
    const std::int64_t generation = generation_;
    std::array<ReadPiece, kInFlight> pieces;
    std::size_t count = 0;
    const auto finish = [&](ReadPiece& piece) {
        piece.ticket.wait();
        if (stored_ != dtype_) {
            round(stored_, piece.stored.span(), dtype_, piece.to);
        }
        piece.to = {};
    };
    auto source = source_of(range.begin);
    for (std::size_t at = range.begin; at < range.end;) {
        expects(source != sources_.end(), "the devices hold all parameters");
        const std::size_t end = source->tiles.end * shard::kTileElems;
        const std::size_t next = std::min({range.end, end, at + kPieceElems});
        ReadPiece& piece = pieces.at(count++ % kInFlight);
        finish(piece);
        piece.to = to.subspan((at - range.begin) * element_bytes, (next - at) * element_bytes);
        if (stored_ != dtype_ && piece.stored.size() == 0) {
            piece.stored = memory::Buffer(kPieceElems * size_bytes(stored_));
        }
        piece.ticket = source->device->read_masters(
            source->index, generation, at - source->first_elem(),
            stored_ == dtype_ ? piece.to
                              : piece.stored.span().first((next - at) * size_bytes(stored_)));
        at = next;
        source += at == end ? 1 : 0;
    }
    std::ranges::for_each(pieces, finish);
}

}  // namespace nearstep::engine
