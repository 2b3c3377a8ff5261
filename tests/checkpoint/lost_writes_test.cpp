// Checkpoints and exports on a drive that loses writes. The functions of the C library that write
// are replaced in this program.
#include "checkpoint/checkpoint_files.hpp"
#include "checkpoint/export.hpp"
#include "checkpoint/newest.hpp"
#include "checkpoint/sample_checkpoint.hpp"
#include "support/test.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <functional>
#include <set>

namespace nearstep::checkpoint {
namespace {

enum class Fault { none, lost, flipped, failed };

// A drive with faults. Everything passes while it is off.
struct Drive {
    bool is_on = false;
    Fault fault = Fault::none;
    int of_write = -1;  // the write that the fault befalls, from 0 on
    int writes = 0;
    std::set<std::string> unflushed = {};  // files that a power cut would damage
    std::set<std::string> unnamed = {};    // files whose names it would take back
    std::set<std::string> too_early = {};  // what was done before the flush that it needs, in words

    // Notes what a power cut would lose, but for the file `but`, at a moment when it must not.
    void expect_durable(const std::string& moment, const std::string& but = "") {
        for (const std::set<std::string>* all : {&unflushed, &unnamed}) {
            for (const std::string& path : *all) {
                if (all == &unflushed || path != but) {
                    too_early.insert(text(path, " is not durable when ", moment));
                }
            }
        }
    }
};

Drive& drive() {
    static Drive one;
    return one;
}

std::string path_of(int file) {
    std::array<char, 4096> path{};
    const std::string link = text("/proc/self/fd/", file);
    const ssize_t bytes = ::readlink(link.c_str(), path.data(), path.size());
    return bytes > 0 ? std::string(path.data(), static_cast<std::size_t>(bytes)) : "";
}

bool is_watched(const std::string& path) {
    constexpr std::array kParts = {".h5", "safetensors", ".program", "newest-checkpoint"};
    return std::ranges::any_of(
        kParts, [&](const char* part) { return path.find(part) != std::string::npos; });
}

template <typename Function>
Function* real(const char* name) {
    return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

using Write = std::function<ssize_t(const void*)>;

ssize_t write_to(int file, const void* bytes, std::size_t count, const Write& write,
                 const std::function<void()>& pass_over) {
    Drive& of = drive();
    const std::string path = of.is_on ? path_of(file) : "";
    if (!of.is_on || !is_watched(path)) {
        return write(bytes);
    }
    of.unflushed.insert(path);
    of.unnamed.insert(path);
    if (of.writes++ != of.of_write || of.fault == Fault::none) {
        return write(bytes);
    }
    if (of.fault == Fault::failed) {
        errno = EIO;
        return -1;
    }
    if (of.fault == Fault::lost) {
        pass_over();
        return static_cast<ssize_t>(count);
    }
    std::string changed(static_cast<const char*>(bytes), count);
    changed[count / 2] = static_cast<char>(changed[count / 2] ^ 1);
    return write(changed.data());
}

// Notes that the file or folder was flushed. The simulated drive needs no real flush, which is
// slow.
int flush(const char* name, int file) {
    Drive& of = drive();
    if (!of.is_on) {
        return real<int(int)>(name)(file);
    }
    const std::string path = path_of(file);
    of.unflushed.erase(path);
    std::erase_if(of.unnamed,
                  [&](const std::string& one) { return fs::path(one).parent_path() == path; });
    return 0;
}

ssize_t write_at(const char* name, int file, const void* bytes, std::size_t count, off_t offset) {
    const Write write = [&](const void* from) {
        return real<ssize_t(int, const void*, std::size_t, off_t)>(name)(file, from, count, offset);
    };
    return write_to(file, bytes, count, write, [] {});
}

}  // namespace
}  // namespace nearstep::checkpoint

extern "C" {

ssize_t write(int file, const void* bytes, std::size_t count) {
    using nearstep::checkpoint::real;
    return nearstep::checkpoint::write_to(
        file, bytes, count,
        [&](const void* from) {
            return real<ssize_t(int, const void*, std::size_t)>("write")(file, from, count);
        },
        [&] { ::lseek(file, static_cast<off_t>(count), SEEK_CUR); });
}

ssize_t pwrite(int file, const void* bytes, std::size_t count, off_t offset) {
    return nearstep::checkpoint::write_at("pwrite", file, bytes, count, offset);
}

ssize_t pwrite64(int file, const void* bytes, std::size_t count, off64_t offset) {
    return nearstep::checkpoint::write_at("pwrite64", file, bytes, count, offset);
}

// Program states come in one piece each.
ssize_t pwritev(int file, const iovec* pieces, int count, off_t offset) {
    if (count != 1) {
        return nearstep::checkpoint::real<ssize_t(int, const iovec*, int, off_t)>("pwritev")(
            file, pieces, count, offset);
    }
    return pwrite(file, pieces->iov_base, pieces->iov_len, offset);
}

int fsync(int file) { return nearstep::checkpoint::flush("fsync", file); }

int fdatasync(int file) { return nearstep::checkpoint::flush("fdatasync", file); }

int rename(const char* from, const char* to) noexcept {
    using nearstep::checkpoint::drive;
    if (drive().is_on) {
        drive().expect_durable(nearstep::text(to, " gets its name"), from);
        drive().unnamed.erase(from);
        drive().unnamed.insert(to);
    }
    return nearstep::checkpoint::real<int(const char*, const char*)>("rename")(from, to);
}

int remove(const char* path) noexcept {
    using nearstep::checkpoint::drive;
    if (drive().is_on && ::access(path, F_OK) == 0) {
        drive().expect_durable(nearstep::text(path, " is removed"));
    }
    return nearstep::checkpoint::real<int(const char*)>("remove")(path);
}

int posix_fadvise(int file, off_t offset, off_t length, int advice) {
    using nearstep::checkpoint::drive;
    if (const std::string path = nearstep::checkpoint::path_of(file);
        drive().is_on && drive().unflushed.count(path) > 0) {
        drive().too_early.insert(nearstep::text(path, " is not durable when it is read back"));
    }
    return nearstep::checkpoint::real<int(int, off_t, off_t, int)>("posix_fadvise")(file, offset,
                                                                                    length, advice);
}
}

namespace nearstep::checkpoint {
namespace {

// Runs `work` on the drive. Returns false if it ended with an IoError.
bool run_on(const Drive& settings, const std::function<void()>& work) {
    drive() = settings;
    drive().is_on = true;
    bool is_done = true;
    try {
        work();
    } catch (const IoError&) {
        is_done = false;
    } catch (const PathError&) {
        is_done = false;
    }
    drive().is_on = false;
    return is_done;
}

class LostWrites : public InFolder {
protected:
    LostWrites() { fs::create_directories(root()); }

    static std::string kept(std::int64_t step) { return text("what was kept at step ", step); }

    // Writes a checkpoint with what two programs keep, and the record of the newest one.
    std::string write_all_of(std::int64_t step, std::uint64_t seed) {
        const int attempt = next_attempt(folder(), step);
        const std::vector<RankFileRecord> records = write_rank_files(folder(), step, attempt, seed);
        Description about = sample_description(step);
        const std::string content = kept(step);
        for (int rank = 0; rank < 2; ++rank) {
            about.programs.push_back(write_program(folder(), step, attempt, rank, about.run,
                                                   std::as_bytes(std::span(content))));
        }
        return publish(folder(), about, attempt, sample_ranges(), records, root());
    }

    static void expect_whole(const std::string& index) {
        const std::int64_t step = step_of_index(index);
        const std::unique_ptr<Reader> reader = Reader::open(index);
        expect_values(*reader, {0, kTiles}, static_cast<std::uint64_t>(step));
        for (int rank = 0; rank < 2; ++rank) {
            const std::string content = kept(step);
            EXPECT_TRUE(
                std::ranges::equal(reader->program(rank).bytes, std::as_bytes(std::span(content))));
        }
    }
};

// How many writes `work` makes.
int writes_of(const std::function<void()>& work) {
    EXPECT_TRUE(run_on({}, work));
    return drive().writes;
}

TEST_F(LostWrites, NeverLeaveARunWithoutAWholeCheckpoint) {
    const int writes = writes_of([&] { write_all_of(20, 20); });
    ASSERT_GT(writes, 40);
    fs::remove_all(folder());
    const std::string old = write_all_of(10, 10);
    fs::copy(folder(), root() + "/old");
    for (const Fault fault : {Fault::lost, Fault::flipped, Fault::failed}) {
        int failed = 0;
        for (int number = 0; number < writes; ++number) {
            SCOPED_TRACE(text("write ", number));
            fs::remove_all(folder());
            fs::copy(root() + "/old", folder());
            fs::remove(root() + "/newest-checkpoint");
            const bool is_done =
                run_on({.fault = fault, .of_write = number}, [&] { write_all_of(20, 20); });
            failed += is_done ? 0 : 1;
            const std::vector<std::string> left = find_all(folder());
            ASSERT_FALSE(left.empty());
            EXPECT_EQ(left.back() == old, !is_done);
            std::ranges::for_each(left, expect_whole);
            if (is_done) {
                const std::optional<Newest> newest = read_newest(root());
                EXPECT_EQ(newest ? newest->step : 0, 20);
            }
        }
        EXPECT_GT(failed, 20);
    }
}

TEST_F(LostWrites, MakeNoExport) {
    const std::string index = write_checkpoint(folder(), 10, 1);
    const auto to_h5 = [&] { export_alone(index, root() + "/model.h5", {.dtype = Dtype::fp32}); };
    const auto to_folder = [&] {
        export_folder_alone(index, root() + "/model", std::size_t{1} << 30U);
    };
    for (const std::function<void()>& make : {std::function<void()>(to_h5), {to_folder}}) {
        const int writes = writes_of(make);
        ASSERT_GT(writes, 0);
        for (int number = 0; number < writes; ++number) {
            fs::remove_all(root() + "/model");
            fs::remove(root() + "/model.h5");
            const bool is_done =
                run_on({.fault = Fault::lost, .of_write = number}, [&] { make(); });
            const bool is_there = fs::exists(root() + "/model") || fs::exists(root() + "/model.h5");
            EXPECT_EQ(is_there, is_done) << "write " << number;
            if (is_done && fs::exists(root() + "/model.h5")) {
                std::ostringstream out;
                EXPECT_NO_THROW(inspect(root() + "/model.h5", out)) << "write " << number;
            }
        }
    }
}

TEST_F(LostWrites, CannotComeFromAPowerCut) {
    write_all_of(10, 10);
    std::string index;
    ASSERT_TRUE(run_on({}, [&] { index = write_all_of(20, 20); }));
    EXPECT_THAT(drive().too_early, testing::IsEmpty());
    ASSERT_TRUE(run_on({}, [&] {
        export_alone(index, root() + "/model.h5", {.dtype = Dtype::fp32});
        export_folder_alone(index, root() + "/model", std::size_t{1} << 30U);
    }));
    EXPECT_THAT(drive().too_early, testing::IsEmpty());
    EXPECT_THAT(drive().unnamed, testing::IsEmpty());
}

}  // namespace
}  // namespace nearstep::checkpoint
