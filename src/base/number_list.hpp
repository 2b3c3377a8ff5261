// Lists of ranks and of what each rank has, written briefly.
#pragma once

#include "base/error.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nearstep {

// Neighbouring numbers; `last` is included.
struct NumberRange {
    int first = 0;
    int last = 0;

    friend bool operator==(const NumberRange&, const NumberRange&) = default;
};

// `numbers` are ascending.
std::vector<NumberRange> ranges_of(const std::vector<int>& numbers);
std::vector<int> numbers_in(const std::vector<NumberRange>& ranges);

// "0-2,5", and back; nullopt unless the text lists ascending numbers from 0 on.
std::string print_ranges(const std::vector<NumberRange>& ranges);
std::optional<std::vector<NumberRange>> parse_ranges(std::string_view list);

// A message names at most this many ranks, files or hosts, and says how many more there are.
constexpr std::size_t kMostNamed = 8;

// "rank 3", "ranks 0-2,5", "ranks 0,2,4,6,8,10,12,14 and 504 more". `ranks` are ascending.
std::string name_ranks(const std::vector<int>& ranks);

// "a, b": the first items, and how many more there are.
template <typename Items>
std::string first_of(const Items& items, std::string_view between = ", ") {
    const auto count = static_cast<std::size_t>(std::size(items));
    if (count <= kMostNamed) {
        return joined(items, between);
    }
    const std::vector<typename Items::value_type> first(
        std::begin(items), std::next(std::begin(items), static_cast<std::ptrdiff_t>(kMostNamed)));
    return text(joined(first, between), " and ", count - kMostNamed, " more");
}

// A list with one item of each rank or device, separated by commas, in which many equal neighbours
// are one word: "1x4096", and integers that rise by one are "0-511x8". A short list is written out,
// as version 0.2.0 does. `list` is such a list, brief or not.
std::string brief_list(std::string_view list);
// Returns the same list written out; nullopt if it is no such list, or has more than `most` items.
std::optional<std::string> written_out(std::string_view list, std::size_t most);

}  // namespace nearstep
