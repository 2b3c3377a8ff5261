// One key of a config: the values it takes, and where they are stored.
#pragma once

#include "config/limits.hpp"
#include "config/run.hpp"
#include "config/value.hpp"

#include <map>
#include <string>
#include <variant>
#include <vector>

namespace nearstep::config {

// Where a key's value is stored; its type says which values fit. A vector takes a value or a list.
using Target =
    std::variant<bool*, int*, std::int64_t*, std::uint64_t*, double*, std::string*, Mode*, Dtype*,
                 std::vector<int>*, std::vector<double>*, std::vector<std::string>*>;

struct Key {
    std::string name;  // includes the section
    Target target{};
    std::string unit{};
    std::string meaning{};
    Limits limits{};  // for numbers
    // For texts; empty: any text. A list of numbers may be its word instead, stored as no numbers.
    std::vector<std::string> words{};
    // Words of earlier versions, and what to write instead.
    std::map<std::string, std::string> removed_words{};
    bool may_be_empty = false;    // for a text or a list
    bool may_have_lines = false;  // a text may have line breaks and other control characters
    bool is_for_sites = false;    // a site file may set it
};

// Stores the value in the key's target. Throws ConfigError ending in `origin` if it does not fit.
void assign(const Key& key, const Value& value, const std::string& origin);

// The target's value as TOML.
std::string written(const Key& key);

// What assign() takes: "integer", "list of texts".
std::string type_of(const Key& key);

// "at least 1", "one of a, b"; empty if every value of the type is allowed.
std::string allowed(const Key& key);

}  // namespace nearstep::config
