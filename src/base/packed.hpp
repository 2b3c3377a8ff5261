// Values as bytes for another rank of the same program. A struct lists its members:
//
//     template <typename Archive>
//     void list(Archive& archive, Found& one) { archive(one.path, one.rank); }
//
//     const std::string bytes = packed(found, 3);
//     unpack(bytes, found, number);
#pragma once

#include "base/error.hpp"

#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace nearstep {

class Packer {
public:
    template <typename... Values>
    void operator()(Values&... values) {
        (add(values), ...);
    }

    std::string bytes = {};

private:
    template <typename Value>
    void add(Value& value) {
        if constexpr (std::is_trivially_copyable_v<Value>) {
            bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
        } else if constexpr (requires { value.begin(); }) {
            std::size_t count = value.size();
            add(count);
            for (auto& each : value) {
                add(each);
            }
        } else if constexpr (requires { value.has_value(); }) {
            bool has_value = value.has_value();
            add(has_value);
            if (has_value) {
                add(*value);
            }
        } else {
            list(*this, value);
        }
    }
};

class Unpacker {
public:
    explicit Unpacker(std::string_view bytes) : rest_(bytes) {}

    template <typename... Values>
    void operator()(Values&... values) {
        (take(values), ...);
    }

private:
    template <typename Value>
    void take(Value& value) {
        if constexpr (std::is_trivially_copyable_v<Value>) {
            expects(sizeof value <= rest_.size(), "bytes hold all values that were packed");
            std::memcpy(&value, rest_.data(), sizeof value);
            rest_.remove_prefix(sizeof value);
        } else if constexpr (requires { value.begin(); }) {
            std::size_t count = 0;
            take(count);
            expects(count <= rest_.size(), "bytes hold all elements that were packed");
            if constexpr (requires { value.resize(count); }) {
                value.resize(count);
            }
            expects(count == value.size(), "an array has as many elements as were packed");
            for (auto& each : value) {
                take(each);
            }
        } else if constexpr (requires { value.has_value(); }) {
            bool has_value = false;
            take(has_value);
            value.reset();
            if (has_value) {
                take(value.emplace());
            }
        } else {
            list(*this, value);
        }
    }

    std::string_view rest_;
};

template <typename... Values>
std::string packed(Values... values) {
    Packer packer;
    packer(values...);
    return std::move(packer.bytes);
}

template <typename... Values>
void unpack(std::string_view bytes, Values&... values) {
    Unpacker unpacker(bytes);
    unpacker(values...);
}

}  // namespace nearstep
