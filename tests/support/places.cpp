#include "support/places.hpp"

namespace nearstep::test {

const char* const kSourceFolder = NEARSTEP_SOURCE_DIR;
const char* const kBuildFolder = NEARSTEP_BINARY_DIR;
const char* const kSharedData = NEARSTEP_SHARED_DATA;
const char* const kPython = NEARSTEP_PYTHON;

}  // namespace nearstep::test
