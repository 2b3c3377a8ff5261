// Moves state that was written with another layout to the ranks that own its tiles now.
#pragma once

#include "base/executor.hpp"
#include "csd/state_format.hpp"
#include "csd/state_volume.hpp"
#include "engine/restart/start.hpp"
#include "memory/buffer.hpp"
#include "mpi/communicator.hpp"
#include "shard/ownership.hpp"
#include "store/storage.hpp"
#include "trace/traffic.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nearstep::engine {

// Each old file is read once, by one rank of a node that sees it. All calls are collective.
class OtherLayout {
public:
    // Opens and locks the state files that were chosen. Throws ConfigError on all ranks alike.
    // `storage`: see store::File.
    OtherLayout(const mpi::Communicator& world, std::size_t parameters, const Start& start,
                store::Storage* storage);

    // The format of the state that is read.
    csd::StateFormat format() const { return format_; }
    // Hands each rank the tiles that it owns, as they are stored, roughly in order, on several
    // threads at once. If data is damaged it returns a sentence and some tiles are missing. Throws
    // IoError.
    using Take = std::function<void(std::size_t tile, const csd::StatePointers& state)>;
    std::optional<std::string> read(std::int64_t generation, const shard::Ownership& owners,
                                    const Take& take);

private:
    // Adjacent tiles in one old file.
    struct MovedPiece {
        shard::TileRange tiles;
        int reader = 0;            // rank
        std::size_t volume = 0;    // of the reader
        std::size_t subgroup = 0;  // in the volume
    };

    // Tiles of a round, by the rank they go to or come from. Those that are sent are numbered among
    // the tiles that this rank reads in the round.
    struct Exchange {
        std::vector<std::vector<std::size_t>> sent;
        std::vector<std::vector<std::size_t>> received;
    };

    // `state`: see csd::StateVolume::belong_to().
    void open(const std::vector<csd::StateVolumeSettings>& settings, std::uint64_t state);
    Exchange exchange_of(const std::vector<MovedPiece>& round,
                         const shard::Ownership& owners) const;
    // Pieces that a rank with so many threads reads at once, as far as its memory is bounded.
    std::size_t most_at_once(int members) const;
    // Returns the tiles of a piece, which may lie in `memory`.
    std::vector<csd::StatePointers> read_piece(const MovedPiece& piece, std::int64_t generation,
                                               memory::Buffer& memory);
    // Reads this rank's pieces of a round. Returns a sentence if one is damaged; else empty.
    std::string read_pieces(const std::vector<MovedPiece>& round, std::int64_t generation);
    // A tile by itself in memory of tiles that are sent or received.
    csd::StatePointers tile_in(std::vector<std::byte>& memory, std::size_t number) const;
    // Packs what is sent: all arrays of a tile, then the next one.
    void pack(const Exchange& tiles);
    std::string read_alone(std::int64_t generation, const Take& take);
    std::optional<std::string> read_round(const std::vector<MovedPiece>& round,
                                          std::int64_t generation, const shard::Ownership& owners,
                                          const Take& take);

    const mpi::Communicator& world_;
    trace::Traffic traffic_;
    Executor workers_{pool_threads() - 1, Executor::Priority::background};
    std::vector<double> members_;     // threads of each rank
    std::vector<MovedPiece> pieces_;  // in tile order
    csd::StateFormat format_ = {};
    std::size_t tile_bytes_ = 0;            // of a tile by itself
    std::vector<memory::Buffer> extents_;   // of pieces that are read at once
    std::vector<csd::StatePointers> read_;  // the tiles of a round in them
    std::vector<std::byte> sent_;
    std::vector<std::byte> received_;
    std::vector<std::unique_ptr<csd::StateVolume>> volumes_;  // those this rank reads
};

}  // namespace nearstep::engine
