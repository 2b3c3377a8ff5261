// Where the tests find their files. Only one source knows the folders, so that all others compile
// to the same object in every checkout and come from the compiler cache.
#pragma once

namespace nearstep::test {

extern const char* const kSourceFolder;  // the checkout
extern const char* const kBuildFolder;
extern const char* const kSharedData;  // texts, which may be missing
extern const char* const kPython;

}  // namespace nearstep::test
