// What tells damaged data from an operation that failed.
#pragma once

#include "base/error.hpp"

namespace nearstep::store {

// What was read is not what was written, or not whole: reading it again does not help, where an
// IoError of another kind may be a drive that comes back.
class DamageError : public IoError {
public:
    using IoError::IoError;
};

}  // namespace nearstep::store
