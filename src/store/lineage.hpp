// The history of a run: its id, and the list of runs it branched from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace nearstep::store {

// A run, and the last of its steps that another run continued from.
struct Branch {
    std::string run = {};
    std::int64_t step = 0;

    friend bool operator==(const Branch&, const Branch&) = default;
};

// One line of history: the steps of `run`, preceded by those of its parent up to the branch, and so
// on. Files of an older format name no parent.
struct Lineage {
    std::string run = {};              // 16 hexadecimal digits; empty: no run
    std::vector<Branch> parents = {};  // nearest first

    friend bool operator==(const Lineage&, const Lineage&) = default;
};

// The last step of `run` that is part of the line; nullopt if the line does not contain `run`. The
// line's own run has no last step, so the result is the largest number.
std::optional<std::int64_t> last_step_of(const Lineage& line, const std::string& run);

// A new line whose run is `run` and which branches from `line` at `step`.
Lineage branch_off(const Lineage& line, std::int64_t step, const std::string& run);

// The newest line: the one that contains all others. nullopt if some lines have diverged.
std::optional<Lineage> newest_line(const std::vector<Lineage>& lines);

// "RUN 12, RUN 5": the parents as one line of text, and back; nullopt for any other text.
std::string print_parents(const std::vector<Branch>& parents);
std::optional<std::vector<Branch>> parse_parents(const std::string& text);

}  // namespace nearstep::store
