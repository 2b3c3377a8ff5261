// A device that records its stages in a timeline.
#pragma once

#include "csd/device.hpp"
#include "trace/timeline.hpp"

#include <memory>

namespace nearstep::csd {

// `number` is the device's index within its rank. `timeline` outlives it. The span of a transfer
// begins at its request, or at the end of the previous one if that is later.
std::unique_ptr<Device> make_traced_device(std::unique_ptr<Device> device, int number,
                                           trace::Timeline& timeline);

}  // namespace nearstep::csd
