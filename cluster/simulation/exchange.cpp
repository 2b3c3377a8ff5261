// A step at large rank counts: runs the project's gradient scatter and parameter gather on
// SimGrid's SMPI. cluster/simulate starts it; docs/results/simulation.md explains it.
//   nearstep_simulation check CODEC SCATTER STRIPES IN_FLIGHT own UPDATE_SECONDS
//   nearstep_simulation step CODEC SCATTER STRIPES IN_FLIGHT own|shared OPERATIONS
// check: compares every element of the data. step: replays the operations of a traced run, which
// the file OPERATIONS has, and ignores the data. Each rank has one device with a subgroup in each
// of STRIPES stripes. With `shared` the ranks of a node share one parameter vector. The last line
// is a JSON object; if it is missing, the run failed.
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
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace nearstep;  // NOLINT(google-build-using-namespace): a program of one file
using shard::kTileElems;

// One block's seconds, as traced, and the end of its tiles.
struct Block {
    std::size_t end = 0;
    double forward = 0;
    double backward = 0;
    double encode = 0;
};

// The seconds of a traced run: read, update and write are those of a device for one subgroup.
struct Operations {
    double read = 0;
    double update = 0;
    double write = 0;
    int slots = 3;
    std::size_t subgroup_tiles = 1;
    int others = 0;                // messages of other programs from each node, all the time
    std::size_t others_bytes = 0;  // of each, enough for the whole step
    std::vector<Block> blocks;     // in forward order
};

struct Settings {
    bool is_checked = true;
    std::string codec = "dense";
    bool is_flat = false;
    int stripes = 1;
    std::size_t in_flight = 8;  // 0: as in training
    bool are_vectors_shared = false;
    double update_s = 0;  // of a device
    Operations operations;
};

struct Seconds {
    double scatter = 0;  // of a step: backward with its scatter, to the slowest rank
    double update = 0;   // includes the gather; of a step: with the next forward
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
          owners_(ownership(nodes_, settings)),
          map_(owners_.copy(0).devices),
          partition_(owners_.copy(0).partition),
          codec_(codec::make_codec({.name = settings.codec, .keep = 0.01, .dtype = Dtype::bf16})) {}

    Seconds run() {
        Seconds seconds;
        if (settings_.is_checked) {
            scatter(seconds);
            gather(seconds);
        } else {
            replay(seconds);
        }
        return seconds;
    }

    const mpi::Topology& nodes() const { return nodes_; }
    std::size_t tiles() const { return partition_.tiles(); }
    std::uint64_t checked() const { return checked_; }

private:
    // One copy of the state, spread over all ranks' devices.
    static shard::Ownership ownership(const mpi::Topology& nodes, const Settings& settings) {
        std::vector<int> all(nodes.group_of.size());
        std::iota(all.begin(), all.end(), 0);
        const std::size_t tiles = settings.operations.subgroup_tiles;
        const shard::PartitionSettings partition = {
            .parameters =
                all.size() * static_cast<std::size_t>(settings.stripes) * tiles * kTileElems,
            .speeds = std::vector<double>(all.size(), 1.0),
            .nodes = nodes.group_of,
            .subgroup_tiles = tiles,
            .least_stripes = static_cast<std::size_t>(settings.stripes)};
        return shard::Ownership({{.ranks = all,
                                  .devices = shard::DeviceMap(std::vector<int>(all.size(), 1)),
                                  .partition = shard::Partition(partition)}});
    }

    // Backward, the norm, the update, and the next forward behind it, as the trainer has them: the
    // thread that communicates scatters a block while the next one computes.
    void replay(Seconds& seconds) {
        const Operations& operations = settings_.operations;
        const exchange::Routes routes(
            owners_, settings_.is_flat ? mpi::each_rank_alone(world_.size()) : nodes_, nodes_,
            world_.rank());
        std::vector<exchange::Route> rounds;
        for (std::size_t block = operations.blocks.size(); block-- > 0;) {
            const std::size_t begin = block > 0 ? operations.blocks[block - 1].end : 0;
            rounds.push_back(routes.of({begin, operations.blocks[block].end}));
        }
        exchange::GradientScatter scatter(world_, routes,
                                          {.codec = codec_.get(), .gradient_dtype = Dtype::bf16},
                                          rounds, traffic_);
        exchange::ParameterGather gather(world_, gather_settings(), traffic_);
        scatter.begin_step({.codec = codec_.get(), .random_key = 1});
        // Never written here: filling it on a thousand ranks takes longer than the simulation.
        const std::size_t vector_bytes = partition_.tiles() * kTileElems * sizeof(std::uint16_t);
        const auto vector = std::make_unique_for_overwrite<std::byte[]>(vector_bytes);
        std::vector<MPI_Request> foreign;
        const std::size_t others_bytes = 2 * operations.others_bytes;
        const auto others = std::make_unique_for_overwrite<std::byte[]>(others_bytes);

        const double start = start_together();
        send_as_others({others.get(), others_bytes}, foreign);
        // Gradients of two blocks have room: a third waits for the scatter of the first.
        double computed = start;
        std::array<double, 2> scattered = {start, start};
        for (std::size_t i = 0; i < rounds.size(); ++i) {
            const Block& block = operations.blocks[rounds.size() - 1 - i];
            computed = std::max(computed, scattered.at(i % 2)) + block.backward;
            sleep_until(computed);
            sleep_until(MPI_Wtime() + block.encode);
            if (rounds[i].tiles.size() > 0) {
                scatter.scatter(rounds[i], [](std::size_t, std::span<float> values) {
                    std::ranges::fill(values, 0.0F);
                });
            }
            scattered.at(i % 2) = MPI_Wtime();
        }
        double norm = 1;
        MPI_Allreduce(MPI_IN_PLACE, &norm, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        seconds.scatter = slowest_since(start);

        const double update = MPI_Wtime();
        const Ready ready = ready_times();
        gather.begin({vector.get(), vector_bytes}, [&](std::size_t subgroup) {
            return is_past(update + ready.updated.at(partition_.subgroups()[subgroup].index));
        });
        for (const Block& block : operations.blocks) {
            gather.advance(block.end);
            const double end = MPI_Wtime() + block.forward;
            while (MPI_Wtime() < end) {
                gather.poll();
                sleep_until(std::min(end, MPI_Wtime() + settings_.update_s / 100 + 1e-5));
            }
        }
        gather.finish();
        sleep_until(update + ready.written);  // the next gradients wait for it
        seconds.update = slowest_since(update);
        MPI_Waitall(static_cast<int>(foreign.size()), foreign.data(), MPI_STATUSES_IGNORE);
    }

    // Messages of other programs, from each node to the one half the nodes away.
    void send_as_others(std::span<std::byte> bytes, std::vector<MPI_Request>& pending) const {
        const int ranks = world_.size();
        const int of_node = ranks / nodes_.groups();
        const int far = nodes_.groups() / 2 * of_node;
        if (far == 0) {
            return;
        }
        constexpr int kOthersTag = 31999;  // of no message of the exchange
        const auto half = static_cast<int>(bytes.size() / 2);
        for (int i = world_.rank() % of_node; i < settings_.operations.others; i += of_node) {
            MPI_Irecv(bytes.data(), half, MPI_BYTE, (world_.rank() + ranks - far) % ranks,
                      kOthersTag, MPI_COMM_WORLD, &pending.emplace_back(MPI_REQUEST_NULL));
            MPI_Isend(bytes.data() + half, half, MPI_BYTE, (world_.rank() + far) % ranks,
                      kOthersTag, MPI_COMM_WORLD, &pending.emplace_back(MPI_REQUEST_NULL));
        }
    }

    // Seconds after the begin of an update, by subgroup of a device and of the last write: reads,
    // updates and writes go on at once, and a read waits for a slot that a write leaves.
    struct Ready {
        std::vector<double> updated;
        double written = 0;
    };
    Ready ready_times() const {
        const Operations& operations = settings_.operations;
        Ready ready;
        double read = 0;
        std::vector<double> written;
        for (int i = 0; i < settings_.stripes; ++i) {
            const bool waits = i >= operations.slots;
            read = std::max(read, waits ? written.at(static_cast<std::size_t>(i - operations.slots))
                                        : 0.0) +
                   operations.read;
            const double updated =
                std::max(read, i > 0 ? ready.updated.back() : 0.0) + operations.update;
            ready.updated.push_back(updated);
            ready.written = std::max(updated, ready.written) + operations.write;
            written.push_back(ready.written);
        }
        return ready;
    }

    static void sleep_until(double end) {
        const double left = end - MPI_Wtime();
        if (left > 0) {
            std::this_thread::sleep_for(std::chrono::duration<double>(left));
        }
    }

    exchange::ParameterGatherSettings gather_settings() const {
        return {.partition = &partition_,
                .devices = &map_,
                .parameter_dtype = Dtype::bf16,
                .nodes = nodes_,
                .vectors = settings_.are_vectors_shared ? nodes_ : mpi::Topology(),
                .in_flight = settings_.in_flight};
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
        const exchange::TileReader gradient = [this](std::size_t tile, std::span<float> values) {
            for (std::size_t i = 0; i < values.size(); ++i) {
                values[i] = static_cast<float>(gradient_of(world_.rank(), tile * kTileElems + i));
            }
        };
        const double start = start_together();
        for (const exchange::Route& round : rounds) {
            for (const exchange::TilePayloads& one : scatter.scatter(round, gradient)) {
                check_sum(one.tile, one.payloads);
            }
        }
        seconds.scatter = slowest_since(start);
    }

    void check_sum(std::size_t tile, std::span<const std::span<const std::byte>> payloads) {
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
        exchange::ParameterGather gather(world_, gather_settings(), traffic_);
        std::vector<std::uint16_t> vector(partition_.tiles() * kTileElems);
        for (const shard::Subgroup& mine : partition_.subgroups_of(world_.rank())) {
            const shard::TileRange tiles = mine.tiles;
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
        for (std::size_t i = 0; i < vector.size(); ++i) {
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

// The file has a device's numbers in the first line, then a line for each block in forward order.
Operations operations_in(const char* path) {
    std::ifstream file(path);
    Operations read;
    file >> read.read >> read.update >> read.write >> read.slots >> read.subgroup_tiles >>
        read.others >> read.others_bytes;
    for (Block block; file >> block.end >> block.forward >> block.backward >> block.encode;) {
        read.blocks.push_back(block);
    }
    if (read.blocks.empty()) {
        throw ConfigError(text("the file ", path, " has no operations"));
    }
    return read;
}

Settings read(int argc, char** argv) {
    if (argc != 8) {
        throw ConfigError("nearstep_simulation takes seven words: start it with cluster/simulate.");
    }
    Settings settings = {.is_checked = std::string(argv[1]) == "check",
                         .codec = argv[2],
                         .is_flat = std::string(argv[3]) == "flat",
                         .stripes = std::atoi(argv[4]),
                         .in_flight = static_cast<std::size_t>(std::atoi(argv[5])),
                         .are_vectors_shared = std::string(argv[6]) == "shared",
                         .operations = {}};
    if (settings.is_checked) {
        settings.update_s = std::atof(argv[7]);
    } else {
        settings.operations = operations_in(argv[7]);
        settings.update_s =
            settings.stripes * (settings.operations.read + settings.operations.write);
    }
    return settings;
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
