// Connects processes of a kernel: a FIFO in hardware, an unlimited queue under g++.
// C++14, no exceptions, no containers in hardware.
//
// g++ runs the processes of a region one after another, so a stream holds everything a process
// wrote. In hardware a process waits while its FIFO is full or empty.
#pragma once

#ifdef __SYNTHESIS__
#include <hls_stream.h>
#else
#include <cstddef>
#include <vector>
#endif

namespace nearstep {  // NOLINT(modernize-concat-nested-namespaces)
namespace fpga {

// Depth of a FIFO between processes that run at the same rate. It hides the start of a burst.
constexpr int kShallow = 64;

#ifdef __SYNTHESIS__

template <typename T, int kDepth = kShallow>
using KernelStream = hls::stream<T, kDepth>;

#else

// One process writes, one reads. `kDepth` only matters in hardware.
template <typename T, int kDepth = kShallow>
class KernelStream {
public:
    KernelStream() = default;
    KernelStream(const KernelStream&) = delete;
    KernelStream& operator=(const KernelStream&) = delete;
    // Unread items mean that the hardware FIFO could fill up and stop the kernel.
    ~KernelStream() {
        if (!items_.empty()) {
            __builtin_trap();
        }
    }

    void write(const T& item) { items_.push_back(item); }

    // Traps if the stream is empty; in hardware the process would wait forever.
    T read() {
        if (next_ >= items_.size()) {
            __builtin_trap();
        }
        const T item = items_[next_];
        ++next_;
        if (next_ == items_.size()) {
            items_.clear();
            next_ = 0;
        }
        return item;
    }

private:
    std::vector<T> items_;
    std::size_t next_ = 0;
};

#endif

}  // namespace fpga
}  // namespace nearstep
