// Numbers derived from a problem and a choice, independent of link rates and memory sizes.
#pragma once

#include "plan/choice.hpp"
#include "shard/partition.hpp"

#include <algorithm>

namespace nearstep::plan {

// Sequences of a rank in a step, and the number of micro-batches they form.
double rows_of_rank(const Problem& problem);
double micro_batches(const Problem& problem);

// Numbers that several terms share. Bytes are per parameter.
struct Numbers {
    Numbers(const Problem& problem, const Choice& choice);

    double parameters;
    double element;  // of a parameter in memory or of a dense gradient
    double gpus;
    double nodes;
    double storage;     // nodes that compute nothing
    double homes;       // nodes like the one with the most devices that would have them all
    double rounds;      // passes of a step through all blocks
    double net_copies;  // nodes that hold the same part of the optimizer state
    double copies;      // of the optimizer state
    double lists;
    double payload;
    double handover;    // by the owner to its devices
    double new_bytes;   // of a new parameter in the gather
    double on_drives;   // share of the state
    double beside;      // share of the state on nodes that compute
    double owned;       // of all parameters, those whose state the node with the most has
    double all_tiles;   // of a drive if all state lies on drives
    double tiles;       // of the drive with the most
    double most_tiles;  // of the device with the most, in any tier
    // With parameters in storage: bytes of block inputs that wait in host memory, and on the
    // drives.
    double inputs_on_host;
    double inputs_on_drives;
    double subgroup_tiles;   // narrowed as in shard::Partition to give at least four subgroups
    double block_subgroups;  // in which the parameters of a block lie, on as many nodes at most

    // Parameters of that drive, including the padding of its tiles.
    double share() const { return tiles * static_cast<double>(shard::kTileElems); }

    // How many times as long as over all of these nodes a block's messages take: it lies on few.
    double crowding(double over) const { return std::max(1.0, over / block_subgroups); }
};

}  // namespace nearstep::plan
