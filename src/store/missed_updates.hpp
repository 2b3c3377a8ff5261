// How many updates left out each tensor because no rank had a gradient for it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nearstep::store {

// The updates that each tensor missed, in the order of the parameter vector. Zeros at the end are
// left out, so it is empty if no update left out a tensor.
using MissedUpdates = std::vector<std::int64_t>;

// "0-5:3,7-7:2": tensors 0 to 5 missed three updates, tensor 7 two, and the others none. Returns
// nullopt for text that print_missed() does not write.
std::string print_missed(const MissedUpdates& missed);
std::optional<MissedUpdates> parse_missed(std::string_view text);

}  // namespace nearstep::store
