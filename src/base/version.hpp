// The version of this build.
#pragma once

namespace nearstep {

// The project's version: "0.2.0".
const char* version();

// The commit of the build, with "+" if there were uncommitted changes; "unknown" outside git.
const char* commit();

}  // namespace nearstep
