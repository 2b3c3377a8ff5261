// Reads and writes what a program keeps beside the optimizer state. Called by the Python package.
#include "store/program_state.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/plain_file.hpp"
#include "store/folder.hpp"
#include "store/scanner.hpp"
#include "store/storage.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

namespace nearstep::store {

namespace {

constexpr std::string_view kProgramMagic = "nearstep program state 1\n";
constexpr std::size_t kAboutBytes = 128;  // text, filled up with spaces
constexpr std::size_t kMostRun = 32;
constexpr mode_t kProgramMode = 0640;

[[noreturn]] void fail_to(const char* verb, const std::string& path, int reason) {
    throw IoError(text("Cannot ", verb, " \"", path, "\" (", std::strerror(reason),
                       "): check the drive and its free space, then start again."));
}

std::string about_of(const std::string& run, std::int64_t step, std::uint64_t digest) {
    std::string header =
        text(kProgramMagic, "run ", run, " step ", step, " xxh3 ", to_hex(digest), "\n");
    expects(run.size() <= kMostRun, "a run has a short id");
    header.resize(kAboutBytes, ' ');
    return header;
}

std::uint64_t program_digest(const std::string& run, std::int64_t step,
                             std::span<const std::byte> bytes) {
    Xxh3Stream stream;
    const std::string about = text(run, " ", step, " ", bytes.size());
    stream.add(std::as_bytes(std::span(about)));
    stream.add(bytes);
    return stream.digest();
}

// Whether the file may be overwritten: it has no other name and is empty, ours, or begun by a
// crash.
bool is_replaceable(const std::string& path) {
    const std::string start = start_of_plain(path, kProgramMagic.size());
    struct stat facts = {};
    return ::lstat(path.c_str(), &facts) == 0 && facts.st_nlink == 1 &&
           (kProgramMagic.starts_with(start) ||
            std::ranges::all_of(start, [](char byte) { return byte == '\0'; }));
}

}  // namespace

std::optional<ProgramState> read_program_state(const std::string& path) {
    const PlainFile opened = open_plain(path, O_RDONLY);
    if (!opened.file) {
        constexpr std::array kNone = {ENOENT, ENOTDIR, ELOOP, EISDIR, EINVAL};
        if (std::ranges::find(kNone, opened.code) != kNone.end()) {
            return std::nullopt;
        }
        fail_to("open", path, opened.code);
    }
    struct stat about = {};
    if (::fstat(opened.file.get(), &about) != 0) {
        fail_to("look at", path, errno);
    }
    const auto size = static_cast<std::size_t>(about.st_size);
    if (size < kAboutBytes || about.st_blocks * 512 < about.st_size / 2) {  // ours have no holes
        return std::nullopt;
    }
    std::string content;
    if (const int code = read_start(opened.file, size, content); code != 0) {
        fail_to("read", path, code);
    }
    const std::string_view header = std::string_view(content).substr(0, kAboutBytes);
    Scanner scanner(header);
    ProgramState state;
    scanner.skip(kProgramMagic);
    scanner.skip("run ");
    state.run = scanner.up_to(' ');
    scanner.number_after(" step ", state.step);
    if (!scanner.is_good() || state.run.empty() || state.run.size() > kMostRun || state.step < 0 ||
        content.size() != size) {
        return std::nullopt;
    }
    const auto bytes = std::as_bytes(std::span(content)).subspan(kAboutBytes);
    if (header != about_of(state.run, state.step, program_digest(state.run, state.step, bytes))) {
        return std::nullopt;
    }
    state.bytes.assign(bytes.begin(), bytes.end());
    return state;
}

void write_program_state(const std::string& path, const std::string& run, std::int64_t step,
                         std::span<const std::byte> bytes) {
    const std::string header = about_of(run, step, program_digest(run, step, bytes));
    const PlainFile opened = open_plain(path, O_WRONLY | O_CREAT, kProgramMode);
    if (!opened.file) {
        throw IoError(text("Cannot make \"", path, "\" (", opened.obstacle,
                           "): check the drive and its free space, then start again."));
    }
    if (!is_replaceable(path)) {
        throw ConfigError(text("The file \"", path,
                               "\" has another name too or was not made by nearstep, and would be "
                               "overwritten: move it away, or choose another folder."));
    }
    if (::ftruncate(opened.file.get(), 0) != 0) {
        fail_to("empty", path, errno);
    }
    for (const auto part : {std::as_bytes(std::span(header)), bytes}) {
        if (const int code = write_all(opened.file, part); code != 0) {
            fail_to("write", path, code);
        }
    }
    Storage storage;
    if (storage.flush(opened.file.get()) != 0 || storage.flush_folder(folder_of(path)) != 0) {
        fail_to("flush", path, errno);
    }
}

std::optional<ProgramState> find_program_state(std::span<const std::string> paths,
                                               const Lineage& line, std::int64_t step) {
    std::optional<ProgramState> newest;
    for (const std::string& path : paths) {
        std::optional<ProgramState> found = read_program_state(path);
        const auto last = found ? last_step_of(line, found->run) : std::nullopt;
        if (last && found->step <= std::min(step, *last) &&
            (!newest || newest->step <= found->step)) {
            newest = std::move(found);
        }
    }
    return newest;
}

ProgramStatePair::ProgramStatePair(std::array<std::string, 2> paths, const Lineage& line,
                                   std::int64_t step)
    : paths_(std::move(paths)) {
    const auto first = find_program_state({paths_.data(), 1}, line, step);
    const auto second = find_program_state({paths_.data() + 1, 1}, line, step);
    next_ = first && (!second || second->step <= first->step) ? 1 : 0;
}

void ProgramStatePair::write(const std::string& run, std::int64_t step,
                             std::span<const std::byte> bytes) {
    write_program_state(paths_.at(next_), run, step, bytes);
    next_ = 1 - next_;
}

}  // namespace nearstep::store
