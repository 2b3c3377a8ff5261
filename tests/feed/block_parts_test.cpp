// Tests how ranks of a node divide the copies of blocks.
#include "feed/block_parts.hpp"

#include "support/test.hpp"

namespace nearstep::feed {
namespace {

TEST(BlockParts, CoverEveryByteOnceInTheOrderOfRanks) {
    for (const std::size_t bytes : {0U, 1U, 511U, 512U, 513U, 4096U, 100003U}) {
        for (const int ranks : {1, 2, 3, 7, 8}) {
            std::size_t next = 0;
            for (int rank = 0; rank < ranks; ++rank) {
                const BlockPart part = part_of_block(bytes, rank, ranks);
                EXPECT_EQ(part.begin, next);
                EXPECT_GE(part.end, part.begin);
                next = part.end;
            }
            EXPECT_EQ(next, bytes) << "of " << ranks << " ranks";
        }
    }
}

TEST(BlockParts, LieInTheSlotWhereARankHasItsOwn) {
    for (const std::size_t bytes : {1U, 513U, 100003U}) {
        for (const int ranks : {1, 2, 3, 8}) {
            const std::size_t slot = slot_bytes(bytes, ranks);
            EXPECT_GE(slot, bytes);
            const std::size_t part = slot / static_cast<std::size_t>(ranks);
            EXPECT_EQ(part % kSlotAlignment, 0U);
            for (int rank = 0; rank < ranks; ++rank) {
                const BlockPart mine = part_of_block(bytes, rank, ranks);
                EXPECT_LE(mine.size(), part);
                if (mine.size() > 0) {
                    EXPECT_EQ(mine.begin, part * static_cast<std::size_t>(rank));
                }
            }
        }
    }
}

TEST(BlockParts, AreWholeBlocksOfOneRank) {
    EXPECT_EQ(slot_bytes(513, 1), 1024U);
    EXPECT_EQ(part_of_block(513, 0, 1).size(), 513U);
}

TEST(BlockParts, AreOfRanksThatCopy) { EXPECT_THROW(part_of_block(10, 2, 2), ContractError); }

TEST(BlockParts, CountAboveTwoToThe32) {
    const std::size_t bytes = (std::size_t{1} << 33) + 5;
    EXPECT_EQ(part_of_block(bytes, 1, 2).end, bytes);
    EXPECT_EQ(part_of_block(bytes, 0, 2).size(), slot_bytes(bytes, 2) / 2);
}

}  // namespace
}  // namespace nearstep::feed
