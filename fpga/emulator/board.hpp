// One emulated card: what all who open it share. It is made from the .xclbin that is loaded.
#pragma once

#include "fpga/emulator/bank.hpp"
#include "fpga/emulator/compute_unit.hpp"
#include "fpga/emulator/faults.hpp"

#include <xclbin.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace nearstep::emulator {

using Uuid = std::array<unsigned char, 16>;

// What crossed which path, since the program began.
struct Counters {
    std::atomic<std::uint64_t> to_device_bytes{0};    // by synchronising buffers
    std::atomic<std::uint64_t> from_device_bytes{0};  // by synchronising buffers
    std::atomic<std::uint64_t> p2p_bytes{0};          // of peer-to-peer buffers, allocated
    std::atomic<std::uint64_t> runs{0};
    std::atomic<std::uint64_t> allocations{0};
};

// Errors are std::system_error with the errno that the driver of a card gives. Any thread may call.
// Never destroyed.
class Board {
public:
    Board(unsigned index, Faults& faults) : index_(index), faults_(&faults) {}

    unsigned index() const { return index_; }
    Counters& counters() { return counters_; }
    Faults& faults() { return *faults_; }

    // Banks and compute units as the file says. The same file again changes nothing.
    void load(const axlf& file);
    // EBUSY if another file is loaded, EINVAL if there is no such unit.
    void check_context(const Uuid& uuid, unsigned unit);

    // Null: there is none.
    Bank* bank(unsigned index);
    ComputeUnit* unit(unsigned index);
    // The least loaded of those in the mask; null if it names none.
    ComputeUnit* choose_unit(const std::vector<std::uint32_t>& mask);
    bool abort(const void* owner, unsigned command);
    // Ends runs that were lost.
    void reset();

private:
    void make_banks(const axlf& file);
    void make_units(const axlf& file);
    RunPlan plan_run();

    unsigned index_;
    Faults* faults_;
    Counters counters_;
    std::mutex mutex_;
    Uuid uuid_{};
    // Those of files that were replaced stay: buffers in them may live on.
    std::vector<Bank*> banks_;
    std::vector<ComputeUnit*> units_;
};

// The card with this index; null if there are not so many. Their number is NEARSTEP_EMULATED_CARDS,
// 1 if it is not set.
Board* find_board(unsigned index);
unsigned board_count();
Faults& faults();

}  // namespace nearstep::emulator
