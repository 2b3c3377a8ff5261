// Reads TOML into a flat list of keys and values. Only toml_text.cpp includes the TOML library.
#pragma once

#include "config/value.hpp"

#include <string>
#include <vector>

namespace nearstep::config {

// One key of a TOML text, or the head of one of its sections.
struct Entry {
    std::string
        key;  // with its section: "train.steps"; parts that are not bare keys keep their quotes
    Value value{};
    bool is_section = false;  // then there is no value
    std::string origin;       // for messages: "configs/tiny.toml, line 3"
};

// All entries of a TOML text, sorted by key. Throws ConfigError for what is not TOML, and for
// values that no key takes (dates, lists in lists).
std::vector<Entry> read_toml(const std::string& path, const std::string& toml);

// The entry that "key=value" stands for. The value is TOML or else a bare word or a list of bare
// words, taken as text; for a key that `wants_text` numbers are bare words too. Throws ConfigError
// without a key or '='.
Entry read_override(const std::string& assignment, bool (*wants_text)(const std::string& key));

}  // namespace nearstep::config
