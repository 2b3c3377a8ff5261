// What the methods of the Smart-Infinity paper (HPCA'24, Table I) move over the links that the
// devices of a node share, as formulas.
#pragma once

namespace nearstep::plan {

enum class Method { zero_infinity, smart_update, smart_comp };

// Bytes per parameter and step of all nodes together.
struct SharedBytes {
    double host_link = 0;  // both directions
    double network = 0;    // leaving the nodes

    double total() const { return host_link + network; }
};

// In units of M = 2 bytes per parameter, the 16-bit model, the host link carries with Adam
//     ZeRO-Infinity: 6M of state and 2M of fp32 gradients, each way
//     SmartUpdate: 2M of gradients to the devices, 2M of new fp32 parameters back
//     SmartComp: the same with `volume` x 2M of gradients; the paper's "2 %" is a volume of 0.02.
// The paper has one node. On more, every other node needs the gradients once and the parameters
// once, as 16-bit values, and ZeRO-3 the parameters twice, in one pass over all micro-batches;
// SmartComp sends `volume` x 2M of gradients there, too.
SharedBytes paper_bytes(Method method, double volume, int nodes);

}  // namespace nearstep::plan
