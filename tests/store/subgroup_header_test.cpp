// Tests that headers of subgroups show damage and other states.
#include "store/subgroup_header.hpp"

#include "base/digest.hpp"
#include "support/test.hpp"

#include <cstring>

namespace nearstep::store {
namespace {

constexpr SubgroupHeader kHeader = {.layout = 77, .subgroup = 3, .generation = 12};

std::vector<std::byte> sealed_extent(std::size_t payload_bytes) {
    std::vector<std::byte> extent(kHeaderBytes + payload_bytes);
    for (std::size_t i = 0; i < extent.size(); ++i) {
        extent[i] = static_cast<std::byte>(i % 251);
    }
    seal(kHeader, extent);
    return extent;
}

TEST(SubgroupHeaderTest, FindsNoFaultInWhatItSealed) {
    for (const std::size_t payload_bytes :
         std::initializer_list<std::size_t>{0, 1, 4096, 100'003}) {
        EXPECT_EQ(find_fault(kHeader, sealed_extent(payload_bytes)), std::nullopt) << payload_bytes;
    }
}

TEST(SubgroupHeaderTest, FindsAFlippedBitInAnyByte) {
    std::vector<std::byte> extent = sealed_extent(1000);
    for (std::size_t i = 0; i < extent.size(); ++i) {
        const auto bit = static_cast<std::byte>(1U << (i % 8));
        extent[i] ^= bit;
        EXPECT_TRUE(find_fault(kHeader, extent).has_value()) << "byte " << i;
        extent[i] ^= bit;
    }
    EXPECT_EQ(find_fault(kHeader, extent), std::nullopt);
}

TEST(SubgroupHeaderTest, NamesWhatIsWrong) {
    const std::vector<std::byte> extent = sealed_extent(4096);
    const std::vector<std::byte> blank(kHeaderBytes + 4096);
    const auto fault = [&](const SubgroupHeader& expected, std::span<const std::byte> bytes) {
        return find_fault(expected, bytes).value_or("nothing");
    };
    EXPECT_THAT(fault(kHeader, blank), HasSubstr("never written"));
    EXPECT_THAT(fault({.layout = 78, .subgroup = 3, .generation = 12}, extent),
                HasSubstr("another device"));
    EXPECT_THAT(fault({.layout = 77, .subgroup = 4, .generation = 12}, extent),
                HasSubstr("subgroup 3"));
    EXPECT_THAT(fault({.layout = 77, .subgroup = 3, .generation = 14}, extent),
                states("generation", 12, 14));
    EXPECT_THAT(fault(kHeader, std::span(extent).first(kHeaderBytes + 4000)), states(4096, 4000));
}

TEST(SubgroupHeaderTest, BelongsToOneState) {
    std::vector<std::byte> extent = sealed_extent(4096);
    const auto fault_in = [&](std::uint64_t state) {
        SubgroupHeader expected = kHeader;
        expected.state = state;
        return find_fault(expected, extent).value_or("nothing");
    };
    EXPECT_NE(number_of_state("0123456789abcdef"), number_of_state("0123456789abcdee"));
    EXPECT_EQ(number_of_state(""), 0U);
    EXPECT_THAT(fault_in(5), HasSubstr("nothing"));  // as version 0.2.0 sealed it
    SubgroupHeader header = kHeader;
    header.state = 5;
    seal(header, extent);
    EXPECT_THAT(fault_in(5), HasSubstr("nothing"));
    EXPECT_THAT(fault_in(6), HasSubstr("another run"));
    EXPECT_THAT(fault_in(0), HasSubstr("another run"));
}

TEST(SubgroupHeaderTest, TellsANewerVersionFromDamage) {
    std::vector<std::byte> extent = sealed_extent(0);
    extent[8] = std::byte{2};
    const std::uint64_t digest = xxh3(std::span(extent).first(kHeaderBytes - 8));
    std::memcpy(extent.data() + kHeaderBytes - 8, &digest, sizeof digest);
    EXPECT_THAT(find_fault(kHeader, extent).value_or("nothing"), HasSubstr("newer version"));
}

TEST(SubgroupHeaderTest, TellsADamagedHeaderFromDamagedData) {
    std::vector<std::byte> extent = sealed_extent(4096);
    extent[kHeaderBytes + 5] ^= std::byte{1};
    EXPECT_THAT(find_fault(kHeader, extent).value_or("nothing"), states("data"));
    extent[3000] ^= std::byte{1};
    EXPECT_THAT(find_fault(kHeader, extent).value_or("nothing"), states("header"));
}

TEST(SubgroupHeaderTest, TellsAFileThatCannotBeReadFromOneThatWasNeverWritten) {
    const ScratchFolder folder;
    EXPECT_EQ(newest_generation_in(folder.path() + "/absent"), 0);
    EXPECT_THROW(newest_generation_in("/proc/self/mem"), IoError);  // page 0 is not mapped: EIO
    const std::string link = folder.file("link");
    std::filesystem::create_symlink("/proc/self/mem", link);
    EXPECT_EQ(newest_generation_in(link), 0);
}

}  // namespace
}  // namespace nearstep::store
