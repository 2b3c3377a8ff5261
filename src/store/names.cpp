#include "store/names.hpp"

#include "base/error.hpp"

#include <charconv>
#include <string_view>

namespace nearstep::store {

namespace {

std::string infix_of(int set) { return set == 0 ? "" : text(".set-", set); }

// Takes `label` and the number after it from the front of `rest`.
bool take_number(std::string_view& rest, std::string_view label, int& number) {
    if (!rest.starts_with(label)) {
        return false;
    }
    rest.remove_prefix(label.size());
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
    return error == std::errc() && number >= 0;
}

}  // namespace

std::string state_file_name(int rank, int device, int set) {
    return text("rank-", rank, ".device-", device, infix_of(set), ".state");
}

std::string manifest_name(int rank, int set) {
    return text("rank-", rank, infix_of(set), ".manifest");
}

std::string program_state_name(int rank, int set, int place) {
    return text("rank-", rank, infix_of(set), ".program-", place);
}

std::optional<RankFileName> parse_state_file_name(const std::string& name) {
    RankFileName parsed;
    std::string_view rest = name;
    if (take_number(rest, "rank-", parsed.rank) && take_number(rest, ".device-", parsed.device)) {
        for (parsed.set = 0; parsed.set < kSets; ++parsed.set) {
            if (name == state_file_name(parsed.rank, parsed.device, parsed.set)) {
                return parsed;
            }
        }
    }
    return std::nullopt;
}

std::optional<RankFileName> parse_manifest_name(const std::string& name) {
    RankFileName parsed;
    std::string_view rest = name;
    if (take_number(rest, "rank-", parsed.rank)) {
        for (parsed.set = 0; parsed.set < kSets; ++parsed.set) {
            if (name == manifest_name(parsed.rank, parsed.set)) {
                return parsed;
            }
        }
    }
    return std::nullopt;
}

}  // namespace nearstep::store
