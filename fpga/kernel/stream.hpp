// What processes of a kernel hand each other: in hardware a FIFO, for g++ a queue without a limit.
// C++14, no exceptions, no containers in hardware.
//
// g++ runs the processes of a region one after another, so a stream then holds all that a process
// wrote. Which process waits for which, and how deep a FIFO must be, is for the cycle model.
#pragma once

#ifdef __SYNTHESIS__
#include <hls_stream.h>
#else
#include <cstddef>
#include <vector>
#endif

// One inside the other, because C++14 cannot write them as one.
namespace nearstep {  // NOLINT(modernize-concat-nested-namespaces)
namespace fpga {

// A FIFO between neighbours that move in step: it hides the start of a burst.
constexpr int kShallow = 64;

#ifdef __SYNTHESIS__

template <typename T, int kDepth = kShallow>
using Stream = hls::stream<T, kDepth>;

#else

// One process writes, one reads. `kDepth` is the hardware's.
template <typename T, int kDepth = kShallow>
class Stream {
public:
    Stream() = default;
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    // What is left would fill the FIFO, and the hardware would stop: it must not happen.
    ~Stream() {
        if (!items_.empty()) {
            __builtin_trap();
        }
    }

    void write(const T& item) { items_.push_back(item); }

    // Of what was written: in hardware a process that reads more would wait for ever.
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
