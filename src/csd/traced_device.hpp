// A device whose stages a timeline shows.
#pragma once

#include "csd/device.hpp"
#include "trace/timeline.hpp"

#include <memory>

namespace nearstep::csd {

// `number`: of the device among its rank's. `timeline` outlives it. A span of a read or a write
// begins when it was asked for and the one before it was over.
std::unique_ptr<Device> make_traced_device(std::unique_ptr<Device> device, int number,
                                           trace::Timeline& timeline);

}  // namespace nearstep::csd
