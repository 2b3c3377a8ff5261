// Gives the version and commit of this build. Used by reports, checkpoints, benches and the Python
// binding.
#include "base/version.hpp"

#include "commit.hpp"

namespace nearstep {

const char* version() { return NEARSTEP_VERSION; }
const char* commit() { return NEARSTEP_COMMIT; }

}  // namespace nearstep
