// Says where the tests find their files. Used by all tests.
#include "support/places.hpp"

#include <cstdlib>
#include <sstream>
#include <stdexcept>

namespace nearstep::test {

const char* const kBuildFolder = NEARSTEP_BINARY_DIR;
const char* const kSharedData = NEARSTEP_SHARED_DATA;
const char* const kPython = NEARSTEP_PYTHON;

std::string source_file(const std::string& path) {
    const char* const reads = std::getenv("NEARSTEP_READS");
    bool is_declared = reads == nullptr;
    std::istringstream entries(is_declared ? "" : reads);
    for (std::string entry; std::getline(entries, entry, ':');) {
        is_declared = is_declared || (path + "/").starts_with(entry + "/");
    }
    if (!is_declared) {
        throw std::logic_error(path + " is read, but not declared: add it to READS of the test.");
    }
    return NEARSTEP_SOURCE_DIR "/" + path;
}

}  // namespace nearstep::test
