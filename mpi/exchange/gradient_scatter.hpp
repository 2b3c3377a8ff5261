// The gradient scatter: takes every rank's gradient and delivers payloads to the owners of the
// tiles, on the ways that Routes computes.
//
// A slicer adds its group's dense gradients in rank order in fp32 and encodes the sum. So the
// gradient of a tile is, in group order,
//     sum over groups of decode(encode(sum over the group's ranks of round(gradient))).
// With error feedback, the slicer first adds what its last encoding of the tile lost. If groups are
// nodes, links carry one payload per node and tile; if groups are single ranks, one per rank.
#pragma once

#include "base/dtype.hpp"
#include "base/executor.hpp"
#include "codec/codec.hpp"
#include "codec/codec_kernels.hpp"
#include "mpi/communicator.hpp"
#include "mpi/exchange/residual.hpp"
#include "mpi/exchange/routes.hpp"
#include "shaping/node_links.hpp"
#include "trace/traffic.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace nearstep::exchange {

// The pointers must outlive the scatter.
struct ScatterSettings {
    const codec::Codec* codec = nullptr;        // used until begin_step() names another
    std::size_t most_payload_bytes = 0;         // of all codecs for begin_step()
    bool has_residual = false;                  // some steps use error feedback
    Dtype gradient_dtype = Dtype::bf16;         // of the dense gradients sent inside a group
    const shaping::NodeLinks* links = nullptr;  // limits the network rate; null: no limit
    Executor* pool = nullptr;                   // adds up and encodes; null: the caller alone does
    // Only scatter_payloads() is called, and what the payloads are sums of was counted before.
    bool takes_payloads_alone = false;
};

// The key from which arith::tile_key() derives random numbers for encodings of a group in a step.
std::uint64_t source_key(std::uint64_t random_key, int group);

// How a step's gradients are encoded; the same on all ranks. The codec outlives the step.
struct StepEncoding {
    const codec::Codec* codec = nullptr;
    std::uint64_t random_key = 0;  // from (seed, step), for stochastic rounding
    bool feeds_back = false;       // error feedback; needs has_residual
};

// A tile that this rank owns, with its payloads in group order.
struct TilePayloads {
    std::size_t tile = 0;
    std::span<const std::span<const std::byte>> payloads;
};

// The gradient scatter of one rank. All ranks construct it, and call it for the same tiles in the
// same order. The calls return payloads of this rank's tiles, ascending, which stay valid until the
// next call.
class GradientScatter {
public:
    // `routes` outlives this. `rounds`: of all calls that send messages; buffers are allocated here
    // for the largest. Throws ConfigError on all ranks if a message would exceed MPI's size limit.
    GradientScatter(const mpi::Communicator& world, const Routes& routes,
                    const ScatterSettings& settings, std::span<const Route> rounds,
                    trace::Traffic& traffic);

    // Sets the encoding of the following rounds. Without it: the settings' codec and key 0.
    void begin_step(const StepEncoding& encoding);

    // `gradient`: 65,536 values of this rank for each tile of the round, padding included.
    std::span<const TilePayloads> scatter(const Route& round, std::span<const float> gradient);

    // Same as scatter() for payloads that were encoded elsewhere from the sum of the group's
    // gradients. `made`: those of round.sliced; stays valid as long as the result. Counts the
    // group's dense bytes as scatter() does. All ranks of a group call the same function; groups
    // may differ.
    std::span<const TilePayloads> scatter_payloads(const Route& round,
                                                   std::span<const std::byte> made);

    // Same as scatter_payloads() for payloads that have already reached the owners, as in
    // round.received: counts bytes but sends nothing. Needs one copy of the state and an unshaped
    // network. All ranks call; none waits.
    std::span<const TilePayloads> take_arrived(const Route& round,
                                               std::span<const std::byte> received);

    // The key of this rank's encodings, for stochastic rounding.
    std::uint64_t source_key() const;

    // Call when the step's gradients were used: what the step lost becomes the residual. Without
    // this call the residual stays as it was. Not collective.
    void accept();

    // This rank's residual; null without has_residual.
    Residual* residual() { return residual_ ? &*residual_ : nullptr; }

private:
    std::size_t dense_bytes() const;  // of a tile
    std::size_t payload_bytes() const { return encoding_.codec->payload_bytes(); }
    void allocate(std::span<const Route> rounds);
    std::size_t count_and_tell_leaving(const Route& round);
    std::span<const std::byte> exchange_dense(const Route& round, std::span<const float> gradient);
    void encode_slice(const Route& round, std::span<const float> gradient);
    // Memory that one thread needs to encode a tile.
    struct WorkSpace {
        std::vector<std::byte> rounded;  // the gradient of a rank that is alone in its group
        std::vector<float> sum;
        std::vector<float> decoded;
    };
    void share(std::size_t count, const Executor::Turn& turn) const;
    void add_up(std::span<const std::byte> dense, std::size_t place, std::size_t places,
                WorkSpace& space) const;
    void encode(std::size_t tile, std::span<std::byte> payload, WorkSpace& space);
    std::span<const TilePayloads> deliver(const Route& round, std::span<const std::byte> out);
    void pass_on(const Route& round, std::span<const std::byte> received);
    std::span<const TilePayloads> collect(const Route& round, std::span<const std::byte> received);

    const mpi::Communicator& world_;
    const Routes& routes_;
    ScatterSettings settings_;
    trace::Traffic& traffic_;
    codec::Kernels kernels_;
    StepEncoding encoding_;
    std::size_t most_payload_bytes_;
    mpi::Communicator group_ranks_;
    mpi::Communicator node_ranks_;
    std::vector<std::byte> dense_out_;
    std::vector<std::byte> dense_in_;
    std::vector<WorkSpace> spaces_;  // of the pool's members
    std::optional<Residual> residual_;
    std::vector<std::byte> payloads_out_;
    std::vector<std::byte> payloads_in_;
    std::vector<std::byte> passed_out_;
    std::vector<std::byte> passed_in_;
    std::vector<std::span<const std::byte>> found_;  // payloads of taken_
    std::vector<TilePayloads> taken_;
};

}  // namespace nearstep::exchange
