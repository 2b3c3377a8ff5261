#include "store/volume.hpp"

#include "base/error.hpp"
#include "base/random.hpp"
#include "memory/buffer.hpp"
#include "store/scratch_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

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

void fill(std::span<std::byte> memory, std::uint64_t seed) {
    for (std::size_t i = 0; i < memory.size(); i += 8) {
        const std::uint64_t bits = random_bits(seed, 0, i);
        std::memcpy(&memory[i], &bits, sizeof bits);
    }
}

class VolumeOf : public testing::TestWithParam<int> {};

TEST_P(VolumeOf, ReadsBackTransfersOfOddSizesAtOddPlaces) {
    const ScratchFolder folder;
    const VolumeSettings settings = {.files = files_in(folder, GetParam()),
                                     .bytes = 97 * kPageBytes,
                                     .chunk_bytes = 3 * kPageBytes};
    Volume volume(settings);
    volume.reserve();
    memory::Buffer model(settings.bytes);
    memory::Buffer seen(settings.bytes);
    fill(model.span(), 1);
    volume.write(model.span(), 0).wait();
    for (std::uint64_t i = 0; i < 40; ++i) {
        const std::size_t begin = random_bits(7, i, 0) % 97;
        const std::size_t count = random_bits(7, i, 1) % (97 - begin) + 1;
        const auto part = model.span().subspan(begin * kPageBytes, count * kPageBytes);
        fill(part, i + 2);
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
    const VolumeSettings settings = {.files = files_in(folder, GetParam()),
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
    Volume volume({.files = files_in(folder, GetParam()), .bytes = 4 * kPageBytes});
    volume.reserve();
    memory::Buffer memory(2 * kPageBytes);
    EXPECT_THROW(volume.read(memory.span(), 3 * kPageBytes), ContractError);
}

INSTANTIATE_TEST_SUITE_P(Files, VolumeOf, testing::Values(1, 2, 3, 5));

TEST(VolumeTest, StripesItsChunksOverTheFiles) {
    const ScratchFolder folder;
    const std::vector<std::string> files = files_in(folder, 2);
    memory::Buffer memory(4 * kPageBytes);
    fill(memory.span(), 3);
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

TEST(VolumeTest, GivesAnErrorToTheTicket) {
    const ScratchFolder folder;
    const std::vector<std::string> files = files_in(folder, 2);
    Volume volume({.files = files, .bytes = 4 * MiB});
    volume.reserve();
    std::filesystem::resize_file(files[1], 0);
    memory::Buffer memory(4 * MiB);
    Ticket reading = volume.read(memory.span(), 0);
    EXPECT_THAT(message_of<IoError>([&] { reading.wait(); }), testing::HasSubstr(files[1]));
}

}  // namespace
}  // namespace nearstep::store
