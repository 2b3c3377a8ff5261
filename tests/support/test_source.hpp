// Selects the tests of one source, as ctest calls them.
#pragma once

namespace nearstep {

// Call after testing::InitGoogleTest. "--source=engine_test" selects the tests of engine_test.cpp,
// unless a filter is given. With "--every=7" after it, only every seventh of them runs, unless
// NEARSTEP_LONG is set. Ends the process with exit code 2 if no test is left.
void select_test_source(int argc, char** argv);

}  // namespace nearstep
