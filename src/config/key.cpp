// Reads a key's value into its target and prints it. Used by load.cpp for each key.
#include "config/key.hpp"

#include "base/error.hpp"
#include "base/wording.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>

namespace nearstep::config {

namespace {

template <typename T>
struct IsVector : std::false_type {};
template <typename T>
struct IsVector<std::vector<T>> : std::true_type {};

[[noreturn]] void refuse_type(const Key& key, const Value& value, const std::string& origin) {
    throw ConfigError(text(name_of_key(key.name), " wants ", type_of(key), ", not ", written(value),
                           " (", origin, ")."));
}

void check_number(const Key& key, double number, bool fits, const std::string& shown,
                  const std::string& origin) {
    if (!fits || !key.limits.hold(number)) {
        const std::string limits = allowed(key);
        throw ConfigError(text(name_of_key(key.name), " = ", shown, " is out of range: it must be ",
                               limits.empty() ? "smaller" : limits, " (", origin, ")."));
    }
}

bool contains(const std::vector<std::string>& words, const std::string& word) {
    return std::find(words.begin(), words.end(), word) != words.end();
}

void check_word(const Key& key, const std::string& word, const std::string& origin) {
    if (const auto removed = key.removed_words.find(word); removed != key.removed_words.end()) {
        throw ConfigError(text(name_of_key(key.name), " = ", written(std::string_view(word)),
                               " was removed: use ", written(std::string_view(removed->second)),
                               " (", origin, ")."));
    }
    if (!key.words.empty() && !contains(key.words, word)) {
        throw ConfigError(text(name_of_key(key.name), " = ", written(std::string_view(word)),
                               " is not known: use ", allowed(key), " (", origin, ")."));
    }
}

Dtype parse_dtype(const std::string& word) {
    for (const Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
        if (word == name_of(dtype)) {
            return dtype;
        }
    }
    return Dtype::fp16;
}

// The scalar as a T, checked. Empty if its type does not fit.
template <typename T>
std::optional<T> converted(const Key& key, const Scalar& scalar, const std::string& origin) {
    if constexpr (std::is_same_v<T, bool>) {
        const bool* flag = std::get_if<bool>(&scalar);
        return flag == nullptr ? std::nullopt : std::optional<T>(*flag);
    } else if constexpr (std::is_integral_v<T>) {
        const auto* integer = std::get_if<std::int64_t>(&scalar);
        if (integer == nullptr) {
            return std::nullopt;
        }
        check_number(key, static_cast<double>(*integer), std::in_range<T>(*integer),
                     written(scalar), origin);
        return static_cast<T>(*integer);
    } else if constexpr (std::is_floating_point_v<T>) {
        const auto* integer = std::get_if<std::int64_t>(&scalar);
        const auto* real = std::get_if<double>(&scalar);
        if (integer == nullptr && real == nullptr) {
            return std::nullopt;
        }
        const double number = real != nullptr ? *real : static_cast<double>(*integer);
        check_number(key, number, true, written(scalar), origin);
        return number;
    } else {
        const auto* word = std::get_if<std::string>(&scalar);
        if (word == nullptr) {
            return std::nullopt;
        }
        check_word(key, *word, origin);
        if constexpr (std::is_same_v<T, Mode>) {
            return parse_mode(*word);
        } else if constexpr (std::is_same_v<T, Dtype>) {
            return parse_dtype(*word);
        } else {
            // A single text may be empty, a text in a list may not.
            const bool may_be_empty =
                key.may_be_empty && std::holds_alternative<std::string*>(key.target);
            if (word->empty() && !may_be_empty) {
                throw ConfigError(text(name_of_key(key.name),
                                       " holds an empty text: name something (", origin, ")."));
            }
            // Manifests, hosts' answers and logs have one line for each.
            if (!key.may_have_lines && on_one_line(*word) != *word) {
                throw ConfigError(text(key.name, " = ", written(std::string_view(*word)),
                                       " has a line break or another control character: choose a "
                                       "name without (",
                                       origin, ")."));
            }
            return *word;
        }
    }
}

template <typename T>
void assign_list(const Key& key, const Value& value, const std::string& origin,
                 std::vector<T>& target) {
    if (value.items.empty() && !key.may_be_empty) {
        throw ConfigError(
            text(name_of_key(key.name), " is an empty list: give at least one (", origin, ")."));
    }
    target.clear();
    for (const Scalar& item : value.items) {
        const std::optional<T> element = converted<T>(key, item, origin);
        if (!element) {
            refuse_type(key, value, origin);
        }
        target.push_back(*element);
    }
}

// The text given to a list of numbers that may be a word instead; null if it is none.
const std::string* word_in(const Key& key, const Value& value) {
    return key.words.empty() || value.is_list ? nullptr
                                              : std::get_if<std::string>(&value.items.front());
}

Scalar scalar_of(bool value) { return value; }
Scalar scalar_of(double value) { return value; }
Scalar scalar_of(const std::string& value) { return value; }
Scalar scalar_of(Mode value) { return std::string(name_of(value)); }
Scalar scalar_of(Dtype value) { return std::string(name_of(value)); }
template <typename T>
requires std::is_integral_v<T> Scalar scalar_of(T value) {
    return static_cast<std::int64_t>(value);
}

std::string listed(const std::vector<std::string>& words) {
    std::string out;
    for (std::size_t i = 0; i < words.size(); ++i) {
        const bool is_last = i + 1 == words.size();
        out += (i == 0 ? "" : is_last ? " or " : ", ") + written(std::string_view(words[i]));
    }
    return out;
}

}  // namespace

void assign(const Key& key, const Value& value, const std::string& origin) {
    const auto assign_to = [&](auto* target) {
        using T = std::remove_pointer_t<decltype(target)>;
        if constexpr (std::is_same_v<T, std::vector<double>>) {
            if (const std::string* word = word_in(key, value)) {
                check_word(key, *word, origin);
                target->clear();
                return;
            }
        }
        if constexpr (IsVector<T>::value) {
            assign_list(key, value, origin, *target);
        } else {
            std::optional<T> scalar;
            if (!value.is_list) {
                scalar = converted<T>(key, value.items.front(), origin);
            }
            if (!scalar) {
                refuse_type(key, value, origin);
            }
            *target = *std::move(scalar);
        }
    };
    std::visit(assign_to, key.target);
}

std::string written(const Key& key) {
    const auto* numbers = std::get_if<std::vector<double>*>(&key.target);
    if (numbers != nullptr && (*numbers)->empty() && !key.words.empty()) {
        return written(std::string_view(key.words.front()));
    }
    const auto value_of = [](const auto* target) {
        Value value;
        if constexpr (IsVector<std::remove_cvref_t<decltype(*target)>>::value) {
            value.is_list = true;
            for (const auto& element : *target) {
                value.items.push_back(scalar_of(element));
            }
        } else {
            value.items.push_back(scalar_of(*target));
        }
        return value;
    };
    return written(std::visit(value_of, key.target));
}

std::string type_of(const Key& key) {
    const auto describe = [](const auto* target) -> std::string {
        using T = std::remove_cvref_t<decltype(*target)>;
        if constexpr (std::is_same_v<T, bool>) {
            return "true or false";
        } else if constexpr (std::is_integral_v<T>) {
            return "an integer";
        } else if constexpr (std::is_floating_point_v<T>) {
            return "a number";
        } else if constexpr (std::is_same_v<T, std::vector<int>>) {
            return "an integer or a list of integers";
        } else if constexpr (std::is_same_v<T, std::vector<double>>) {
            return "a number or a list of numbers";
        } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
            return "a text or a list of texts";
        } else {
            return "a text";
        }
    };
    return std::visit(describe, key.target);
}

std::string allowed(const Key& key) {
    const bool may_be_number = std::holds_alternative<std::vector<double>*>(key.target);
    if (!key.words.empty() && !may_be_number) {
        return listed(key.words);
    }
    const Limits& limits = key.limits;
    const bool has_lowest = limits.lowest > Limits().lowest;
    const bool has_highest = limits.highest < Limits().highest;
    std::string out;
    if (has_lowest) {
        out = (limits.excludes_lowest ? "above " : "at least ") + written(limits.lowest);
    }
    if (has_highest) {
        out += std::string(has_lowest ? " and " : "") +
               (limits.excludes_highest ? "below " : "at most ") + written(limits.highest);
    }
    return key.words.empty() ? out : listed(key.words) + " or numbers " + out;
}

}  // namespace nearstep::config
