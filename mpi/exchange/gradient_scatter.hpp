// The gradient scatter: every rank's gradient in, payloads at the owners of the tiles out.
//
// Ranks form groups. Inside a group the dense gradients, in the gradients' format, go to one slicer
// rank per tile, which adds them in rank order in fp32 and encodes the sum; each slicer sends its
// payload once to every node with an owner of the tile, where it is passed on to the node's other
// owners, if there are several copies of the state. So the gradient of a tile is, in group order,
//     sum over groups of decode(encode(sum over the group's ranks of round(gradient))).
// With error feedback the slicer adds what its last encoding of the tile lost before it encodes.
// With the nodes as groups, links between nodes and the devices carry one payload per node and
// tile; with each rank alone, one per rank. All sizes follow from who owns what: none is exchanged.
#pragma once

#include "base/dtype.hpp"
#include "codec/codec.hpp"
#include "codec/kernels.hpp"
#include "link/node_links.hpp"
#include "mpi/communicator.hpp"
#include "mpi/exchange/node_spread.hpp"
#include "mpi/exchange/residual.hpp"
#include "mpi/topology.hpp"
#include "shard/ownership.hpp"
#include "trace/traffic.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace nearstep::exchange {

// What the scatter needs; the pointers outlive it.
struct ScatterSettings {
    const shard::Ownership* owners = nullptr;
    const codec::Codec* codec = nullptr;     // until begin_step() names another
    std::size_t most_payload_bytes = 0;      // of the codecs that begin_step() will name
    bool has_residual = false;               // some steps feed back
    Dtype gradient_dtype = Dtype::bf16;      // of the dense gradients inside a group
    mpi::Topology groups;                    // who adds before encoding
    mpi::Topology nodes;                     // which link a byte is counted on
    const link::NodeLinks* links = nullptr;  // holds the network to its rate; null: not shaped
};

// How a step's gradients are encoded; the same on all ranks. The codec outlives the step.
struct StepEncoding {
    const codec::Codec* codec = nullptr;
    std::uint64_t random_key = 0;  // of (seed, step), for stochastic rounding
    bool feeds_back = false;       // only with has_residual
};

// Called for each tile that this rank owns, ascending: the payloads in group order, valid until the
// next call of the scatter.
using TileSink =
    std::function<void(std::size_t tile, std::span<const std::span<const std::byte>> payloads)>;

// The payload of a tile that was encoded elsewhere, valid until the scatter is called again.
using FindPayload = std::function<std::span<const std::byte>(std::size_t tile)>;

// What a group made of a tile and another means has brought to this rank; valid until it is asked
// for the next tile's.
using FindArrived = std::function<std::span<const std::byte>(std::size_t tile, int group)>;

// One per rank. Collective: all ranks construct it and call scatter with the same tiles in the same
// order.
class GradientScatter {
public:
    // `rounds`: what scatter will be called with; the buffers are allocated here, for the largest.
    // Throws a ConfigError on all ranks if one message would be more than MPI takes.
    GradientScatter(const mpi::Communicator& world, ScatterSettings settings,
                    std::span<const shard::TileRange> rounds, trace::Traffic& traffic);

    // Of the rounds that follow. Without it they are encoded by the settings' codec, key 0.
    void begin_step(const StepEncoding& encoding);

    // `gradient`: tiles.size() x 65,536 values of this rank, padding included.
    void scatter(shard::TileRange tiles, std::span<const float> gradient, const TileSink& sink);

    // The same with payloads that were made elsewhere of the sum of the group's gradients, as
    // scatter() makes them, and between its ranks of which as many bytes moved: of the tiles that
    // this rank slices. A group's ranks call the same; others may call either.
    void scatter_payloads(shard::TileRange tiles, const FindPayload& find, const TileSink& sink);

    // The same where they came to the tiles' owners, too, by other means: nothing is sent here. Not
    // where the state has copies or the network is shaped. All ranks call this, none waits in it.
    void hand_over_arrived(shard::TileRange tiles, const FindArrived& find, const TileSink& sink);

    // The key of the step's random numbers for what this rank encodes: of arith::tile_key().
    std::uint64_t source_key() const;

    // The step's gradients were used: what they left is the residual now. Without this the step
    // leaves it as it was. Not collective.
    void accept();

    // This rank's; null without has_residual.
    Residual* residual() { return residual_ ? &*residual_ : nullptr; }

    // Payloads per tile.
    int sources() const { return settings_.groups.groups(); }

    // The rank of `group` that adds and encodes the tile: an owner, if the group has one.
    int slicer(int group, std::size_t tile) const;

private:
    // A payload's way to a node.
    struct Parcel {
        int to = 0;
        std::size_t tile = 0;
    };

    bool is_entry(std::size_t tile) const;
    bool stays_where_sliced() const;
    bool has_payload_exchange() const { return sources() > 1 || settings_.nodes.groups() > 1; }
    void refuse_above_limit(std::size_t message_bytes) const;
    std::vector<Parcel> parcels_of(shard::TileRange tiles) const;
    std::vector<TilePayloads> arrived(shard::TileRange tiles) const;
    void reduce_in_group(shard::TileRange tiles, std::span<const float> gradient);
    void add_up(std::span<const std::byte> dense, std::size_t place, std::size_t places);
    void encode(std::size_t tile, std::span<std::byte> payload);
    void count_dense(shard::TileRange tiles);
    void send_payloads(shard::TileRange tiles);
    void hand_over(shard::TileRange tiles, const TileSink& sink);
    void hand_over_found(shard::TileRange tiles, const FindArrived& find,
                         const TileSink& sink) const;
    void count(trace::Counter node, trace::Counter network, int to, std::size_t bytes);

    const mpi::Communicator& world_;
    ScatterSettings settings_;
    trace::Traffic& traffic_;
    codec::Kernels kernels_;
    StepEncoding encoding_;
    std::size_t most_payload_bytes_ = 0;
    int rank_;
    int group_;
    int node_;
    mpi::Communicator group_ranks_;
    NodeSpread node_spread_;
    std::size_t leaving_bytes_ = 0;  // counted on the network, not yet sent
    std::vector<std::byte> dense_out_;
    std::vector<std::byte> dense_in_;
    std::vector<float> sum_;
    std::vector<float> addend_;  // a tile to work with
    std::optional<Residual> residual_;
    std::vector<std::byte> payloads_out_;
    std::vector<std::byte> payloads_in_;
};

}  // namespace nearstep::exchange
