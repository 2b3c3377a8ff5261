// Which nearstep this is.
#pragma once

namespace nearstep {

// The project's version, as "0.1.0".
const char* version();

// The commit the program was built from, with "+" if the tree had changes; "unknown" outside git.
const char* commit();

}  // namespace nearstep
