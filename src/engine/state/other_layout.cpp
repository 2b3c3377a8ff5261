// Reads state of another layout and sends it to the owners. Used by State at a restart.
#include "engine/state/other_layout.hpp"

#include "base/error.hpp"
#include "base/wording.hpp"
#include "engine/placement/devices.hpp"
#include "engine/placement/layout_line.hpp"
#include "mpi/gathered_text.hpp"
#include "store/subgroup_header.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace nearstep::engine {

using shard::kTileElems;

namespace {

constexpr std::size_t kTileFloats = 3 * kTileElems;  // master and both moments

// `settings` with the values that a layout line determines.
PlacedSettings run_of(const PlacedSettings& settings, const LayoutValues& layout) {
    PlacedSettings old = settings;
    old.mode = layout.is_on_host ? config::Mode::base : config::Mode::su_o;
    old.csd.per_rank = layout.devices;
    old.csd.tiers = {};  // their devices are among these
    old.speeds = layout.speeds;
    old.nodes = layout.nodes;
    old.csd.state = layout.state;
    old.csd.subgroup_tiles = layout.subgroup_tiles;
    old.spare_places = layout.spare_places;
    old.logs = layout.logs;
    return old;
}

// The old ranks that hold one copy of the state.
shard::Replica copy_of(const PlacedSettings& old, const store::Manifest& manifest,
                       const LayoutValues& layout, std::size_t parameters) {
    const std::vector<int> of_copy = numbers_in(
        manifest.copy.empty() ? std::vector<NumberRange>{{0, layout.ranks - 1}} : manifest.copy);
    shard::Replica copy = make_copy(old, parameters, of_copy, layout.ranks);
    if (digest_of_tiles(copy.partition) != layout.tiles_xxh3) {
        throw ConfigError(
            text("The state files have the layout \"", manifest.layout,
                 "\", which this program deals out otherwise: resume with the program "
                 "that wrote them, or go on from a checkpoint with ",
                 Term::from, "."));
    }
    return copy;
}

// Ranks of the node take turns.
int reader_of(const Findings& found, int node, std::size_t turn) {
    std::vector<int> ranks;
    for (std::size_t rank = 0; rank < found.ranks.size(); ++rank) {
        if (found.ranks[rank].node == node) {
            ranks.push_back(static_cast<int>(rank));
        }
    }
    return ranks.at(turn % ranks.size());
}

// The ranks that hold the tile, ascending.
std::vector<int> owners_of(const shard::Ownership& owners, std::size_t tile) {
    std::vector<int> ranks;
    ranks.reserve(static_cast<std::size_t>(owners.copies()));
    for (int copy = 0; copy < owners.copies(); ++copy) {
        ranks.push_back(owners.copy(copy).owner_of_tile(tile));
    }
    return ranks;
}

mpi::Blocks blocks_of(const std::vector<std::vector<std::size_t>>& tiles) {
    mpi::Blocks blocks;
    for (const std::vector<std::size_t>& of_rank : tiles) {
        blocks.bytes.push_back(of_rank.size() * kTileFloats * sizeof(float));
    }
    return blocks;
}

// Packs master and moments tile by tile. `arrays` holds those of consecutive tiles, one array after
// the other.
std::vector<float> pack_tiles(const std::vector<std::vector<std::size_t>>& tiles,
                              std::span<const float> arrays, std::size_t first_tile) {
    std::vector<float> packed;
    const std::size_t elems = arrays.size() / 3;
    for (const std::vector<std::size_t>& of_rank : tiles) {
        for (const std::size_t tile : of_rank) {
            for (std::size_t array = 0; array < 3; ++array) {
                const auto from =
                    arrays.subspan(array * elems + (tile - first_tile) * kTileElems, kTileElems);
                packed.insert(packed.end(), from.begin(), from.end());
            }
        }
    }
    return packed;
}

}  // namespace

OtherLayout::OtherLayout(const mpi::Communicator& world, std::size_t parameters, const Start& start,
                         store::Storage* storage)
    : world_(world) {
    const Findings& found = start.found;
    const Decision& decision = start.decision;
    const store::Manifest& first = *found.manifests[decision.manifests.front()].manifest;
    const std::optional<LayoutValues> layout = parse_layout(first.layout);
    expects(layout.has_value(), "a manifest with another layout is not read");
    const PlacedSettings old = run_of(start.settings, *layout);
    const shard::Replica copy = copy_of(old, first, *layout, parameters);
    std::vector<csd::StateVolumeSettings> mine;
    std::map<int, std::size_t> volumes_of;  // opened by each reader so far
    for (std::size_t turn = 0; turn < decision.manifests.size(); ++turn) {
        const FoundManifest& manifest = found.manifests[decision.manifests[turn]];
        const int reader = reader_of(found, manifest.node, turn);
        for (csd::StateVolumeSettings& volume :
             state_volumes(old, manifest.rank, copy, manifest.files)) {
            for (std::size_t subgroup = 0; subgroup < volume.subgroups.size(); ++subgroup) {
                pieces_.push_back({.tiles = volume.subgroups[subgroup].tiles,
                                   .reader = reader,
                                   .volume = volumes_of[reader],
                                   .subgroup = subgroup});
            }
            ++volumes_of[reader];
            if (reader == world.rank()) {
                volume.volume.storage = storage;
                mine.push_back(std::move(volume));
            }
        }
    }
    std::ranges::sort(pieces_, {}, [](const MovedPiece& one) { return one.tiles.begin; });
    world.together([&] { open(mine, store::number_of_state(first.state)); });
}

void OtherLayout::open(const std::vector<csd::StateVolumeSettings>& settings, std::uint64_t state) {
    for (const csd::StateVolumeSettings& volume : settings) {
        volumes_.push_back(std::make_unique<csd::StateVolume>(volume, traffic_));
        volumes_.back()->belong_to(state);
    }
}

// A round has at most one piece per reader, and rounds follow tile order. So an owner holds few
// subgroups that still lack tiles.
std::optional<std::string> OtherLayout::read(std::int64_t generation,
                                             const shard::Ownership& owners, const Take& take) {
    std::vector<MovedPiece> round;
    std::set<int> readers;
    for (std::size_t i = 0; i <= pieces_.size(); ++i) {
        if (i == pieces_.size() || readers.count(pieces_[i].reader) > 0) {
            if (auto damage = read_round(round, generation, owners, take)) {
                return damage;
            }
            round.clear();
            readers.clear();
        }
        if (i < pieces_.size()) {
            round.push_back(pieces_[i]);
            readers.insert(pieces_[i].reader);
        }
    }
    return std::nullopt;
}

std::string OtherLayout::read_piece(const MovedPiece& piece, std::int64_t generation,
                                    std::span<float> arrays) {
    const std::size_t elems = arrays.size() / 3;
    try {
        volumes_[piece.volume]->read_state(
            piece.subgroup, generation,
            {arrays.first(elems), arrays.subspan(elems, elems), arrays.last(elems)});
    } catch (const DamageError& damage) {
        return damage.what();
    }
    return "";
}

std::optional<std::string> OtherLayout::read_round(const std::vector<MovedPiece>& round,
                                                   std::int64_t generation,
                                                   const shard::Ownership& owners,
                                                   const Take& take) {
    const Exchange tiles = exchange_of(round, owners);
    std::vector<float> arrays;
    std::size_t first_tile = 0;
    std::string damage;
    world_.together([&] {
        for (const MovedPiece& piece : round) {
            if (piece.reader == world_.rank()) {
                first_tile = piece.tiles.begin;
                arrays.resize(piece.tiles.size() * kTileFloats);
                damage = read_piece(piece, generation, arrays);
            }
        }
    });
    if (!world_.agree(damage.empty())) {
        const std::vector<std::string> of_ranks = gather_text(world_, damage);
        return *std::ranges::find_if(of_ranks, [](const std::string& one) { return !one.empty(); });
    }
    const std::vector<float> send = pack_tiles(tiles.sent, arrays, first_tile);
    const mpi::Blocks out = blocks_of(tiles.sent);
    const mpi::Blocks in = blocks_of(tiles.received);
    std::vector<float> receive(in.total() / sizeof(float));
    world_.all_to_all(std::as_bytes(std::span(send)), out,
                      std::as_writable_bytes(std::span(receive)), in);
    world_.together([&] {
        std::span<float> rest(receive);
        for (const std::vector<std::size_t>& from : tiles.received) {
            for (const std::size_t tile : from) {
                take(tile, {rest.first(kTileElems), rest.subspan(kTileElems, kTileElems),
                            rest.subspan(2 * kTileElems, kTileElems)});
                rest = rest.subspan(kTileFloats);
            }
        }
    });
    return std::nullopt;
}

OtherLayout::Exchange OtherLayout::exchange_of(const std::vector<MovedPiece>& round,
                                               const shard::Ownership& owners) const {
    const auto ranks = static_cast<std::size_t>(world_.size());
    Exchange tiles{.sent = std::vector<std::vector<std::size_t>>(ranks),
                   .received = std::vector<std::vector<std::size_t>>(ranks)};
    for (const MovedPiece& piece : round) {
        for (std::size_t tile = piece.tiles.begin; tile < piece.tiles.end; ++tile) {
            for (const int owner : owners_of(owners, tile)) {
                if (owner == world_.rank()) {
                    tiles.received[static_cast<std::size_t>(piece.reader)].push_back(tile);
                }
                if (piece.reader == world_.rank()) {
                    tiles.sent[static_cast<std::size_t>(owner)].push_back(tile);
                }
            }
        }
    }
    return tiles;
}

}  // namespace nearstep::engine
