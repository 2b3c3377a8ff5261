// Compares settings by digest, and words what differs. Called at the start by the program's
// commands and the Python binding, and by the latter in each step.
#include "mpi/agreement.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/number_list.hpp"
#include "base/packed.hpp"
#include "mpi/gathered_text.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <utility>

namespace nearstep::mpi {

namespace {

constexpr std::size_t kMostSettings = 4;
constexpr std::size_t kMostLetters = 80;  // of a value

std::uint64_t digest_of(const NamedValues& values) {
    const std::string bytes = packed(values);
    return xxh3(std::as_bytes(std::span(bytes)));
}

std::string shortened(const std::string& value) {
    return value.size() > kMostLetters ? value.substr(0, kMostLetters) + "..." : value;
}

}  // namespace

std::string difference(const std::string& name, const std::vector<NamedValues>& of_ranks) {
    std::vector<std::pair<std::optional<std::string>, std::vector<int>>> values;
    for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
        const auto mine = std::ranges::find(of_ranks[rank], name, &NamedValue::name);
        const std::optional<std::string> value =
            mine == of_ranks[rank].end() ? std::nullopt : std::optional(mine->value);
        auto known = std::ranges::find(values, value, [](const auto& one) { return one.first; });
        if (known == values.end()) {
            known = values.insert(known, {value, {}});
        }
        known->second.push_back(static_cast<int>(rank));
    }
    if (values.size() == 1) {
        return "";
    }
    std::vector<std::string> phrases;
    phrases.reserve(values.size());
    for (const auto& [value, ranks] : values) {
        phrases.push_back(text(value ? shortened(*value) : "not there", " on ", name_ranks(ranks)));
    }
    return text(name, " is ", first_of(phrases, " and "));
}

void require_equal(const Communicator& world, const NamedValues& mine) {
    const std::string digest = to_hex(digest_of(mine));
    if (!world.agree(world.broadcast(digest, 0) == digest)) {
        refuse_unequal(world, mine, "The ranks have different settings",
                       "start all ranks with the same");
    }
}

void refuse_unequal(const Communicator& world, const NamedValues& mine, std::string_view what,
                    std::string_view advice) {
    std::vector<NamedValues> of_ranks;
    for (const std::string& bytes : gather_text(world, packed(mine))) {
        unpack(bytes, of_ranks.emplace_back());
    }
    std::vector<std::string> names;
    std::vector<std::string> differences;
    for (const NamedValues& values : of_ranks) {
        for (const NamedValue& one : values) {
            if (std::ranges::count(names, one.name) > 0) {
                continue;
            }
            names.push_back(one.name);
            if (std::string found = difference(one.name, of_ranks); !found.empty()) {
                differences.push_back(std::move(found));
            }
        }
    }
    const std::size_t more = differences.size() - std::min(differences.size(), kMostSettings);
    differences.resize(differences.size() - more);
    throw ConfigError(text(what, ": ", joined(differences, "; "),
                           more == 0 ? "" : text("; and ", more, " more differ"), ". Please ",
                           advice, "."));
}

std::array<std::uint64_t, kDigestBits> counts_of(std::uint64_t digest) {
    std::array<std::uint64_t, kDigestBits> counts{};
    for (std::size_t bit = 0; bit < counts.size(); ++bit) {
        counts.at(bit) = digest >> bit & 1U;
    }
    return counts;
}

bool are_equal(std::span<const std::uint64_t> sums, int ranks) {
    const auto all = static_cast<std::uint64_t>(ranks);
    return std::ranges::all_of(sums, [&](std::uint64_t sum) { return sum == 0 || sum == all; });
}

}  // namespace nearstep::mpi
