// Sole ownership of a file descriptor.
#pragma once

#include "base/handle.hpp"

#include <unistd.h>

namespace nearstep {

inline void close_descriptor(int descriptor) noexcept { ::close(descriptor); }
using Descriptor = Handle<int, close_descriptor, -1>;

}  // namespace nearstep
