// The words of enumerations: what configs, options, files and messages call their values.
#pragma once

#include "base/dtype.hpp"

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace nearstep {

// Specialised for each enumeration that has words: one per value, in their order, from 0 on.
template <typename E>
inline constexpr std::array<const char*, 0> kWords{};

template <typename E>
concept Worded = (!kWords<E>.empty());

template <>
inline constexpr std::array kWords<Dtype> = {"fp32", "bf16", "fp16"};

template <Worded E>
constexpr std::size_t index_of(E value) {
    return static_cast<std::size_t>(value);
}

template <Worded E>
constexpr const char* name_of(E value) {
    return kWords<E>.at(index_of(value));
}

// Returns the value with this word; empty if no value has it.
template <Worded E>
constexpr std::optional<E> parse_word(std::string_view word) {
    for (std::size_t i = 0; i < kWords<E>.size(); ++i) {
        if (word == kWords<E>[i]) {
            return static_cast<E>(i);
        }
    }
    return std::nullopt;
}

// Returns the words as a message lists them: "a", "b" or "c", each in quotation marks.
std::string listed(std::span<const char* const> words);

[[noreturn]] void refuse_word(const char* what, std::string_view word,
                              std::span<const char* const> words);

// Throws ConfigError that lists the words; `what` is what they name, such as "optimizer".
template <Worded E>
E parse_word(const char* what, std::string_view word) {
    const std::optional<E> value = parse_word<E>(word);
    if (!value) {
        refuse_word(what, word, kWords<E>);
    }
    return *value;
}

}  // namespace nearstep
