// Plans which block replaces which. Used by BlockFeed and by the model's plan of GPU memory.
#include "feed/fetch_order.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace nearstep::feed {

namespace {

constexpr int kNobody = -1;
constexpr int kNever = std::numeric_limits<int>::max();

struct FeedSlot {
    int block = kNobody;
    int last_read = -1;  // visit
};

class FetchPlanner {
public:
    FetchPlanner(const std::vector<Visit>& visits, int blocks, int slots)
        : visits_(visits),
          visits_of_(static_cast<std::size_t>(blocks)),
          place_of_(static_cast<std::size_t>(blocks), kNobody),
          slots_(static_cast<std::size_t>(slots)) {
        for (std::size_t visit = 0; visit < visits.size(); ++visit) {
            for (const int block : visits[visit]) {
                visits_of_.at(static_cast<std::size_t>(block)).push_back(static_cast<int>(visit));
            }
        }
    }

    std::vector<Fetch> fetches() {
        for (int visit = 0; visit < static_cast<int>(visits_.size()); ++visit) {
            const Visit& wanted = visits_[static_cast<std::size_t>(visit)];
            expects(wanted.size() <= slots_.size(), "a visit reads no more blocks than fit");
            for (const int block : wanted) {  // blocks already in slots stay
                if (place_of(block) != kNobody) {
                    slot(place_of(block)).last_read = visit;
                }
            }
            for (const int block : wanted) {
                if (place_of(block) == kNobody) {
                    bring(block, visit);
                }
            }
        }
        return fetches_;
    }

private:
    int& place_of(int block) { return place_of_.at(static_cast<std::size_t>(block)); }
    FeedSlot& slot(int number) { return slots_.at(static_cast<std::size_t>(number)); }

    int next_visit(int block, int visit) const {
        const std::vector<int>& all = visits_of_[static_cast<std::size_t>(block)];
        const auto next = std::ranges::upper_bound(all, visit);
        return next == all.end() ? kNever : *next;
    }

    void bring(int block, int visit) {
        const int number = room_for(block, visit);
        FeedSlot& room = slot(number);
        fetches_.push_back(
            {.block = block, .slot = number, .after = room.last_read, .before = visit});
        if (room.block != kNobody) {
            place_of(room.block) = kNobody;
        }
        room = {.block = block, .last_read = visit};
        place_of(block) = number;
    }

    int room_for(int block, int visit) {
        const int slots = static_cast<int>(slots_.size());
        if (block < slots && slot(block).block == kNobody) {
            return block;
        }
        int best = kNobody;
        const auto is_better = [&](const FeedSlot& one, const FeedSlot& other) {
            const bool one_is_idle = one.last_read < visit - 1;
            if (one_is_idle != (other.last_read < visit - 1)) {
                return one_is_idle;
            }
            const int one_next = next_visit(one.block, visit);
            const int other_next = next_visit(other.block, visit);
            return one_next != other_next ? one_next > other_next : one.last_read < other.last_read;
        };
        for (int number = 0; number < slots; ++number) {
            const FeedSlot& room = slot(number);
            if (room.block == kNobody) {
                return number;
            }
            if (room.last_read != visit && (best == kNobody || is_better(room, slot(best)))) {
                best = number;
            }
        }
        return best;
    }

    const std::vector<Visit>& visits_;
    std::vector<std::vector<int>> visits_of_;  // per block
    std::vector<int> place_of_;                // per block: its slot
    std::vector<FeedSlot> slots_;
    std::vector<Fetch> fetches_;
};

}  // namespace

std::vector<Fetch> order_fetches(const std::vector<Visit>& visits, int blocks, int slots) {
    return FetchPlanner(visits, blocks, slots).fetches();
}

std::vector<Visit> visits_of_step(const std::vector<Visit>& reads) {
    std::vector<Visit> visits = reads;
    if (!reads.empty()) {
        visits.insert(visits.end(), reads.rbegin() + 1, reads.rend());
    }
    return visits;
}

}  // namespace nearstep::feed
