// Compares the runs that steps belong to, and prints and parses their parents. Used by restarts.
#include "store/lineage.hpp"

#include "base/error.hpp"
#include "store/scanner.hpp"

#include <algorithm>
#include <limits>

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
        if (std::ranges::all_of(lines, [&](const Lineage& other) {
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
    for (Scanner scanner(text); !scanner.is_at_end(); scanner.skip_separator(", ")) {
        Branch& parent = parents.emplace_back();
        parent.run = scanner.up_to(' ');
        scanner.number_after(" ", parent.step);
        if (!scanner.is_good() || parent.run.empty() || parent.step < 0) {
            return std::nullopt;
        }
    }
    return parents;
}

}  // namespace nearstep::store
