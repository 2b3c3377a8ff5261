// One key of a config: which values it takes, and where they go.
#pragma once

#include "config/limits.hpp"
#include "config/run.hpp"
#include "config/value.hpp"

#include <string>
#include <variant>
#include <vector>

namespace nearstep::config {

// Where a key's value goes; its type says which values fit. A vector takes one value or a list.
using Target =
    std::variant<bool*, int*, std::int64_t*, std::uint64_t*, double*, std::string*, Mode*, Dtype*,
                 std::vector<int>*, std::vector<double>*, std::vector<std::string>*>;

struct Key {
    std::string name;  // with its section
    Target target{};
    std::string unit{};
    std::string meaning{};
    Limits limits{};                   // of numbers
    std::vector<std::string> words{};  // of texts; empty: any text
    bool may_be_empty = false;         // a text or a list
    bool is_for_sites = false;         // a site file may set it
};

// Gives the key's target the value. Throws ConfigError that ends with `origin` if it does not fit.
void assign(const Key& key, const Value& value, const std::string& origin);

// What the target holds, as TOML.
std::string written(const Key& key);

// "integer", "list of texts": what assign() takes.
std::string type_of(const Key& key);

// "at least 1", "one of a, b": empty where everything of the type is allowed.
std::string allowed(const Key& key);

}  // namespace nearstep::config
