// Reads, writes and removes the manifest of a rank. Used by restarts, and by each commit.
#include "store/manifest.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/plain_file.hpp"
#include "base/units.hpp"
#include "base/version.hpp"
#include "base/wording.hpp"
#include "store/scanner.hpp"
#include "store/storage_folder.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <utility>

namespace nearstep::store {

namespace {

constexpr std::string_view kName = "nearstep manifest ";
constexpr std::string_view kFirstLine = "nearstep manifest 1\n";
constexpr std::string_view kDigestKey = "xxh3 = ";
constexpr std::size_t kMostCommits = 2;
constexpr std::size_t kMostBytes = 64 * MiB;  // of the manifest of 100,000 ranks and more

std::string digest_of(std::string_view content) {
    return to_hex(xxh3(std::as_bytes(std::span(content))));
}

bool has_right_digest(std::string_view content) {
    const std::size_t at = content.rfind(kDigestKey);
    return at != std::string_view::npos &&
           content.substr(at) == text(kDigestKey, digest_of(content.substr(0, at)), "\n");
}

// The shortest text that parses to the same number.
std::string exact(double value) {
    std::array<char, 32> out{};
    const auto [end, error] = std::to_chars(out.data(), out.data() + out.size(), value);
    expects(error == std::errc(), "a number has a text");
    return {out.data(), end};
}

// Consecutive lines that begin with `key`.
std::vector<std::string> lines_after(Scanner& scanner, std::string_view key) {
    std::vector<std::string> lines;
    while (scanner.is_good() && scanner.is_at(key)) {
        lines.push_back(scanner.line_after(key));
    }
    return lines;
}

void scan_missed(Scanner& scanner, Commit& commit) {
    if (!scanner.is_at(" missed ")) {
        return;
    }
    scanner.skip(" missed ");
    const auto missed = parse_missed(scanner.up_to('\n'));
    if (!missed) {
        scanner.fail();
        return;
    }
    commit.missed = *missed;
}

void scan_commits(Scanner& scanner, std::vector<Commit>& commits) {
    while (scanner.is_good() && scanner.is_at("commit")) {
        Commit& commit = commits.emplace_back();
        scanner.number_after("commit = step ", commit.step);
        scanner.number_after(" generation ", commit.generation);
        scanner.number_after(" loss_scale ", commit.loss_scale);
        scanner.number_after(" good_steps ", commit.good_steps);
        if (scanner.is_at(" norm ")) {
            scanner.number_after(" norm ", commit.norm);
        }
        scan_missed(scanner, commit);
        scanner.skip("\n");
    }
}

void scan_programs(Scanner& scanner, std::vector<ProgramRecord>& programs) {
    while (scanner.is_good() && scanner.is_at("program")) {
        ProgramRecord& program = programs.emplace_back();
        scanner.number_after("program = step ", program.step);
        scanner.number_after(" bytes ", program.bytes);
        scanner.hex_after(" xxh3 ", program.xxh3);
        scanner.skip("\n");
    }
}

// Whether the text has only characters that a line of a message may have.
bool is_printable(std::string_view line) {
    return std::ranges::none_of(line, [](char letter) {
        return static_cast<unsigned char>(letter) < ' ' || letter == 0x7F;
    });
}

// Places are for messages, and their paths may have any character.
std::string printable(std::string line) {
    std::ranges::replace_if(
        line, [](char letter) { return !is_printable(std::string_view(&letter, 1)); }, '?');
    return line;
}

// Version 0.2.0 wrote "place = HOST PATH" for all ranks, in their order. The path ended with the
// manifest's name.
void scan_places(Scanner& scanner, std::map<int, std::string>& places) {
    for (int rank = 0; scanner.is_good() && scanner.is_at("place = "); ++rank) {
        const std::string place = scanner.line_after("place = ");
        places.emplace(rank, printable(place.substr(0, place.rfind('/'))));
    }
    while (scanner.is_good() && scanner.is_at("place of ")) {
        int rank = 0;
        scanner.number_after("place of ", rank);
        if (!places.emplace(rank, printable(scanner.line_after(" = "))).second || rank < 0) {
            scanner.fail();
        }
    }
}

bool is_printable(const Manifest& manifest) {
    const auto is_line = [](const std::string& line) { return is_printable(line); };
    return std::ranges::all_of(
               std::array{manifest.line.run, manifest.model, manifest.layout, manifest.data,
                          manifest.dtype, manifest.state, manifest.replaces},
               is_line) &&
           std::ranges::all_of(manifest.files, is_line) &&
           std::ranges::all_of(manifest.line.parents,
                               [](const Branch& parent) { return is_printable(parent.run); });
}

bool are_possible(const Manifest& manifest) {
    return std::ranges::all_of(manifest.commits,
                               [](const Commit& commit) { return is_possible(commit); }) &&
           std::ranges::all_of(manifest.programs,
                               [](const ProgramRecord& program) { return is_possible(program); });
}

}  // namespace

bool is_possible(const Commit& commit) {
    constexpr std::int64_t kMostSteps = std::int64_t{1} << 62U;
    return std::ranges::all_of(
               std::array{commit.step, commit.generation, commit.good_steps},
               [](std::int64_t count) { return count >= 0 && count <= kMostSteps; }) &&
           std::isfinite(commit.loss_scale) && commit.loss_scale > 0 &&
           std::isfinite(commit.norm) && commit.norm >= 0 &&
           std::ranges::all_of(commit.missed,
                               [&](std::int64_t count) { return count <= commit.generation; });
}

std::string print_manifest(const Manifest& manifest) {
    std::string content(kFirstLine);
    const auto add = [&content](std::string_view key, const auto& value) {
        content += text(key, " = ", value, "\n");
    };
    const auto add_if_any = [&add](std::string_view key, const std::string& value) {
        if (!value.empty()) {
            add(key, value);
        }
    };
    add("run", manifest.line.run);
    add_if_any("parents", print_parents(manifest.line.parents));
    add("model", manifest.model);
    add("layout", manifest.layout);
    add("seed", manifest.seed);
    add_if_any("data", manifest.data);
    add_if_any("dtype", manifest.dtype);
    add_if_any("threads", manifest.threads);
    add("steps", manifest.steps);
    add_if_any("state", manifest.state);
    add_if_any("replaces", manifest.replaces);
    for (const std::string& file : manifest.files) {
        add("file", file);
    }
    add_if_any("copy", print_ranges(manifest.copy));
    for (const auto& [rank, place] : manifest.places) {
        add(text("place of ", rank), printable(place));
    }
    for (const ProgramRecord& program : manifest.programs) {
        add("program",
            text("step ", program.step, " bytes ", program.bytes, " xxh3 ", to_hex(program.xxh3)));
    }
    for (const Commit& commit : manifest.commits) {
        add("commit", text("step ", commit.step, " generation ", commit.generation, " loss_scale ",
                           exact(commit.loss_scale), " good_steps ", commit.good_steps,
                           commit.norm != 0 ? " norm " + exact(commit.norm) : "",
                           commit.missed.empty() ? "" : " missed " + print_missed(commit.missed)));
    }
    return content + std::string(kDigestKey) + digest_of(content) + "\n";
}

std::optional<Manifest> parse_manifest(std::string_view content) {
    if (!has_right_digest(content)) {
        return std::nullopt;
    }
    Manifest manifest;
    Scanner scanner(content.substr(0, content.rfind(kDigestKey)));
    scanner.skip(kFirstLine);
    manifest.line.run = scanner.line_after("run = ");
    const auto parents = parse_parents(scanner.line_after_if_any("parents = "));
    manifest.model = scanner.line_after("model = ");
    manifest.layout = scanner.line_after("layout = ");
    scanner.number_after("seed = ", manifest.seed);
    scanner.skip("\n");
    manifest.data = scanner.line_after_if_any("data = ");
    manifest.dtype = scanner.line_after_if_any("dtype = ");
    manifest.threads = scanner.line_after_if_any("threads = ");
    scanner.number_after("steps = ", manifest.steps);
    scanner.skip("\n");
    manifest.state = scanner.line_after_if_any("state = ");
    manifest.replaces = scanner.line_after_if_any("replaces = ");
    manifest.files = lines_after(scanner, "file = ");
    const auto copy = parse_ranges(scanner.line_after_if_any("copy = "));
    scan_places(scanner, manifest.places);
    scan_programs(scanner, manifest.programs);
    scan_commits(scanner, manifest.commits);
    if (!scanner.is_good() || !scanner.is_at_end() || !parents || !copy ||
        manifest.commits.size() > kMostCommits || manifest.programs.size() > kMostCommits ||
        !is_printable(manifest) || !are_possible(manifest)) {
        return std::nullopt;
    }
    manifest.line.parents = *parents;
    manifest.copy = *copy;
    return manifest;
}

bool is_of_newer_version(std::string_view content) {
    std::uint64_t version = 0;
    Scanner first(content);
    first.number_after(kName, version);
    return (first.is_good() && first.is_at("\n") && version > 1) ||
           (has_right_digest(content) && !parse_manifest(content));
}

std::vector<int> ranks_placed_by(int rank, int ranks) {
    std::vector<int> others;
    for (int distance = 1; distance < ranks;
         distance = distance < 4 ? distance + 1 : distance * 2) {
        others.push_back((rank + distance) % ranks);
    }
    return others;
}

void add_commit(Manifest& manifest, const Commit& commit) {
    std::vector<Commit>& commits = manifest.commits;
    std::erase_if(commits,
                  [&](const Commit& older) { return older.generation != commit.generation - 1; });
    commits.insert(commits.begin(), commit);
}

std::vector<Commit> common_commits(std::span<const std::vector<Commit>> of_ranks) {
    expects(!of_ranks.empty(), "there is a rank");
    std::vector<Commit> common;
    for (Commit commit : of_ranks.front()) {
        bool is_in_all = true;
        for (const std::vector<Commit>& commits : of_ranks) {
            const auto found = std::ranges::find(commits, commit.generation, &Commit::generation);
            is_in_all = is_in_all && found != commits.end();
            if (is_in_all && found->step < commit.step) {
                commit = *found;
            }
        }
        if (is_in_all) {
            common.push_back(commit);
        }
    }
    return common;
}

ManifestFile::ManifestFile(std::string path, Storage* storage)
    : path_(std::move(path)), storage_(storage != nullptr ? storage : &system_) {}

std::optional<Manifest> ManifestFile::read() const {
    const PlainFile opened = open_plain(path_, O_RDONLY);
    if (!opened.file) {
        if (opened.code == ENOENT || opened.code == ENOTDIR) {
            return std::nullopt;
        }
        if (opened.code == ELOOP || opened.code == EISDIR || opened.code == EINVAL) {
            report_damage(opened.obstacle);
        }
        fail("open", path_, opened.code);
    }
    std::string content;
    // A longer file is none of ours, and its digest tells.
    if (const int code = read_start(opened.file, kMostBytes, content); code != 0) {
        fail("read", path_, code);
    }
    std::optional<Manifest> manifest = parse_manifest(content);
    if (!manifest && is_of_newer_version(content)) {
        throw NewerVersionError(
            text("The manifest \"", path_,
                 "\" was written by a newer version of nearstep than this one, ", version(),
                 ": use that version, or go on from a checkpoint with ", Term::from,
                 ", or start anew with ", Term::fresh, "."));
    }
    if (!manifest) {
        report_damage("");
    }
    return manifest;
}

void ManifestFile::report_damage(const std::string& reason) const {
    throw DamageError(text("The manifest \"", path_, "\" is damaged",
                           reason.empty() ? "" : text(" (", reason, ")"),
                           ", so the state files beside it cannot be used: go on from a checkpoint "
                           "with ",
                           Term::from, ", or start anew with ", Term::fresh, "."));
}

void ManifestFile::replace(const Manifest& manifest) {
    expects(manifest.commits.size() <= kMostCommits, "a manifest lists two commits at most");
    const std::string content = print_manifest(manifest);
    const std::string partial = path_ + ".partial";
    {
        struct stat old {};
        const bool replaces = ::lstat(path_.c_str(), &old) == 0 && S_ISREG(old.st_mode);
        is_made_ = is_made_ || !replaces;
        const Descriptor file = make_plain(partial, kStateMode);
        if (!file) {
            fail("make", partial, errno);
        }
        if (replaces) {  // not everywhere possible, and then the mode is that of a new file
            ::fchmod(file.get(), old.st_mode & 07777U);
        }
        if (storage_->write_all(file.get(), std::as_bytes(std::span(content)), 0) != 0) {
            fail("write", partial, errno);
        }
        if (storage_->flush(file.get()) != 0) {
            fail("flush", partial, errno);
        }
    }
    if (storage_->rename(partial, path_) != 0) {
        fail("rename", partial, errno);
    }
    flush_folder();
}

void ManifestFile::remove() {
    if (::unlink(path_.c_str()) != 0) {
        if (errno == ENOENT) {
            return;
        }
        fail("remove", path_, errno);
    }
    flush_folder();
}

void ManifestFile::withdraw() {
    if (is_made_) {
        remove();
        is_made_ = false;
    }
}

void ManifestFile::flush_folder() {
    const std::string folder = folder_of(path_);
    if (storage_->flush_folder(folder) != 0) {
        fail("flush", folder, errno);
    }
}

void ManifestFile::fail(const char* verb, const std::string& path, int reason) const {
    throw IoError(text("Cannot ", verb, " \"", path, "\" (", std::strerror(reason),
                       "), so the step is not committed: check the drive and its free space",
                       then_start_again(), "."));
}

}  // namespace nearstep::store
