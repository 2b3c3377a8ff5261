// Sole ownership of a C handle.
#pragma once

#include <utility>

namespace nearstep {

// A handle that `kClose` closes; kEmpty is none.
template <typename Value, void (*kClose)(Value) noexcept, Value kEmpty = Value{}>
class Handle {
public:
    Handle() = default;
    explicit Handle(Value value) : value_(value) {}
    Handle(Handle&& other) noexcept : value_(std::exchange(other.value_, kEmpty)) {}
    Handle& operator=(Handle&& other) noexcept {
        if (this != &other) {
            reset();
            value_ = std::exchange(other.value_, kEmpty);
        }
        return *this;
    }
    Handle(const Handle&) = delete;
    Handle& operator=(const Handle&) = delete;
    ~Handle() { reset(); }

    Value get() const { return value_; }
    explicit operator bool() const { return value_ != kEmpty; }
    // The handle, which the caller now closes.
    Value release() { return std::exchange(value_, kEmpty); }
    void reset() noexcept {
        if (value_ != kEmpty) {
            kClose(std::exchange(value_, kEmpty));
        }
    }

private:
    Value value_ = kEmpty;
};

}  // namespace nearstep
