// Compares the kernel's digest with that of state files.
#include "base/digest.hpp"

#include "fpga/kernel/updater.hpp"
#include "support/test.hpp"

namespace nearstep::fpga {
namespace {

constexpr std::size_t kPage = 4096;

std::vector<Word> random_words(std::size_t words) {
    std::vector<Word> memory(words);
    for (std::size_t i = 0; i < words * kWordUnits; ++i) {
        memory[i / kWordUnits].of[i % kWordUnits] =
            static_cast<std::uint32_t>(random_bits(3, 0, i));
    }
    return memory;
}

TEST(Digest, IsThatOfTheStateFiles) {
    const std::vector<Word> memory = random_words(40 * kPage / kWordBytes);
    const auto bytes = std::as_bytes(std::span(memory));
    for (const std::size_t pages : {1, 2, 3, 17, 36}) {
        for (const std::size_t offset : {std::size_t{0}, std::size_t{64}, 2 * kPage + 192}) {
            Word out;
            std::memset(&out, 0xEE, sizeof out);
            nearstep_digest(memory.data(), &out, offset, pages * kPage);
            std::array<std::uint64_t, 8> quads{};
            std::memcpy(quads.data(), &out, sizeof out);
            EXPECT_EQ(quads[0], xxh3(bytes.subspan(offset, pages * kPage)));
            for (std::size_t i = 1; i < quads.size(); ++i) {
                EXPECT_EQ(quads.at(i), 0U);
            }
        }
    }
}

TEST(Digest, SeesEveryByte) {
    std::vector<Word> memory = random_words(2 * kPage / kWordBytes);
    const auto digest_of = [&] {
        Word out;
        nearstep_digest(memory.data(), &out, 0, 2 * kPage);
        std::uint64_t digest = 0;
        std::memcpy(&digest, &out, sizeof digest);
        return digest;
    };
    const std::uint64_t before = digest_of();
    for (std::size_t word = 0; word < memory.size(); ++word) {
        const std::size_t unit = word % kWordUnits;
        memory[word].of[unit] ^= 0x100U;
        EXPECT_NE(digest_of(), before) << word;
        memory[word].of[unit] ^= 0x100U;
    }
    EXPECT_EQ(digest_of(), before);
}

}  // namespace
}  // namespace nearstep::fpga
