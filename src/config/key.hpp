// One key of a config: the values it takes, and where they are stored.
#pragma once

#include "config/group_size.hpp"
#include "config/key_limits.hpp"
#include "config/run_settings.hpp"
#include "config/value.hpp"

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace nearstep::config {

// An enumeration with words, of any type.
class Enumeration {
public:
    template <Worded E>
    // NOLINTNEXTLINE(google-explicit-constructor): a key's target is written as a pointer.
    Enumeration(E* value)
        : words_(kWords<E>),
          index_([value] { return index_of(*value); }),
          choose_([value](std::size_t index) { *value = static_cast<E>(index); }) {}

    std::span<const char* const> words() const { return words_; }
    std::size_t index() const { return index_(); }
    void choose(std::size_t index) const { choose_(index); }

private:
    std::span<const char* const> words_;
    std::function<std::size_t()> index_;
    std::function<void(std::size_t)> choose_;
};

// Where a key's value is stored; its type says which values fit. A vector takes a value or a list.
using Target =
    std::variant<bool*, int*, std::int64_t*, std::uint64_t*, double*, std::optional<double>*,
                 std::string*, std::vector<int>*, std::vector<double>*, std::vector<std::string>*,
                 GroupSize*, Enumeration>;

// The files that may set a key. An override may set every key.
enum class KeyPlace { config, config_or_site, site };

// The scope of a value. run: all ranks of a run have the same value. rank: the value says what a
// rank or its host has, and changes no results.
enum class KeyScope { run, rank };

struct Key {
    std::string name;  // includes the section
    Target target{};
    std::string meaning{};
    std::string unit{};  // empty: none
    Limits limits{};
    KeyPlace place = KeyPlace::config;
    KeyScope scope = KeyScope::run;
    // The words of earlier versions for an enumeration's values, and what to write instead.
    std::map<std::string, std::string> removed_words{};
};

// Stores the value in the key's target. Throws ConfigError ending in `origin` if it does not fit.
void assign(const Key& key, const Value& value, const std::string& origin);

// The target's value as TOML.
std::string written(const Key& key);

// Names the type that assign() takes: "integer", "list of texts".
std::string type_of(const Key& key);

// "at least 1", "one of a, b"; empty if every value of the type is allowed.
std::string allowed(const Key& key);

}  // namespace nearstep::config
