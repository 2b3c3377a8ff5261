// Adds up what several nodes sent of a tile, encodes the sum and sends it to the owners. Used by
// offload's step.
#include "offload/joint_sums.hpp"

#include "base/error.hpp"
#include "offload/step_pipeline.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace nearstep::offload {

namespace {

// The slicers of the rank's group as the owners of one copy.
shard::Ownership slicers_of(const exchange::Routes& routes) {
    const std::vector<int>& ranks = routes.groups().ranks_beside(routes.rank());
    shard::Replica copy = routes.owners().of_rank(routes.rank());
    copy.ranks.resize(ranks.size());
    std::iota(copy.ranks.begin(), copy.ranks.end(), 0);
    for (std::size_t tile = 0; tile < copy.partition.tiles(); ++tile) {
        copy.owners.push_back(routes.groups().rank_in_group(routes.slicer(routes.group(), tile)));
    }
    std::vector<shard::Replica> copies;
    copies.push_back(std::move(copy));
    return shard::Ownership(std::move(copies));
}

}  // namespace

JointSums::JointSums(const mpi::Communicator& world, const PipelineSettings& settings,
                     std::span<const exchange::Route> rounds, trace::Traffic& traffic)
    : routes_(routes_of(settings, world.rank())),
      ranks_(world.split(routes_.group())),
      slicers_(slicers_of(routes_)),
      scatter_(world, routes_,
               {.codec = settings.codec,
                .most_payload_bytes = settings.most_payload_bytes,
                .gradient_dtype = settings.dtype,
                .links = settings.links,
                .takes_payloads_alone = true},
               rounds, traffic),
      pool_(settings.pool),
      sums_(static_cast<std::size_t>(settings.pool->members())) {}

exchange::Routes JointSums::routes_of(const PipelineSettings& settings, int rank) {
    return {*settings.owners, settings.joint_groups, settings.nodes, rank, settings.storage_ranks};
}

void JointSums::begin_step(const codec::Codec& received, const exchange::StepEncoding& encoding) {
    scatter_.begin_step(encoding);
    payload_bytes_ = encoding.codec->payload_bytes();
    for (exchange::OwnerSum& sum : sums_) {
        sum.begin_step(received, encoding.codec, scatter_.source_key());
    }
}

void JointSums::encode(std::span<const exchange::TilePayloads> tiles) {
    tiles_.clear();
    for (const exchange::TilePayloads& of : tiles) {
        tiles_.push_back(of.tile);
    }
    encoded_.resize(tiles.size() * payload_bytes_);
    pool_->share(tiles.size(), [&](std::size_t i, int member) {
        exchange::OwnerSum& sum = sums_[static_cast<std::size_t>(member)];
        const exchange::DevicePayloads sum_payloads = sum.take(tiles[i].tile, tiles[i].payloads, 0);
        std::ranges::copy(sum_payloads.payloads.front(),
                          std::span(encoded_).subspan(i * payload_bytes_, payload_bytes_).begin());
    });
}

std::span<const exchange::TilePayloads> JointSums::send(const exchange::Route& round) {
    const auto first = std::ranges::lower_bound(tiles_, round.tiles.begin);
    const auto place = static_cast<std::size_t>(first - tiles_.begin());
    expects(std::ranges::equal(std::span(tiles_).subspan(place).first(round.sliced.size()),
                               round.sliced),
            "a rank sends the sums of its slice");
    return scatter_.scatter_payloads(
        round, std::span<const std::byte>(encoded_).subspan(place * payload_bytes_,
                                                            round.sliced.size() * payload_bytes_));
}

}  // namespace nearstep::offload
