// Looks at the first bytes of files. Used by restarts before they empty or remove files.
#include "store/provenance.hpp"

#include "base/error.hpp"
#include "base/folder_tree.hpp"
#include "base/plain_file.hpp"
#include "base/wording.hpp"
#include "store/names.hpp"
#include "store/storage_folder.hpp"
#include "store/subgroup_header.hpp"

#include <unistd.h>

#include <algorithm>
#include <set>
#include <string_view>

namespace nearstep::store {

namespace {

std::string start_of(const std::string& path) { return start_of_plain(path, kHeaderBytes); }

// Whether the file is empty, or reserved but not yet written.
bool holds_nothing(const std::string& start) {
    return std::ranges::all_of(start, [](char byte) { return byte == '\0'; });
}

bool is_state(const std::string& start) { return start.starts_with(kHeaderMagic); }

// Accepts a damaged manifest too: cut short in its first line, or with a manifest's other lines.
bool is_manifest(const std::string& start) {
    constexpr std::string_view kFirst = "nearstep manifest ";
    return start.starts_with(kFirst) || (!start.empty() && kFirst.starts_with(start)) ||
           (start.find("\nmodel = ") != std::string::npos &&
            start.find("\nlayout = ") != std::string::npos);
}

}  // namespace

std::vector<std::string> foreign_files(const RankFiles& files) {
    std::vector<std::string> foreign;
    const std::string manifest = start_of(files.manifest);
    bool has_ours = is_manifest(manifest);
    for (const std::string& path : files.states) {
        const std::string start = start_of(path);
        has_ours = has_ours || is_state(start);
        if (!is_state(start) && !holds_nothing(start)) {
            foreign.push_back(path);
        }
    }
    if (has_ours) {
        foreign.clear();
    }
    if (!is_manifest(manifest) && !holds_nothing(manifest)) {
        foreign.push_back(files.manifest);
    }
    return foreign;
}

bool is_removable_manifest(const std::string& path) {
    const std::string start = start_of(path);
    return is_own_plain(path) && (is_manifest(start) || holds_nothing(start));
}

bool is_removable_state(const std::string& path, const std::vector<std::string>& beside) {
    const std::string start = start_of(path);
    return is_own_plain(path) && (is_state(start) || holds_nothing(start) ||
                                  std::ranges::any_of(beside, [](const std::string& other) {
                                      return is_state(start_of(other));
                                  }));
}

void remove_logs(const std::string& state_file, const std::vector<std::string>& log_folders) {
    std::set<std::string> changed;
    for (const std::string& log : logs_of_state(state_file, log_folders)) {
        if (is_removable_state(log, {}) && ::unlink(log.c_str()) == 0) {
            changed.insert(folder_of(log));
        }
    }
    for (const std::string& folder : changed) {
        if (const int code = flush_folder(folder); code != 0) {
            throw_path_error(
                text("Logs were removed, and their folder ", folder, " cannot be flushed"), code,
                "check the drive, then start again");
        }
    }
}

void remove_state(const std::string& path, const std::vector<std::string>& log_folders) {
    remove_logs(path, log_folders);
    ::unlink(path.c_str());
}

void refuse_foreign_files(const RankFiles& files) {
    const std::vector<std::string> foreign = foreign_files(files);
    if (!foreign.empty()) {
        throw ConfigError(text("The file ", foreign.front(),
                               " was not made by nearstep and would be overwritten: move it away, "
                               "or set ",
                               Term::path, " to another folder."));
    }
}

}  // namespace nearstep::store
