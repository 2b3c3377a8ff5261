// Sole ownership of a C handle.
#pragma once

#include <utility>

namespace nearstep {

// Traits define Type, static Type empty() and static void close(Type) noexcept.
template <typename Traits>
class Handle {
public:
    using Type = typename Traits::Type;

    Handle() = default;
    explicit Handle(Type value) : value_(value) {}
    Handle(Handle&& other) noexcept : value_(std::exchange(other.value_, Traits::empty())) {}
    Handle& operator=(Handle&& other) noexcept {
        if (this != &other) {
            reset();
            value_ = std::exchange(other.value_, Traits::empty());
        }
        return *this;
    }
    Handle(const Handle&) = delete;
    Handle& operator=(const Handle&) = delete;
    ~Handle() { reset(); }

    Type get() const { return value_; }
    explicit operator bool() const { return value_ != Traits::empty(); }
    void reset() noexcept {
        if (value_ != Traits::empty()) {
            Traits::close(std::exchange(value_, Traits::empty()));
        }
    }

private:
    Type value_ = Traits::empty();
};

}  // namespace nearstep
