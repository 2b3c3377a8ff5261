// Top-k encoding on a GPU: a thread block per tile. Started by gpu_codec.cpp.
//
// A sample gives a lower bound for the kept elements, on the CPU too. A pass over the tile marks
// elements from that bound on. They are listed in order in shared memory, from which the exact
// threshold and the kept elements are taken. If the list is too small, as with many equal values,
// the tile is read once per digit of the threshold instead, usually from the GPU's cache.
//
// Started by gpu_codec.cpp.
#include "codec/gpu_tile.cuh"

namespace nearstep::codec {

constexpr unsigned kThreads = kTopkThreads;
constexpr unsigned kBlocksAtOnce = 4;  // per multiprocessor, limited by shared memory
constexpr unsigned kWarps = kThreads / kWarp;
constexpr unsigned kTileElems = shard::kTileElems;
constexpr unsigned kWords = kTileElems / 32;
constexpr unsigned kListed = 4096;

// Keys are the bits of magnitudes: they have the same order.
constexpr unsigned kBuckets = 2048;
constexpr unsigned kDigits = 3;
__device__ constexpr unsigned kShifts[kDigits] = {20, 10, 0};
__device__ constexpr unsigned kMasks[kDigits] = {2047, 1023, 1023};

constexpr unsigned kSamples = kTileElems / kSampleEvery;

struct Workspace {
    std::uint32_t histogram[kBuckets];
    std::uint32_t marks[kWords];
    union {
        struct {
            std::uint32_t bits[kListed];  // of the value
            std::uint16_t index[kListed];
        } list;
        std::uint32_t ties[kWords];
    };
    std::uint32_t of_warp[kWarps];
    std::uint32_t total;
    std::uint32_t bucket;
    std::uint32_t above;  // elements in higher buckets
};

// Returns the sum of `value` over the threads before this one. `total` becomes the sum over all
// threads. All threads of the block call it.
__device__ inline std::uint32_t sum_before(std::uint32_t value, Workspace& w,
                                           std::uint32_t& total) {
    const unsigned lane = threadIdx.x % kWarp;
    const unsigned warp = threadIdx.x / kWarp;
    std::uint32_t sum = value;
#pragma unroll
    for (unsigned step = 1; step < kWarp; step *= 2) {
        const std::uint32_t lower = __shfl_up_sync(kEveryLane, sum, step);
        sum += lane >= step ? lower : 0;
    }
    __syncthreads();  // all threads have read the last call's results
    if (lane == kWarp - 1) {
        w.of_warp[warp] = sum;
    }
    __syncthreads();
    std::uint32_t before = 0;
    total = 0;
#pragma unroll
    for (unsigned other = 0; other < kWarps; ++other) {
        const std::uint32_t of_other = w.of_warp[other];
        before += other < warp ? of_other : 0;
        total += of_other;
    }
    return before + sum - value;
}

// Finds the highest bucket such that it and those above have `wanted` elements, or bucket 0. Sets
// w.bucket and w.above. The histogram must be complete; all threads call.
__device__ inline void find_bucket(std::uint32_t wanted, Workspace& w) {
    constexpr unsigned kEach = kBuckets / kThreads;
    const unsigned first = kBuckets - 1 - threadIdx.x * kEach;
    std::uint32_t counts[kEach];
    std::uint32_t sum = 0;
#pragma unroll
    for (unsigned i = 0; i < kEach; ++i) {
        counts[i] = w.histogram[first - i];
        sum += counts[i];
    }
    std::uint32_t total = 0;
    std::uint32_t above = sum_before(sum, w, total);
    const bool has_it = above < wanted && wanted <= above + sum;
    if (has_it || (threadIdx.x == kThreads - 1 && total < wanted)) {
        unsigned i = 0;
        while (i + 1 < kEach && above + counts[i] < wanted) {
            above += counts[i];
            ++i;
        }
        w.bucket = first - i;
        w.above = above;
    }
    __syncthreads();
}

__device__ inline void clear_histogram(Workspace& w) {
#pragma unroll
    for (unsigned i = threadIdx.x; i < kBuckets; i += kThreads) {
        w.histogram[i] = 0;
    }
    __syncthreads();
}

__device__ inline unsigned sample_at(unsigned i) {
    return i * kSampleEvery + ((i * 23) ^ (i >> 6U)) % kSampleEvery;
}

// Marks the elements whose key is at least `least`. A thread loads kAtOnce octets at a time.
template <unsigned kAtOnce>
__device__ inline void mark(const TopkEncoding& e, std::size_t first, std::uint32_t least,
                            Workspace& w) {
    auto* marks = reinterpret_cast<std::uint8_t*>(w.marks);
    for (unsigned octet = threadIdx.x; octet < kTileElems / kOctet; octet += kAtOnce * kThreads) {
        float values[kAtOnce][kOctet];
        load_octets(e.source, first + octet * kOctet, kThreads * kOctet, values);
#pragma unroll
        for (unsigned o = 0; o < kAtOnce; ++o) {
            unsigned bits = 0;
#pragma unroll
            for (unsigned i = 0; i < kOctet; ++i) {
                bits |= arith::magnitude_bits(values[o][i]) >= least ? 1U << i : 0U;
            }
            marks[octet + o * kThreads] = static_cast<std::uint8_t>(bits);
        }
    }
    __syncthreads();
}

// Writes a kept element and its encoding error.
__device__ inline void keep(const TopkEncoding& e, std::uint16_t* payload, std::size_t first,
                            unsigned place, unsigned index, float value) {
    const std::uint16_t half = e.is_fp16 ? to_fp16(value) : to_bf16(value);
    payload[place] = static_cast<std::uint16_t>(index);
    payload[e.kept + place] = half;
}

// Elements above `key` are all kept; of those equal to it, `ties`.
struct TileThreshold {
    std::uint32_t key;
    std::uint32_t ties;
};

// Selects by radix. `visit` calls its argument with the key of each element of this thread.
template <typename Visit>
__device__ inline TileThreshold select(unsigned kept, Workspace& w, const Visit& visit) {
    TileThreshold threshold{0, kept};
    std::uint32_t prefix_mask = 0;
    for (unsigned digit = 0; digit < kDigits; ++digit) {
        clear_histogram(w);
        visit([&](std::uint32_t key) {
            if ((key & prefix_mask) == threshold.key) {
                atomicAdd(&w.histogram[(key >> kShifts[digit]) & kMasks[digit]], 1U);
            }
        });
        __syncthreads();
        find_bucket(threshold.ties, w);
        threshold.ties -= w.above;
        threshold.key |= w.bucket << kShifts[digit];
        prefix_mask |= kMasks[digit] << kShifts[digit];
        __syncthreads();
    }
    return threshold;
}

// Lists the marked elements in order; there must be at most kListed.
__device__ inline void list_marked(const TopkEncoding& e, std::size_t first, Workspace& w) {
    constexpr unsigned kEach = kWords / kThreads;
    std::uint32_t words[kEach];
    std::uint32_t count = 0;
#pragma unroll
    for (unsigned i = 0; i < kEach; ++i) {
        words[i] = w.marks[threadIdx.x * kEach + i];
        count += __popc(words[i]);
    }
    std::uint32_t total = 0;
    unsigned place = sum_before(count, w, total);
#pragma unroll
    for (unsigned i = 0; i < kEach; ++i) {
        for (std::uint32_t rest = words[i]; rest != 0; rest &= rest - 1) {
            const unsigned index = (threadIdx.x * kEach + i) * 32 + __ffs(rest) - 1;
            w.list.index[place] = static_cast<std::uint16_t>(index);
            ++place;
        }
    }
    __syncthreads();
    // Values are loaded in a second pass, so that neighbouring threads load together.
    for (unsigned i = threadIdx.x; i < total; i += kThreads) {
        w.list.bits[i] = bits_of(load_value(e.source, first + w.list.index[i]));
    }
    __syncthreads();
}

__device__ inline void keep_of_list(const TopkEncoding& e, std::uint16_t* payload,
                                    std::size_t first, unsigned listed, Workspace& w) {
    const TileThreshold threshold = select(e.kept, w, [&](const auto& count) {
        for (unsigned i = threadIdx.x; i < listed; i += kThreads) {
            count(w.list.bits[i] & 0x7FFFFFFFU);
        }
    });
    // Counts before this thread: elements above the threshold in the lower half, elements equal to
    // it in the upper half.
    const unsigned each = (listed + kThreads - 1) / kThreads;
    const unsigned begin = min(threadIdx.x * each, listed);
    const unsigned end = min(begin + each, listed);
    std::uint32_t counts = 0;
    for (unsigned i = begin; i < end; ++i) {
        const std::uint32_t key = w.list.bits[i] & 0x7FFFFFFFU;
        counts += key > threshold.key ? 1U : key == threshold.key ? 0x10000U : 0U;
    }
    std::uint32_t total = 0;
    std::uint32_t before = sum_before(counts, w, total);
    for (unsigned i = begin; i < end; ++i) {
        const std::uint32_t key = w.list.bits[i] & 0x7FFFFFFFU;
        const std::uint32_t ties = before >> 16U;
        const unsigned place = (before & 0xFFFFU) + min(ties, threshold.ties);
        if (key > threshold.key || (key == threshold.key && ties < threshold.ties)) {
            keep(e, payload, first, place, w.list.index[i], float_of(w.list.bits[i]));
        }
        before += key > threshold.key ? 1U : key == threshold.key ? 0x10000U : 0U;
    }
}

// Does what keep_of_list() does, but reads the tile instead of the list.
__device__ inline void keep_of_tile(const TopkEncoding& e, std::uint16_t* payload,
                                    std::size_t first, Workspace& w) {
    const TileThreshold threshold = select(e.kept, w, [&](const auto& count) {
        for (unsigned i = threadIdx.x; i < kTileElems; i += kThreads) {
            count(arith::magnitude_bits(load_value(e.source, first + i)));
        }
    });
    for (unsigned i = threadIdx.x; i < kTileElems; i += kThreads) {
        const std::uint32_t key = arith::magnitude_bits(load_value(e.source, first + i));
        const std::uint32_t above = __ballot_sync(kEveryLane, key > threshold.key);
        const std::uint32_t equal = __ballot_sync(kEveryLane, key == threshold.key);
        if (i % kWarp == 0) {
            w.marks[i / kWarp] = above;
            w.ties[i / kWarp] = equal;
        }
    }
    __syncthreads();
    constexpr unsigned kEach = kWords / kThreads;
    const unsigned begin = threadIdx.x * kEach;
    std::uint32_t above = 0;
    std::uint32_t equal = 0;
    for (unsigned word = begin; word < begin + kEach; ++word) {
        above += __popc(w.marks[word]);
        equal += __popc(w.ties[word]);
    }
    std::uint32_t total = 0;
    above = sum_before(above, w, total);
    equal = sum_before(equal, w, total);
    for (unsigned word = begin; word < begin + kEach; ++word) {
        const std::uint32_t ties = w.ties[word];
        for (std::uint32_t rest = w.marks[word] | ties; rest != 0; rest &= rest - 1) {
            const unsigned bit = __ffs(rest) - 1;
            const bool is_tie = ((ties >> bit) & 1U) != 0;
            if (!is_tie || equal < threshold.ties) {
                const unsigned index = word * 32 + bit;
                keep(e, payload, first, above + min(equal, threshold.ties), index,
                     load_value(e.source, first + index));
            }
            above += is_tie ? 0U : 1U;
            equal += is_tie ? 1U : 0U;
        }
    }
}

__global__ void __launch_bounds__(kThreads, kBlocksAtOnce) encode_topk(TopkEncoding e) {
    __shared__ Workspace w;
    const unsigned tile = tile_at(e.source, blockIdx.x);
    const std::size_t first = static_cast<std::size_t>(tile) * kTileElems;
    auto* payload = reinterpret_cast<std::uint16_t*>(e.source.payloads) +
                    static_cast<std::size_t>(blockIdx.x) * 2 * e.kept;
    clear_histogram(w);
    for (unsigned i = threadIdx.x; i < kSamples; i += kThreads) {
        const float value = load_value(e.source, first + sample_at(i));
        atomicAdd(&w.histogram[arith::magnitude_bits(value) >> kShifts[0]], 1U);
    }
    __syncthreads();

    std::uint32_t marked = 0;
    for (unsigned wanted = e.wanted_samples;; wanted *= 4) {
        find_bucket(wanted, w);
        const std::uint32_t bucket = w.bucket;
        const std::uint32_t least = bucket << kShifts[0];
        // bf16 octets need half the registers until use.
        if (e.source.gradient_dtype == Dtype::bf16) {
            mark<4>(e, first, least, w);
        } else {
            mark<2>(e, first, least, w);
        }
        std::uint32_t count = 0;
        for (unsigned i = threadIdx.x; i < kWords; i += kThreads) {
            count += __popc(w.marks[i]);
        }
        static_cast<void>(sum_before(count, w, marked));
        if (marked >= e.kept || bucket == 0) {
            break;
        }
    }
    if (marked <= kListed) {
        list_marked(e, first, w);
        keep_of_list(e, payload, first, marked, w);
    } else {
        keep_of_tile(e, payload, first, w);
    }
}

}  // namespace nearstep::codec
