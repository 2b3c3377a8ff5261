// Copies a peer's part of a layer from its GPU's memory, or from host memory if it is not there.
// Started by node_parts.cpp.
#include "feed/node_pieces.hpp"

namespace nearstep::feed {

constexpr std::uint64_t kStripe = 65536;  // bytes, which the threads of a block copy together

// In stream order: what was copied before is there for peers that see the mark.
__global__ void mark(volatile std::uint64_t* to, std::uint64_t value) {
    __threadfence_system();
    *to = value;
    __threadfence_system();
}

__device__ inline std::uint64_t nanoseconds() {
    std::uint64_t now = 0;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// The peer's entry that has the part, and its mark; kEntries: none has it in time.
struct Found {
    unsigned entry;
    std::uint64_t mark;
};

__device__ inline Found find(const PartFetch& fetch) {
    const volatile std::uint64_t* const marks = fetch.marks;
    volatile std::uint64_t* const missed = fetch.missed;
    const std::uint64_t began = nanoseconds();
    for (;;) {
        for (unsigned entry = 0; entry < kEntries; ++entry) {
            const std::uint64_t mark = marks[entry];
            if ((mark >> kCountBits) == fetch.tag) {
                __threadfence_system();
                return {entry, mark};
            }
        }
        if (*missed == fetch.step || nanoseconds() - began > fetch.patience_ns) {
            *missed = fetch.step;  // a peer that computes something else delays nobody for long
            return {kEntries, 0};
        }
#if __CUDA_ARCH__ >= 700
        __nanosleep(1000);
#endif
    }
}

__device__ inline void copy_from_peer(const PartFetch& fetch, unsigned entry, std::uint64_t begin,
                                      std::uint64_t end) {
    const unsigned char* const from =
        fetch.entries + entry * fetch.entry_bytes + (begin - fetch.begin);
    for (std::uint64_t at = threadIdx.x * sizeof(uint4); at < end - begin;
         at += blockDim.x * sizeof(uint4)) {
        *reinterpret_cast<uint4*>(fetch.slot + begin + at) =
            __ldcv(reinterpret_cast<const uint4*>(from + at));
    }
}

template <typename Word>
__device__ inline void copy_words(unsigned char* to, const unsigned char* from,
                                  std::uint64_t bytes) {
    for (std::uint64_t i = threadIdx.x; i < bytes / sizeof(Word); i += blockDim.x) {
        reinterpret_cast<Word*>(to)[i] = __ldcv(reinterpret_cast<const Word*>(from) + i);
    }
}

__device__ inline void copy_from_host(const PartFetch& fetch, const HostPieces& pieces,
                                      std::uint64_t begin, std::uint64_t end) {
    for (unsigned i = 0; i < pieces.count; ++i) {
        const HostPiece& piece = pieces.piece[i];
        const std::uint64_t first = begin > piece.at ? begin : piece.at;
        const std::uint64_t ends = piece.at + piece.bytes;
        const std::uint64_t last = end < ends ? end : ends;
        if (first >= last) {
            continue;
        }
        unsigned char* const to = fetch.slot + first;
        const auto* const from =
            reinterpret_cast<const unsigned char*>(piece.host + (first - piece.at));
        const bool is_aligned =
            (reinterpret_cast<std::uint64_t>(from) | reinterpret_cast<std::uint64_t>(to)) %
                sizeof(uint4) ==
            0;
        const std::uint64_t wide = is_aligned ? (last - first) / sizeof(uint4) * sizeof(uint4) : 0;
        copy_words<uint4>(to, from, wide);
        copy_words<unsigned short>(to + wide, from + wide, last - first - wide);
    }
}

// The peer may overwrite its entry at any time. It takes the mark away before, so a stripe counts
// if its entry has the same mark before and after the copy.
__global__ void fetch_part(PartFetch fetch, HostPieces pieces) {
    __shared__ Found found;
    __shared__ bool is_copied;
    const std::uint64_t step = gridDim.x * kStripe;
    for (std::uint64_t begin = fetch.begin + blockIdx.x * kStripe; begin < fetch.end;
         begin += step) {
        const std::uint64_t end = begin + kStripe < fetch.end ? begin + kStripe : fetch.end;
        if (threadIdx.x == 0) {
            found = find(fetch);
        }
        __syncthreads();
        if (found.entry < kEntries) {
            copy_from_peer(fetch, found.entry, begin, end);
        }
        __threadfence_system();
        __syncthreads();
        if (threadIdx.x == 0) {
            const volatile std::uint64_t* const marks = fetch.marks;
            is_copied = found.entry < kEntries && marks[found.entry] == found.mark;
            atomicAdd(is_copied ? fetch.from_peers_bytes : fetch.from_host_bytes, end - begin);
        }
        __syncthreads();
        if (!is_copied) {
            copy_from_host(fetch, pieces, begin, end);
        }
        __syncthreads();
    }
}

}  // namespace nearstep::feed
