// Checkpoints and exports on a drive that loses writes. The functions of the C library that write
// are replaced in this program.
#include "checkpoint/checkpoint_files.hpp"
#include "checkpoint/export.hpp"
#include "checkpoint/sample_checkpoint.hpp"
#include "support/test.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <functional>
#include <set>

namespace nearstep::checkpoint {
namespace {

enum class Fault { none, lost, flipped, failed };

// What the drive does. Off, everything passes.
struct Drive {
    bool is_on = false;
    Fault fault = Fault::none;
    int of_write = -1;  // the write that the fault befalls, from 0 on
    int writes = 0;
    std::set<std::string> unflushed = {};  // files that a power cut would damage
    std::set<std::string> unflushed_at_rename = {};
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
    return path.find(".h5") != std::string::npos || path.find("safetensors") != std::string::npos;
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

int fsync(int file) {
    using nearstep::checkpoint::drive;
    if (drive().is_on) {
        drive().unflushed.erase(nearstep::checkpoint::path_of(file));
    }
    return nearstep::checkpoint::real<int(int)>("fsync")(file);
}

int rename(const char* from, const char* to) noexcept {
    using nearstep::checkpoint::drive;
    if (drive().is_on) {
        drive().unflushed_at_rename.insert(drive().unflushed.begin(), drive().unflushed.end());
    }
    return nearstep::checkpoint::real<int(const char*, const char*)>("rename")(from, to);
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

using LostWrites = InFolder;

// How many writes `work` makes.
int writes_of(const std::function<void()>& work) {
    EXPECT_TRUE(run_on({}, work));
    return drive().writes;
}

TEST_F(LostWrites, NeverLeaveARunWithoutAWholeCheckpoint) {
    const int writes = writes_of([&] { write_checkpoint(folder(), 20, 2); });
    ASSERT_GT(writes, 40);
    for (const Fault fault : {Fault::lost, Fault::flipped, Fault::failed}) {
        int failed = 0;
        for (int number = 0; number < writes; ++number) {
            fs::remove_all(folder());
            const std::string old = write_checkpoint(folder(), 10, 1);
            const bool is_done = run_on({.fault = fault, .of_write = number},
                                        [&] { write_checkpoint(folder(), 20, 2); });
            failed += is_done ? 0 : 1;
            const std::vector<std::string> left = find_all(folder());
            ASSERT_EQ(left.size(), 1U) << "write " << number;
            EXPECT_EQ(left.front() == old, !is_done) << "write " << number;
            expect_values(*Reader::open(left.front()), {0, kTiles}, is_done ? 2 : 1);
        }
        EXPECT_GT(failed, 20);
    }
}

TEST_F(LostWrites, MakeNoExport) {
    const std::string index = write_checkpoint(folder(), 10, 1);
    const auto to_h5 = [&] { export_checkpoint(index, root() + "/model.h5", Dtype::fp32); };
    const auto to_folder = [&] {
        export_safetensors(index, root() + "/model", Dtype::fp32, std::size_t{1} << 30U,
                           [](const Description&) { return ModelTexts(); });
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
    std::string index;
    ASSERT_TRUE(run_on({}, [&] { index = write_checkpoint(folder(), 10, 1); }));
    EXPECT_THAT(drive().unflushed_at_rename, testing::IsEmpty()) << "the index got its name";
    ASSERT_TRUE(run_on({}, [&] {
        export_checkpoint(index, root() + "/model.h5", Dtype::fp32);
        export_safetensors(index, root() + "/model", Dtype::fp32, std::size_t{1} << 30U,
                           [](const Description&) { return ModelTexts(); });
    }));
    EXPECT_THAT(drive().unflushed_at_rename, testing::IsEmpty()) << "an export got its name";
}

}  // namespace
}  // namespace nearstep::checkpoint
