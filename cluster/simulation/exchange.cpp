// The exchange of one step at large rank counts: runs the project's gradient scatter and parameter
// gather on SimGrid's SMPI. cluster/simulate starts it; docs/results/simulation.md explains it.
//   nearstep_simulation check|time CODEC SCATTER STRIPES IN_FLIGHT UPDATE_SECONDS own|shared
// check: compares every element of the data. time: measures simulated seconds and ignores the data.
// Each rank has one device with a tile in each of STRIPES stripes; UPDATE_SECONDS is the update
// time of a device. With `shared` (not for check) the ranks of a node share one parameter vector.
// The last line is a JSON object; if it is missing, the run failed.
#include "base/dtype.hpp"
#include "base/error.hpp"
#include "codec/codec.hpp"
#include "mpi/exchange/gradient_scatter.hpp"
#include "mpi/exchange/parameter_gather.hpp"
#include "mpi/session.hpp"
#include "mpi/topology.hpp"
#include "shard/ownership.hpp"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace nearstep;  // NOLINT(google-build-using-namespace): a program of one file
using shard::kTileElems;

struct Settings {
    bool is_checked = true;
    std::string codec = "dense";
    bool is_flat = false;
    int stripes = 1;
    std::size_t in_flight = 8;
    double update_s = 0;
    bool are_vectors_shared = false;
};

struct Seconds {
    double scatter = 0;
    double update = 0;  // includes the gather
};

// Small whole numbers, whose sums are exact in every format used. They differ by rank, element and
// tile.
int gradient_of(int rank, std::size_t element) {
    return static_cast<int>(
               (static_cast<std::size_t>(rank) * 5 + element * 3 + element / kTileElems * 7) % 11) -
           5;
}

std::uint16_t parameter_of(std::size_t element) {
    return static_cast<std::uint16_t>(element * 2654435761U >> 7U);
}

// Simulated seconds from `start` until the slowest rank arrives.
double slowest_since(double start) {
    double mine = MPI_Wtime() - start;
    double slowest = 0;
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

double start_together() {
    MPI_Barrier(MPI_COMM_WORLD);
    return MPI_Wtime();
}

class Step {
public:
    Step(const mpi::Communicator& world, const Settings& settings)
        : world_(world),
          settings_(settings),
          nodes_(mpi::discover_nodes(world)),
          owners_(ownership(world.size(), settings)),
          map_(owners_.copy(0).devices),
          partition_(owners_.copy(0).partition),
          codec_(codec::make_codec({.name = settings.codec, .keep = 0.01, .dtype = Dtype::bf16})) {
        expects(partition_.subgroups().size() == partition_.tiles(), "a subgroup is a tile");
    }

    Seconds run() {
        Seconds seconds;
        scatter(seconds);
        gather(seconds);
        return seconds;
    }

    const mpi::Topology& nodes() const { return nodes_; }
    std::size_t tiles() const { return partition_.tiles(); }
    std::uint64_t checked() const { return checked_; }

private:
    // One copy of the state, spread over all ranks' devices.
    static shard::Ownership ownership(int ranks, const Settings& settings) {
        std::vector<int> all(static_cast<std::size_t>(ranks));
        std::iota(all.begin(), all.end(), 0);
        const shard::PartitionSettings partition = {
            .parameters = static_cast<std::size_t>(ranks * settings.stripes) * kTileElems,
            .speeds = std::vector<double>(all.size(), 1.0),
            .subgroup_tiles = 1,
            .least_stripes = static_cast<std::size_t>(settings.stripes)};
        return shard::Ownership({{.ranks = all,
                                  .devices = shard::DeviceMap(std::vector<int>(all.size(), 1)),
                                  .partition = shard::Partition(partition)}});
    }

    // Scatters stripe by stripe, the last one first, as backward does.
    void scatter(Seconds& seconds) {
        const auto ranks = static_cast<std::size_t>(world_.size());
        const exchange::Routes routes(
            owners_, settings_.is_flat ? mpi::each_rank_alone(world_.size()) : nodes_, nodes_,
            world_.rank());
        std::vector<exchange::Route> rounds;
        for (int stripe = settings_.stripes - 1; stripe >= 0; --stripe) {
            rounds.push_back(routes.of({static_cast<std::size_t>(stripe) * ranks,
                                        static_cast<std::size_t>(stripe + 1) * ranks}));
        }
        exchange::GradientScatter scatter(world_, routes,
                                          {.codec = codec_.get(), .gradient_dtype = Dtype::bf16},
                                          rounds, traffic_);
        scatter.begin_step({.codec = codec_.get(), .random_key = 1});
        std::vector<float> gradient(ranks * kTileElems);
        const double start = start_together();
        for (const exchange::Route& round : rounds) {
            for (std::size_t i = 0; settings_.is_checked && i < gradient.size(); ++i) {
                gradient[i] = static_cast<float>(
                    gradient_of(world_.rank(), round.tiles.begin * kTileElems + i));
            }
            for (const exchange::TilePayloads& one : scatter.scatter(round, gradient)) {
                check_sum(one.tile, one.payloads);
            }
        }
        seconds.scatter = slowest_since(start);
    }

    void check_sum(std::size_t tile, std::span<const std::span<const std::byte>> payloads) {
        if (!settings_.is_checked) {
            return;
        }
        std::vector<float> sum(kTileElems);
        codec::decode_sum(*codec_, payloads, 0, sum);
        // Block codes round each payload by up to half a step of its largest value; lists drop
        // values.
        const double largest = 5.0 * world_.size() / static_cast<double>(payloads.size());
        const double slack =
            settings_.codec == "q4"   ? 0.08 * largest * static_cast<double>(payloads.size())
            : settings_.codec == "q8" ? 0.005 * largest * static_cast<double>(payloads.size())
                                      : 0.0;
        for (std::size_t i = 0; i < kTileElems; ++i) {
            int wanted = 0;
            for (int rank = 0; rank < world_.size(); ++rank) {
                wanted += gradient_of(rank, tile * kTileElems + i);
            }
            if (std::abs(static_cast<double>(sum[i]) - wanted) > slack) {
                throw Error(text("rank ", world_.rank(), " has ", sum[i], " for element ", i,
                                 " of tile ", tile, ", not ", wanted));
            }
        }
        checked_ += kTileElems;
    }

    // A rank's device finishes the tile of stripe s after s + 1 equal parts of the update.
    void gather(Seconds& seconds) {
        exchange::ParameterGather gather(world_,
                                         {.partition = &partition_,
                                          .devices = &map_,
                                          .parameter_dtype = Dtype::bf16,
                                          .nodes = nodes_,
                                          .are_vectors_shared = settings_.are_vectors_shared,
                                          .in_flight = settings_.in_flight},
                                         traffic_);
        std::vector<std::uint16_t> vector(partition_.tiles() * kTileElems);
        for (const std::size_t mine : partition_.subgroups_of(world_.rank())) {
            const shard::TileRange tiles = partition_.subgroups()[mine].tiles;
            for (std::size_t i = tiles.begin * kTileElems; i < tiles.end * kTileElems; ++i) {
                vector[i] = parameter_of(i);
            }
        }
        const double start = start_together();
        gather.gather(std::as_writable_bytes(std::span(vector)), [&](std::size_t subgroup) {
            const double part =
                static_cast<double>(partition_.subgroups()[subgroup].index + 1) / settings_.stripes;
            return is_past(start + settings_.update_s * part);
        });
        seconds.update = slowest_since(start);
        for (std::size_t i = 0; settings_.is_checked && i < vector.size(); ++i) {
            if (vector[i] != parameter_of(i)) {
                throw Error(
                    text("rank ", world_.rank(), " has another parameter ", i, " than its owner"));
            }
            ++checked_;
        }
    }

    // Sleeps up to a hundredth of an update. The gather polls every 20 simulated us, and a thousand
    // ranks' polls would dominate the simulation.
    bool is_past(double end) const {
        const double left = end - MPI_Wtime();
        if (left > 0) {
            const double nap = std::min(left, settings_.update_s / 100);
            std::this_thread::sleep_for(std::chrono::duration<double>(nap));
        }
        return left <= 0;
    }

    const mpi::Communicator& world_;
    const Settings& settings_;
    mpi::Topology nodes_;
    shard::Ownership owners_;
    const shard::DeviceMap& map_;
    const shard::Partition& partition_;
    std::unique_ptr<codec::Codec> codec_;
    trace::Traffic traffic_;
    std::uint64_t checked_ = 0;
};

Settings read(int argc, char** argv) {
    if (argc != 8) {
        throw ConfigError("nearstep_simulation takes seven words: start it with cluster/simulate.");
    }
    return {.is_checked = std::string(argv[1]) == "check",
            .codec = argv[2],
            .is_flat = std::string(argv[3]) == "flat",
            .stripes = std::atoi(argv[4]),
            .in_flight = static_cast<std::size_t>(std::atoi(argv[5])),
            .update_s = std::atof(argv[6]),
            .are_vectors_shared = std::string(argv[7]) == "shared"};
}

}  // namespace

int main(int argc, char** argv) {
    const mpi::Session session;
    const auto world = mpi::Communicator::world(std::chrono::hours(1));
    const Settings settings = read(argc, argv);
    Step step(world, settings);
    const Seconds seconds = step.run();
    std::uint64_t mine = step.checked();
    std::uint64_t all = 0;
    MPI_Allreduce(&mine, &all, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    if (world.rank() == 0) {
        std::printf(
            "{\"ranks\": %d, \"nodes\": %d, \"tiles\": %zu, \"tile_elems\": %zu, "
            "\"checked_elements\": %llu, "
            "\"scatter_s\": %.9g, \"update_s\": %.9g}\n",
            world.size(), step.nodes().groups(), step.tiles(), kTileElems,
            static_cast<unsigned long long>(all), seconds.scatter, seconds.update);
        std::fflush(stdout);
    }
    return 0;
}
