// Tests that blocks of parameters reach slots before they are read, and never while they are.
#include "feed/block_feed.hpp"

#include "support/test.hpp"

namespace nearstep::feed {
namespace {

// A fake GPU. Copies and readers are queued and run in order per kind; random draws decide which
// kind proceeds. Work takes time: checks at its begin and end detect conflicting accesses.
class DrawnGpu : public BlockCopies {
public:
    DrawnGpu(int slots, std::uint64_t seed)
        : held_(static_cast<std::size_t>(slots), -1),
          copies_of_slot_(held_.size()),
          readers_of_slot_(held_.size()),
          seed_(seed) {}

    void start(int block, int slot) override {
        copies_.push_back(
            {.slots = {slot}, .blocks = {block}, .behind = readers_of_slot_.at(at(slot))});
        copies_of_slot_.at(at(slot)) = copies_.size();
    }
    void wait_for(int slot) override { behind_ = std::max(behind_, copies_of_slot_.at(at(slot))); }
    void release(int slot) override { readers_of_slot_.at(at(slot)) = readers_.size(); }

    void read(std::vector<int> slots, std::vector<int> blocks) {
        readers_.push_back(
            {.slots = std::move(slots), .blocks = std::move(blocks), .behind = behind_});
    }

    std::size_t copies_started() const { return copies_.size(); }

    // Does some of the work that is possible now, or all.
    void work(bool is_to_the_end) {
        while (is_to_the_end || draw() < 0.7) {
            const bool can_copy = copied_ < copies_.size() && copies_[copied_].behind <= read_;
            const bool can_read = read_ < readers_.size() && readers_[read_].behind <= copied_;
            if (!can_copy && !can_read) {
                break;
            }
            if (can_copy && (!can_read || draw() < 0.5)) {
                copy(copies_[copied_]);
            } else {
                look(readers_[read_]);
            }
        }
        if (is_to_the_end) {
            EXPECT_EQ(copied_, copies_.size()) << "waits for ever";
            EXPECT_EQ(read_, readers_.size()) << "waits for ever";
        }
    }

private:
    struct Work {
        std::vector<int> slots;
        std::vector<int> blocks;
        std::size_t behind = 0;  // items of the other kind that come first
        bool is_begun = false;
    };

    static std::size_t at(int slot) { return static_cast<std::size_t>(slot); }
    double draw() { return random_uniform(seed_, 9, drawn_++); }

    void copy(Work& work) {
        int& held = held_.at(at(work.slots.front()));
        if (!std::exchange(work.is_begun, true)) {
            held = -1;
            return;
        }
        held = work.blocks.front();
        ++copied_;
    }

    void look(Work& work) {
        for (std::size_t i = 0; i < work.slots.size(); ++i) {
            EXPECT_EQ(held_.at(at(work.slots[i])), work.blocks[i]);
        }
        if (std::exchange(work.is_begun, true)) {
            ++read_;
        }
    }

    std::vector<int> held_;  // block of each slot; -1: incomplete
    std::vector<std::size_t> copies_of_slot_;
    std::vector<std::size_t> readers_of_slot_;
    std::vector<Work> copies_;
    std::vector<Work> readers_;
    std::size_t copied_ = 0;
    std::size_t read_ = 0;
    std::size_t behind_ = 0;
    std::uint64_t seed_;
    std::uint64_t drawn_ = 0;
};

std::vector<Visit> tied_step(int blocks) {
    std::vector<Visit> reads;
    for (int block = 0; block < blocks; ++block) {
        reads.push_back({block});
    }
    reads.back().push_back(0);
    return visits_of_step(reads);
}

// Blocks become final when they are allowed at some time or when they are visited.
void run(int blocks, int slots, std::uint64_t seed) {
    DrawnGpu gpu(slots, seed);
    BlockFeed feed(gpu, blocks, slots);
    std::uint64_t drawn = 0;
    const std::vector<Visit> visits = tied_step(blocks);
    for (int step = 0; step < 3; ++step) {
        feed.begin(visits);
        int allowed = 0;
        for (const Visit& visit : visits) {
            while (allowed < blocks && random_uniform(seed, 4, drawn++) < 0.5) {
                feed.allow(allowed++);
            }
            feed.enter();
            std::vector<int> from;
            for (const int block : visit) {
                from.push_back(feed.slot_of(block));
            }
            EXPECT_EQ(std::set<int>(from.begin(), from.end()).size(), from.size());
            gpu.read(from, visit);
            gpu.read(from, visit);
            feed.leave();
            gpu.work(false);
        }
    }
    gpu.work(true);
}

TEST(BlockFeed, IsNeverReadHalfwayOrOverwrittenUnderAReader) {
    for (std::uint64_t seed = 0; seed < 300; ++seed) {
        const int blocks = 2 + static_cast<int>(seed % 9);
        const int slots =
            2 + static_cast<int>(random_uniform(seed, 5, 0) * static_cast<double>(blocks - 1));
        run(blocks, slots, seed);
    }
}

TEST(BlockFeed, StartsWhatHasRoomAndIsFinalAhead) {
    DrawnGpu gpu(3, 1);
    BlockFeed feed(gpu, 6, 3);
    feed.begin(tied_step(6));
    EXPECT_EQ(gpu.copies_started(), 0U);
    feed.allow(0);
    EXPECT_EQ(gpu.copies_started(), 1U);
    feed.allow(2);
    EXPECT_EQ(gpu.copies_started(), 1U) << "in the order of the visits";
    feed.allow(1);
    EXPECT_EQ(gpu.copies_started(), 3U);
    feed.allow_all();
    EXPECT_EQ(gpu.copies_started(), 3U) << "there is no room";
    feed.enter();
    EXPECT_EQ(gpu.copies_started(), 3U);
    feed.leave();
    EXPECT_EQ(gpu.copies_started(), 3U) << "the first block is read again";
    feed.enter();
    feed.leave();
    EXPECT_EQ(gpu.copies_started(), 4U);
}

TEST(BlockFeed, BringsWhatIsNotSaidToBeFinalWhenItIsVisited) {
    DrawnGpu gpu(2, 1);
    BlockFeed feed(gpu, 4, 2);
    feed.begin(tied_step(4));
    feed.enter();
    feed.leave();
    EXPECT_EQ(gpu.copies_started(), 1U);
    feed.enter();
    EXPECT_EQ(gpu.copies_started(), 2U);
}

TEST(BlockFeed, RefusesVisitsOutOfTurn) {
    DrawnGpu gpu(2, 1);
    BlockFeed feed(gpu, 4, 2);
    feed.begin(tied_step(4));
    EXPECT_THROW(feed.leave(), ContractError);
    feed.enter();
    EXPECT_THROW(feed.enter(), ContractError);
}

}  // namespace
}  // namespace nearstep::feed
