// One emulated card, shared by everyone who opens it. The loaded .xclbin defines its parts.
#pragma once

#include "fpga/emulator/bank.hpp"
#include "fpga/emulator/compute_unit.hpp"
#include "fpga/emulator/faults.hpp"

#include <xclbin.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

namespace nearstep::emulator {

using Uuid = std::array<unsigned char, 16>;

// Traffic on each path since the program started.
struct Counters {
    std::atomic<std::uint64_t> to_device_bytes{0};    // by synchronising buffers
    std::atomic<std::uint64_t> from_device_bytes{0};  // by synchronising buffers
    std::atomic<std::uint64_t> p2p_bytes{0};          // size of the allocated peer-to-peer buffers
    std::atomic<std::uint64_t> runs{0};
    std::atomic<std::uint64_t> allocations{0};
};

// Errors are std::system_error with the errno of a card's driver. Any thread may call. Never
// destroyed.
class Board {
public:
    Board(unsigned index, Faults& faults) : index_(index), faults_(&faults) {}

    unsigned index() const { return index_; }
    Counters& counters() { return counters_; }
    Faults& faults() { return *faults_; }

    // Makes the banks and compute units of the file. Loading the same file again changes nothing.
    void load(const axlf& file);
    // Fails with EBUSY if another file is loaded, EINVAL if there is no such unit.
    void check_context(const Uuid& uuid, unsigned unit);

    // Null if there is none.
    Bank* bank(unsigned index);
    // The least loaded unit in the mask; null if the mask is empty.
    ComputeUnit* choose_unit(const std::vector<std::uint32_t>& mask);
    bool abort(const void* owner, unsigned command);
    // Ends lost runs.
    void reset();

private:
    void make_banks(const axlf& file);
    void make_units(const axlf& file);
    PlannedFaults plan_run();

    unsigned index_;
    Faults* faults_;
    Counters counters_;
    std::mutex mutex_;
    Uuid uuid_{};
    // Parts of replaced files are kept, because their buffers may still be in use.
    std::vector<Bank*> banks_;
    std::vector<ComputeUnit*> units_;
};

// The card with this index; null if the index is too large. The variable NEARSTEP_EMULATED_CARDS
// sets the number of cards, 1 by default.
Board* find_board(unsigned index);
unsigned board_count();
Faults& faults();

}  // namespace nearstep::emulator
