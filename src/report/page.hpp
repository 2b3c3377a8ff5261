// One HTML page of all studies: tables and inline pictures, nothing loaded from elsewhere.
#pragma once

#include "report/study.hpp"

#include <string>
#include <vector>

namespace nearstep::report {

// `folder` is the page's subject. Measured, modelled, simulated and published numbers look
// different.
std::string make_page(const std::string& folder, const std::vector<Study>& studies,
                      const std::vector<std::string>& ignored);

}  // namespace nearstep::report
