// Flattens TOML text to keys and values by toml++. Used by load.cpp and hosts.cpp.
#include "config/toml_text.hpp"

#include "base/error.hpp"
#include "base/wording.hpp"
#include "config/load.hpp"

#include <toml++/toml.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

namespace nearstep::config {

namespace {

std::string trimmed(std::string_view text) {
    constexpr std::string_view kBlanks = " \t\r\n";
    const std::size_t begin = text.find_first_not_of(kBlanks);
    if (begin == std::string_view::npos) {
        return {};
    }
    return std::string(text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1));
}

// One part of a key, quoted unless TOML allows it bare, so that "a.b" is not read as b in section
// a.
std::string key_part(std::string_view part) {
    constexpr std::string_view kBare =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
    const bool is_bare = !part.empty() && part.find_first_not_of(kBare) == std::string_view::npos;
    return is_bare ? std::string(part) : written(part);
}

// The end of the string or comment that begins at `at`; `at` if none begins there.
std::size_t end_of_text(std::string_view toml, std::size_t at) {
    if (toml[at] == '#') {
        return std::min(toml.find('\n', at), toml.size());
    }
    if (toml[at] != '"' && toml[at] != '\'') {
        return at;
    }
    const bool has_escapes = toml[at] == '"';
    const std::string fence(3, toml[at]);
    const bool is_long = toml.substr(at).starts_with(fence);
    const std::string_view end =
        is_long ? std::string_view(fence) : std::string_view(fence).substr(2);
    for (at += end.size(); at < toml.size(); ++at) {
        if (toml.substr(at).starts_with(end)) {
            return at + end.size();
        }
        if (toml[at] == '\n' && !is_long) {
            return at;
        }
        at += has_escapes && toml[at] == '\\' ? 1 : 0;
    }
    return toml.size();
}

// The library recurses once per part of a key, so "a.a.a..." could overflow the stack.
bool has_too_many_parts(std::string_view toml) {
    constexpr std::size_t kMostDots = 4096;  // outside strings and comments
    std::size_t dots = 0;
    for (std::size_t at = 0; at < toml.size();) {
        const std::size_t end = end_of_text(toml, at);
        dots += end == at && toml[at] == '.' ? 1 : 0;
        at = std::max(end, at + 1);
    }
    return dots > kMostDots;
}

std::optional<Scalar> scalar_of(const toml::node& node) {
    if (const auto* flag = node.as_boolean()) {
        return Scalar(flag->get());
    }
    if (const auto* integer = node.as_integer()) {
        return Scalar(integer->get());
    }
    if (const auto* real = node.as_floating_point()) {
        return Scalar(real->get());
    }
    if (const auto* word = node.as_string()) {
        return Scalar(word->get());
    }
    return std::nullopt;
}

// Empty for dates, tables in lists and lists in lists.
std::optional<Value> value_of(const toml::node& node) {
    Value value;
    if (const toml::array* list = node.as_array()) {
        value.is_list = true;
        for (const toml::node& element : *list) {
            std::optional<Scalar> item = scalar_of(element);
            if (!item) {
                return std::nullopt;
            }
            value.items.push_back(*std::move(item));
        }
        return value;
    }
    std::optional<Scalar> item = scalar_of(node);
    if (!item) {
        return std::nullopt;
    }
    value.items.push_back(*std::move(item));
    return value;
}

void flatten(const toml::table& table, const std::string& section, const std::string& path,
             std::vector<TomlEntry>& out) {
    for (const auto& [name, node] : table) {
        const std::string key = (section.empty() ? "" : section + '.') + key_part(name.str());
        const std::string origin = text(on_one_line(path), ", line ", name.source().begin.line);
        if (const toml::table* inner = node.as_table()) {
            out.push_back({.key = key, .is_section = true, .origin = origin});
            flatten(*inner, key, path, out);
            continue;
        }
        std::optional<Value> value = value_of(node);
        if (!value) {
            throw ConfigError(
                text(key,
                     " has a value that no key takes: give text, a number, true, false or a list "
                     "of these (",
                     origin, ")."));
        }
        out.push_back({.key = key, .value = *std::move(value), .origin = origin});
    }
}

// The value in "value = WORD"; empty if that is not TOML.
std::optional<Value> parsed_value(const std::string& word) {
    if (has_too_many_parts(word)) {
        return std::nullopt;
    }
    try {
        const toml::table table = toml::parse("value = " + word);
        return table.size() == 1 && table.contains("value") ? value_of(*table.get("value"))
                                                            : std::nullopt;
    } catch (const toml::parse_error&) {
        return std::nullopt;
    }
}

Value bare_value(const std::string& word) {
    Value value;
    value.is_list = word.size() >= 2 && word.front() == '[' && word.back() == ']';
    if (!value.is_list) {
        value.items.emplace_back(word);
        return value;
    }
    std::istringstream parts(word.substr(1, word.size() - 2));
    for (std::string part; std::getline(parts, part, ',');) {
        value.items.emplace_back(trimmed(part));
    }
    return value;
}

}  // namespace

std::vector<TomlEntry> read_toml(const std::string& path, const std::string& toml) {
    if (has_too_many_parts(toml)) {
        throw ConfigError(text(on_one_line(path),
                               " has more dots outside of strings than settings have: write each "
                               "key once, as in steps = 10 below [train]."));
    }
    try {
        std::vector<TomlEntry> entries;
        flatten(toml::parse(toml), "", path, entries);
        return entries;
    } catch (const toml::parse_error& error) {
        throw ConfigError(text(on_one_line(path), ", line ", error.source().begin.line,
                               ", is not TOML: ", on_one_line(error.description()), "."));
    }
}

TomlEntry read_override(const std::string& assignment, bool (*wants_text)(const std::string& key)) {
    const std::size_t equals = assignment.find('=');
    TomlEntry entry;
    entry.key = on_one_line(trimmed(assignment.substr(0, equals)));
    if (equals == std::string::npos || entry.key.empty()) {
        throw ConfigError(text(Term::origin, " ", on_one_line(assignment), " sets no key: write ",
                               Term::how_to_set, "."));
    }
    const std::string word = trimmed(std::string_view(assignment).substr(equals + 1));
    entry.origin = text(Term::origin, " ", name_of_key(on_one_line(assignment.substr(0, equals))),
                        on_one_line(assignment.substr(equals)));
    std::optional<Value> value = parsed_value(word);
    const bool is_text =
        value && !value->is_list && std::holds_alternative<std::string>(value->items.front());
    if (!value || (wants_text(entry.key) && !value->is_list && !is_text)) {
        value = bare_value(word);
    }
    entry.value = *std::move(value);
    return entry;
}

std::string toml_version() {
    return text(TOML_LIB_MAJOR, ".", TOML_LIB_MINOR, ".", TOML_LIB_PATCH);
}

}  // namespace nearstep::config
