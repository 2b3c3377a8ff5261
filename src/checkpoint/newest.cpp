// Writes and reads the record of a run's newest checkpoint. Used by the engine when it saves, and
// by restarts.
#include "checkpoint/newest.hpp"

#include "base/error.hpp"
#include "base/plain_file.hpp"
#include "base/units.hpp"
#include "checkpoint/checkpoint_files.hpp"
#include "store/scanner.hpp"

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <span>

namespace nearstep::checkpoint {

namespace {

constexpr std::size_t kMostBytes = 64 * KiB;
constexpr const char* kStart = "nearstep newest checkpoint of run ";

std::string path_in(const std::string& place) { return place + "/newest-checkpoint"; }

std::string print(const Newest& newest) {
    return text(kStart, newest.run, " step ", newest.step, " in ", newest.folder, "\n");
}

}  // namespace

void write_newest(const std::string& place, const Newest& newest) {
    const std::string path = path_in(place);
    const std::string partial = path + kPartial;
    const std::string line = print(newest);
    {
        const Descriptor file = make_plain(partial, kCheckpointMode);
        if (!file || write_all(file, std::as_bytes(std::span(line))) != 0) {
            refuse_write(partial, errno);
        }
    }
    sync_file(partial);
    if (std::rename(partial.c_str(), path.c_str()) != 0) {
        refuse_write(path, errno);
    }
    sync_folder(place);
    drop_cached(path);
    if (start_of_plain(path, kMostBytes) != line) {
        refuse_read_back(path);
    }
}

std::optional<Newest> read_newest(const std::string& place) {
    const std::string line = start_of_plain(path_in(place), kMostBytes);
    store::Scanner scanner(line);
    Newest newest;
    scanner.skip(kStart);
    newest.run = scanner.up_to(' ');
    scanner.number_after(" step ", newest.step);
    newest.folder = scanner.line_after(" in ");
    const bool is_whole = scanner.is_good() && scanner.is_at_end() && newest.step >= 0 &&
                          std::filesystem::path(newest.folder).is_absolute();
    return is_whole ? std::optional(newest) : std::nullopt;
}

}  // namespace nearstep::checkpoint
