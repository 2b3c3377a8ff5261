// Plans the order in which blocks are fetched into a fixed number of slots, and which blocks they
// replace, for a known sequence of visits. Pure arithmetic.
#pragma once

#include <vector>

namespace nearstep::feed {

// The blocks that one visit reads at once, without repetition.
using Visit = std::vector<int>;

struct Fetch {
    int block = 0;
    int slot = 0;
    int after = -1;  // last visit that reads the slot's old content; -1: none
    int before = 0;  // the visit that needs the block
};

// The fetches for the visits, in order; at first the slots are empty. With a slot for each block,
// block b is fetched once, into slot b. With fewer slots, a fetch replaces the block that is needed
// again last (Belady 1966). It prefers blocks that the previous visit does not read, so that one
// block is copied while another is read. No visit may read more blocks than there are slots.
std::vector<Fetch> order_fetches(const std::vector<Visit>& visits, int blocks, int slots);

// The visits of a step: `reads`, then `reads` backwards without its last. `reads`: per block.
std::vector<Visit> visits_of_step(const std::vector<Visit>& reads);

}  // namespace nearstep::feed
