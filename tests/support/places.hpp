// Says where the tests find their files. Only one source knows the folders, so that all others
// compile to the same object in every checkout and come from the compiler cache.
#pragma once

#include <string>

namespace nearstep::test {

extern const char* const kBuildFolder;
extern const char* const kSharedData;  // texts, which may be missing
extern const char* const kPython;

// The file or folder of the checkout, named from its root. Throws unless the test declares that it
// reads it: NEARSTEP_READS, from READS of nearstep_register_test. Started by hand, it may read all.
std::string source_file(const std::string& path);

}  // namespace nearstep::test
