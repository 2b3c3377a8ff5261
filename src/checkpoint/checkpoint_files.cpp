// Names, lists and syncs the files of a checkpoint folder. Used by the rest of this module.
#include "checkpoint/checkpoint_files.hpp"

#include "base/descriptor.hpp"
#include "base/folder_tree.hpp"
#include "base/plain_file.hpp"
#include "base/units.hpp"
#include "checkpoint/rank_file.hpp"
#include "checkpoint/seal.hpp"
#include "store/program_state.hpp"
#include "store/scanner.hpp"
#include "store/storage_folder.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iomanip>
#include <string_view>
#include <system_error>
#include <utility>

namespace nearstep::checkpoint {

namespace {

namespace fs = std::filesystem;

void sync(const std::string& path, int flags) {
    const Descriptor file(::open(path.c_str(), flags | O_CLOEXEC));
    if (!file || ::fsync(file.get()) != 0) {
        refuse_write(path, errno);
    }
}

[[noreturn]] void refuse(const char* verb, const std::string& folder, int code,
                         const char* advice) {
    throw_path_error(text("Cannot ", verb, " the checkpoint folder ", folder), code, advice);
}

// The first 64 KiB of a file, where a rank file has its attributes.
std::string start_of(const std::string& path) { return start_of_plain(path, 64 * KiB); }

constexpr const char* kProgramSuffix = ".program";
constexpr const char* kExtraStart = "{\"nearstep_run\": ";

// HDF5 may write the start of a file last.
bool is_begun(const std::string& start) {
    return std::ranges::all_of(std::string_view(start).substr(0, kSealBytes),
                               [](char byte) { return byte == '\0'; });
}

}  // namespace

std::string index_name(std::int64_t step) {
    expects(step >= 0, "a step is not negative");
    return text("step-", std::setfill('0'), std::setw(8), step, ".h5");
}

std::string rank_file_name(std::int64_t step, int attempt, int rank) {
    expects(step >= 0 && attempt >= 0 && rank >= 0, "step, attempt and rank are not negative");
    return text("step-", std::setfill('0'), std::setw(8), step, ".attempt-", attempt, ".rank-",
                std::setw(5), rank, ".h5");
}

std::string program_file_name(std::int64_t step, int attempt, int rank) {
    std::string name = rank_file_name(step, attempt, rank);
    return name.replace(name.rfind('.'), std::string::npos, kProgramSuffix);
}

std::string old_program_file_name(std::int64_t step) {
    std::string name = index_name(step);
    return name.replace(name.rfind('.'), std::string::npos, kProgramSuffix);
}

std::string extra_file_name(std::int64_t step) {
    std::string name = index_name(step);
    return name.replace(name.rfind('.'), std::string::npos, ".extra.json");
}

std::optional<FileName> parse_name(const std::string& name) {
    FileName parsed{.name = name};
    store::Scanner scanner(name);
    scanner.number_after("step-", parsed.step);
    const bool is_rank_file = scanner.is_at(".attempt-");
    if (is_rank_file) {
        scanner.number_after(".attempt-", parsed.attempt);
        scanner.number_after(".rank-", parsed.rank);
    }
    if (!scanner.is_good() || parsed.step < 0 || parsed.attempt < 0 || parsed.rank < 0) {
        return std::nullopt;
    }
    std::string expected = index_name(parsed.step);
    if (is_rank_file) {
        parsed.kind = name.ends_with(kProgramSuffix) ? FileKind::program : FileKind::rank_file;
        expected = parsed.kind == FileKind::program
                       ? program_file_name(parsed.step, parsed.attempt, parsed.rank)
                       : rank_file_name(parsed.step, parsed.attempt, parsed.rank);
    } else if (name == old_program_file_name(parsed.step)) {
        parsed.kind = FileKind::program;
        expected = name;
    } else if (name == extra_file_name(parsed.step)) {
        parsed.kind = FileKind::extra;
        expected = name;
    } else if (name != expected) {
        parsed.kind = FileKind::partial;
        expected += kPartial;
    }
    return name == expected ? std::optional(parsed) : std::nullopt;
}

std::vector<FileName> list_folder(const std::string& folder) {
    std::vector<FileName> files;
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error)) {
        if (auto parsed = parse_name(entry->path().filename().string())) {
            files.push_back(std::move(*parsed));
        }
    }
    if (error && error != std::errc::no_such_file_or_directory) {
        refuse("list", folder, error.value(), "name a folder that can be read and written.");
    }
    return files;
}

bool is_made_here(const std::string& folder, const FileName& file) {
    const std::string path = text(folder, "/", file.name);
    if (!is_own_plain(path)) {
        return false;
    }
    if (file.kind == FileKind::index) {
        return has_format(path, kIndexFormat);
    }
    const std::string start = start_of(path);
    if (is_begun(start)) {
        return true;
    }
    if (file.kind == FileKind::program) {
        return start.starts_with(store::kProgramMagic);
    }
    if (file.kind == FileKind::extra) {
        return start.starts_with(kExtraStart);
    }
    return file.kind == FileKind::rank_file ? start.find(kRankFileFormat) != std::string::npos
                                            : has_format(path, kIndexFormat);
}

void make_folder(const std::string& folder) {
    if (const int code = store::make_folders(folder); code != 0) {
        refuse("make", folder, code, "name a folder that can be written.");
    }
}

void refuse_write(const std::string& path, int code, std::size_t bytes, const std::string& reason) {
    std::string advice;
    if (code == ENOSPC || code == EDQUOT) {
        advice = "free some space there or raise the quota, or name another folder";
    } else if (code == EFBIG) {
        advice = "let this process write larger files, as with ulimit -f unlimited";
    } else {
        advice = "name a place that can be written";
    }
    const std::string needs =
        bytes == 0 ? "" : text("it needs ", human_bytes(static_cast<double>(bytes)), ", so ");
    throw_path_error(text("Cannot write ", path), code,
                     text(needs, advice, "; what was saved before is whole."), reason);
}

std::string reason_of(const Hdf5Error& error) {
    if (error.code() != 0) {
        return std::generic_category().message(error.code());
    }
    std::string words = error.what();
    while (words.ends_with('.')) {
        words.pop_back();
    }
    return words;
}

void report_unwritten(const std::string& path, std::size_t bytes,
                      const std::function<void()>& write) {
    try {
        write();
    } catch (const Hdf5Error& error) {
        refuse_write(path, error.code(), bytes, reason_of(error));
    }
}

void as_fault_of_run(const std::function<void()>& work) {
    try {
        work();
    } catch (const PathError& error) {
        throw IoError(error.what());
    }
}

void sync_file(const std::string& path) { sync(path, O_RDONLY); }

void sync_folder(const std::string& folder) {
    if (const int code = flush_folder(folder); code != 0) {
        refuse_write(folder, code);
    }
}

void drop_cached(const std::string& path) {
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (file) {
        ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
    }
}

void refuse_read_back(const std::string& path, const std::string& why) {
    throw IoError(
        text("The new file ", path, " cannot be read back as it was written",
             why.empty() ? "" : text(" (", why, ")"),
             ": check the drive, or name another place; what was saved before is whole."));
}

PartialFile::PartialFile(std::string path)
    : path_(std::move(path)), partial_path_(path_ + kPartial) {
    std::error_code error;
    const bool is_there = fs::exists(fs::symlink_status(partial_path_, error));
    const bool is_ours = is_own_plain(partial_path_) && (is_begun(start_of(partial_path_)) ||
                                                         has_format(partial_path_, kIndexFormat) ||
                                                         has_format(partial_path_, kExportFormat));
    if (is_there && is_ours) {
        fs::remove(partial_path_, error);
    }
    if (is_there && (!is_ours || error)) {
        throw ConfigError(text("Cannot replace ", partial_path_, ": ",
                               error ? error.message() : "it is not what a crash of nearstep left",
                               ". Remove it, or write to another place."));
    }
}

PartialFile::~PartialFile() {
    std::error_code ignored;
    fs::remove(partial_path_, ignored);
}

void PartialFile::commit() {
    sync_file(partial_path_);
    std::error_code error;
    fs::rename(partial_path_, path_, error);
    if (error) {
        throw IoError(text("Cannot rename ", partial_path_, " to ", path_, ": ", error.message(),
                           ". Check the folder's permissions, then write the file again."));
    }
    sync_folder(store::folder_of(path_));
}

}  // namespace nearstep::checkpoint
