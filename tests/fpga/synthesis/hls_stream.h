// Stands in for the header of the same name of Vitis HLS, so that g++ compiles the kernels with
// __SYNTHESIS__ defined: the form that goes to hardware. As there, a process that reads more than
// is written, or leaves something behind, does not end: here it traps.
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
