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
#include <atomic>
#include <iterator>
#include <map>
#include <utility>

namespace nearstep::engine {

using shard::kTileElems;

namespace {

constexpr std::size_t kBytesAtOnce = 256 * MiB;  // that a rank reads

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

mpi::Blocks blocks_of(const std::vector<std::vector<std::size_t>>& tiles, std::size_t tile_bytes) {
    mpi::Blocks blocks;
    for (const std::vector<std::size_t>& of_rank : tiles) {
        blocks.bytes.push_back(of_rank.size() * tile_bytes);
    }
    return blocks;
}

template <typename T>
std::vector<T> joined(const std::vector<std::vector<T>>& parts) {
    std::vector<T> all;
    for (const std::vector<T>& part : parts) {
        all.insert(all.end(), part.begin(), part.end());
    }
    return all;
}

// The first text that is not empty.
std::string first_of(const std::vector<std::string>& texts) {
    const auto found = std::ranges::find_if(texts, [](const auto& one) { return !one.empty(); });
    return found == texts.end() ? "" : *found;
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
    format_ = layout->state;
    tile_bytes_ = csd::state_bytes(format_, 1);
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

std::size_t OtherLayout::most_at_once(int members) const {
    std::size_t most_bytes = 1;  // of a piece
    for (const MovedPiece& piece : pieces_) {
        most_bytes = std::max(most_bytes, csd::state_bytes(format_, piece.tiles.size()));
    }
    return std::clamp<std::size_t>(kBytesAtOnce / most_bytes, 1, static_cast<std::size_t>(members));
}

// Ranks exchange tiles in rounds, which follow tile order. So an owner holds few subgroups that
// still lack tiles.
std::optional<std::string> OtherLayout::read(std::int64_t generation,
                                             const shard::Ownership& owners, const Take& take) {
    if (world_.size() == 1) {
        std::string damage;
        world_.together([&] { damage = read_alone(generation, take); });
        return damage.empty() ? std::nullopt : std::optional(damage);
    }
    std::vector<std::size_t> of_round;
    for (const double members : members_) {
        of_round.push_back(most_at_once(static_cast<int>(members)));
    }
    std::vector<MovedPiece> round;
    std::vector<std::size_t> left = of_round;
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

std::vector<csd::StatePointers> OtherLayout::read_piece(const MovedPiece& piece,
                                                        std::int64_t generation,
                                                        memory::Buffer& memory) {
    const std::span<std::byte> payload =
        volumes_[piece.volume]->read_stored(piece.subgroup, generation, memory);
    std::vector<csd::StatePointers> tiles;
    for (std::size_t tile = 0; tile < piece.tiles.size(); ++tile) {
        tiles.push_back(csd::state_of_tile(format_, payload, piece.tiles.size(), tile));
    }
    return tiles;
}

// Each thread hands on what it has read, while others read the pieces that follow. Returns a
// sentence if one is damaged; else empty.
std::string OtherLayout::read_alone(std::int64_t generation, const Take& take) {
    extents_.resize(most_at_once(workers_.members()));
    std::atomic<std::size_t> next = 0;
    std::vector<std::string> damage(extents_.size());
    workers_.share(extents_.size(), [&](std::size_t lane, int) {
        for (std::size_t i = next++; i < pieces_.size(); i = next++) {
            const MovedPiece& piece = pieces_[i];
            std::vector<csd::StatePointers> tiles;
            try {
                tiles = read_piece(piece, generation, extents_[lane]);
            } catch (const DamageError& error) {
                damage[lane] = error.what();
                next = pieces_.size();
                return;
            }
            for (std::size_t tile = 0; tile < tiles.size(); ++tile) {
                take(piece.tiles.begin + tile, tiles[tile]);
            }
        }
    });
    return first_of(damage);
}

std::string OtherLayout::read_pieces(const std::vector<MovedPiece>& round,
                                     std::int64_t generation) {
    std::vector<MovedPiece> mine;
    std::ranges::copy_if(round, std::back_inserter(mine),
                         [this](const MovedPiece& piece) { return piece.reader == world_.rank(); });
    extents_.resize(std::max(extents_.size(), mine.size()));
    std::vector<std::vector<csd::StatePointers>> tiles(mine.size());
    std::vector<std::string> damage(mine.size());
    workers_.share(mine.size(), [&](std::size_t i, int) {
        try {
            tiles[i] = read_piece(mine[i], generation, extents_[i]);
        } catch (const DamageError& error) {
            damage[i] = error.what();
        }
    });
    read_ = joined(tiles);
    return first_of(damage);
}

csd::StatePointers OtherLayout::tile_in(std::vector<std::byte>& memory, std::size_t number) const {
    return csd::state_of_tile(format_, std::span(memory).subspan(number * tile_bytes_, tile_bytes_),
                              1, 0);
}

void OtherLayout::pack(const Exchange& tiles) {
    const std::vector<std::size_t> places = joined(tiles.sent);
    sent_.resize(places.size() * tile_bytes_);
    workers_.share(places.size(), [&](std::size_t i, int) {
        csd::copy_state(format_, read_[places[i]], kTileElems, tile_in(sent_, i));
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
        return first_of(gather_text(world_, damage));
    }
    const mpi::Blocks out = blocks_of(tiles.sent, tile_bytes_);
    const mpi::Blocks in = blocks_of(tiles.received, tile_bytes_);
    world_.together([&] {
        pack(tiles);
        received_.resize(in.total());
    });
    world_.all_to_all(sent_, out, received_, in);
    world_.together([&] {
        const std::vector<std::size_t> received = joined(tiles.received);
        workers_.share(received.size(),
                       [&](std::size_t i, int) { take(received[i], tile_in(received_, i)); });
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
