// Reads the values of a layout line, see layout_line() in engine/devices.hpp.
#pragma once

#include <sstream>
#include <string>
#include <vector>

namespace nearstep::engine {

// The value of `key`; empty if it is missing.
std::string value_in(const std::string& layout, const std::string& key);

template <typename Number>
std::vector<Number> numbers_in(const std::string& layout, const std::string& key) {
    std::istringstream list(value_in(layout, key));
    std::vector<Number> numbers;
    for (Number number{}; list >> number; list.ignore()) {
        numbers.push_back(number);
    }
    return numbers;
}

}  // namespace nearstep::engine
