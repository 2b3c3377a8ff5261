// What a problem and a choice come to, before links and memories are looked at.
#pragma once

#include "plan/choice.hpp"
#include "shard/partition.hpp"

namespace nearstep::plan {

// Sequences of a rank in a step, and the micro-batches that they make.
double rows_of_rank(const Problem& problem);
double micro_batches(const Problem& problem);

// The numbers that several terms share. Bytes are per parameter.
struct Numbers {
    Numbers(const Problem& problem, const Choice& choice);

    double parameters;
    double element;  // bytes of a parameter in memory or of a dense gradient
    double gpus;
    double nodes;
    double rounds;      // times that a step goes through all blocks
    double net_copies;  // of the optimizer state: nodes that hold the same part
    double copies;      // all of them
    double lists;
    double payload;
    double handed;          // by the owner to its devices
    double new_bytes;       // of a new parameter, as the gather sends it
    double tiles;           // of the device that has most
    double subgroup_tiles;  // as shard::Partition narrows stripes, so that there are four

    // Parameters of that device, the padding of its tiles with them.
    double share() const { return tiles * static_cast<double>(shard::kTileElems); }
};

}  // namespace nearstep::plan
