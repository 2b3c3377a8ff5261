// Replaces Vitis HLS's header of the same name, so that g++ can compile the kernels in hardware
// form, with __SYNTHESIS__ defined. In hardware a process hangs if it reads too much or leaves
// items unread; here it traps.
#pragma once

#include <deque>

namespace hls {

template <typename T, int kDepth>
class stream {
public:
    stream() = default;
    stream(const stream&) = delete;
    stream& operator=(const stream&) = delete;
    ~stream() {
        if (!items_.empty()) {
            __builtin_trap();
        }
    }

    void write(const T& item) { items_.push_back(item); }
    T read() {
        if (items_.empty()) {
            __builtin_trap();
        }
        const T item = items_.front();
        items_.pop_front();
        return item;
    }

private:
    std::deque<T> items_;
};

}  // namespace hls
