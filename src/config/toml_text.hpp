// Reads TOML into a flat list of keys and values. The TOML library is used only in toml_text.cpp.
#pragma once

#include "config/value.hpp"

#include <string>
#include <vector>

namespace nearstep::config {

// One key of a TOML text, or the header of a section.
struct TomlEntry {
    std::string
        key;  // includes its section: "train.steps"; parts that are not bare keys stay quoted
    Value value{};
    bool is_section = false;  // then it has no value
    std::string origin;       // for messages: "configs/tiny.toml, line 3"
};

// All entries of a TOML text, sorted by key. Throws ConfigError for invalid TOML, and for values
// that no key takes (dates, lists in lists).
std::vector<TomlEntry> read_toml(const std::string& path, const std::string& toml);

// Parses "key=value". The value is TOML, else a bare word or a list of bare words, taken as text.
// For a key that `wants_text`, numbers are bare words too. Throws ConfigError if the key or '=' is
// missing.
TomlEntry read_override(const std::string& assignment, bool (*wants_text)(const std::string& key));

}  // namespace nearstep::config
