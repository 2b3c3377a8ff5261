// Tests transfers to and from a volume, with io_uring and with threads.
#include "store/volume.hpp"

#include "base/wording.hpp"
#include "memory/buffer.hpp"
#include "support/test.hpp"

#include <atomic>
#include <cerrno>

namespace nearstep::store {
namespace {

std::vector<std::string> files_in(const ScratchFolder& folder, int count) {
    std::vector<std::string> files;
    files.reserve(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) {
        files.push_back(folder.file("state-" + std::to_string(i)));
    }
    return files;
}

void fill_at_random(std::span<std::byte> memory, std::uint64_t seed) {
    for (std::size_t i = 0; i < memory.size(); i += 8) {
        const std::uint64_t bits = random_bits(seed, 0, i);
        std::memcpy(&memory[i], &bits, sizeof bits);
    }
}

// Number of files, and transport.
class VolumeOf : public testing::TestWithParam<std::tuple<int, IoKind>> {
protected:
    static int files() { return std::get<0>(GetParam()); }
    static IoKind io() { return std::get<1>(GetParam()); }
};

TEST_P(VolumeOf, ReadsBackTransfersOfOddSizesAtOddPlaces) {
    const ScratchFolder folder;
    const VolumeSettings settings = {.files = files_in(folder, files()),
                                     .bytes = 97 * kPageBytes,
                                     .chunk_bytes = 3 * kPageBytes,
                                     .io = io()};
    Volume volume(settings);
    volume.reserve();
    memory::Buffer model(settings.bytes);
    memory::Buffer seen(settings.bytes);
    fill_at_random(model.span(), 1);
    volume.write(model.span(), 0).wait();
    for (std::uint64_t i = 0; i < 40; ++i) {
        const std::size_t begin = random_bits(7, i, 0) % 97;
        const std::size_t count = random_bits(7, i, 1) % (97 - begin) + 1;
        const auto part = model.span().subspan(begin * kPageBytes, count * kPageBytes);
        fill_at_random(part, i + 2);
        volume.write(part, static_cast<std::int64_t>(begin * kPageBytes)).wait();
        Ticket reading = volume.read(seen.span().first(part.size()),
                                     static_cast<std::int64_t>(begin * kPageBytes));
        reading.wait();
        ASSERT_TRUE(std::ranges::equal(part, seen.span().first(part.size())))
            << begin << " " << count;
    }
    volume.read(seen.span(), 0).wait();
    EXPECT_TRUE(std::ranges::equal(model.span(), seen.span()));
}

TEST_P(VolumeOf, ReservesEveryFileAtOnce) {
    const ScratchFolder folder;
    const VolumeSettings settings = {.files = files_in(folder, files()),
                                     .bytes = 5 * MiB + kPageBytes};
    Volume volume(settings);
    volume.reserve();
    for (const std::string& file : settings.files) {
        EXPECT_EQ(std::filesystem::file_size(file), Volume::file_bytes(settings));
    }
    EXPECT_GE(Volume::file_bytes(settings) * settings.files.size(), settings.bytes);
}

TEST_P(VolumeOf, RefusesATransferBeyondItsEnd) {
    const ScratchFolder folder;
    Volume volume({.files = files_in(folder, files()), .bytes = 4 * kPageBytes, .io = io()});
    volume.reserve();
    memory::Buffer memory(2 * kPageBytes);
    EXPECT_THROW(volume.read(memory.span(), 3 * kPageBytes), ContractError);
}

TEST_P(VolumeOf, KeepsManyLargeTransfersApart) {
    const ScratchFolder folder;
    constexpr std::size_t kTransfers = 12;
    constexpr std::size_t kEach = 5 * MiB + 3 * kPageBytes;  // some chunks and a remainder
    Volume volume({.files = files_in(folder, files()), .bytes = kTransfers * kEach, .io = io()});
    volume.reserve();
    EXPECT_EQ(volume.io(), io());
    memory::Buffer written(kTransfers * kEach);
    memory::Buffer seen(kTransfers * kEach);
    fill_at_random(written.span(), 5);
    for (const Direction direction : {Direction::write, Direction::read}) {
        std::vector<Ticket> tickets;
        for (std::size_t i = 0; i < kTransfers; ++i) {
            const auto offset = static_cast<std::int64_t>(i * kEach);
            tickets.push_back(direction == Direction::write
                                  ? volume.write(written.span().subspan(i * kEach, kEach), offset)
                                  : volume.read(seen.span().subspan(i * kEach, kEach), offset));
        }
        for (Ticket& ticket : tickets) {
            ticket.wait();
        }
    }
    EXPECT_TRUE(std::ranges::equal(written.span(), seen.span()));
}

TEST_P(VolumeOf, FinishesWhatWasSubmittedBeforeItEnds) {
    const ScratchFolder folder;
    memory::Buffer memory(9 * MiB);
    fill_at_random(memory.span(), 6);
    const VolumeSettings settings = {
        .files = files_in(folder, files()), .bytes = memory.size(), .io = io()};
    {
        Ticket writing;
        Volume volume(settings);
        volume.reserve();
        writing = volume.write(memory.span(), 0);
    }
    std::ifstream first(folder.file("state-0"), std::ios::binary);
    std::vector<char> page(kPageBytes);
    first.read(page.data(), static_cast<std::streamsize>(page.size()));
    EXPECT_TRUE(
        std::ranges::equal(std::as_bytes(std::span(page)), memory.span().first(kPageBytes)));
    EXPECT_NO_THROW(const Volume next(settings)) << "no lock is left behind";
}

TEST_P(VolumeOf, GoesOnAfterShortTransfersAndInterruptions) {
    const ScratchFolder folder;
    std::atomic<int> faults{0};
    // Four of five calls are cut to one page, or fail without moving data.
    const auto disturb = [&](const IoRequest&, std::int64_t result) -> std::int64_t {
        const int turn = faults++ % 5;
        if (turn == 0 || turn == 1) {
            return turn == 0 ? -EINTR : -EAGAIN;
        }
        return turn == 4 ? result : std::min<std::int64_t>(result, kPageBytes);
    };
    Volume volume(
        {.files = files_in(folder, files()), .bytes = 6 * MiB, .io = io(), .filter = disturb});
    volume.reserve();
    memory::Buffer written(6 * MiB);
    memory::Buffer seen(6 * MiB);
    fill_at_random(written.span(), 7);
    volume.write(written.span(), 0).wait();
    EXPECT_GT(faults, 4);
    volume.read(seen.span(), 0).wait();
    EXPECT_TRUE(std::ranges::equal(written.span(), seen.span()));
}

// An error, and the reason and advice that the message must give.
struct Fault {
    int reason;
    const char* text;
    const char* advice;
};

TEST_P(VolumeOf, NamesFileOffsetAndReasonOfAFaultAndGoesOnWithOtherTransfers) {
    const Fault faults[] = {{EIO, "Input/output error", "check the drive"},
                            {ENOSPC, "No space left on device", "free some space"}};
    for (const Fault& fault : faults) {
        const ScratchFolder folder;
        const std::vector<std::string> paths = files_in(folder, files());
        std::atomic<bool> is_failing{true};
        const auto fail = [&](const IoRequest& request, std::int64_t result) -> std::int64_t {
            return is_failing && request.direction == Direction::write ? -fault.reason : result;
        };
        Volume volume({.files = paths, .bytes = 40 * MiB, .io = io(), .filter = fail});
        volume.reserve();
        memory::Buffer memory(40 * MiB);  // more chunks than can be in flight at once
        Ticket writing = volume.write(memory.span(), 0);
        memory::Buffer page(kPageBytes);
        Ticket reading = volume.read(page.span(), 0);
        const std::string message = message_of<IoError>([&] { writing.wait(); });
        EXPECT_THAT(message, testing::HasSubstr(folder.path()));
        EXPECT_THAT(message, testing::HasSubstr("at offset "));
        EXPECT_THAT(message, testing::HasSubstr(fault.text));
        EXPECT_THAT(message, testing::HasSubstr(fault.advice));
        EXPECT_NO_THROW(reading.wait());
        is_failing = false;
        EXPECT_NO_THROW(volume.write(memory.span(), 0).wait());
    }
}

TEST_P(VolumeOf, AdvisesToGoOnWithARunWhereThereIsOne) {
    const ScratchFolder folder;
    const auto fail = [](const IoRequest&, std::int64_t) -> std::int64_t { return -EIO; };
    Volume volume(
        {.files = files_in(folder, files()), .bytes = 4 * MiB, .io = io(), .filter = fail});
    volume.reserve();
    memory::Buffer memory(4 * MiB);
    const auto message = [&](Client client) {
        write_messages_for(client);
        const std::string said =
            message_of<IoError>([&] { volume.write(memory.span(), 0).wait(); });
        write_messages_for(Client::program);
        return said;
    };
    EXPECT_THAT(message(Client::program),
                testing::EndsWith("then start again with --resume; if it happens again, on another "
                                  "csd.path from the last checkpoint."));
    EXPECT_THAT(message(Client::tool),
                testing::EndsWith("then start again; if it happens again, on another csd.path."));
}

INSTANTIATE_TEST_SUITE_P(FilesAndIo, VolumeOf,
                         testing::Combine(testing::Values(1, 2, 3, 5),
                                          testing::Values(IoKind::io_uring, IoKind::threads)));

TEST(VolumeTest, StripesItsChunksOverTheFiles) {
    const ScratchFolder folder;
    const std::vector<std::string> files = files_in(folder, 2);
    memory::Buffer memory(4 * kPageBytes);
    fill_at_random(memory.span(), 3);
    {
        Volume volume({.files = files, .bytes = 4 * kPageBytes, .chunk_bytes = kPageBytes});
        volume.reserve();
        volume.write(memory.span(), 0).wait();
        EXPECT_EQ(volume.describe_place(3 * kPageBytes + 10),
                  "offset 4106 of \"" + files[1] + "\" (striped over 2 files)");
    }
    std::ifstream second(files[1], std::ios::binary);
    std::vector<char> page(kPageBytes);
    second.read(page.data(), static_cast<std::streamsize>(page.size()));
    EXPECT_TRUE(std::ranges::equal(std::as_bytes(std::span(page)),
                                   memory.span().subspan(kPageBytes, kPageBytes)));
}

class VolumeWith : public testing::TestWithParam<IoKind> {};

TEST_P(VolumeWith, GivesAnErrorToTheTicket) {
    const ScratchFolder folder;
    const std::vector<std::string> files = files_in(folder, 2);
    Volume volume({.files = files, .bytes = 4 * MiB, .io = GetParam()});
    volume.reserve();
    std::filesystem::resize_file(files[1], 0);
    memory::Buffer memory(4 * MiB);
    Ticket reading = volume.read(memory.span(), 0);
    const std::string message = message_of<IoError>([&] { reading.wait(); });
    EXPECT_THAT(message, testing::HasSubstr(files[1]));
    EXPECT_THAT(message, testing::HasSubstr("(the file ends there)"));
}

INSTANTIATE_TEST_SUITE_P(Io, VolumeWith, testing::Values(IoKind::io_uring, IoKind::threads));

}  // namespace
}  // namespace nearstep::store
