// Tests files of state: reads, writes, locks, and failures.
#include "store/file.hpp"

#include "base/units.hpp"
#include "memory/buffer.hpp"
#include "store/storage_folder.hpp"
#include "store/volume.hpp"
#include "support/test.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace nearstep::store {
namespace {

void fill(std::span<std::byte> memory, unsigned seed) {
    for (std::size_t i = 0; i < memory.size(); ++i) {
        memory[i] = static_cast<std::byte>((i * 31 + i / 4096 + seed) & 0xFFU);
    }
}

void move(File& file, Direction direction, std::span<std::byte> memory, std::int64_t offset) {
    file.transfer({direction, {{memory.data(), memory.size()}}, offset});
}

TEST(FileTest, ReadsBackWhatItWrote) {
    const ScratchFolder folder;
    File file(folder.file("state"));
    constexpr std::size_t kBytes = 3 * MiB + 5 * kPageBytes;
    file.reserve(kBytes + kPageBytes);
    memory::Buffer written(kBytes);
    memory::Buffer read(kBytes);
    fill(written.span(), 1);
    move(file, Direction::write, written.span(), kPageBytes);
    file.sync();
    move(file, Direction::read, read.span(), kPageBytes);
    EXPECT_TRUE(std::ranges::equal(written.span(), read.span()));
}

TEST(FileTest, KnowsThatItLiesInMemory) {
    if (!std::filesystem::is_directory("/dev/shm")) {
        GTEST_SKIP() << "/dev/shm is not there";
    }
    const ScratchFolder folder("/dev/shm/");
    EXPECT_TRUE(File(folder.file("state")).lies_in_memory());
    EXPECT_FALSE(examine_folder(folder.path()).is_direct);
    EXPECT_THAT(examine_folder(folder.path()).obstacle, HasSubstr("in memory"));
    Volume volume({.files = {folder.file("a"), folder.file("b")}, .bytes = 4 * kPageBytes});
    EXPECT_FALSE(volume.is_direct());
}

// A fork of the process shares the lock, and would take it from its parent.
TEST(FileTest, StaysLockedWhenAForkOfTheProcessClosesIt) {
    const ScratchFolder folder;
    auto file = std::make_unique<File>(folder.file("state"));
    file->claim();
    const pid_t fork = ::fork();
    if (fork == 0) {
        file.reset();
        ::_exit(0);
    }
    ASSERT_EQ(::waitpid(fork, nullptr, 0), fork);
    const Descriptor other(::open(folder.file("state").c_str(), O_RDWR | O_CLOEXEC));
    EXPECT_NE(::flock(other.get(), LOCK_EX | LOCK_NB), 0);
    file.reset();
    EXPECT_EQ(::flock(other.get(), LOCK_EX | LOCK_NB), 0);
}

TEST(FileTest, PutsPiecesOneAfterAnother) {
    const ScratchFolder folder;
    File file(folder.file("state"));
    memory::Buffer written(6 * kPageBytes);
    memory::Buffer read(6 * kPageBytes);
    fill(written.span(), 2);
    file.reserve(6 * kPageBytes);
    // Writes the second half of the memory first.
    file.transfer({Direction::write,
                   {{written.span().data() + 3 * kPageBytes, 3 * kPageBytes},
                    {written.span().data(), 3 * kPageBytes}},
                   0});
    move(file, Direction::read, read.span(), 0);
    EXPECT_TRUE(std::ranges::equal(written.span().subspan(3 * kPageBytes),
                                   read.span().first(3 * kPageBytes)));
    EXPECT_TRUE(std::ranges::equal(written.span().first(3 * kPageBytes),
                                   read.span().subspan(3 * kPageBytes)));
}

TEST(FileTest, TakesMorePiecesThanOneSystemCallDoes) {
    const ScratchFolder folder;
    File file(folder.file("state"));
    constexpr std::size_t kPieces = 2500;
    memory::Buffer written(kPieces * kPageBytes);
    memory::Buffer read(kPieces * kPageBytes);
    fill(written.span(), 3);
    file.reserve(written.size());
    std::vector<iovec> pieces;
    for (std::size_t i = 0; i < kPieces; ++i) {
        pieces.push_back({written.span().data() + i * kPageBytes, kPageBytes});
    }
    file.transfer({Direction::write, pieces, 0});
    move(file, Direction::read, read.span(), 0);
    EXPECT_TRUE(std::ranges::equal(written.span(), read.span()));
}

TEST(FileTest, AcceptsAnEmptyTransfer) {
    const ScratchFolder folder;
    File file(folder.file("state"));
    EXPECT_NO_THROW(move(file, Direction::read, {}, 0));
}

TEST(FileTest, RefusesWhatIsNotAligned) {
    const ScratchFolder folder;
    File file(folder.file("state"));
    file.reserve(4 * kPageBytes);
    memory::Buffer memory(2 * kPageBytes);
    EXPECT_THROW(move(file, Direction::read, memory.span().first(kPageBytes), 512), ContractError);
    EXPECT_THROW(move(file, Direction::read, memory.span().first(100), 0), ContractError);
    EXPECT_THROW(move(file, Direction::write, memory.span().subspan(8, kPageBytes), 0),
                 ContractError);
    EXPECT_THROW(move(file, Direction::write, memory.span(), -4096), ContractError);
}

TEST(FileTest, EmptiesAnOldFileWhenItReserves) {
    const ScratchFolder folder;
    memory::Buffer memory(kPageBytes);
    fill(memory.span(), 4);
    {
        File file(folder.file("state"));
        file.reserve(kPageBytes);
        move(file, Direction::write, memory.span(), 0);
    }
    File file(folder.file("state"));
    file.reserve(kPageBytes);
    move(file, Direction::read, memory.span(), 0);
    EXPECT_TRUE(
        std::ranges::all_of(memory.span(), [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST(FileTest, IsUsableAgainAfterItEndedWithinAPage) {
    const ScratchFolder folder;
    File file(folder.file("state"));
    file.reserve(2 * kPageBytes);
    std::filesystem::resize_file(folder.file("state"), kPageBytes + 100);
    memory::Buffer memory(2 * kPageBytes);
    const std::string message =
        message_of<IoError>([&] { move(file, Direction::read, memory.span(), 0); });
    EXPECT_THAT(message, HasSubstr(folder.file("state")));
    EXPECT_THAT(message, HasSubstr("offset 4196 (the file ends there)"));
    file.reserve(2 * kPageBytes);
    move(file, Direction::write, memory.span(), 0);
    EXPECT_NO_THROW(move(file, Direction::read, memory.span(), 0));
}

TEST(FileTest, SaysHowMuchSpaceIsMissing) {
    const ScratchFolder folder;
    File file(folder.file("state"));
    const std::size_t free_bytes = std::filesystem::space(folder.path()).available;
    const std::string message =
        message_of<ConfigError>([&] { file.reserve(free_bytes + 1000 * GiB); });
    EXPECT_THAT(message, HasSubstr(folder.path()));
    EXPECT_THAT(message, HasSubstr("are needed"));
    EXPECT_EQ(std::filesystem::file_size(folder.file("state")), 0U);
}

TEST(FileTest, IsHeldByOneOwnerAtATime) {
    const ScratchFolder folder;
    {
        File file(folder.file("state"));
        file.claim();
        const std::string message =
            message_of<ConfigError>([&] { const File second(folder.file("state")); });
        EXPECT_THAT(message, states(folder.file("state")));
    }
    EXPECT_NO_THROW(const File again(folder.file("state")));
}

TEST(FileTest, WaitsForAnOwnerThatIsEnding) {
    const ScratchFolder folder;
    std::optional<File> first(folder.file("state"));
    first->claim();
    std::jthread ending([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        first.reset();
    });
    EXPECT_NO_THROW(const File second(folder.file("state")));
}

TEST(FileTest, IsMadeWhenItIsClaimedAndGoneWhenThatIsWithdrawn) {
    const ScratchFolder folder;
    const std::string path = folder.file("made/state");
    const mode_t before = ::umask(0);
    File file(path);
    EXPECT_FALSE(fs::exists(folder.file("made")));
    memory::Buffer memory(kPageBytes);
    EXPECT_THAT(message_of<DamageError>([&] { move(file, Direction::read, memory.span(), 0); }),
                HasSubstr("is not there"));
    file.claim();
    ::umask(before);
    EXPECT_EQ(fs::status(path).permissions(), fs::perms(0640));
    file.withdraw();
    EXPECT_FALSE(fs::exists(path));
    folder.write("made/state", "of an earlier run");
    fs::permissions(path, fs::perms(0600));
    File old(path);
    old.claim();
    old.withdraw();
    EXPECT_EQ(bytes_of(path), "of an earlier run");
    EXPECT_EQ(fs::status(path).permissions(), fs::perms(0600));
}

// A start that is refused removes the file that another start may be waiting for.
TEST(FileTest, IsNotHeldOnceItsNameIsGone) {
    const ScratchFolder folder;
    std::optional<File> first(folder.file("state"));
    first->claim();
    std::jthread refused([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        first->withdraw();
        first.reset();
    });
    File second(folder.file("state"));
    second.claim();
    EXPECT_TRUE(fs::exists(folder.file("state")));
}

// In a folder that others write to, they could lead a run to any file of its user's.
TEST(FileTest, OpensNoLinkAndNoFifo) {
    const ScratchFolder folder;
    const std::string thesis = folder.write("thesis.tex", "a thesis");
    const std::string path = folder.file("rank-0.device-0.state");
    const auto code = [&] { return code_of([&] { File{path}; }); };
    std::filesystem::create_symlink(thesis, path);
    EXPECT_EQ(code(), ELOOP);
    std::filesystem::remove(path);
    std::filesystem::create_hard_link(thesis, path);
    EXPECT_EQ(code(), EMLINK);
    std::filesystem::remove(path);
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    EXPECT_EQ(code(), EINVAL);
    EXPECT_EQ(bytes_of(thesis), "a thesis");
}

TEST(FileTest, NamesAFileThatCannotBeOpened) {
    const ScratchFolder folder;
    EXPECT_EQ(code_of([&] { const File file(folder.path()); }), EISDIR);
}

}  // namespace
}  // namespace nearstep::store
