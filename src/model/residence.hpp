// Where a network keeps its parameters, block inputs, and what backward needs.
#pragma once

namespace nearstep::model {

struct Residence {
    // Number of slots through which blocks stream from the parameter vector. 0: on a GPU all blocks
    // stay for the step; on the CPU they are read in place.
    int slots = 0;
    // True: block inputs wait for their backward in host memory, not on the network's device.
    bool are_inputs_on_host = false;
    // The last blocks before the head, as many as this, keep what their backward needs from their
    // forward; the others compute forward again. Only with slots = 0 and inputs on the device.
    int kept_blocks = 0;
};

}  // namespace nearstep::model
