#include "store/lineage.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <string_view>

namespace nearstep::store {

std::optional<std::int64_t> last_step_of(const Lineage& line, const std::string& run) {
    std::int64_t last = std::numeric_limits<std::int64_t>::max();
    if (line.run == run) {
        return last;
    }
    for (const Branch& parent : line.parents) {
        last = std::min(last, parent.step);
        if (parent.run == run) {
            return last;
        }
    }
    return std::nullopt;
}

Lineage branch_off(const Lineage& line, std::int64_t step, const std::string& run) {
    Lineage branch{.run = run, .parents = {{.run = line.run, .step = step}}};
    branch.parents.insert(branch.parents.end(), line.parents.begin(), line.parents.end());
    return branch;
}

std::optional<Lineage> newest_line(const std::vector<Lineage>& lines) {
    for (const Lineage& line : lines) {
        if (std::all_of(lines.begin(), lines.end(), [&](const Lineage& other) {
                return last_step_of(line, other.run).has_value();
            })) {
            return line;
        }
    }
    return std::nullopt;
}

std::string print_parents(const std::vector<Branch>& parents) {
    std::string out;
    for (const Branch& parent : parents) {
        out += text(out.empty() ? "" : ", ", parent.run, " ", parent.step);
    }
    return out;
}

std::optional<std::vector<Branch>> parse_parents(const std::string& text) {
    std::vector<Branch> parents;
    std::string_view rest = text;
    while (!rest.empty()) {
        const std::size_t space = rest.find(' ');
        if (space == std::string_view::npos || space == 0) {
            return std::nullopt;
        }
        Branch& parent = parents.emplace_back();
        parent.run = rest.substr(0, space);
        rest.remove_prefix(space + 1);
        const auto [end, error] =
            std::from_chars(rest.data(), rest.data() + rest.size(), parent.step);
        rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
        if (error != std::errc() || parent.step < 0 || (!rest.empty() && !rest.starts_with(", "))) {
            return std::nullopt;
        }
        rest.remove_prefix(std::min<std::size_t>(rest.size(), 2));
    }
    return parents;
}

}  // namespace nearstep::store
