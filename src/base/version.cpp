#include "base/version.hpp"

#include "commit.hpp"

namespace nearstep {

const char* version() { return NEARSTEP_VERSION; }
const char* commit() { return NEARSTEP_COMMIT; }

}  // namespace nearstep
