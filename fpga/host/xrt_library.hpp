// XRT's library, which is loaded when cards are first asked for.
#pragma once

#include <string>

namespace nearstep::fpga {

struct XrtLibrary {
    std::string version;   // "2.13.0"; empty if it was not found
    std::string obstacle;  // why it cannot be used, as a phrase; empty: it can
};

// Loads it at the first call. Before that no other function of XRT may be called.
const XrtLibrary& find_library();

}  // namespace nearstep::fpga
