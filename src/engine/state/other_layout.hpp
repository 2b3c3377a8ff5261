// Moves state that was written with another layout to the ranks that own its tiles now.
#pragma once

#include "base/executor.hpp"
#include "csd/state_volume.hpp"
#include "engine/restart/start.hpp"
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

    // Hands each rank the tiles that it owns, roughly in order, on several threads at once. If data
    // is damaged it returns a sentence and some tiles are missing. Throws IoError.
    using Take = std::function<void(std::size_t tile, const csd::StateArrays& state)>;
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
    // Reads this rank's pieces of a round, one after the other. Returns a sentence if one is
    // damaged; else empty.
    std::string read_pieces(const std::vector<MovedPiece>& round, std::int64_t generation);
    // The tile with this number among those that this rank has read in the round.
    csd::StateArrays tile_read(std::size_t number);
    // Packs what is sent: master and moments tile by tile.
    void pack(const Exchange& tiles);
    std::optional<std::string> read_round(const std::vector<MovedPiece>& round,
                                          std::int64_t generation, const shard::Ownership& owners,
                                          const Take& take);

    const mpi::Communicator& world_;
    trace::Traffic traffic_;
    Executor workers_{pool_threads() - 1, Executor::Priority::background};
    std::vector<double> members_;     // threads of each rank
    std::vector<MovedPiece> pieces_;  // in tile order
    // A round has masters of all tiles that were read, their first and their second moments, and
    // what is sent and received.
    std::vector<float> read_;
    std::vector<float> sent_;
    std::vector<float> received_;
    std::vector<std::unique_ptr<csd::StateVolume>> volumes_;  // those this rank reads
};

}  // namespace nearstep::engine
