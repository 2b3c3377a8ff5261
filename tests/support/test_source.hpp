// Which tests of a program run: those of one source, as ctest calls it.
#pragma once

namespace nearstep {

// After testing::InitGoogleTest: "--source=engine_test" selects the tests of engine_test.cpp,
// unless a filter was given; "--every=7" behind it, of these each seventh without NEARSTEP_LONG.
// Ends the process with exit code 2 if the program has none of them.
void select_test_source(int argc, char** argv);

}  // namespace nearstep
