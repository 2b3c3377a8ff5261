// Functions that tests and the launcher call on the emulator itself.
#include "fpga/emulator/board.hpp"

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>

namespace {

using nearstep::emulator::Board;
using nearstep::emulator::board_count;
using nearstep::emulator::find_board;

// If NEARSTEP_CARD_REPORT names a folder, writes cards-PID.txt there at exit, one line per card.
void report() {
    const char* folder = std::getenv("NEARSTEP_CARD_REPORT");
    if (folder == nullptr) {
        return;
    }
    std::ofstream out(std::string(folder) + "/cards-" + std::to_string(::getpid()) + ".txt");
    for (unsigned index = 0; index < board_count(); ++index) {
        const auto& counters = find_board(index)->counters();
        out << "card=" << index << " to_device_bytes=" << counters.to_device_bytes
            << " from_device_bytes=" << counters.from_device_bytes
            << " p2p_bytes=" << counters.p2p_bytes << " runs=" << counters.runs
            << " allocations=" << counters.allocations << "\n";
    }
}

__attribute__((constructor)) void report_at_exit() { std::atexit(report); }

}  // namespace

extern "C" {

// Replaces the faults of NEARSTEP_CARD_FAULTS from now on and ends lost runs. Returns 0 if the list
// could be parsed.
__attribute__((visibility("default"))) int nearstep_card_faults(const char* list) {
    try {
        nearstep::emulator::faults().plan(list);
        for (unsigned index = 0; index < board_count(); ++index) {
            find_board(index)->reset();
        }
        return 0;
    } catch (...) {
        return -1;
    }
}

// Counter number `which` of a card: bytes synchronised to it (0) and from it (1), bytes of its
// peer-to-peer buffers (2), runs (3).
__attribute__((visibility("default"))) std::uint64_t nearstep_card_counter(unsigned card,
                                                                           int which) {
    Board* board = find_board(card);
    if (board == nullptr) {
        return 0;
    }
    const auto& counters = board->counters();
    switch (which) {
        case 0:
            return counters.to_device_bytes;
        case 1:
            return counters.from_device_bytes;
        case 2:
            return counters.p2p_bytes;
        default:
            return counters.runs;
    }
}

}  // extern "C"
