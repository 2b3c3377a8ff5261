// Decides which run a checkpoint folder belongs to. Used by the engine when it saves and begins.
#include "checkpoint/owner.hpp"

#include "base/descriptor.hpp"
#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/plain_file.hpp"
#include "checkpoint/checkpoint_files.hpp"
#include "checkpoint/h5_reader.hpp"
#include "checkpoint/index.hpp"
#include "store/storage_folder.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>

namespace nearstep::checkpoint {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kIdDigits = 16;
constexpr std::string_view kFolderOfRun = "run-";
constexpr std::string_view kOwnerLine = "nearstep checkpoints of run ";

bool is_id(std::string_view text) {
    return text.size() == kIdDigits && std::ranges::all_of(text, [](char c) {
               return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
           });
}

// A run's id becomes part of a path, so it must have the form of one.
std::string id_of(const std::string& run) {
    return is_id(run) ? run : to_hex(xxh3(std::as_bytes(std::span(run))));
}

std::set<std::string> ids_of(const std::set<std::string>& runs) {
    std::set<std::string> ids;
    for (const std::string& run : runs) {
        ids.insert(id_of(run));
    }
    return ids;
}

std::string owner_path(const std::string& folder) { return folder + "/owner"; }

[[noreturn]] void fail(const char* verb, const std::string& path) {
    throw IoError(text("Cannot ", verb, " ", path, ": ", std::generic_category().message(errno),
                       ". Check the disk and the folder's permissions."));
}

// The id in the owner's file; nullopt if there is no such file, empty if it has another form.
std::optional<std::string> read_owner(const std::string& folder) {
    const std::string path = owner_path(folder);
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!file) {
        if (errno == ENOENT || errno == ENOTDIR) {
            return std::nullopt;
        }
        if (errno == ELOOP) {
            return "";
        }
        fail("read", path);
    }
    std::array<char, kOwnerLine.size() + kIdDigits + 2> bytes{};
    const ssize_t count = ::read(file.get(), bytes.data(), bytes.size());
    if (count < 0 && errno != EISDIR) {
        fail("read", path);
    }
    std::string_view line(bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    if (!line.starts_with(kOwnerLine) || !line.ends_with('\n')) {
        return "";
    }
    line.remove_prefix(kOwnerLine.size());
    line.remove_suffix(1);
    return is_id(line) ? std::string(line) : "";
}

// Empty if the owner's file names no run or cannot be read.
std::string known_owner(const std::string& folder) {
    try {
        return read_owner(folder).value_or("");
    } catch (const IoError&) {
        return "";
    }
}

enum class Claim { first, take_over };

// Returns false if another run was first.
bool write_owner(const std::string& folder, const std::string& id, Claim claim) {
    const std::string path = owner_path(folder);
    const std::string partial = text(path, ".", id, kPartial);
    ::unlink(partial.c_str());
    {
        const Descriptor file(
            ::open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
        const std::string line = text(kOwnerLine, id, "\n");
        if (!file || write_all(file, std::as_bytes(std::span(line))) != 0) {
            refuse_write(partial, errno);
        }
    }
    sync_file(partial);
    bool is_mine = true;
    if (claim == Claim::first) {
        // link() is the operation that fails if another run was first, on network file systems too.
        is_mine = ::link(partial.c_str(), path.c_str()) == 0;
        if (!is_mine && errno != EEXIST) {
            claim = Claim::take_over;  // a file system without links
        } else {
            ::unlink(partial.c_str());
        }
    }
    if (claim == Claim::take_over) {
        is_mine = std::rename(partial.c_str(), path.c_str()) == 0;
        if (!is_mine) {
            fail("rename", partial);
        }
    }
    sync_folder(folder);
    return is_mine;
}

// The runs whose indexes are in the folder. A damaged index is nobody's; one that may not be read
// is another's, and has the empty run.
std::set<std::string> runs_in(const std::string& folder) {
    std::set<std::string> runs;
    for (const FileName& file : list_folder(folder)) {
        if (file.kind != FileKind::index) {
            continue;
        }
        const std::string path = text(folder, "/", file.name);
        try {
            runs.insert(id_of(read_index(path).description.run));
        } catch (const ConfigError&) {
            if (::access(path.c_str(), R_OK) != 0 && errno != ENOENT) {
                runs.insert("");
            }
        }
    }
    return runs;
}

std::set<std::string> with_parents(const Claimant& claimant) {
    std::set<std::string> family = {id_of(claimant.line.run)};
    for (const store::Branch& parent : claimant.line.parents) {
        family.insert(id_of(parent.run));
    }
    return family;
}

// Whether all indexes in the folder are the claimant's, of runs that it replaced, or, beside one of
// its own, of its parents.
bool holds_only(const std::string& folder, const Claimant& claimant) {
    const std::string id = id_of(claimant.line.run);
    const std::set<std::string> runs = runs_in(folder);
    std::set<std::string> ours = runs.count(id) > 0 ? with_parents(claimant) : std::set{id};
    ours.merge(ids_of(claimant.replaced));
    return std::ranges::includes(ours, runs);
}

// An owner's file decides; without one the indexes tell.
bool is_claimed(const std::string& folder, const Claimant& claimant) {
    const std::string id = id_of(claimant.line.run);
    const std::string named = run_of_folder(folder);
    if (!named.empty()) {
        return named == id;
    }
    std::optional<std::string> owner = read_owner(folder);
    if (!owner && holds_only(folder, claimant)) {
        if (write_owner(folder, id, Claim::first)) {
            return true;
        }
        owner = read_owner(folder);
    }
    if (!owner || (*owner != id && ids_of(claimant.replaced).count(*owner) == 0)) {
        return false;
    }
    return *owner == id || write_owner(folder, id, Claim::take_over);
}

}  // namespace

std::string claim_folder(const std::string& folder, const Claimant& claimant) {
    make_folder(folder);
    if (is_claimed(folder, claimant)) {
        return folder;
    }
    std::string own = text(folder, "/", kFolderOfRun, id_of(claimant.line.run));
    std::error_code ignored;
    if (!fs::is_directory(own, ignored)) {
        log_event("checkpoint_folder_shared", {{"folder", folder}, {"checkpoints_in", own}});
    }
    make_folder(own);
    return own;
}

void take_over_folder(const std::string& folder, const Claimant& claimant) {
    std::error_code ignored;
    if (!claimant.replaced.empty() && fs::is_directory(folder, ignored)) {
        is_claimed(folder, claimant);
    }
}

void release_folder(const std::string& folder, const store::Lineage& line) {
    const std::optional<std::string> owner = read_owner(folder);
    if (owner && *owner == id_of(line.run) && holds_only(folder, {.line = line, .replaced = {}})) {
        ::unlink(owner_path(folder).c_str());
    }
}

std::vector<std::string> folders_of_runs(const std::string& folder) {
    std::vector<std::string> folders = {folder};
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error)) {
        std::error_code ignored;
        if (!run_of_folder(entry->path().string()).empty() &&
            fs::is_directory(entry->symlink_status(ignored))) {
            folders.push_back(text(folder, "/", entry->path().filename().string()));
        }
    }
    std::sort(folders.begin() + 1, folders.end());
    return folders;  // list_folder() reports a folder that cannot be listed
}

std::string run_of_folder(const std::string& folder) {
    std::string_view rest = folder;
    while (rest.ends_with('/')) {
        rest.remove_suffix(1);
    }
    rest.remove_prefix(std::min(rest.size(), rest.rfind('/') + 1));
    if (!rest.starts_with(kFolderOfRun)) {
        return "";
    }
    rest.remove_prefix(kFolderOfRun.size());
    return is_id(rest) ? std::string(rest) : "";
}

std::string run_of_damaged(const std::string& index_path) {
    const std::string folder = store::folder_of(index_path);
    std::string run = run_of_folder(folder);
    if (run.empty()) {
        try {
            h5::StoredFile file(index_path);
            run = h5::read_text(file, "run");
        } catch (const Error&) {
            run = known_owner(folder);
        }
    }
    return is_id(run) ? run : "";
}

}  // namespace nearstep::checkpoint
