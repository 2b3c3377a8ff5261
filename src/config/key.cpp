// Reads a key's value into its target and prints it. Used by load.cpp for each key.
#include "config/key.hpp"

#include "base/error.hpp"
#include "base/wording.hpp"

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace nearstep::config {

namespace {

template <typename T>
struct IsVector : std::false_type {};
template <typename T>
struct IsVector<std::vector<T>> : std::true_type {};

template <typename T>
constexpr bool kIsOptional = std::is_same_v<T, std::optional<double>>;

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

[[noreturn]] void refuse_word(const Key& key, const std::string& word, const std::string& origin) {
    const auto removed = key.removed_words.find(word);
    const std::string reason =
        removed == key.removed_words.end()
            ? text("is not known: use ", allowed(key))
            : text("was removed: use ", written(std::string_view(removed->second)));
    throw ConfigError(text(name_of_key(key.name), " = ", written(std::string_view(word)), " ",
                           reason, " (", origin, ")."));
}

void choose(const Key& key, const Value& value, const std::string& origin,
            const Enumeration& target) {
    const auto* word = value.is_list ? nullptr : std::get_if<std::string>(&value.items.front());
    if (word == nullptr) {
        refuse_type(key, value, origin);
    }
    const auto found = std::ranges::find(target.words(), std::string_view(*word));
    if (found == target.words().end()) {
        refuse_word(key, *word, origin);
    }
    target.choose(static_cast<std::size_t>(found - target.words().begin()));
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
        // A single text may be empty, a text in a list may not.
        const bool may_be_empty =
            key.limits.may_be_empty && std::holds_alternative<std::string*>(key.target);
        if (word->empty() && !may_be_empty) {
            throw ConfigError(text(name_of_key(key.name), " holds an empty text: name something (",
                                   origin, ")."));
        }
        // Manifests, hosts' answers and logs have one line for each.
        if (!key.limits.may_have_lines && on_one_line(*word) != *word) {
            throw ConfigError(text(key.name, " = ", written(std::string_view(*word)),
                                   " has a line break or another control character: choose a "
                                   "name without (",
                                   origin, ")."));
        }
        return *word;
    }
}

template <typename T>
void assign_list(const Key& key, const Value& value, const std::string& origin,
                 std::vector<T>& target) {
    if (value.items.empty() && !key.limits.may_be_empty) {
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

Scalar scalar_of(bool value) { return value; }
Scalar scalar_of(double value) { return value; }
Scalar scalar_of(const std::string& value) { return value; }
Scalar scalar_of(const GroupSize& size) {
    const auto* word = std::get_if<GroupWord>(&size.asked());
    return word == nullptr ? Scalar(std::int64_t{std::get<int>(size.asked())})
                           : Scalar(std::string(name_of(*word)));
}
template <typename T>
requires std::is_integral_v<T> Scalar scalar_of(T value) {
    return static_cast<std::int64_t>(value);
}

// Reads one of the words, or a number, into the key's target.
void choose(const Key& key, const Value& value, const std::string& origin, GroupSize& target) {
    const auto* word = value.is_list ? nullptr : std::get_if<std::string>(&value.items.front());
    if (word != nullptr) {
        const std::optional<GroupWord> found = parse_word<GroupWord>(*word);
        if (!found) {
            refuse_word(key, *word, origin);
        }
        target = *found;
        return;
    }
    const std::optional<int> ranks =
        value.is_list ? std::nullopt : converted<int>(key, value.items.front(), origin);
    if (!ranks) {
        refuse_type(key, value, origin);
    }
    target = *ranks;
}

// The value that is given as a word in place of numbers.
bool is_word(const Key& key, const Value& value, const std::string& origin) {
    const auto* word = key.limits.word.empty() || value.is_list
                           ? nullptr
                           : std::get_if<std::string>(&value.items.front());
    if (word != nullptr && *word != key.limits.word) {
        refuse_word(key, *word, origin);
    }
    return word != nullptr;
}

}  // namespace

void assign(const Key& key, const Value& value, const std::string& origin) {
    const auto assign_to = [&](const auto& target) {
        using T = std::remove_pointer_t<std::remove_cvref_t<decltype(target)>>;
        if constexpr (std::is_same_v<T, Enumeration>) {
            choose(key, value, origin, target);
        } else if constexpr (std::is_same_v<T, GroupSize>) {
            choose(key, value, origin, *target);
        } else if constexpr (IsVector<T>::value) {
            if (is_word(key, value, origin)) {
                target->clear();
            } else {
                assign_list(key, value, origin, *target);
            }
        } else {
            using One = std::conditional_t<kIsOptional<T>, double, T>;
            if constexpr (kIsOptional<T>) {
                if (is_word(key, value, origin)) {
                    target->reset();
                    return;
                }
            }
            std::optional<One> scalar;
            if (!value.is_list) {
                scalar = converted<One>(key, value.items.front(), origin);
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
    const auto value_of = [&](const auto& target) {
        using T = std::remove_pointer_t<std::remove_cvref_t<decltype(target)>>;
        Value value;
        if constexpr (std::is_same_v<T, Enumeration>) {
            value.items.emplace_back(std::string(target.words()[target.index()]));
        } else if constexpr (IsVector<T>::value) {
            value.is_list = !target->empty() || key.limits.word.empty();
            if (!value.is_list) {
                value.items.emplace_back(std::string(key.limits.word));
            }
            for (const auto& element : *target) {
                value.items.push_back(scalar_of(element));
            }
        } else if constexpr (kIsOptional<T>) {
            value.items.push_back(*target ? scalar_of(**target)
                                          : Scalar(std::string(key.limits.word)));
        } else {
            value.items.push_back(scalar_of(*target));
        }
        return value;
    };
    return written(std::visit(value_of, key.target));
}

std::string type_of(const Key& key) {
    const auto describe = [](const auto& target) -> std::string {
        using T = std::remove_pointer_t<std::remove_cvref_t<decltype(target)>>;
        if constexpr (std::is_same_v<T, bool>) {
            return "true or false";
        } else if constexpr (std::is_integral_v<T>) {
            return "an integer";
        } else if constexpr (std::is_floating_point_v<T> || kIsOptional<T>) {
            return "a number";
        } else if constexpr (std::is_same_v<T, GroupSize>) {
            return "an integer or a text";
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
    if (const auto* target = std::get_if<Enumeration>(&key.target)) {
        return listed(target->words());
    }
    if (std::holds_alternative<GroupSize*>(key.target)) {
        return listed(kWords<GroupWord>) + ", or a number of ranks";
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
    return key.limits.word.empty() ? out : written(key.limits.word) + " or numbers " + out;
}

}  // namespace nearstep::config
