// Reads state of another layout and sends it to the owners. Used by State at a restart.
#include "engine/state/other_layout.hpp"

#include "base/error.hpp"
#include "base/units.hpp"
#include "base/wording.hpp"
#include "engine/placement/devices.hpp"
#include "engine/placement/layout_line.hpp"
#include "mpi/gathered_text.hpp"
#include "store/subgroup_header.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace nearstep::engine {

using shard::kTileElems;

namespace {

constexpr std::size_t kTileFloats = 3 * kTileElems;  // master and both moments
constexpr std::size_t kRoundBytes = 256 * MiB;       // that a rank reads at once

// `settings` with the values that a layout line determines.
PlacedSettings run_of(const PlacedSettings& settings, const LayoutValues& layout) {
    PlacedSettings old = settings;
    old.mode = layout.is_on_host ? config::Mode::base : config::Mode::su_o;
    old.csd.per_rank = layout.devices;
    old.csd.storage_ranks = 0;  // which ranks computed does not matter here
    old.csd.tiers = {};         // their devices are among these
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

// Ranks that see the file take turns.
int reader_of(const Findings& found, const FoundManifest& manifest, std::size_t turn) {
    std::vector<int> ranks;
    for (std::size_t rank = 0; rank < found.ranks.size(); ++rank) {
        if (found.ranks[rank].view() == manifest.node) {
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

std::vector<std::size_t> joined(const std::vector<std::vector<std::size_t>>& tiles) {
    std::vector<std::size_t> all;
    for (const std::vector<std::size_t>& of_rank : tiles) {
        all.insert(all.end(), of_rank.begin(), of_rank.end());
    }
    return all;
}

}  // namespace

OtherLayout::OtherLayout(const mpi::Communicator& world, std::size_t parameters, const Start& start,
                         store::Storage* storage)
    : world_(world),
      members_(world.all_gather(std::array{static_cast<double>(workers_.members())})) {
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
        const int reader = reader_of(found, manifest, turn);
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

// A round has at most a piece for each thread of a reader, as far as its memory is bounded, and
// rounds follow tile order. So an owner holds few subgroups that still lack tiles.
std::optional<std::string> OtherLayout::read(std::int64_t generation,
                                             const shard::Ownership& owners, const Take& take) {
    std::size_t most_bytes = 1;  // of a piece
    for (const MovedPiece& piece : pieces_) {
        most_bytes = std::max(most_bytes, piece.tiles.size() * kTileFloats * sizeof(float));
    }
    const auto most_pieces =
        static_cast<double>(std::max(kRoundBytes / most_bytes, std::size_t{1}));
    std::vector<double> of_round = members_;
    for (double& pieces : of_round) {
        pieces = std::min(pieces, most_pieces);
    }
    std::vector<MovedPiece> round;
    std::vector<double> left = of_round;
    for (const MovedPiece& piece : pieces_) {
        if (left.at(static_cast<std::size_t>(piece.reader)) == 0) {
            if (auto damage = read_round(round, generation, owners, take)) {
                return damage;
            }
            round.clear();
            left = of_round;
        }
        round.push_back(piece);
        --left.at(static_cast<std::size_t>(piece.reader));
    }
    return read_round(round, generation, owners, take);
}

std::string OtherLayout::read_pieces(const std::vector<MovedPiece>& round,
                                     std::int64_t generation) {
    std::vector<std::pair<MovedPiece, std::size_t>> mine;  // with the number of the first tile
    std::size_t tiles = 0;
    for (const MovedPiece& piece : round) {
        if (piece.reader == world_.rank()) {
            mine.emplace_back(piece, tiles);
            tiles += piece.tiles.size();
        }
    }
    read_.resize(tiles * kTileFloats);
    std::vector<std::string> damage(mine.size());
    workers_.share(mine.size(), [&](std::size_t i, int) {
        const auto& [piece, first] = mine[i];
        const auto of_array = [&, first = first, count = piece.tiles.size()](std::size_t array) {
            return std::span(read_).subspan((array * tiles + first) * kTileElems,
                                            count * kTileElems);
        };
        try {
            volumes_[piece.volume]->read_state(piece.subgroup, generation,
                                               {of_array(0), of_array(1), of_array(2)});
        } catch (const DamageError& error) {
            damage[i] = error.what();
        }
    });
    const auto first = std::ranges::find_if(damage, [](const auto& one) { return !one.empty(); });
    return first == damage.end() ? "" : *first;
}

csd::StateArrays OtherLayout::tile_read(std::size_t number) {
    const std::size_t elems = read_.size() / 3;
    const auto of_array = [&](std::size_t array) {
        return std::span(read_).subspan(array * elems + number * kTileElems, kTileElems);
    };
    return {of_array(0), of_array(1), of_array(2)};
}

void OtherLayout::pack(const Exchange& tiles) {
    const std::vector<std::size_t> places = joined(tiles.sent);
    sent_.resize(places.size() * kTileFloats);
    workers_.share(places.size(), [&](std::size_t i, int) {
        const csd::StateArrays tile = tile_read(places[i]);
        auto to = sent_.begin() + static_cast<std::ptrdiff_t>(i * kTileFloats);
        for (const std::span<const float> array : {tile.master, tile.moment1, tile.moment2}) {
            to = std::ranges::copy(array, to).out;
        }
    });
}

std::optional<std::string> OtherLayout::read_round(const std::vector<MovedPiece>& round,
                                                   std::int64_t generation,
                                                   const shard::Ownership& owners,
                                                   const Take& take) {
    const Exchange tiles = exchange_of(round, owners);
    std::string damage;
    world_.together([&] { damage = read_pieces(round, generation); });
    if (!world_.agree(damage.empty())) {
        const std::vector<std::string> of_ranks = gather_text(world_, damage);
        return *std::ranges::find_if(of_ranks, [](const std::string& one) { return !one.empty(); });
    }
    if (world_.size() == 1) {  // its tiles are where they were read
        const std::vector<std::size_t>& mine = tiles.received.front();
        world_.together([&] {
            workers_.share(mine.size(), [&](std::size_t i, int) { take(mine[i], tile_read(i)); });
        });
        return std::nullopt;
    }
    const mpi::Blocks out = blocks_of(tiles.sent);
    const mpi::Blocks in = blocks_of(tiles.received);
    world_.together([&] {
        pack(tiles);
        received_.resize(in.total() / sizeof(float));
    });
    world_.all_to_all(std::as_bytes(std::span(sent_)), out,
                      std::as_writable_bytes(std::span(received_)), in);
    world_.together([&] {
        const std::vector<std::size_t> received = joined(tiles.received);
        workers_.share(received.size(), [&](std::size_t i, int) {
            const auto tile = std::span(received_).subspan(i * kTileFloats, kTileFloats);
            take(received[i], {tile.first(kTileElems), tile.subspan(kTileElems, kTileElems),
                               tile.last(kTileElems)});
        });
    });
    return std::nullopt;
}

OtherLayout::Exchange OtherLayout::exchange_of(const std::vector<MovedPiece>& round,
                                               const shard::Ownership& owners) const {
    const auto ranks = static_cast<std::size_t>(world_.size());
    Exchange tiles{.sent = std::vector<std::vector<std::size_t>>(ranks),
                   .received = std::vector<std::vector<std::size_t>>(ranks)};
    std::size_t place = 0;
    for (const MovedPiece& piece : round) {
        const bool is_mine = piece.reader == world_.rank();
        for (std::size_t tile = piece.tiles.begin; tile < piece.tiles.end; ++tile) {
            for (const int owner : owners_of(owners, tile)) {
                if (owner == world_.rank()) {
                    tiles.received[static_cast<std::size_t>(piece.reader)].push_back(tile);
                }
                if (is_mine) {
                    tiles.sent[static_cast<std::size_t>(owner)].push_back(place);
                }
            }
            place += is_mine ? 1 : 0;
        }
    }
    return tiles;
}

}  // namespace nearstep::engine
