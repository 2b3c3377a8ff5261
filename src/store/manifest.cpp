#include "store/manifest.hpp"

#include "base/descriptor.hpp"
#include "base/digest.hpp"
#include "base/error.hpp"
#include "store/folder.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>
#include <utility>

namespace nearstep::store {

namespace {

constexpr std::string_view kFirstLine = "nearstep manifest 1\n";
constexpr std::string_view kDigestKey = "xxh3 = ";
constexpr std::size_t kMostCommits = 2;
constexpr mode_t kOwnerAndGroup = 0660;

std::string digest_of(std::string_view content) {
    return to_hex(xxh3(std::as_bytes(std::span(content))));
}

// The shortest text that reads back as the same number.
std::string exact(double value) {
    std::array<char, 32> out{};
    const auto [end, error] = std::to_chars(out.data(), out.data() + out.size(), value);
    expects(error == std::errc(), "a number has a text");
    return {out.data(), end};
}

std::string print(const Manifest& manifest) {
    std::string content = text(kFirstLine, "run = ", manifest.run, "\nmodel = ", manifest.model,
                               "\nlayout = ", manifest.layout, "\nseed = ", manifest.seed,
                               "\nsteps = ", manifest.steps, "\n");
    for (const Commit& commit : manifest.commits) {
        content += text("commit = step ", commit.step, " generation ", commit.generation,
                        " loss_scale ", exact(commit.loss_scale), " good_steps ", commit.good_steps,
                        commit.norm > 0 ? " norm " + exact(commit.norm) : "", "\n");
    }
    return content + std::string(kDigestKey) + digest_of(content) + "\n";
}

// Takes a manifest's text apart from the front; is_good() is false once something was not there.
class Scanner {
public:
    explicit Scanner(std::string_view content) : rest_(content) {}

    bool is_good() const { return is_good_; }
    bool is_at(std::string_view word) const { return rest_.starts_with(word); }
    bool is_at_end() const { return rest_.empty(); }

    void skip(std::string_view word) {
        is_good_ = is_good_ && is_at(word);
        if (is_good_) {
            rest_.remove_prefix(word.size());
        }
    }
    std::string line_after(std::string_view word) {
        skip(word);
        const std::size_t end = rest_.find('\n');
        std::string line(rest_.substr(0, end));
        rest_.remove_prefix(std::min(line.size(), rest_.size()));
        skip("\n");
        return line;
    }
    template <typename Number>
    void number_after(std::string_view word, Number& number) {
        skip(word);
        const auto [end, error] =
            std::from_chars(rest_.data(), rest_.data() + rest_.size(), number);
        is_good_ = is_good_ && error == std::errc();
        rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    }

private:
    std::string_view rest_;
    bool is_good_ = true;
};

// nullopt if it is not a whole manifest of this version.
std::optional<Manifest> parse(std::string_view content) {
    const std::size_t digest_at = content.rfind(kDigestKey);
    if (digest_at == std::string_view::npos ||
        content.substr(digest_at) !=
            text(kDigestKey, digest_of(content.substr(0, digest_at)), "\n")) {
        return std::nullopt;
    }
    Manifest manifest;
    Scanner scanner(content.substr(0, digest_at));
    scanner.skip(kFirstLine);
    manifest.run = scanner.line_after("run = ");
    manifest.model = scanner.line_after("model = ");
    manifest.layout = scanner.line_after("layout = ");
    scanner.number_after("seed = ", manifest.seed);
    scanner.number_after("\nsteps = ", manifest.steps);
    scanner.skip("\n");
    while (scanner.is_good() && scanner.is_at("commit")) {
        Commit& commit = manifest.commits.emplace_back();
        scanner.number_after("commit = step ", commit.step);
        scanner.number_after(" generation ", commit.generation);
        scanner.number_after(" loss_scale ", commit.loss_scale);
        scanner.number_after(" good_steps ", commit.good_steps);
        if (scanner.is_at(" norm ")) {
            scanner.number_after(" norm ", commit.norm);
        }
        scanner.skip("\n");
    }
    return scanner.is_good() && scanner.is_at_end() ? std::optional(manifest) : std::nullopt;
}

// All of an open file; nullopt, with errno set, if it cannot be read.
std::optional<std::string> read_all(int file) {
    std::string content;
    std::array<char, 4096> part{};
    while (true) {
        const ssize_t count = ::read(file, part.data(), part.size());
        if (count == 0) {
            return content;
        }
        if (count < 0 && errno != EINTR) {
            return std::nullopt;
        }
        content.append(part.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
    }
}

}  // namespace

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
            const auto found = std::find_if(
                commits.begin(), commits.end(),
                [&](const Commit& other) { return other.generation == commit.generation; });
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
    const Descriptor file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file) {
        if (errno == ENOENT || errno == ENOTDIR) {
            return std::nullopt;
        }
        fail("open", path_, errno);
    }
    const std::optional<std::string> content = read_all(file.get());
    if (!content) {
        fail("read", path_, errno);
    }
    std::optional<Manifest> manifest = parse(*content);
    if (!manifest || manifest->commits.size() > kMostCommits) {
        throw IoError(text("The manifest \"", path_,
                           "\" is damaged or of another version, so the state files beside it "
                           "cannot be used: go on from a checkpoint with --from, or start anew "
                           "with --fresh."));
    }
    return manifest;
}

void ManifestFile::replace(const Manifest& manifest) {
    expects(manifest.commits.size() <= kMostCommits, "a manifest lists two commits at most");
    const std::string content = print(manifest);
    const std::string partial = path_ + ".partial";
    {
        const Descriptor file(
            ::open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kOwnerAndGroup));
        if (!file) {
            fail("make", partial, errno);
        }
        for (std::size_t done = 0; done < content.size();) {
            // iovec has no const; writing leaves the memory as it is.
            const iovec piece{const_cast<char*>(content.data()) + done, content.size() - done};
            const ssize_t count = storage_->write(file.get(), &piece, 1, static_cast<off_t>(done));
            if (count < 0 && errno != EINTR) {
                fail("write", partial, errno);
            }
            done += count > 0 ? static_cast<std::size_t>(count) : 0;
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

void ManifestFile::flush_folder() {
    const std::string folder = folder_of(path_);
    if (storage_->flush_folder(folder) != 0) {
        fail("flush", folder, errno);
    }
}

void ManifestFile::fail(const char* verb, const std::string& path, int reason) const {
    throw IoError(text("Cannot ", verb, " \"", path, "\" (", std::strerror(reason),
                       "), so the step is not committed: check the drive and its free space, then "
                       "start again with --resume."));
}

}  // namespace nearstep::store
