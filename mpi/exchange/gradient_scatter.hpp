// The gradient scatter: takes every rank's gradient and delivers payloads to the owners of the
// tiles.
//
// Ranks form groups. Inside a group, each tile has a slicer rank. The others send it their dense
// gradients; it adds them in rank order in fp32 and encodes the sum. It then sends the payload once
// to every node with an owner of the tile, where it is passed on to the node's other owners, if the
// state has several copies. So the gradient of a tile is, in group order,
//     sum over groups of decode(encode(sum over the group's ranks of round(gradient))).
// With error feedback, the slicer first adds what its last encoding of the tile lost. If groups are
// nodes, links carry one payload per node and tile; if groups are single ranks, one per rank. All
// sizes follow from the ownership: none is exchanged.
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

// The pointers must outlive the scatter.
struct ScatterSettings {
    const shard::Ownership* owners = nullptr;
    const codec::Codec* codec = nullptr;     // used until begin_step() names another
    std::size_t most_payload_bytes = 0;      // of all codecs for begin_step()
    bool has_residual = false;               // some steps use error feedback
    Dtype gradient_dtype = Dtype::bf16;      // of the dense gradients sent inside a group
    mpi::Topology groups;                    // ranks whose gradients are added before encoding
    mpi::Topology nodes;                     // decides which link a byte is counted on
    const link::NodeLinks* links = nullptr;  // limits the network rate; null: no limit
};

// How a step's gradients are encoded; the same on all ranks. The codec outlives the step.
struct StepEncoding {
    const codec::Codec* codec = nullptr;
    std::uint64_t random_key = 0;  // from (seed, step), for stochastic rounding
    bool feeds_back = false;       // error feedback; needs has_residual
};

// Called for each tile that this rank owns, ascending, with the payloads in group order. They are
// valid until the next call of the scatter.
using TileSink =
    std::function<void(std::size_t tile, std::span<const std::span<const std::byte>> payloads)>;

// The payload of a tile encoded elsewhere, valid until the scatter is called again.
using FindPayload = std::function<std::span<const std::byte>(std::size_t tile)>;

// A group's payload of a tile that reached this rank by other means; valid until the call for the
// next tile.
using FindArrived = std::function<std::span<const std::byte>(std::size_t tile, int group)>;

// One per rank. Collective: all ranks construct it and call scatter with the same tiles in the same
// order.
class GradientScatter {
public:
    // `rounds`: the tile ranges that scatter will be called with; buffers are allocated here for
    // the largest. Throws ConfigError on all ranks if a message would exceed MPI's size limit.
    GradientScatter(const mpi::Communicator& world, ScatterSettings settings,
                    std::span<const shard::TileRange> rounds, trace::Traffic& traffic);

    // Sets the encoding of the following rounds. Without it: the settings' codec and key 0.
    void begin_step(const StepEncoding& encoding);

    // `gradient`: tiles.size() x 65,536 values of this rank, padding included.
    void scatter(shard::TileRange tiles, std::span<const float> gradient, const TileSink& sink);

    // Same as scatter() for payloads that were encoded elsewhere from the sum of the group's
    // gradients. Calls `find` for the tiles that this rank slices; counts the group's dense bytes
    // as scatter() does. All ranks of a group call the same function; groups may differ.
    void scatter_payloads(shard::TileRange tiles, const FindPayload& find, const TileSink& sink);

    // Same as scatter_payloads() for payloads that have already reached the owners: counts bytes
    // but sends nothing. Needs one copy of the state and an unshaped network. All ranks call; none
    // waits.
    void hand_over_arrived(shard::TileRange tiles, const FindArrived& find, const TileSink& sink);

    // The key from which arith::tile_key() derives random numbers for this rank's encodings.
    std::uint64_t source_key() const;

    // Call when the step's gradients were used: what the step lost becomes the residual. Without
    // this call the residual stays as it was. Not collective.
    void accept();

    // This rank's residual; null without has_residual.
    Residual* residual() { return residual_ ? &*residual_ : nullptr; }

    // Whether payloads need no messages, since each tile's slicer is its owner: with one group, one
    // node and one copy of the state.
    bool stays_where_sliced() const;

    // Payloads per tile.
    int sources() const { return settings_.groups.groups(); }

    // The rank of `group` that adds and encodes the tile: an owner if the group has one.
    int slicer(int group, std::size_t tile) const;

private:
    // A payload and the rank that receives it for its node.
    struct Parcel {
        int to = 0;
        std::size_t tile = 0;
    };

    bool is_entry(std::size_t tile) const;
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
    std::size_t leaving_bytes_ = 0;  // counted on the network but not sent yet
    std::vector<std::byte> dense_out_;
    std::vector<std::byte> dense_in_;
    std::vector<float> sum_;
    std::vector<float> addend_;  // work space of one tile
    std::optional<Residual> residual_;
    std::vector<std::byte> payloads_out_;
    std::vector<std::byte> payloads_in_;
};

}  // namespace nearstep::exchange
