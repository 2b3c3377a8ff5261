// In which order blocks are brought into a fixed number of slots, and what has to make room for
// them, for a sequence of visits that is known in advance. Pure arithmetic.
#pragma once

#include <vector>

namespace nearstep::feed {

// The blocks that one visit reads at once, each once.
using Visit = std::vector<int>;

struct Fetch {
    int block = 0;
    int slot = 0;
    int after = -1;  // the last visit that reads what the slot held before; -1: none does
    int before = 0;  // the visit that the block is brought for
};

// What is fetched for the visits, in their order; at first the slots are empty. With a slot for
// each block every block is fetched once, into the slot of its number. With fewer, room is made by
// what is needed again last (Belady 1966), among the blocks that the visit before does not read,
// where there are any: so one block is on its way while another is read. No visit reads more
// blocks than there are slots.
std::vector<Fetch> order_fetches(const std::vector<Visit>& visits, int blocks, int slots);

// The visits of a step: all blocks ascending, then, but for the last, descending. `reads`: of each
// block.
std::vector<Visit> visits_of_step(const std::vector<Visit>& reads);

}  // namespace nearstep::feed
