// Where the tests find what they read. One source knows the folders, so that all others compile to
// the same in every checkout and come from the compiler cache.
#pragma once

namespace nearstep::test {

extern const char* const kSourceFolder;  // the checkout
extern const char* const kBuildFolder;
extern const char* const kSharedData;  // texts that may be missing
extern const char* const kPython;

}  // namespace nearstep::test
