// Writes and parses the counts of missed updates. Used by manifest.cpp and checkpoint/index.cpp.
#include "store/missed_updates.hpp"

#include "base/error.hpp"
#include "store/scanner.hpp"

#include <cstddef>

namespace nearstep::store {

namespace {

constexpr std::size_t kMostTensors = std::size_t{1} << 22U;  // limits what a damaged text allocates

}  // namespace

std::string print_missed(const MissedUpdates& missed) {
    std::string out;
    for (std::size_t first = 0, end = 0; first < missed.size(); first = end) {
        for (end = first + 1; end < missed.size() && missed[end] == missed[first]; ++end) {
        }
        if (missed[first] > 0) {
            out += text(out.empty() ? "" : ",", first, "-", end - 1, ":", missed[first]);
        }
    }
    return out;
}

std::optional<MissedUpdates> parse_missed(std::string_view text) {
    MissedUpdates missed;
    for (Scanner scanner(text); !scanner.is_at_end(); scanner.skip_separator(",")) {
        std::size_t first = 0;
        std::size_t last = 0;
        std::int64_t count = 0;
        scanner.number_after("", first);
        scanner.number_after("-", last);
        scanner.number_after(":", count);
        if (!scanner.is_good() || first < missed.size() || last < first || last >= kMostTensors ||
            count <= 0) {
            return std::nullopt;
        }
        missed.resize(first, 0);
        missed.resize(last + 1, count);
    }
    return missed;
}

}  // namespace nearstep::store
