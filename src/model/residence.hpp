// Where a network keeps what it computes with.
#pragma once

namespace nearstep::model {

struct Residence {
    // That blocks stream through, from the parameter vector. 0: on a GPU all blocks stay for the
    // step; on the CPU they are read where they lie.
    int slots = 0;
    // Inputs of blocks that wait for their backward: in host memory, which a GPU reaches at the
    // link's speed, instead of beside the blocks.
    bool are_inputs_on_host = false;
};

}  // namespace nearstep::model
