// Compares blocks that are copied to a GPU in parts with those in host memory; skipped without one.
#include "model/block_copies.hpp"

#include "support/test.hpp"

namespace nearstep::model {
namespace {

const std::vector<std::size_t> kSizes = {1, 511, 512, 100003, 4096};

std::vector<std::byte> block_of(std::size_t number) {
    std::vector<std::byte> bytes(kSizes[number]);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] = static_cast<std::byte>(random_bits(3, number, i));
    }
    return bytes;
}

// The code under test is one of several ranks; the test plays the others.
class JointCopies : public testing::TestWithParam<int> {
protected:
    void SetUp() override {
        if (memory::gpus() == 0 || !choose_device(config::Processor::automatic, 0).is_gpu()) {
            GTEST_SKIP() << "there is no GPU here";
        }
        memory::use_gpu(0);
    }
};

TEST_P(JointCopies, BringAPartAndTakeTheRest) {
    const int ranks = GetParam();
    for (int rank = 0; rank < ranks; ++rank) {
        std::vector<std::vector<std::byte>> blocks;
        std::vector<memory::GpuBuffer> slots;
        std::vector<std::span<std::byte>> rooms;
        for (std::size_t block = 0; block < kSizes.size(); ++block) {
            blocks.push_back(block_of(block));
            slots.emplace_back(feed::slot_bytes(kSizes[block], ranks));
            rooms.push_back(slots.back().span());
        }
        std::size_t copied_bytes = 0;
        std::size_t next = 0;  // next block to gather
        bool is_joint = false;
        const auto copies = make_block_copies(
            {.source = [&](int block) -> std::span<const std::byte> {
                 return blocks[static_cast<std::size_t>(block)];
             },
             .slots = rooms,
             .device = {.gpu = 0},
             .copied_bytes = &copied_bytes,
             .joint = {.rank = rank,
                       .ranks = ranks,
                       .gather =
                           [&](std::span<const std::byte> mine, std::span<std::byte> all,
                               const memory::Stream& stream) {
                               const std::vector<std::byte>& block = blocks[next++];
                               EXPECT_EQ(mine.size() * static_cast<std::size_t>(ranks), all.size());
                               EXPECT_EQ(mine.data(),
                                         all.data() + mine.size() * static_cast<std::size_t>(rank));
                               for (int other = 0; other < ranks; ++other) {
                                   const feed::BlockPart part =
                                       feed::part_of_block(block.size(), other, ranks);
                                   if (other != rank) {
                                       copy_to_gpu(
                                           all.subspan(part.begin, part.size()),
                                           std::span(block).subspan(part.begin, part.size()),
                                           stream);
                                   }
                               }
                           }},
             .is_joint = &is_joint});
        for (const bool is_joint_now : {true, false}) {
            is_joint = is_joint_now;
            std::size_t wanted_bytes = 0;
            copied_bytes = 0;
            for (std::size_t block = 0; block < kSizes.size(); ++block) {
                fill_with_zeros(rooms[block], memory::Stream::of_default());
                memory::wait_for_gpu();
                copies->start(static_cast<int>(block), static_cast<int>(block));
                copies->wait_for(static_cast<int>(block));
                std::vector<std::byte> found(kSizes[block]);
                copy_to_host(found, rooms[block].first(found.size()), memory::Stream::of_default());
                memory::wait_for_gpu();
                EXPECT_EQ(found, blocks[block]) << "rank " << rank << " of " << ranks;
                wanted_bytes += is_joint ? feed::part_of_block(kSizes[block], rank, ranks).size()
                                         : kSizes[block];
            }
            EXPECT_EQ(copied_bytes, wanted_bytes);
        }
        EXPECT_EQ(next, kSizes.size()) << "alone nothing is gathered";
    }
}

INSTANTIATE_TEST_SUITE_P(Ranks, JointCopies, testing::Values(1, 2, 3, 8));

}  // namespace
}  // namespace nearstep::model
