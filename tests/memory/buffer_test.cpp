// Tests that buffers are zero and take memory when they should.
#include "memory/buffer.hpp"

#include "support/test.hpp"

namespace nearstep::memory {
namespace {

constexpr std::size_t kPart = 131072;

TEST(Buffer, IsZeroAndTakesItsMemoryAtOnce) {
    const Buffer buffer(3 * kPart);
    EXPECT_TRUE(std::ranges::all_of(buffer.span(), [](std::byte b) { return b == std::byte{0}; }));
    EXPECT_GE(buffer.resident_bytes(), 3 * kPart);
    EXPECT_EQ(Buffer().resident_bytes(), 0U);
}

TEST(Buffer, UntouchedTakesMemoryForWhatIsWrittenUntilItIsDropped) {
    Buffer buffer = Buffer::untouched(8 * kPart);
    EXPECT_EQ(buffer.size(), 8 * kPart);
    EXPECT_EQ(buffer.resident_bytes(), 0U);
    std::ranges::fill(buffer.span().subspan(2 * kPart, 3 * kPart), std::byte{5});
    EXPECT_EQ(buffer.resident_bytes(), 3 * kPart);
    buffer.drop(3 * kPart, kPart);
    EXPECT_EQ(buffer.resident_bytes(), 2 * kPart);
    Buffer moved = std::move(buffer);
    EXPECT_EQ(moved.span()[3 * kPart - 1], std::byte{5});
    EXPECT_EQ(moved.span()[3 * kPart], std::byte{0});
    EXPECT_EQ(moved.span()[4 * kPart], std::byte{5});
    EXPECT_EQ(Buffer::untouched(0).size(), 0U);
}

}  // namespace
}  // namespace nearstep::memory
