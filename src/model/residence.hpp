// Says where a network keeps its parameters, block inputs and what backward needs, and how many
// logits it computes at once.
#pragma once

#include <cstdint>

namespace nearstep::model {

// 1 GiB in 16 bits.
constexpr std::int64_t kMostLogits = std::int64_t{1} << 29;

struct Residence {
    // Number of slots through which blocks stream from the parameter vector. 0: on a GPU all blocks
    // stay for the step; on the CPU they are read in place.
    int slots = 0;
    // True: block inputs wait for their backward in host memory, not on the network's device.
    bool are_inputs_on_host = false;
    // The last blocks before the head, as many as this, keep what their backward needs from their
    // forward; the others compute forward again. Only with slots = 0 and inputs on the device.
    int kept_blocks = 0;
    // Logits that exist at once, but at least one token's: the last block computes that many tokens
    // at a time. Results depend on it in their last bits.
    std::int64_t most_logits = kMostLogits;
};

}  // namespace nearstep::model
