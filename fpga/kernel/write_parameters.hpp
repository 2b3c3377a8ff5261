// Writes what leaves the device: new parameters or a message of deltas, and the report.
// C++14, no exceptions, no containers.
#pragma once

#include "fpga/kernel/encode_delta.hpp"
#include "fpga/kernel/job.hpp"
#include "fpga/kernel/stream.hpp"
#include "fpga/kernel/subgroup_report.hpp"
#include "fpga/kernel/sum_gradient.hpp"
#include "fpga/kernel/write_memory.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace nearstep {  // NOLINT(modernize-concat-nested-namespaces)
namespace fpga {

// --- The message ---------------------------------------------------------------------------------
//
// Payloads follow the table, which is complete only after the last of them. So the words of header
// and table wait on chip. The last of these words also holds the start of the first payload.

// 64-bit words before the first payload.
inline std::uint32_t front_quads(const Job& job) {
    return (kDeltaHeaderBytes + kDeltaEntryBytes * job.tiles) / 8;
}

// The incomplete 512-bit word of payloads; it persists between tiles.
struct OpenWord {
    Word word;
    std::uint32_t quads;  // in use, from the lowest
};

inline OpenWord begin_payloads(const Job& job) {
    return {zero_word(), front_quads(job) % kWordQuads};
}

// Words that a tile completes.
struct MessagePart {
    TileDelta delta;
    std::uint32_t words;
};

inline void pack_message(const Job& job, TileSpan span, KernelStream<std::uint64_t>& quads,
                         KernelStream<TileDelta>& deltas, KernelStream<Word>& words,
                         KernelStream<MessagePart>& parts, OpenWord& open) {
    if (job.delivery != ParameterDelivery::deltas) {
        return;
    }
    for (std::uint32_t tile = span.begin; tile < span.end; ++tile) {
        const TileDelta delta = deltas.read();
        const std::uint32_t count = (delta.payload_bytes + 7) / 8;
        parts.write({delta, (open.quads + count) / kWordQuads});
        for (std::uint32_t i = 0; i < count; ++i) {
#pragma HLS pipeline II = 1
            set_quad(open.word, open.quads, quads.read());
            ++open.quads;
            if (open.quads == kWordQuads) {
                words.write(open.word);
                open.word = zero_word();
                open.quads = 0;
            }
        }
    }
}

// `front` is the header and the table, kFrontWords words; `next` is the place of the next word of
// payloads.
inline void set_front_quad(Word* front, std::uint32_t index, std::uint64_t quad) {
    Word word = front[index / kWordQuads];
    set_quad(word, index % kWordQuads, quad);
    front[index / kWordQuads] = word;
}

inline void begin_front(Word* front) {
    for (std::uint32_t i = 0; i < kFrontWords; ++i) {
#pragma HLS pipeline II = 1
        front[i] = zero_word();
    }
}

// Writes a word of payloads to memory, except the one shared with the end of the table.
inline void place_word(const Job& job, const Word& word, Word* front, std::uint32_t& next,
                       Word* memory) {
    const std::uint32_t shared = front_quads(job) / kWordQuads;
    if (next == shared) {
        Word both = front[shared];
        for (std::uint32_t i = 0; i < kWordQuads; ++i) {
#pragma HLS unroll
            if (i >= front_quads(job) % kWordQuads) {
                set_quad(both, i, quad_of(word, i));
            }
        }
        front[shared] = both;
    } else {
        memory[next] = word;
    }
    ++next;
}

inline void write_message(const Job& job, TileSpan span, KernelStream<Word>& words,
                          KernelStream<MessagePart>& parts, KernelStream<std::uint64_t>& digests,
                          Word* memory, Word* front, std::uint32_t& next) {
    for (std::uint32_t tile = span.begin; tile < span.end; ++tile) {
        const MessagePart part = parts.read();
        const TileDelta& delta = part.delta;
        const std::uint32_t entry = (kDeltaHeaderBytes + kDeltaEntryBytes * tile) / 8;
        set_front_quad(front, entry,
                       static_cast<std::uint32_t>(delta.form) | (delta.census.changed << 8U) |
                           (static_cast<std::uint64_t>(delta.census.escaped) << 32U));
        set_front_quad(front, entry + 1, digests.read());
        std::uint32_t i = 0;
        if (next == front_quads(job) / kWordQuads && part.words > 0) {
            place_word(job, words.read(), front, next, memory);
            ++i;
        }
        for (; i < part.words; ++i) {
#pragma HLS pipeline II = 1
            memory[next] = words.read();
            ++next;
        }
    }
}

// Called after the last tile. Returns the bytes of the message.
inline std::uint64_t finish_message(const Job& job, const OpenWord& open, Word* front,
                                    std::uint32_t next, Word* memory) {
    constexpr std::uint32_t kMagic = 0x6D64736EU;  // "nsdm"
    const std::uint64_t bytes = static_cast<std::uint64_t>(next) * kWordBytes + 8ULL * open.quads;
    if (open.quads != 0) {
        place_word(job, open.word, front, next, memory);
    }
    set_front_quad(front, 0, kMagic | (static_cast<std::uint64_t>(job.tiles) << 32U));
    set_front_quad(front, 1, job.first_tile);
    set_front_quad(front, 2, bytes);
    const std::uint32_t words = (front_quads(job) + kWordQuads - 1) / kWordQuads;
    for (std::uint32_t i = 0; i < words; ++i) {
#pragma HLS pipeline II = 1
        memory[i] = front[i];
    }
    return bytes;
}

// The process of the port for parameters.
inline void write_parameters(const Job& job, TileSpan span, KernelStream<Word>& plain,
                             KernelStream<Word>& words, KernelStream<MessagePart>& parts,
                             KernelStream<std::uint64_t>& digests, Word* memory, Word* front,
                             std::uint32_t& next) {
    if (job.delivery == ParameterDelivery::deltas) {
        write_message(job, span, words, parts, digests, memory, front, next);
    } else {
        write_array(plain, 0, tile_words(parameter_bits(job)), span, memory);
    }
}

// --- The report ----------------------------------------------------------------------------------

struct ReportSums {
    double gradient_squares;
    std::uint64_t gradients_not_finite;
    std::uint64_t masters_not_finite;
};

inline std::uint64_t bits_of_double(double value) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

// Writes each tile's results. `deltas` is empty if no deltas are sent.
inline void write_report(const Job& job, TileSpan span, KernelStream<double>& squares,
                         KernelStream<std::uint32_t>& gradients_not_finite,
                         KernelStream<std::uint32_t>& masters_not_finite,
                         KernelStream<std::uint64_t>& digests, KernelStream<TileDelta>& deltas,
                         Word* memory, ReportSums& sums) {
    for (std::uint32_t tile = span.begin; tile < span.end; ++tile) {
#pragma HLS pipeline II = 12
        const double sum = squares.read();
        const std::uint32_t of_gradients = gradients_not_finite.read();
        const std::uint32_t of_masters = masters_not_finite.read();
        TileDelta delta = {DeltaForm::dense, {0, 0}, kTileElems / 8 * parameter_bits(job)};
        if (job.delivery == ParameterDelivery::deltas) {
            delta = deltas.read();
        }
        Word word = zero_word();  // UpdaterTile
        set_quad(word, 0, digests.read());
        set_quad(word, 1, bits_of_double(sum));
        word.of[4] = of_gradients;
        word.of[5] = of_masters;
        word.of[6] = static_cast<std::uint32_t>(delta.form);
        word.of[7] = delta.census.changed;
        word.of[8] = delta.census.escaped;
        word.of[9] = delta.payload_bytes;
        memory[1 + tile] = word;
        sums.gradient_squares += sum;
        sums.gradients_not_finite += of_gradients;
        sums.masters_not_finite += of_masters;
    }
}
static_assert(offsetof(UpdaterTile, gradients_not_finite) == 4 * sizeof(std::uint32_t) &&
                  offsetof(UpdaterTile, payload_bytes) == 9 * sizeof(std::uint32_t),
              "a tile's report is written as its struct lies");

inline void finish_report(UpdaterStatus status, std::uint32_t tiles, std::uint64_t parameter_bytes,
                          const ReportSums& sums, Word* memory) {
    Word word = zero_word();  // UpdaterTotals
    word.of[0] = static_cast<std::uint32_t>(status);
    word.of[1] = tiles;
    set_quad(word, 1, parameter_bytes);
    set_quad(word, 2, bits_of_double(sums.gradient_squares));
    set_quad(word, 3, sums.gradients_not_finite);
    set_quad(word, 4, sums.masters_not_finite);
    memory[0] = word;
}
static_assert(offsetof(UpdaterTotals, parameter_bytes) == sizeof(std::uint64_t) &&
                  offsetof(UpdaterTotals, masters_not_finite) == 4 * sizeof(std::uint64_t),
              "totals are written as their struct lies");

}  // namespace fpga
}  // namespace nearstep
