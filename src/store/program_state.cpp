// Reads and writes what a program keeps beside the optimizer state. Called by the Python package.
#include "store/program_state.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/plain_file.hpp"
#include "store/scanner.hpp"
#include "store/storage_folder.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

namespace nearstep::store {

namespace {

constexpr std::size_t kAboutBytes = 128;  // text, filled up with spaces
constexpr std::size_t kMostRun = 32;

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

// Throws unless there is no file, or one that may be overwritten: it has no other name and is
// empty, ours, or begun by a crash.
void expect_no_other_file(const std::string& path) {
    struct stat facts = {};
    if (::lstat(path.c_str(), &facts) != 0) {
        if (errno == ENOENT) {
            return;
        }
        fail_to("look at", path, errno);
    }
    const std::string start = start_of_plain(path, kProgramMagic.size());
    const bool is_begun = std::ranges::all_of(start, [](char byte) { return byte == '\0'; });
    if (!S_ISREG(facts.st_mode) || facts.st_nlink != 1 ||
        !(kProgramMagic.starts_with(start) || is_begun)) {
        throw ConfigError(text("The file \"", path,
                               "\" has another name too or was not made by nearstep, and would be "
                               "overwritten: move it away, or choose another folder."));
    }
}

}  // namespace

ProgramRecord record_of(const ProgramState& state) {
    if (state.bytes.empty()) {
        return {.step = state.step};
    }
    return {.step = state.step,
            .bytes = state.bytes.size(),
            .xxh3 = program_digest(state.run, state.step, state.bytes)};
}

bool is_possible(const ProgramRecord& record) {
    constexpr std::int64_t kMostSteps = std::int64_t{1} << 62U;
    return record.step >= 0 && record.step <= kMostSteps;
}

const ProgramRecord* record_at(const std::vector<ProgramRecord>& records, std::int64_t step) {
    const auto found = std::ranges::find_if(
        records, [&](const ProgramRecord& record) { return record.step <= step; });
    return found == records.end() ? nullptr : &*found;
}

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
    state.path = path;
    return state;
}

std::optional<ProgramState> read_program_state(std::span<const std::string> paths,
                                               const ProgramRecord& record) {
    for (const std::string& path : paths) {
        std::optional<ProgramState> state = read_program_state(path);
        if (state && record_of(*state) == record) {
            return state;
        }
    }
    return std::nullopt;
}

ProgramRecord write_program_state(const std::string& path, const std::string& run,
                                  std::int64_t step, std::span<const std::byte> bytes,
                                  Storage* storage) {
    Storage system;
    Storage& to = storage != nullptr ? *storage : system;
    const std::uint64_t digest = program_digest(run, step, bytes);
    const std::string header = about_of(run, step, digest);
    expect_no_other_file(path);
    const std::string partial = path + ".partial";
    {
        const Descriptor file = make_plain(partial, kStateMode);
        if (!file) {
            fail_to("make", partial, errno);
        }
        const auto begun = static_cast<off_t>(header.size());
        if (to.write_all(file.get(), std::as_bytes(std::span(header)), 0) != 0 ||
            to.write_all(file.get(), bytes, begun) != 0) {
            fail_to("write", partial, errno);
        }
        if (to.flush(file.get()) != 0) {
            fail_to("flush", partial, errno);
        }
    }
    if (to.rename(partial, path) != 0) {
        fail_to("rename", partial, errno);
    }
    if (to.flush_folder(folder_of(path)) != 0) {
        fail_to("flush the folder of", path, errno);
    }
    return {.step = step, .bytes = bytes.size(), .xxh3 = digest};
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

void ProgramStatePair::expect_replaceable() const {
    std::ranges::for_each(paths_, expect_no_other_file);
}

void ProgramStatePair::begin(const std::string& run, std::int64_t step, const ProgramState& state) {
    records_ = {ProgramRecord{.step = step}};
    content_ = xxh3({});
    const auto own = std::ranges::find(paths_, state.path);
    if (own != paths_.end()) {
        records_ = {record_of(state)};
        content_ = xxh3(state.bytes);
        next_ = own == paths_.begin() ? 1 : 0;
    } else if (!state.bytes.empty()) {
        records_.clear();
        write(run, step, state.bytes);
    }
}

void ProgramStatePair::write(const std::string& run, std::int64_t step,
                             std::span<const std::byte> bytes) {
    const std::uint64_t content = xxh3(bytes);
    if (!records_.empty() && content == content_) {
        return;
    }
    ProgramRecord record{.step = step};
    if (!bytes.empty()) {
        record = write_program_state(paths_.at(next_), run, step, bytes, storage_);
        next_ = 1 - next_;
    }
    content_ = content;
    constexpr std::size_t kMostRecords = 2;
    std::erase_if(records_, [&](const ProgramRecord& older) { return older.step >= step; });
    records_.insert(records_.begin(), record);
    records_.resize(std::min(records_.size(), kMostRecords));
}

}  // namespace nearstep::store
