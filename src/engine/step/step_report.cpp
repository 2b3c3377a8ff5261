// The end of a step: its seconds and traffic, added up over all ranks. Called by Run for the
// client.
#include "base/statistics.hpp"
#include "engine/placement/devices.hpp"
#include "engine/step/step.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

namespace nearstep::engine {

using trace::Counter;

// Waits are compared as if each were this much longer, since short ones differ by chance.
constexpr double kShortWait = 1e-3;

namespace {

double state_bytes(const trace::TrafficSnapshot& traffic) {
    return static_cast<double>(traffic[Counter::internal_read] + traffic[Counter::internal_write] +
                               traffic[Counter::host_state_read] +
                               traffic[Counter::host_state_write]);
}

}  // namespace

// Ranks of a node share its link. Gives the first rank of the slowest node.
Slowest Step::slowest_node(const std::vector<double>& waited_s) const {
    std::vector<double> of_first_ranks(waited_s.size());
    for (const std::vector<int>& ranks : resources_.nodes.ranks_of) {
        double& sum = of_first_ranks[static_cast<std::size_t>(ranks.front())];
        sum = kShortWait;
        for (const int rank : ranks) {
            sum += waited_s[static_cast<std::size_t>(rank)];
        }
    }
    return slowest_of(of_first_ranks);
}

// Adds up the ranks' traffic and, with the same message, how long others waited for each rank.
void Step::add_up(UpdateReport& report, const std::map<int, double>& waited_s) const {
    constexpr double kMicro = 1e6;

    std::vector<std::uint64_t> sums(trace::kCounters +
                                    static_cast<std::size_t>(resources_.world.size()));
    std::ranges::copy(report.traffic.bytes, sums.begin());
    for (const auto& [rank, seconds] : waited_s) {
        sums[trace::kCounters + static_cast<std::size_t>(rank)] =
            static_cast<std::uint64_t>(seconds * kMicro);
    }
    resources_.world.sum(std::span(sums));
    std::copy_n(sums.begin(), trace::kCounters, report.traffic.bytes.begin());
    std::vector<double> of_senders;
    std::transform(sums.begin() + static_cast<std::ptrdiff_t>(trace::kCounters), sums.end(),
                   std::back_inserter(of_senders),
                   [](std::uint64_t sum) { return static_cast<double>(sum) / kMicro; });
    report.sender = slowest_node(of_senders);
}

UpdateReport Step::finish() {
    wait_for_update();
    const offload::UpdateTimes times = pipeline_.finish_step();
    flush_seconds_ += times.after_s;
    UpdateReport report;
    const double hidden = std::max(times.update_s + times.after_s - times.waited_s, 0.0);
    const double devices_s = pipeline_.devices().empty() ? 0 : times.devices_s;
    // Traffic since the previous report, without what the next step brought.
    const trace::TrafficSnapshot now =
        resources_.traffic.snapshot() - std::exchange(brought_, trace::TrafficSnapshot());
    report.traffic = now - std::exchange(counted_, now);
    const std::array mine{times.update_s,
                          -hidden,
                          devices_s,
                          times.waits.all,
                          drives_.times(state_bytes(report.traffic), devices_s + times.after_s),
                          resources_.gpu_transport->take_seconds()};
    const std::vector<double> of_ranks = resources_.world.all_gather(mine);
    report.update_s = times.update_s;
    report.hidden_s = hidden;
    std::vector<double> of_devices;
    std::vector<double> of_receivers;
    std::vector<double> of_nccl;
    for (std::size_t i = 0; i < of_ranks.size(); i += mine.size()) {
        report.update_s = std::max(report.update_s, of_ranks[i]);
        report.hidden_s = std::min(report.hidden_s, -of_ranks[i + 1]);
        of_devices.push_back(of_ranks[i + 2]);
        of_receivers.push_back(of_ranks[i + 3]);
        of_nccl.push_back(of_ranks[i + 5]);
        if (of_ranks[i + 4] > report.drives.times) {
            report.drives = {static_cast<int>(i / mine.size()), of_ranks[i + 4]};
        }
    }
    report.devices = slowest_of(of_devices);
    report.receiver = slowest_node(of_receivers);
    report.nccl = latest_of(of_nccl);
    report.nccl_s = of_nccl[static_cast<std::size_t>(report.nccl.rank)];
    report.network_s = std::max(report.update_s - std::ranges::max(of_devices), 0.0);
    network_sent_bytes_ +=
        report.traffic[Counter::network_gradients] + report.traffic[Counter::network_parameters];
    add_up(report, times.waits.for_late);
    if (delivery(resources_.settings, resources_.options.parameters) == csd::Delivery::deltas) {
        const codec::DeltaTally deltas = pipeline_.delta_tally();
        report.deltas = deltas - std::exchange(counted_deltas_, deltas);
        resources_.world.sum(std::span(report.deltas.tiles));
        resources_.world.sum(std::span(report.deltas.bytes));
    }
    return report;
}

std::vector<std::uint64_t> Step::network_sent_bytes() const {
    const mpi::Communicator& world = resources_.world;
    std::vector<std::uint64_t> sent(static_cast<std::size_t>(world.size()), 0);
    sent[static_cast<std::size_t>(world.rank())] = network_sent_bytes_;
    world.sum(std::span(sent));
    return sent;
}

}  // namespace nearstep::engine
