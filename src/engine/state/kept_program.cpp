// Used by the engine when it goes on from a state or a checkpoint.
#include "engine/state/kept_program.hpp"

#include "base/error.hpp"
#include "base/packed.hpp"
#include "engine/placement/devices.hpp"
#include "store/names.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

namespace nearstep::store {

template <typename Archive>
void list(Archive& archive, ProgramState& one) {
    archive(one.run, one.step, one.bytes);
}

}  // namespace nearstep::store

namespace nearstep::engine {

namespace {

// Reads the program's state that version 0.2.0 wrote, which no manifest lists. Each rank takes its
// own if all ranks see theirs and there are as many as before. Otherwise all take rank 0's, which
// the lowest rank that sees it reads.
store::ProgramState read_unlisted(const mpi::Communicator& world, const Start& start,
                                  const store::Lineage& line, std::int64_t step) {
    const std::vector<std::string>& folders = start.settings.csd.path;
    std::optional<store::ProgramState> mine;
    std::optional<store::ProgramState> first;
    world.together([&] {
        mine = store::find_program_state(store::program_state_files(folders, world.rank()), line,
                                         step);
        first = store::find_program_state(store::program_state_files(folders, 0), line, step);
    });
    const std::vector<double> steps =
        world.all_gather(std::array<double, 1>{first ? static_cast<double>(first->step) : -1.0});
    const auto newest = std::ranges::max_element(steps);
    if (*newest < 0) {
        return {};
    }
    const FoundManifest& any = start.found.manifests[start.decision.manifests.front()];
    const bool is_as_before = ranks_of_layout(any.manifest->layout) == world.size();
    const bool computes = world.rank() < start.found.computing;
    if (world.agree(is_as_before && (mine || !computes))) {
        return mine.value_or(store::ProgramState());
    }
    store::ProgramState of_first;
    const auto reader = static_cast<int>(newest - steps.begin());
    unpack(world.broadcast(packed(first.value_or(store::ProgramState())), reader), of_first);
    return of_first;
}

store::ProgramState read_source(const Findings& found, const ProgramSource& source) {
    const FoundManifest& from = found.manifests[source.manifest];
    const std::string& path = from.programs[source.record];
    auto kept = store::read_program_state({&path, 1}, from.manifest->programs[source.record]);
    if (!kept) {
        throw IoError(text("The file ", path,
                           " changed while it was read: start again when no other job uses it."));
    }
    return std::move(*kept);
}

}  // namespace

store::ProgramState read_kept_program(const mpi::Communicator& world, const Start& start,
                                      const ProgramsAt& at, const store::Lineage& line,
                                      std::int64_t step) {
    if (at.is_unlisted) {
        return read_unlisted(world, start, line, step);
    }
    const Findings& found = start.found;
    const auto view_of = [&](std::size_t rank) { return found.ranks[rank].view(); };
    store::ProgramState mine;
    const auto me = static_cast<std::size_t>(world.rank());
    std::map<std::pair<std::size_t, std::size_t>, std::vector<std::size_t>> elsewhere;
    for (std::size_t rank = 0; rank < at.of_ranks.size(); ++rank) {
        const std::optional<ProgramSource>& source = at.of_ranks[rank];
        if (source && view_of(rank) != found.manifests[source->manifest].node) {
            elsewhere[{source->manifest, source->record}].push_back(rank);
        }
    }
    world.together([&] {
        if (me < at.of_ranks.size() && at.of_ranks[me] &&
            view_of(me) == found.manifests[at.of_ranks[me]->manifest].node) {
            mine = read_source(found, *at.of_ranks[me]);
        }
    });
    for (const auto& [key, ranks] : elsewhere) {
        const auto source = key;
        std::size_t reader = 0;
        while (view_of(reader) != found.manifests[source.first].node) {
            ++reader;
        }
        std::string sent;
        world.together([&] {
            if (me == reader) {
                sent = packed(read_source(found, {source.first, source.second}));
            }
        });
        sent = world.broadcast(sent, static_cast<int>(reader));
        if (std::ranges::find(ranks, me) != ranks.end()) {
            unpack(sent, mine);
        }
    }
    return mine;
}

int program_of_checkpoint(const std::vector<store::ProgramRecord>& programs, int rank,
                          int computing) {
    const bool has_first = !programs.empty() && programs.front().bytes > 0;
    const bool are_own = static_cast<int>(programs.size()) == computing &&
                         std::ranges::all_of(programs, [&](const store::ProgramRecord& one) {
                             return one.bytes > 0 || !has_first;
                         });
    return are_own ? rank : 0;
}

}  // namespace nearstep::engine
