// Copies blocks into slots ahead of the visits that read them.
#pragma once

#include "feed/fetch_order.hpp"

#include <cstddef>
#include <vector>

namespace nearstep::feed {

// The copies that a feed requests. "Readers" are work that reads the slots; it is queued and runs
// later, in order.
class BlockCopies {
public:
    virtual ~BlockCopies() = default;

    // Starts copying the block into the slot: after the copies started before, and after the
    // readers queued before the slot's last release().
    virtual void start(int block, int slot) = 0;
    // Readers queued from now on run after the slot's last copy.
    virtual void wait_for(int slot) = 0;
    // All readers of the slot's content have been queued.
    virtual void release(int slot) = 0;
};

// Use from one thread: begin(), then enter() and leave() for each visit. A fetch starts once all
// readers of its slot are queued and its block is final at the source. Fetches wait only for
// earlier visits, and visits never wait for fetches of later ones: there is no deadlock. Which call
// starts which fetches depends only on the calls: ranks that make the same calls start the same
// fetches in the same order.
class BlockFeed {
public:
    // `copies` outlives the feed.
    BlockFeed(BlockCopies& copies, int blocks, int slots);

    // Discards what the slots hold; no block is final any more.
    void begin(std::vector<Visit> visits);

    // Marks the block as final until the visits end. Fetches of other blocks start only when their
    // visit is entered.
    void allow(int block);
    void allow_all();

    // Enters the next visit. Until leave(), queued readers find its blocks in slot_of().
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
    std::vector<bool> is_final_;  // per block
    std::vector<int> slot_of_;    // per block: the slot of its last fetch
    std::size_t next_fetch_ = 0;
    int entered_ = 0;  // visits
    int left_ = 0;
};

}  // namespace nearstep::feed
