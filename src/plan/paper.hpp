// Traffic of the Smart-Infinity paper's methods (HPCA'24, Table I) over the links that a node's
// devices share.
#pragma once

namespace nearstep::plan {

enum class Method { zero_infinity, smart_update, smart_comp };

// Bytes per parameter and step, summed over all nodes.
struct SharedBytes {
    double host_link = 0;  // both directions
    double network = 0;    // leaving the nodes

    double total() const { return host_link + network; }
};

// M = 2 bytes per parameter is the 16-bit model. With Adam the host link carries
//     ZeRO-Infinity: 6M of state and 2M of fp32 gradients, each way
//     SmartUpdate: 2M of gradients to the devices, 2M of new fp32 parameters back
//     SmartComp: the same with `volume` x 2M of gradients; the paper's "2 %" is a volume of 0.02.
// The paper has one node. With more, every other node receives the gradients and the parameters
// once, as 16-bit values. ZeRO-3 sends the parameters twice, in one pass over all micro-batches.
// SmartComp sends `volume` x 2M of gradients between nodes, too.
SharedBytes paper_bytes(Method method, double volume, int nodes);

}  // namespace nearstep::plan
