// Reads a run's settings from files and options. Called by the program and the Python binding.
#include "config/load.hpp"

#include "base/error.hpp"
#include "base/input_file.hpp"
#include "base/likeness.hpp"
#include "base/utf8.hpp"
#include "base/wording.hpp"
#include "config/checks.hpp"
#include "config/keys.hpp"

#include <algorithm>
#include <array>
#include <filesystem>

namespace nearstep::config {

namespace {

namespace fs = std::filesystem;

enum class SourceKind { config, site, override };

std::string read_file(const std::string& path, const std::string& what) {
    std::error_code unused;
    if (fs::is_directory(path, unused)) {
        throw ConfigError(
            text("The ", what, " ", on_one_line(path), " is a folder: name a TOML file."));
    }
    return read_short_file(path, text("The ", what), "check its path.");
}

std::string section_of(const std::string& key) {
    const std::size_t dot = key.find('.');
    return dot == std::string::npos ? "" : key.substr(0, dot);
}

// Returns the key's name without its section.
std::string name_in_section(const std::string& key) { return key.substr(key.find('.') + 1); }

std::string leaf_of(const std::string& key) { return key.substr(key.rfind('.') + 1); }

// The known key that most resembles `key`, as a whole or by its name in another section.
const Key& nearest(const std::vector<Key>& keys, const std::string& key) {
    const auto distance = [&](const Key& known) {
        const std::size_t as_leaf = edits_between(leaf_of(key), leaf_of(known.name)) + 1;
        return std::min(edits_between(key, known.name), as_leaf);
    };
    return *std::ranges::min_element(keys, {}, distance);
}

const Key* find(const std::vector<Key>& keys, const std::string& name) {
    const auto key = std::ranges::find(keys, name, &Key::name);
    return key == keys.end() ? nullptr : &*key;
}

void check_section(const std::vector<Key>& keys, const TomlEntry& entry) {
    std::vector<std::string> sections;
    for (const Key& key : keys) {
        for (std::size_t dot = key.name.find('.'); dot != std::string::npos;
             dot = key.name.find('.', dot + 1)) {
            sections.push_back(key.name.substr(0, dot));
        }
    }
    if (std::ranges::count(sections, entry.key) > 0) {
        return;
    }
    throw ConfigError(text("There is no section [", entry.key, "] (", entry.origin,
                           "): did you mean [", *nearest_word(entry.key, sections), "]?"));
}

void check_place(const Key& key, SourceKind source, const std::string& origin) {
    if (source == SourceKind::site && key.place == KeyPlace::config) {
        throw ConfigError(text(key.name,
                               " says what to train and not where: it belongs in a config, not in "
                               "a site file (",
                               origin, ")."));
    }
    if (source == SourceKind::config && key.place == KeyPlace::site) {
        throw ConfigError(text(key.name,
                               " says where to train and not what: it belongs in the file of a "
                               "site (--site), not in a config (",
                               origin, ")."));
    }
}

// The text of a run's settings is TOML, in its checkpoints too.
void check_text(const TomlEntry& entry) {
    for (const Scalar& item : entry.value.items) {
        const auto* word = std::get_if<std::string>(&item);
        if (word != nullptr && !is_utf8(*word)) {
            throw ConfigError(text(name_of_key(entry.key), " = ", written(Scalar(as_utf8(*word))),
                                   " has bytes that are not UTF-8 (at each \"?\"): rename the "
                                   "file or folder, or name it by a link whose name is UTF-8."));
        }
    }
}

class Layers {
public:
    explicit Layers(RunSettings& run) : keys_(keys_of(run)) {}

    void apply(const std::vector<TomlEntry>& entries, SourceKind source) {
        for (const TomlEntry& entry : entries) {
            const Key* key = find(keys_, entry.key);
            if (entry.is_section && key != nullptr) {
                throw ConfigError(text(entry.key, " is a key, not a section: write ", entry.key,
                                       " = ", written(*key), " (", entry.origin, ")."));
            }
            if (entry.is_section) {
                check_section(keys_, entry);
                continue;
            }
            if (const char* instead = instead_of(entry.key)) {
                throw ConfigError(
                    text(entry.key, " was removed: ", instead, " (", entry.origin, ")."));
            }
            if (key == nullptr) {
                throw ConfigError(text("There is no key ", entry.key, " (", entry.origin,
                                       "): did you mean ", nearest(keys_, entry.key).name, "?"));
            }
            check_place(*key, source, entry.origin);
            check_text(entry);
            assign(*key, entry.value, entry.origin);
            origins_[entry.key] = entry.origin;
        }
    }

    // Sets the keys of a published model that are not set, and refuses others that differ.
    void complete(const std::vector<TomlEntry>& entries) {
        std::vector<TomlEntry> missing;
        for (const TomlEntry& entry : entries) {
            const auto origin = origins_.find(entry.key);
            if (origin == origins_.end()) {
                missing.push_back(entry);
                continue;
            }
            RunSettings published;
            const std::vector<Key> keys = keys_of(published);
            const Key& key = *find(keys, entry.key);
            assign(key, entry.value, entry.origin);
            const std::string given = written(*find(keys_, entry.key));
            if (given != written(key)) {
                throw ConfigError(text(entry.key, " = ", given, " (", origin->second, "), but ",
                                       entry.origin, " says ", written(key),
                                       ": leave the key out, or name another model in "
                                       "model.from."));
            }
        }
        apply(missing, SourceKind::config);
    }

    const Origins& origins() const { return origins_; }

private:
    std::vector<Key> keys_;
    Origins origins_;
};

bool wants_text(const std::string& name) {
    RunSettings defaults;
    const std::vector<Key> keys = keys_of(defaults);
    const Key* key = find(keys, name);
    return key != nullptr && type_of(*key).rfind("a text", 0) == 0;
}

// Site, config and overrides: what is written for the run wins over what is said of the machine.
Layers apply(const Sources& sources, RunSettings& run) {
    Layers layers(run);
    run.name = as_utf8(fs::path(sources.config_path).stem().string());
    if (!sources.site_path.empty() || !sources.site_text.empty()) {
        const std::string folder =
            as_utf8(fs::path(sources.site_path).parent_path().filename().string());
        run.site = folder.empty() ? run.site : folder;
        layers.apply(read_toml(sources.site_path, sources.site_text), SourceKind::site);
    }
    layers.apply(read_toml(sources.config_path, sources.config_text), SourceKind::config);
    for (const std::string& assignment : sources.overrides) {
        layers.apply({read_override(assignment, wants_text)}, SourceKind::override);
    }
    return layers;
}

}  // namespace

Sources read_sources(const std::string& config_path, const std::string& site,
                     const std::vector<std::string>& overrides) {
    Sources sources;
    sources.config_path = config_path;
    if (!config_path.empty()) {
        sources.config_text = read_file(config_path, "config");
    }
    if (!site.empty()) {
        std::error_code unused;
        sources.site_path =
            fs::is_directory(site, unused) ? (fs::path(site) / "site.toml").string() : site;
        sources.site_text = read_file(sources.site_path, "site file");
    }
    sources.overrides = overrides;
    return sources;
}

std::string model_from(const Sources& sources) {
    RunSettings run;
    apply(sources, run);
    return run.model.from;
}

RunSettings parse(const Sources& sources) {
    RunSettings run;
    Layers layers = apply(sources, run);
    layers.complete(sources.model);
    if (run.model.positions > 0 && !layers.origins().contains("model.context")) {
        run.model.context = run.model.positions;
    }
    if (run.compress.codec == PayloadCodec::automatic) {
        run.compress.codec = run.mode == Mode::su_o_c ? PayloadCodec::q4 : PayloadCodec::dense;
    }
    if (!layers.origins().contains("csd.storage_ranks")) {
        run.csd.storage_ranks = static_cast<int>(run.hosts.storage.size());
    }
    check_combinations(run, layers.origins());
    if (sources.needs_data) {
        check_data(run, layers.origins());
    }
    return run;
}

ModelSettings stored_model(const std::string& path, const std::string& text) {
    std::vector<TomlEntry> entries = read_toml(path, text);
    RunSettings run;
    const std::vector<Key> keys = keys_of(run);
    std::erase_if(entries, [&](const TomlEntry& entry) {
        return section_of(entry.key) != "model" || find(keys, entry.key) == nullptr;
    });
    Layers(run).apply(entries, SourceKind::override);
    check_model(run.model, {});
    return run.model;
}

std::int64_t steps_of(const std::string& path, const std::string& text) {
    // Ignores other keys, which may belong to another version.
    const std::vector<TomlEntry> entries = read_toml(path, text);
    const auto found = std::ranges::find(entries, "train.steps", &TomlEntry::key);
    if (found == entries.end() || found->value.items.empty()) {
        return TrainSettings().steps;
    }
    const auto* steps = std::get_if<std::int64_t>(&found->value.items.front());
    return steps == nullptr ? TrainSettings().steps : *steps;
}

std::vector<std::string> state_folders_of(const std::string& path, const std::string& text) {
    const std::vector<TomlEntry> entries = read_toml(path, text);
    const auto found = std::ranges::find(entries, "csd.path", &TomlEntry::key);
    std::vector<std::string> folders;
    if (found != entries.end()) {
        for (const auto& item : found->value.items) {
            if (const auto* folder = std::get_if<std::string>(&item)) {
                folders.push_back(*folder);
            }
        }
    }
    return folders;
}

std::string print(const RunSettings& run) {
    RunSettings copy = run;
    std::string out;
    std::string section;
    for (const Key& key : keys_of(copy)) {
        if (section_of(key.name) != section) {
            section = section_of(key.name);
            out += "\n[" + section + "]\n";
        }
        out += name_in_section(key.name) + " = " + written(key) + '\n';
    }
    return out;
}

std::vector<NamedValue> values_of_run(const RunSettings& run) {
    RunSettings copy = run;
    std::vector<NamedValue> values;
    for (const Key& key : keys_of(copy)) {
        if (key.scope == KeyScope::run) {
            values.push_back({std::string(name_of_key(key.name)), written(key)});
        }
    }
    return values;
}

std::string describe_keys(KeyTable table) {
    RunSettings defaults;
    std::vector<std::array<std::string, 4>> rows;
    std::array<std::size_t, 4> widths{};
    std::vector<Key> keys = keys_of(defaults);
    std::erase_if(keys, [&](const Key& key) {
        return (key.place == KeyPlace::site) != (table == KeyTable::site);
    });
    for (const Key& key : keys) {
        rows.push_back({key.name, type_of(key), key.unit.empty() ? "-" : key.unit, written(key)});
        for (std::size_t i = 0; i < widths.size(); ++i) {
            widths[i] = std::max(widths[i], rows.back()[i].size());
        }
    }
    std::string out;
    for (std::size_t row = 0; row < rows.size(); ++row) {
        for (std::size_t i = 0; i < widths.size(); ++i) {
            out += rows[row][i] + std::string(widths[i] - rows[row][i].size() + 2, ' ');
        }
        const std::string limits = allowed(keys[row]);
        out += keys[row].meaning +
               (keys[row].scope == KeyScope::rank ? "; each rank may have its own" : "") +
               (limits.empty() ? "" : " (" + limits + ")") + '\n';
    }
    return out;
}

}  // namespace nearstep::config
