// Brings blocks into slots ahead of the visits that read them.
#pragma once

#include "feed/fetch_order.hpp"

#include <cstddef>
#include <vector>

namespace nearstep::feed {

// The copies that a feed asks for. What reads the slots is work that is handed in and done later,
// in order: "the readers".
class BlockCopies {
public:
    virtual ~BlockCopies() = default;

    // Starts the block's way into the slot: behind the copies that were started before, and behind
    // the readers that were handed in before the slot's last release().
    virtual void start(int block, int slot) = 0;
    // Readers that are handed in from now on run behind the slot's last copy.
    virtual void wait_for(int slot) = 0;
    // All readers of what the slot holds have been handed in.
    virtual void release(int slot) = 0;
};

// Use from one thread: begin, then enter and leave of each visit. A fetch starts as soon as its
// slot's readers have been handed in and its block is final where it comes from. It waits for
// earlier visits alone, and no visit for a fetch of a later one: nothing can wait in a circle.
// Which fetches start in which call follows from the calls alone: ranks that make the same ones
// start the same ones in the same order.
class BlockFeed {
public:
    // `copies` outlives the feed.
    BlockFeed(BlockCopies& copies, int blocks, int slots);

    // What the slots hold is of no use any more, and no block is final.
    void begin(std::vector<Visit> visits);

    // The block is final until the visits are over. Of one for which this is not said, fetches
    // start when the visit that they are for is entered.
    void allow(int block);
    void allow_all();

    // The next visit: what it reads is in slot_of() for readers that are handed in until leave().
    void enter();
    void leave();
    int slot_of(int block) const { return slot_of_.at(static_cast<std::size_t>(block)); }

private:
    void start_fetches();
    bool may_start(const Fetch& fetch) const;
    const Visit& visit() const;

    BlockCopies& copies_;
    int slots_;
    std::vector<Visit> visits_;
    std::vector<Fetch> fetches_;
    std::vector<bool> is_final_;  // of each block
    std::vector<int> slot_of_;    // of each block, where its last fetch went
    std::size_t next_fetch_ = 0;
    int entered_ = 0;  // visits
    int left_ = 0;
};

}  // namespace nearstep::feed
