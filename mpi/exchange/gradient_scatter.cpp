#include "mpi/exchange/gradient_scatter.hpp"

#include "base/error.hpp"
#include "base/random.hpp"
#include "mpi/exchange/relay.hpp"

#include <climits>

#include <algorithm>
#include <utility>

namespace nearstep::exchange {

using shard::kTileElems;

namespace {

// The largest message that a Communicator takes.
constexpr std::size_t kMostMessageBytes = INT_MAX;

}  // namespace

GradientScatter::GradientScatter(const mpi::Communicator& world, ScatterSettings settings,
                                 std::span<const shard::TileRange> rounds, trace::Traffic& traffic)
    : world_(world),
      settings_(std::move(settings)),
      traffic_(traffic),
      kernels_(codec::best_kernels()),
      encoding_({.codec = settings_.codec}),
      most_payload_bytes_(std::max(settings_.codec->payload_bytes(), settings_.most_payload_bytes)),
      rank_(world.rank()),
      group_(settings_.groups.group_of[static_cast<std::size_t>(rank_)]),
      node_(settings_.nodes.group_of[static_cast<std::size_t>(rank_)]),
      group_ranks_(world.split(group_)),
      node_spread_(world, *settings_.owners, settings_.nodes, rounds,
                   static_cast<std::size_t>(sources()) * most_payload_bytes_, traffic),
      sum_(kTileElems),
      addend_(kTileElems) {
    std::size_t largest = 0;
    std::size_t sliced = 0;
    std::size_t sent = 0;
    std::size_t entering = 0;
    for (const shard::TileRange round : rounds) {
        std::size_t sliced_here = 0;
        std::size_t entering_here = 0;
        for (std::size_t tile = round.begin; tile < round.end; ++tile) {
            sliced_here += slicer(group_, tile) == rank_ ? 1U : 0U;
            entering_here += is_entry(tile) ? 1U : 0U;
        }
        largest = std::max(largest, round.size());
        sliced = std::max(sliced, sliced_here);
        sent = std::max(sent, parcels_of(round).size());
        entering = std::max(entering, entering_here);
    }
    const std::size_t dense_bytes = kTileElems * size_bytes(settings_.gradient_dtype);
    const std::size_t dense_in_bytes =
        sliced * dense_bytes * static_cast<std::size_t>(group_ranks_.size());
    const std::size_t payloads_out_bytes = sent * most_payload_bytes_;
    const std::size_t payloads_in_bytes =
        entering * most_payload_bytes_ * static_cast<std::size_t>(sources());
    std::size_t message_bytes = node_spread_.message_bytes();
    if (group_ranks_.size() > 1) {
        message_bytes = std::max({message_bytes, largest * dense_bytes, dense_in_bytes});
    }
    if (has_payload_exchange()) {
        message_bytes = std::max({message_bytes, payloads_out_bytes, payloads_in_bytes});
    }
    refuse_above_limit(message_bytes);
    dense_out_.resize(largest * dense_bytes);
    dense_in_.resize(dense_in_bytes);
    payloads_out_.resize(payloads_out_bytes);
    payloads_in_.resize(payloads_in_bytes);
    if (settings_.has_residual) {
        std::vector<std::size_t> tiles;
        for (std::size_t tile = 0; tile < settings_.owners->tiles(); ++tile) {
            if (slicer(group_, tile) == rank_) {
                tiles.push_back(tile);
            }
        }
        residual_.emplace(std::move(tiles));
    }
}

void GradientScatter::refuse_above_limit(std::size_t message_bytes) const {
    world_.together([&] {
        if (message_bytes > kMostMessageBytes) {
            throw ConfigError(text("A round of gradients would make one message of ", message_bytes,
                                   " bytes, and MPI takes ", kMostMessageBytes,
                                   " at most: lower csd.subgroup_tiles."));
        }
    });
}

void GradientScatter::begin_step(const StepEncoding& encoding) {
    expects(encoding.codec->payload_bytes() <= most_payload_bytes_,
            "there is room for the codec's payloads");
    expects(residual_ || !encoding.feeds_back, "what is fed back has a place");
    encoding_ = encoding;
}

void GradientScatter::accept() {
    if (encoding_.feeds_back) {
        residual_->accept();
    }
}

int GradientScatter::slicer(int group, std::size_t tile) const {
    const shard::Ownership& owners = *settings_.owners;
    const std::optional<int> owner = entry_of(owners, settings_.groups, group, tile);
    return owner ? *owner : relay_of(settings_.groups, group, owners.copy(0).owner_of_tile(tile));
}

bool GradientScatter::is_entry(std::size_t tile) const {
    return entry_of(*settings_.owners, settings_.nodes, node_, tile) == rank_;
}

bool GradientScatter::stays_where_sliced() const {
    return sources() == 1 && settings_.nodes.groups() == 1 && settings_.owners->copies() == 1;
}

// The parcels of the tiles that this rank slices, ordered by receiver as send_payloads() needs
// them.
std::vector<GradientScatter::Parcel> GradientScatter::parcels_of(shard::TileRange tiles) const {
    std::vector<Parcel> parcels;
    for (std::size_t tile = tiles.begin; tile < tiles.end; ++tile) {
        if (slicer(group_, tile) != rank_) {
            continue;
        }
        for (int copy = 0; copy < settings_.owners->copies(); ++copy) {
            const int owner = settings_.owners->copy(copy).owner_of_tile(tile);
            const int node = settings_.nodes.group_of[static_cast<std::size_t>(owner)];
            if (entry_of(*settings_.owners, settings_.nodes, node, tile) == owner) {
                parcels.push_back({owner, tile});
            }
        }
    }
    std::stable_sort(parcels.begin(), parcels.end(),
                     [](const Parcel& a, const Parcel& b) { return a.to < b.to; });
    return parcels;
}

void GradientScatter::count(trace::Counter node, trace::Counter network, int to,
                            std::size_t bytes) {
    const std::vector<int>& node_of = settings_.nodes.group_of;
    if (to != rank_) {
        const bool is_same_node =
            node_of[static_cast<std::size_t>(to)] == node_of[static_cast<std::size_t>(rank_)];
        traffic_.add(is_same_node ? node : network, bytes);
        leaving_bytes_ += is_same_node ? 0 : bytes;
    }
}

// Counts the dense gradients that the group's ranks send each other.
void GradientScatter::count_dense(shard::TileRange tiles) {
    const std::size_t dense_bytes = kTileElems * size_bytes(settings_.gradient_dtype);
    for (std::size_t tile = tiles.begin; tile < tiles.end; ++tile) {
        count(trace::Counter::node_gradients, trace::Counter::network_gradients,
              slicer(group_, tile), dense_bytes);
    }
}

// Writes to payloads_out_ the payloads of the tiles that this rank slices, in parcels_of() order.
void GradientScatter::reduce_in_group(shard::TileRange tiles, std::span<const float> gradient) {
    const std::vector<int>& ranks = settings_.groups.ranks_of[static_cast<std::size_t>(group_)];
    const std::size_t dense_bytes = kTileElems * size_bytes(settings_.gradient_dtype);
    mpi::Blocks out;
    std::size_t at = 0;
    std::vector<std::size_t> mine;
    for (const int member : ranks) {
        const std::size_t start = at;
        for (std::size_t tile = tiles.begin; tile < tiles.end; ++tile) {
            if (slicer(group_, tile) != member) {
                continue;
            }
            const float* values = gradient.data() + (tile - tiles.begin) * kTileElems;
            kernels_.narrow(values, settings_.gradient_dtype, dense_out_.data() + at, kTileElems);
            at += dense_bytes;
            if (member == rank_) {
                mine.push_back(tile);
            }
        }
        out.bytes.push_back(at - start);
    }
    count_dense(tiles);
    std::span<const std::byte> dense = dense_out_;
    if (ranks.size() > 1) {
        const mpi::Blocks in{std::vector<std::size_t>(ranks.size(), mine.size() * dense_bytes)};
        group_ranks_.all_to_all(dense_out_, out, dense_in_, in);
        dense = dense_in_;
    }

    const std::size_t payload_bytes = encoding_.codec->payload_bytes();
    std::vector<std::span<std::byte>> encoded(mine.size());  // per tile: its first payload
    std::span<std::byte> rest = payloads_out_;
    for (const Parcel& parcel : parcels_of(tiles)) {
        const auto place = static_cast<std::size_t>(
            std::lower_bound(mine.begin(), mine.end(), parcel.tile) - mine.begin());
        const std::span<std::byte> payload = rest.first(payload_bytes);
        rest = rest.subspan(payload_bytes);
        if (encoded[place].empty()) {
            add_up(dense, place, mine.size());
            encode(parcel.tile, payload);
            encoded[place] = payload;
        } else {
            std::ranges::copy(encoded[place], payload.begin());
        }
    }
}

// Writes to sum_ the group's gradient of one tile: number `place` of the `places` tiles that each
// rank sent.
void GradientScatter::add_up(std::span<const std::byte> dense, std::size_t place,
                             std::size_t places) {
    const Dtype dtype = settings_.gradient_dtype;
    const std::size_t dense_bytes = kTileElems * size_bytes(dtype);
    const auto members = static_cast<std::size_t>(group_ranks_.size());
    kernels_.widen(dtype, dense.data() + place * dense_bytes, sum_.data(), kTileElems);
    for (std::size_t member = 1; member < members; ++member) {
        kernels_.add_widened(dtype, dense.data() + (member * places + place) * dense_bytes,
                             sum_.data(), kTileElems);
    }
}

// Encodes sum_, plus the residual with error feedback.
void GradientScatter::encode(std::size_t tile, std::span<std::byte> payload) {
    if (encoding_.feeds_back) {
        kernels_.add(residual_->of(tile).data(), sum_.data(), kTileElems);
    }
    encoding_.codec->encode(sum_, payload, arith::tile_key(source_key(), tile));
    if (encoding_.feeds_back) {
        std::fill(addend_.begin(), addend_.end(), 0.0F);
        encoding_.codec->decode_add(payload, 0, addend_);
        std::transform(sum_.begin(), sum_.end(), addend_.begin(), residual_->next(tile).begin(),
                       std::minus<>());
    }
}

// Receives into payloads_in_ the payloads of the tiles that this rank takes for its node, ordered
// by sender, then by tile.
void GradientScatter::send_payloads(shard::TileRange tiles) {
    const auto ranks = static_cast<std::size_t>(world_.size());
    const std::size_t payload_bytes = encoding_.codec->payload_bytes();
    mpi::Blocks out{std::vector<std::size_t>(ranks, 0)};
    mpi::Blocks in{std::vector<std::size_t>(ranks, 0)};
    for (const Parcel& parcel : parcels_of(tiles)) {
        out.bytes[static_cast<std::size_t>(parcel.to)] += payload_bytes;
    }
    for (std::size_t tile = tiles.begin; tile < tiles.end; ++tile) {
        for (int group = 0; is_entry(tile) && group < sources(); ++group) {
            in.bytes[static_cast<std::size_t>(slicer(group, tile))] += payload_bytes;
        }
    }
    for (std::size_t to = 0; to < ranks; ++to) {
        count(trace::Counter::node_gradients, trace::Counter::network_gradients,
              static_cast<int>(to), out.bytes[to]);
    }
    // Wait until the shaped network has let them through.
    const std::size_t leaving_bytes = std::exchange(leaving_bytes_, 0);
    if (settings_.links != nullptr) {
        const link::Clock& clock = settings_.links->clock();
        link::cross(settings_.links->network(), clock.now(), leaving_bytes, clock);
    }
    if (has_payload_exchange()) {
        world_.all_to_all(payloads_out_, out, payloads_in_, in);
    } else {  // one group in one node: the slicer keeps its own
        std::copy_n(payloads_out_.begin(), in.total(), payloads_in_.begin());
    }
}

// The payloads that send_payloads() received, tile by tile.
std::vector<TilePayloads> GradientScatter::arrived(shard::TileRange tiles) const {
    const std::size_t payload_bytes = encoding_.codec->payload_bytes();
    std::vector<TilePayloads> here;
    // Offset of each sender's next payload.
    std::vector<std::size_t> next(static_cast<std::size_t>(world_.size()), 0);
    std::vector<std::size_t> of_sender(next.size(), 0);
    for (std::size_t tile = tiles.begin; tile < tiles.end; ++tile) {
        if (is_entry(tile)) {
            here.push_back({.tile = tile, .payloads = {}});
            for (int group = 0; group < sources(); ++group) {
                of_sender[static_cast<std::size_t>(slicer(group, tile))] += payload_bytes;
            }
        }
    }
    for (std::size_t rank = 1; rank < next.size(); ++rank) {
        next[rank] = next[rank - 1] + of_sender[rank - 1];
    }
    for (TilePayloads& one : here) {
        for (int group = 0; group < sources(); ++group) {
            std::size_t& at = next[static_cast<std::size_t>(slicer(group, one.tile))];
            one.payloads.push_back(std::span(payloads_in_).subspan(at, payload_bytes));
            at += payload_bytes;
        }
    }
    return here;
}

void GradientScatter::hand_over(shard::TileRange tiles, const TileSink& sink) {
    std::vector<TilePayloads> owned =
        node_spread_.pass_on(tiles, arrived(tiles), static_cast<std::size_t>(sources()),
                             encoding_.codec->payload_bytes());
    std::sort(owned.begin(), owned.end(),
              [](const TilePayloads& a, const TilePayloads& b) { return a.tile < b.tile; });
    for (const TilePayloads& one : owned) {
        sink(one.tile, one.payloads);
    }
}

std::uint64_t GradientScatter::source_key() const {
    return random_bits(encoding_.random_key, 0, static_cast<std::uint64_t>(group_));
}

void GradientScatter::scatter_payloads(shard::TileRange tiles, const FindPayload& find,
                                       const TileSink& sink) {
    count_dense(tiles);
    if (stays_where_sliced()) {  // nothing to copy
        return hand_over_found(
            tiles, [&](std::size_t tile, int) { return find(tile); }, sink);
    }
    auto to = payloads_out_.begin();
    for (const Parcel& parcel : parcels_of(tiles)) {
        to = std::ranges::copy(find(parcel.tile), to).out;
    }
    send_payloads(tiles);
    hand_over(tiles, sink);
}

void GradientScatter::hand_over_arrived(shard::TileRange tiles, const FindArrived& find,
                                        const TileSink& sink) {
    expects(settings_.owners->copies() == 1, "a tile has one owner, who has all its payloads");
    expects(settings_.links == nullptr, "what is not sent here is not held up here");
    count_dense(tiles);
    for (const Parcel& parcel : parcels_of(tiles)) {
        count(trace::Counter::node_gradients, trace::Counter::network_gradients, parcel.to,
              encoding_.codec->payload_bytes());
    }
    leaving_bytes_ = 0;
    hand_over_found(tiles, find, sink);
}

void GradientScatter::hand_over_found(shard::TileRange tiles, const FindArrived& find,
                                      const TileSink& sink) const {
    std::vector<std::span<const std::byte>> payloads(static_cast<std::size_t>(sources()));
    for (std::size_t tile = tiles.begin; tile < tiles.end; ++tile) {
        if (!is_entry(tile)) {
            continue;
        }
        for (int group = 0; group < sources(); ++group) {
            payloads[static_cast<std::size_t>(group)] = find(tile, group);
        }
        sink(tile, payloads);
    }
}

void GradientScatter::scatter(shard::TileRange tiles, std::span<const float> gradient,
                              const TileSink& sink) {
    expects(gradient.size() == tiles.size() * kTileElems, "the gradient covers the tiles");
    expects(tiles.size() * kTileElems * size_bytes(settings_.gradient_dtype) <= dense_out_.size(),
            "the tiles are one of the rounds");
    reduce_in_group(tiles, gradient);
    send_payloads(tiles);
    hand_over(tiles, sink);
}

}  // namespace nearstep::exchange
