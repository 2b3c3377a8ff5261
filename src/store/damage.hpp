// Separates damaged data from an operation that failed.
#pragma once

#include "base/error.hpp"

namespace nearstep::store {

// The data read is incomplete or differs from what was written, so reading it again does not help.
// Any other IoError may come from a drive that recovers.
class DamageError : public IoError {
public:
    using IoError::IoError;
};

}  // namespace nearstep::store
