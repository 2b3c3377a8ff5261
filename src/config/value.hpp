// The value of one key in a TOML text, independent of the TOML library.
#pragma once

#include "base/wording.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace nearstep::config {

using Scalar = std::variant<bool, std::int64_t, double, std::string>;

// One scalar, or a list of them.
struct Value {
    std::vector<Scalar> items;
    bool is_list = false;
};

using nearstep::on_one_line;

// TOML on one line. Real numbers get the fewest digits that give the same bits again.
std::string written(double number);
std::string written(std::string_view text);
std::string written(const Scalar& scalar);
std::string written(const Value& value);

}  // namespace nearstep::config
