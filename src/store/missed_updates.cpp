#include "store/missed_updates.hpp"

#include "base/error.hpp"

#include <charconv>
#include <cstddef>

namespace nearstep::store {

namespace {

constexpr std::size_t kMostTensors = std::size_t{1} << 22U;  // limits what a damaged text allocates

// Removes a number and the character after it from the front of `rest`.
template <typename Number>
bool take(std::string_view& rest, Number& number, char after) {
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
    const bool is_good = error == std::errc() && rest.starts_with(after);
    rest.remove_prefix(is_good ? 1 : 0);
    return is_good;
}

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
    const std::string closed = text.empty() ? "" : std::string(text) + ",";
    for (std::string_view rest = closed; !rest.empty();) {
        std::size_t first = 0;
        std::size_t last = 0;
        std::int64_t count = 0;
        if (!take(rest, first, '-') || !take(rest, last, ':') || !take(rest, count, ',') ||
            first < missed.size() || last < first || last >= kMostTensors || count <= 0) {
            return std::nullopt;
        }
        missed.resize(first, 0);
        missed.resize(last + 1, count);
    }
    return missed;
}

}  // namespace nearstep::store
