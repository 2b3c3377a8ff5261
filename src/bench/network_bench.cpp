// Measures exchanges between ranks. Used by the command `nearstep bench network`.
#include "bench/network_bench.hpp"

#include "base/error.hpp"
#include "base/formatted.hpp"
#include "base/machine.hpp"
#include "base/number_list.hpp"
#include "base/random.hpp"
#include "base/statistics.hpp"
#include "base/units.hpp"
#include "base/version.hpp"
#include "memory/buffer.hpp"
#include "mpi/gathered_text.hpp"
#include "mpi/mpi_library.hpp"
#include "mpi/topology.hpp"
#include "plan/network_fit.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace nearstep::bench {

namespace {

constexpr std::uint64_t kPayloadSeed = 31;
// Small messages are repeated, so that their time is long compared with a barrier's.
constexpr std::size_t kRepeatedBytes = 256 * KiB;
constexpr std::size_t kMostRepeats = 64;
constexpr std::size_t kMostBytesOfRank = GiB;  // most that a rank sends at once

// Nodes that exchange with each other; with nodes = 1, the ranks of each node do.
struct RankGroup {
    int nodes = 1;

    std::string name() const { return nodes == 1 ? std::string("inside") : text(nodes, " nodes"); }
};

// The place of each rank on its node, as all ranks know it.
struct Places {
    Places(const mpi::Communicator& world, int most)
        : nodes(mpi::discover_nodes(world, most)),
          node(nodes.group_of[static_cast<std::size_t>(world.rank())]),
          place(nodes.rank_in_group(world.rank())),
          ranks_per_node(static_cast<int>(nodes.ranks_of.front().size())) {
        for (const std::vector<int>& ranks : nodes.ranks_of) {
            ranks_per_node = std::min(ranks_per_node, static_cast<int>(ranks.size()));
        }
    }

    mpi::Topology nodes;
    int node;
    int place;
    int ranks_per_node;  // only those that take part
};

std::vector<RankGroup> groups_of(const Places& places) {
    std::vector<RankGroup> groups;
    if (places.ranks_per_node > 1) {
        groups.push_back({1});
    }
    for (int nodes = 2; nodes < places.nodes.groups(); nodes *= 2) {
        groups.push_back({nodes});
    }
    if (places.nodes.groups() > 1) {
        groups.push_back({places.nodes.groups()});
    }
    return groups;
}

// Equal for ranks that exchange with each other; empty for a rank that only watches.
std::optional<int> colour_of(const Places& places, RankGroup group) {
    if (places.place >= places.ranks_per_node) {
        return std::nullopt;
    }
    if (group.nodes == 1) {
        return places.node;
    }
    const int number = places.node / group.nodes;
    const bool is_whole = (number + 1) * group.nodes <= places.nodes.groups();
    return is_whole ? std::optional(number * places.ranks_per_node + places.place) : std::nullopt;
}

// The rate of a network interface as its driver reports it; nullopt if the driver reports none.
std::optional<double> interface_gb_s(const std::string& name) {
    double megabits = 0;
    std::ifstream file("/sys/class/net/" + name + "/speed");
    return file >> megabits && megabits > 0 ? std::optional(megabits / 8000) : std::nullopt;
}

void fill(std::span<std::byte> message, int from, int to) {
    const std::uint64_t stream =
        random_bits(kPayloadSeed, static_cast<std::uint64_t>(from), static_cast<std::uint64_t>(to));
    for (std::size_t i = 0; i < message.size(); ++i) {
        message[i] = static_cast<std::byte>(stream >> (i % 8 * 8)) ^ static_cast<std::byte>(i / 8);
    }
}

// How fast a rank's message reaches another.
struct PairRate {
    int from = 0;
    int to = 0;
    double gb_s = 0;
};

constexpr std::size_t kPairBytes = MiB;

class NetworkBench {
public:
    NetworkBench(const mpi::Communicator& world, const NetworkBenchOptions& options,
                 std::ostream& out)
        : world_(world), options_(options), out_(out), places_(world, options.ranks_per_node) {}

    nlohmann::json run() {
        print(text("commit ", commit(), ", site ", options_.site, ": ", places_.nodes.groups(),
                   " nodes with ", places_.ranks_per_node, " ranks each, ", mpi::describe(library_),
                   "\n", describe_link(),
                   "GB/s = bytes that a node sends to others (inside: a rank) / seconds / 1e9\n",
                   "group       message          us  (least - most)         GB/s\n"));
        if (places_.nodes.groups() > 1) {
            measure_pairs();
        }
        for (const RankGroup group : groups_of(places_)) {
            measure(group);
        }
        return rows_;
    }

private:
    void measure(RankGroup group) {
        const std::optional<int> colour = colour_of(places_, group);
        is_taking_part_ = colour.has_value();
        // Ranks that only watch are in a communicator of their own.
        const mpi::Communicator members =
            world_.split(colour.value_or(world_.size() + world_.rank()));
        const auto messages = static_cast<std::size_t>(group.nodes == 1 ? places_.ranks_per_node - 1
                                                                        : group.nodes - 1);
        const std::size_t senders =
            group.nodes == 1 ? 1 : static_cast<std::size_t>(places_.ranks_per_node);
        std::vector<plan::TimedBytes> samples;
        for (std::size_t bytes = options_.least_bytes;
             bytes <= options_.most_bytes && messages * bytes <= kMostBytesOfRank; bytes *= 4) {
            const std::size_t repeats =
                std::clamp<std::size_t>(kRepeatedBytes / bytes, 1, kMostRepeats);
            const Summary seconds = time(members, bytes, repeats);
            const auto sent = static_cast<double>(bytes * messages * senders);
            samples.push_back({sent, seconds.median});
            nlohmann::json row = row_of(group, text(group.name(), ", ", bytes, " B"));
            row.update({{"messages", messages},
                        {"message_bytes", bytes},
                        {"sent_bytes", sent},
                        {"rounds", options_.rounds},
                        {"repeats", repeats},
                        {"us",
                         {{"median", seconds.median * 1e6},
                          {"least", seconds.least * 1e6},
                          {"most", seconds.most * 1e6}}},
                        {"gb_s", sent / seconds.median / 1e9},
                        {"verified", true}});
            rows_.push_back(row);
            print_size(group, bytes, seconds, row["gb_s"]);
        }
        if (!samples.empty()) {
            add_fit(group, messages, samples);
        }
    }

    // One message at a time between the first ranks of two nodes, in each direction. In a round all
    // nodes are in a pair, so that there are as many rounds as other nodes.
    void measure_pairs() {
        const int nodes = places_.nodes.groups();
        const int seats = nodes + nodes % 2;
        const std::vector<std::string> hosts = mpi::gather_text(world_, own_host());
        std::vector<PairRate> pairs;
        for (int round = 0; round < seats - 1; ++round) {
            const std::vector<double> of_ranks =
                world_.all_gather(time_pair(partner_in(round, places_.node, seats)));
            for (int node = 0; node < nodes; ++node) {
                const int other = partner_in(round, node, seats);
                if (other < nodes) {
                    const int from = first_rank(node);
                    const int to = first_rank(other);
                    pairs.push_back({from, to, of_ranks[static_cast<std::size_t>(to)]});
                }
            }
        }
        report_pairs(pairs, hosts);
    }

    int first_rank(int node) const {
        return places_.nodes.ranks_of[static_cast<std::size_t>(node)].front();
    }

    // Whom a node meets in a round of a tournament in which all meet once; `seats` is even. The
    // last seat stays, and the others move on by one.
    static int partner_in(int round, int node, int seats) {
        const int last = seats - 1;
        if (node == last) {
            return round * (seats / 2) % last;
        }
        const int other = ((round - node) % last + last) % last;
        return other == node ? last : other;
    }

    // GB/s of what this rank receives from the other node's first rank: the best of the rounds.
    std::array<double, 1> time_pair(int other) const {
        std::array<double, 1> best{};
        const bool is_in_pair = places_.place == 0 && other < places_.nodes.groups();
        const std::size_t bytes = std::min<std::size_t>(options_.most_bytes, kPairBytes);
        memory::Buffer message(bytes);
        constexpr int kTag = 4;
        for (int round = 0; is_in_pair && round < options_.rounds; ++round) {
            const int rank = first_rank(other);
            for (const bool sends : {world_.rank() < rank, world_.rank() > rank}) {
                const std::span<std::byte> all = message.span();
                // An empty message says that the receiver is ready.
                if (sends) {
                    world_.start_receive(all.first(0), rank, kTag).wait();
                    world_.start_send(all, rank, kTag).wait();
                    continue;
                }
                mpi::Request received = world_.start_receive(all, rank, kTag);
                const double seconds = seconds_of([&] {
                    world_.start_send(all.first(0), rank, kTag).wait();
                    received.wait();
                });
                best[0] = std::max(best[0], static_cast<double>(bytes) / seconds / 1e9);
            }
        }
        return best;
    }

    // A row for each pair; of those below half of the median, the slowest in words.
    void report_pairs(std::vector<PairRate> pairs, const std::vector<std::string>& hosts) {
        std::vector<double> rates;
        for (const PairRate& pair : pairs) {
            rates.push_back(pair.gb_s);
            const auto host = [&](int rank) { return hosts[static_cast<std::size_t>(rank)]; };
            nlohmann::json row = row_of({2}, text("pair, rank ", pair.from, " to ", pair.to));
            row.update({{"from", host(pair.from)},
                        {"to", host(pair.to)},
                        {"message_bytes", std::min<std::size_t>(options_.most_bytes, kPairBytes)},
                        {"gb_s", pair.gb_s}});
            rows_.push_back(row);
        }
        std::ranges::sort(pairs, {}, &PairRate::gb_s);
        const double median = summary_of(rates).median;
        print(formatted("pairs       one message at a time, median of %zu: %.3f GB/s\n",
                        pairs.size(), median));
        std::vector<std::string> slow;
        for (const PairRate& pair : pairs) {
            if (pair.gb_s < median / 2) {
                slow.push_back(text("rank ", pair.from, " on ",
                                    hosts[static_cast<std::size_t>(pair.from)], " to rank ",
                                    pair.to, " on ", hosts[static_cast<std::size_t>(pair.to)],
                                    formatted(" %.3f GB/s", pair.gb_s)));
            }
        }
        if (!slow.empty()) {
            print(text("slow pairs  ", first_of(slow, "; "), "\n"));
        }
    }

    void add_fit(RankGroup group, std::size_t messages, std::span<const plan::TimedBytes> samples) {
        const plan::NetworkFit fit = plan::fit_network(samples);
        const double latency_us = fit.latency_s / static_cast<double>(messages) * 1e6;
        nlohmann::json row = row_of(group, text(group.name(), ", fit"));
        const bool is_between = group.nodes > 1 && options_.link_gb_s > 0;
        const double share = is_between ? fit.bytes_per_s / 1e9 / options_.link_gb_s : 0;
        row.update(
            {{"latency_us", latency_us},
             {"gb_s", fit.bytes_per_s / 1e9},
             {"link_gb_s", is_between ? nlohmann::json(options_.link_gb_s) : nlohmann::json()},
             {"largest_miss", fit.largest_miss}});
        rows_.push_back(row);
        print(formatted("%-10s  fit: %.1f us a message and %.3f GB/s, within %.0f %% of all sizes",
                        group.name().c_str(), latency_us, fit.bytes_per_s / 1e9,
                        fit.largest_miss * 100));
        print(is_between ? text("; ", std::lround(share * 100), " % of the link\n") : "\n");
    }

    std::string describe_link() const {
        if (options_.link_gb_s == 0) {
            return "";
        }
        const std::optional<double> interface = interface_gb_s(options_.interface);
        return text("link: ", options_.link_gb_s, " GB/s out of a node (link.network_gb_s)",
                    interface ? text("; ", options_.interface, " has ", *interface, " GB/s") : "",
                    "\n");
    }

    nlohmann::json row_of(RankGroup group, const std::string& name) const {
        return {{"bench", "network"},      {"row", name},
                {"commit", commit()},      {"site", options_.site},
                {"mpi", library_.version}, {"transport", mpi::transport_words(library_)},
                {"nodes", group.nodes},    {"ranks_per_node", places_.ranks_per_node}};
    }

    // Times one exchange, after one exchange was verified.
    Summary time(const mpi::Communicator& members, std::size_t bytes, std::size_t repeats) {
        const auto me = static_cast<std::size_t>(members.rank());
        mpi::Blocks blocks{
            std::vector<std::size_t>(static_cast<std::size_t>(members.size()), bytes)};
        blocks.bytes[me] = 0;
        memory::Buffer send(blocks.total());
        memory::Buffer receive(blocks.total());
        const double rank = world_.rank();
        const std::vector<double> ranks = members.all_gather({&rank, 1});
        // Calls `visit` for each other member with its rank and its part of `buffer`.
        const auto for_others = [&](memory::Buffer& buffer, const auto& visit) {
            std::size_t at = 0;
            for (std::size_t i = 0; i < ranks.size(); ++i) {
                if (i != me) {
                    visit(static_cast<int>(ranks[i]), buffer.span().subspan(at, bytes));
                    at += bytes;
                }
            }
        };
        for_others(send, [&](int other, std::span<std::byte> message) {
            fill(message, world_.rank(), other);
        });
        members.all_to_all(send.span(), blocks, receive.span(), blocks);
        bool is_right = true;
        std::vector<std::byte> expected(bytes);
        for_others(receive, [&](int other, std::span<std::byte> message) {
            fill(expected, other, world_.rank());
            is_right = is_right && std::ranges::equal(message, expected);
        });
        if (!world_.agree(is_right)) {
            throw Error(text("A message of ", bytes,
                             " bytes arrived with other bytes than were sent: do not trust this "
                             "network."));
        }
        return time_rounds(
            repeats, [&] { members.all_to_all(send.span(), blocks, receive.span(), blocks); });
    }

    // Times of the slowest rank that takes part.
    Summary time_rounds(std::size_t repeats, const std::function<void()>& exchange) {
        std::vector<double> seconds;
        for (int round = 0; round < options_.rounds; ++round) {
            world_.barrier();
            const double mine = seconds_of([&] {
                for (std::size_t i = 0; is_taking_part_ && i < repeats; ++i) {
                    exchange();
                }
            });
            const double counted = is_taking_part_ ? mine / static_cast<double>(repeats) : 0;
            const std::vector<double> of_ranks = world_.all_gather({&counted, 1});
            seconds.push_back(std::ranges::max(of_ranks));
        }
        return summary_of(seconds);
    }

    void print_size(RankGroup group, std::size_t bytes, const Summary& seconds, double gb_s) {
        const std::string size = bytes % MiB == 0   ? text(bytes / MiB, " MiB")
                                 : bytes % KiB == 0 ? text(bytes / KiB, " KiB")
                                                    : text(bytes, " B");
        print(formatted("%-10s %8s  %10.1f  (%.1f - %.1f)  %.3f\n", group.name().c_str(),
                        size.c_str(), seconds.median * 1e6, seconds.least * 1e6, seconds.most * 1e6,
                        gb_s));
    }

    void print(const std::string& line) {
        if (world_.rank() == 0) {
            out_ << line << std::flush;
        }
    }

    const mpi::Communicator& world_;
    NetworkBenchOptions options_;
    std::ostream& out_;
    Places places_;
    mpi::Library library_ = mpi::describe_library();
    bool is_taking_part_ = false;
    nlohmann::json rows_ = nlohmann::json::array();
};

}  // namespace

nlohmann::json bench_network(const mpi::Communicator& world, const NetworkBenchOptions& options,
                             std::ostream& out) {
    if (world.size() == 1) {
        throw ConfigError(
            "One rank has nobody to exchange with: start this on 2 ranks or more, as in "
            "launch/ranks "
            "2 nearstep bench network.");
    }
    if (options.least_bytes > options.most_bytes) {
        throw ConfigError(text("--least-bytes ", options.least_bytes, " is above --most-bytes ",
                               options.most_bytes, ": give a smaller one."));
    }
    return NetworkBench(world, options, out).run();
}

}  // namespace nearstep::bench
