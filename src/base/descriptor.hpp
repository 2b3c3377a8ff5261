// Sole ownership of a file descriptor.
#pragma once

#include "base/handle.hpp"

#include <unistd.h>

namespace nearstep {

struct DescriptorTraits {
    using Type = int;
    static Type empty() { return -1; }
    static void close(Type descriptor) noexcept { ::close(descriptor); }
};
using Descriptor = Handle<DescriptorTraits>;

}  // namespace nearstep
