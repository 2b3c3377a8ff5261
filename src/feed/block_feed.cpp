// Starts the copies that order_fetches planned. Used by the model's parameters and inputs.
#include "feed/block_feed.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <utility>

namespace nearstep::feed {

BlockFeed::BlockFeed(BlockCopies& copies, int blocks, int slots)
    : copies_(copies),
      slots_(slots),
      is_final_(static_cast<std::size_t>(blocks)),
      slot_of_(static_cast<std::size_t>(blocks), -1) {}

void BlockFeed::begin(std::vector<Visit> visits) {
    visits_ = std::move(visits);
    fetches_ = order_fetches(visits_, static_cast<int>(slot_of_.size()), slots_);
    std::fill(is_final_.begin(), is_final_.end(), false);
    next_fetch_ = 0;
    entered_ = 0;
    left_ = 0;
}

void BlockFeed::allow(int block) {
    is_final_.at(static_cast<std::size_t>(block)) = true;
    start_fetches();
}

void BlockFeed::allow_all() {
    std::fill(is_final_.begin(), is_final_.end(), true);
    start_fetches();
}

const Visit& BlockFeed::visit() const { return visits_.at(static_cast<std::size_t>(left_)); }

void BlockFeed::enter() {
    expects(entered_ == left_, "one visit is over before the next");
    ++entered_;
    start_fetches();
    for (const int block : visit()) {
        copies_.wait_for(slot_of(block));
    }
}

void BlockFeed::leave() {
    expects(entered_ == left_ + 1, "a visit that is left was entered");
    for (const int block : visit()) {
        copies_.release(slot_of(block));
    }
    ++left_;
    start_fetches();
}

bool BlockFeed::may_start(const Fetch& fetch) const {
    const bool is_final = is_final_[static_cast<std::size_t>(fetch.block)];
    return fetch.after < left_ && (is_final || fetch.before < entered_);
}

void BlockFeed::start_fetches() {
    while (next_fetch_ < fetches_.size() && may_start(fetches_[next_fetch_])) {
        const Fetch& fetch = fetches_[next_fetch_++];
        slot_of_[static_cast<std::size_t>(fetch.block)] = fetch.slot;
        copies_.start(fetch.block, fetch.slot);
    }
}

}  // namespace nearstep::feed
