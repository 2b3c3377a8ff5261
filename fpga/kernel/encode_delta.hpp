// Encodes a tile's payload of a message in its smallest form, as little-endian 64-bit words
// (docs/formats/parameter-payload.md).
// C++14, no exceptions, no containers.
#pragma once

#include "fpga/kernel/compare_parameters.hpp"
#include "fpga/kernel/job.hpp"
#include "fpga/kernel/stream.hpp"

#include <cstdint>

namespace nearstep {  // NOLINT(modernize-concat-nested-namespaces)
namespace fpga {

struct TileDelta {
    DeltaForm form;
    DeltaCensus census;
    std::uint32_t payload_bytes;
};

inline TileDelta smallest_delta(const DeltaCensus& census) {
    const DeltaForm form = smallest_form(census, kTileElems);
    return {form, census, delta_bytes(form, census, kTileElems)};
}

// Packs 16-bit values into 64-bit words without gaps.
class QuadPacker {
public:
    // Appends the lowest `count` halves of `halves`; higher ones must be zero.
    void put(std::uint64_t halves, std::uint32_t count, KernelStream<std::uint64_t>& out) {
        pending_ |= halves << (16 * waiting_);
        const std::uint32_t total = waiting_ + count;
        if (total >= 4) {
            out.write(pending_);
            pending_ = waiting_ == 0 ? 0 : halves >> (64 - 16 * waiting_);
        }
        waiting_ = total % 4;
    }

    // Pads an incomplete word with zeros.
    void flush(KernelStream<std::uint64_t>& out) {
        if (waiting_ != 0) {
            out.write(pending_);
        }
    }

private:
    std::uint64_t pending_ = 0;
    std::uint32_t waiting_ = 0;  // halves in `pending_`
};

// The bitmaps of a tile.
struct Bitmaps {
    std::uint64_t plus[kBitmapQuads];   // NOLINT(modernize-avoid-c-arrays)
    std::uint64_t minus[kBitmapQuads];  // NOLINT(modernize-avoid-c-arrays)

    std::uint64_t changed(std::uint32_t i) const { return plus[i] | minus[i]; }
    std::uint64_t escaped(std::uint32_t i) const { return plus[i] & minus[i]; }
};

// The halves, out of four, whose bits are set, packed without gaps.
struct Picked {
    std::uint64_t halves;
    std::uint32_t count;
};

inline Picked pick(std::uint64_t halves, std::uint32_t bits) {
    Picked picked = {0, 0};
    for (std::uint32_t i = 0; i < 4; ++i) {
#pragma HLS unroll
        if (((bits >> i) & 1U) != 0) {
            picked.halves |= ((halves >> (16 * i)) & 0xFFFFU) << (16 * picked.count);
            ++picked.count;
        }
    }
    return picked;
}

// Index of the lowest nibble (four bits) with a bit set.
inline std::uint32_t first_nibble(std::uint32_t bits) {
    std::uint32_t first = 0;
    for (std::uint32_t i = 8; i > 0; --i) {
#pragma HLS unroll
        first = ((bits >> (4 * (i - 1))) & 0xFU) != 0 ? i - 1 : first;
    }
    return first;
}

enum class PickedBits { changed, escaped };

inline std::uint32_t picked_bits(const Bitmaps& bitmaps, PickedBits wanted, std::uint32_t word) {
    const std::uint64_t quad =
        wanted == PickedBits::changed ? bitmaps.changed(word / 2) : bitmaps.escaped(word / 2);
    return static_cast<std::uint32_t>(quad >> (32 * (word % 2)));
}

// Reads a tile's marks, 32 at a time. Which cycle takes the next marks depends on the ones before,
// and a load takes two cycles. So marks are loaded ahead.
class MarkReader {
public:
    MarkReader(const Bitmaps& bitmaps, PickedBits wanted)
        : first_(picked_bits(bitmaps, wanted, 0)), second_(picked_bits(bitmaps, wanted, 1)) {}

    bool is_done() const { return taken_ == kTileWordsOfHalves; }
    // Number of the words taken so far.
    std::uint32_t taken() const { return taken_; }
    std::uint32_t take(const Bitmaps& bitmaps, PickedBits wanted) {
        const std::uint32_t bits = first_;
        first_ = second_;
        // Past the end the result is not used.
        second_ = picked_bits(bitmaps, wanted, (taken_ + kAhead) % kTileWordsOfHalves);
        ++taken_;
        return bits;
    }

    static constexpr std::uint32_t kAhead = 2;

private:
    std::uint32_t first_;
    std::uint32_t second_;
    std::uint32_t taken_ = 0;
};

// Writes the new parameters whose bits are set, up to four per cycle. Reads every word of the tile.
inline void pick_values(const Bitmaps& bitmaps, PickedBits wanted, FreshStream& fresh,
                        QuadPacker& packer, KernelStream<std::uint64_t>& out) {
    MarkReader marks(bitmaps, wanted);
    std::uint32_t bits = 0;
    Word word = zero_word();
    while (!marks.is_done() || bits != 0) {
#pragma HLS pipeline II = 1
        if (bits == 0) {
            word = fresh.read();
            bits = marks.take(bitmaps, wanted);
        }
        const std::uint32_t nibble = first_nibble(bits);
        const Picked picked = pick(quad_of(word, nibble), (bits >> (4 * nibble)) & 0xFU);
        packer.put(picked.halves, picked.count, out);
        bits &= ~(0xFU << (4 * nibble));
    }
}

// Writes the indices of the parameters that changed.
inline void pick_indices(const Bitmaps& bitmaps, QuadPacker& packer,
                         KernelStream<std::uint64_t>& out) {
    MarkReader marks(bitmaps, PickedBits::changed);
    std::uint32_t bits = 0;
    std::uint32_t first = 0;  // parameter index of bit 0
    while (!marks.is_done() || bits != 0) {
#pragma HLS pipeline II = 1
        if (bits == 0) {
            first = marks.taken() * 32;
            bits = marks.take(bitmaps, PickedBits::changed);
        }
        const std::uint32_t nibble = first_nibble(bits);
        const std::uint64_t index = first + 4 * nibble;
        const std::uint64_t indices = index * 0x0001000100010001U + 0x0003000200010000U;
        const Picked picked = pick(indices, (bits >> (4 * nibble)) & 0xFU);
        packer.put(picked.halves, picked.count, out);
        bits &= ~(0xFU << (4 * nibble));
    }
}

// Moves the bits of `bits` selected by `mask` to the low end, without gaps. Warren, "Hacker's
// Delight", section 7-4: a network of six steps.
inline std::uint64_t compress(std::uint64_t bits, std::uint64_t mask) {
    bits &= mask;
    std::uint64_t zeros = ~mask << 1U;  // zeros of the mask, each moved up one place
    for (std::uint32_t step = 0; step < 6; ++step) {
#pragma HLS unroll
        std::uint64_t parity = zeros;  // set if an odd number of `zeros` is at or below
        for (std::uint32_t shift = 1; shift < 64; shift *= 2) {
#pragma HLS unroll
            parity ^= parity << shift;
        }
        const std::uint64_t moved = parity & mask;
        mask = (mask ^ moved) | (moved >> (1U << step));
        const std::uint64_t moving = bits & moved;
        bits = (bits ^ moving) | (moving >> (1U << step));
        zeros &= ~parity;
    }
    return bits;
}

// Writes the plus or minus bits of the parameters that changed, for DeltaForm::codes.
inline void pack_bits(const Bitmaps& bitmaps, bool is_plus, KernelStream<std::uint64_t>& out) {
    std::uint64_t pending = 0;
    std::uint32_t waiting = 0;
    for (std::uint32_t i = 0; i < kBitmapQuads; ++i) {
#pragma HLS pipeline II = 1
        const std::uint64_t mask = bitmaps.changed(i);
        const std::uint64_t packed = compress(is_plus ? bitmaps.plus[i] : bitmaps.minus[i], mask);
        pending |= packed << waiting;
        const std::uint32_t total = waiting + count_bits(mask);
        if (total >= 64) {
            out.write(pending);
            pending = waiting == 0 ? 0 : packed >> (64 - waiting);
        }
        waiting = total % 64;
    }
    if (waiting != 0) {
        out.write(pending);
    }
}

inline void send_dense(FreshStream& fresh, KernelStream<std::uint64_t>& out) {
    Word word = zero_word();
    for (std::uint32_t i = 0; i < kTileWordsOfHalves * kWordQuads; ++i) {
#pragma HLS pipeline II = 1
        if (i % kWordQuads == 0) {
            word = fresh.read();
        }
        out.write(quad_of(word, i % kWordQuads));
    }
}

// Writes the bitmaps that precede the values.
inline void send_bitmaps(DeltaForm form, const Bitmaps& bitmaps, KernelStream<std::uint64_t>& out) {
    for (std::uint32_t i = 0; i < kBitmapQuads; ++i) {
#pragma HLS pipeline II = 1
        out.write(form == DeltaForm::units ? bitmaps.plus[i] : bitmaps.changed(i));
    }
    if (form == DeltaForm::units) {
        for (const std::uint64_t minus : bitmaps.minus) {
#pragma HLS pipeline II = 1
            out.write(minus);
        }
    } else if (form == DeltaForm::codes) {
        pack_bits(bitmaps, true, out);
        pack_bits(bitmaps, false, out);
    }
}

inline void encode_delta(DeltaForm form, const Bitmaps& bitmaps, FreshStream& fresh,
                         KernelStream<std::uint64_t>& out) {
    if (form == DeltaForm::dense) {
        return send_dense(fresh, out);
    }
    QuadPacker packer;
    if (form == DeltaForm::list) {
        pick_indices(bitmaps, packer, out);
    } else {
        send_bitmaps(form, bitmaps, out);
    }
    const bool is_by_unit = form == DeltaForm::units || form == DeltaForm::codes;
    pick_values(bitmaps, is_by_unit ? PickedBits::escaped : PickedBits::changed, fresh, packer,
                out);
    packer.flush(out);
}

inline void encode_deltas(const Job& job, TileSpan span, FreshStream& fresh, BitmapStream& plus,
                          BitmapStream& minus, KernelStream<DeltaCensus>& censuses,
                          KernelStream<std::uint64_t>& quads, KernelStream<TileDelta>& sent,
                          KernelStream<TileDelta>& reported) {
    if (job.delivery != ParameterDelivery::deltas) {
        return;
    }
    for (std::uint32_t tile = span.begin; tile < span.end; ++tile) {
        Bitmaps bitmaps;
        for (std::uint32_t i = 0; i < kBitmapQuads; ++i) {
#pragma HLS pipeline II = 1
            bitmaps.plus[i] = plus.read();
            bitmaps.minus[i] = minus.read();
        }
        const TileDelta delta = smallest_delta(censuses.read());
        sent.write(delta);
        reported.write(delta);
        encode_delta(delta.form, bitmaps, fresh, quads);
    }
}

}  // namespace fpga
}  // namespace nearstep
