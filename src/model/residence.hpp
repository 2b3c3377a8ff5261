// Where a network keeps its parameters and block inputs.
#pragma once

namespace nearstep::model {

struct Residence {
    // Number of slots through which blocks stream from the parameter vector. 0: on a GPU all blocks
    // stay for the step; on the CPU they are read in place.
    int slots = 0;
    // True: block inputs wait for their backward in host memory, not on the network's device.
    bool are_inputs_on_host = false;
};

}  // namespace nearstep::model
