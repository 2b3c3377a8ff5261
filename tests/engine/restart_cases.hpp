// Findings of a restart, and all combinations of a few, for tests of decide().
#pragma once

#include "engine/restart/decide.hpp"
#include "support/test.hpp"

namespace nearstep::engine::cases {

using store::Lineage;

// The run itself, an unrelated run, and a run that branched off it at step 4.
inline const Lineage kLine{.run = "line"};
inline const Lineage kOther{.run = "other"};
inline const Lineage kBranch{.run = "branch", .parents = {{.run = "line", .step = 4}}};

inline constexpr std::int64_t kNewest = 7;

inline store::Commit at(std::int64_t step) { return {.step = step, .generation = step}; }

enum class Trace {
    remains,
    nothing,
    whole,
    older_by_one,
    other_line,
    other_layout,
    damaged,
    refilled,
    branched
};
inline constexpr std::array kTraces = {Trace::remains,      Trace::nothing,    Trace::whole,
                                       Trace::older_by_one, Trace::other_line, Trace::other_layout,
                                       Trace::damaged,      Trace::refilled,   Trace::branched};

enum class Kept { none, older, equal, newer, other_line, given_up, damaged };
inline constexpr std::array kKept = {Kept::none,       Kept::older,    Kept::equal,  Kept::newer,
                                     Kept::other_line, Kept::given_up, Kept::damaged};

using Flag = StartRequest::Kind;
inline constexpr std::array kFlags = {Flag::none, Flag::resume, Flag::resume_if_any, Flag::from,
                                      Flag::fresh};

inline std::string layout_of(int ranks, const std::string& rest = "") {
    return text("ranks=", ranks, " devices=1", rest);
}

inline store::Manifest manifest_of(Trace trace, int ranks) {
    store::Manifest manifest{.line = kLine,
                             .model = "model",
                             .layout = layout_of(ranks),
                             .steps = 40,
                             .state = "first",
                             .commits = {at(kNewest), at(kNewest - 1)}};
    for (int rank = 0; rank < ranks; ++rank) {
        manifest.places[rank] = text("host0 p", rank);
    }
    switch (trace) {
        case Trace::older_by_one:
            manifest.commits = {at(kNewest - 1), at(kNewest - 2)};
            break;
        case Trace::other_line:
            manifest.line = kOther;
            manifest.state = "others";
            break;
        case Trace::other_layout:
            manifest.layout = layout_of(ranks, " subgroup_tiles=9");
            break;
        case Trace::refilled:
            manifest.state = "second";
            break;
        case Trace::branched:
            manifest.line = kBranch;
            manifest.state = "branched";
            manifest.commits = {at(6), at(5)};
            break;
        default:
            break;
    }
    return manifest;
}

inline std::vector<FoundCheckpoint> checkpoints_of(Kept kept) {
    FoundCheckpoint one{
        .path = "checkpoints/one.h5", .step = 3, .steps = 40, .line = kLine, .model = "model"};
    switch (kept) {
        case Kept::none:
            return {};
        case Kept::older:
            break;
        case Kept::equal:
            one.step = kNewest;
            break;
        case Kept::newer:
            one.step = kNewest + 5;
            break;
        case Kept::other_line:
            one.step = kNewest + 5;
            one.line = kOther;
            break;
        case Kept::given_up:  // after the branch point
            one.step = 6;
            one.line = {.run = "branch of branch", .parents = {{.run = "line", .step = 1}}};
            break;
        case Kept::damaged:
            one.step = kNewest + 5;
            one.damage = "The checkpoint is damaged.";
            break;
    }
    one.generation = one.step;
    return {one};
}

struct Case {
    std::vector<Trace> traces;
    Kept kept = Kept::none;
    Flag flag = Flag::none;
};

inline Findings found_of(const Case& one) {
    Findings found{.hosts = {"host0"},
                   .checkpoints = checkpoints_of(one.kept),
                   .request = {.kind = one.flag},
                   .model = "model",
                   .state_folder = "p0",
                   .checkpoint_folder = "checkpoints"};
    const auto ranks = static_cast<int>(one.traces.size());
    for (int rank = 0; rank < ranks; ++rank) {
        const std::string path = text("p", rank, "/rank-", rank);
        found.ranks.push_back({.node = 0,
                               .manifests = {path + ".manifest", path + ".set-1.manifest"},
                               .layout = layout_of(ranks),
                               .files = {std::vector{path + ".device-0.state"},
                                         std::vector{path + ".device-0.set-1.state"}}});
        const Trace trace = one.traces[static_cast<std::size_t>(rank)];
        if (trace == Trace::remains) {
            found.remains.push_back({.path = path + ".device-0.state", .generation = kNewest});
        }
        if (trace == Trace::nothing || trace == Trace::remains) {
            continue;
        }
        FoundManifest manifest{.path = path + ".manifest", .rank = rank};
        if (trace == Trace::damaged) {
            manifest.damage = text("The manifest ", path, " is damaged.");
        } else {
            manifest.manifest = manifest_of(trace, ranks);
            manifest.manifest->files = {text("rank-", rank, ".device-0.state")};
            manifest.files = {path + ".device-0.state"};
        }
        found.manifests.push_back(manifest);
    }
    if (one.flag == Flag::from) {
        found.named =
            FoundCheckpoint{.path = "copy/named.h5", .step = 2, .line = kLine, .model = "model"};
    }
    return found;
}

inline void for_each_case(const std::function<void(const Case&)>& visit) {
    for (std::size_t ranks = 1; ranks <= 3; ++ranks) {
        std::size_t count = 1;
        for (std::size_t rank = 0; rank < ranks; ++rank) {
            count *= kTraces.size();
        }
        for (std::size_t number = 0; number < count; ++number) {
            Case one{.traces = {}};
            for (std::size_t rest = number; one.traces.size() < ranks; rest /= kTraces.size()) {
                one.traces.push_back(kTraces.at(rest % kTraces.size()));
            }
            for (const Kept kept : kKept) {
                for (const Flag flag : kFlags) {
                    one.kept = kept;
                    one.flag = flag;
                    visit(one);
                }
            }
        }
    }
}

inline bool has(const Case& one, Trace trace) {
    return std::count(one.traces.begin(), one.traces.end(), trace) > 0;
}

inline bool all_are(const Case& one, const std::set<Trace>& traces) {
    return std::all_of(one.traces.begin(), one.traces.end(),
                       [&](Trace trace) { return traces.count(trace) > 0; });
}

inline std::string name_of(const Case& one) {
    std::string name = "traces";
    for (const Trace trace : one.traces) {
        name += text(" ", static_cast<int>(trace));
    }
    return text(name, ", checkpoint ", static_cast<int>(one.kept), ", flag ",
                static_cast<int>(one.flag));
}

}  // namespace nearstep::engine::cases
