// Gathers the timelines of all ranks and writes them. Used by run.cpp.
#include "train/timeline_file.hpp"

#include "base/error.hpp"
#include "base/formatted.hpp"
#include "base/output_file.hpp"

#include <array>
#include <numeric>
#include <span>
#include <vector>

namespace nearstep::train {

namespace {

constexpr int kTag = 1;

// The events of all ranks in rank order, on rank 0; empty elsewhere.
std::string gather_events(const mpi::Communicator& world, const trace::Timeline& timeline) {
    std::string mine = timeline.events(world.rank());
    const std::vector<double> sizes =
        world.all_gather(std::array{static_cast<double>(mine.size())});
    if (world.rank() != 0) {
        world.start_send(std::as_bytes(std::span(mine)), 0, kTag).wait();
        return "";
    }
    std::string all = std::move(mine);
    for (int rank = 1; rank < world.size(); ++rank) {
        std::string theirs(static_cast<std::size_t>(sizes[static_cast<std::size_t>(rank)]), ' ');
        world.start_receive(std::as_writable_bytes(std::span(theirs)), rank, kTag).wait();
        all += ",\n" + theirs;
    }
    return all;
}

}  // namespace

void begin_timeline(const mpi::Communicator& world, std::optional<trace::Timeline>& timeline) {
    if (timeline) {
        world.barrier();
        timeline->set_origin();
    }
}

report::LaneShares lane_shares(const mpi::Communicator& world, const trace::Timeline& timeline,
                               double seconds) {
    report::LaneShares shares = timeline.busy_seconds();
    world.sum(std::span(shares));
    for (double& share : shares) {
        share /= seconds * world.size();
    }
    return shares;
}

std::string write_timeline(const mpi::Communicator& world, const trace::Timeline& timeline,
                           const report::LaneShares& shares, const std::string& path) {
    std::array<double, 1> left_out = {static_cast<double>(timeline.left_out())};
    world.sum(std::span(left_out));
    const std::string events = gather_events(world, timeline);
    world.on_rank_0([&] {
        write_whole_file(path,
                         "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" + events + "\n]}\n");
    });
    std::string line = "trace " + path + "; seconds of work per second and rank:";
    for (std::size_t lane = 0; lane < shares.size(); ++lane) {
        line +=
            formatted(" %s %.2f,", trace::name_of(static_cast<trace::Lane>(lane)), shares.at(lane));
    }
    line += formatted(" together %.2f", std::accumulate(shares.begin(), shares.end(), 0.0));
    return left_out[0] > 0 ? line + text("; the last ", left_out[0], " spans had no room") : line;
}

}  // namespace nearstep::train
