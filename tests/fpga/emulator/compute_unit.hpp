// A compute unit of an emulated card: a thread that runs kernel models, one command at a time.
#pragma once

#include "fpga/emulator/emulated_kernels.hpp"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace nearstep::emulator {

// How a command ended, with the numbers of the packet's state field (ert.h).
enum class Outcome : std::uint32_t { completed = 4, error = 5, aborted = 6 };

struct Command {
    unsigned id = 0;  // identifies the command for abort()
    const void* owner = nullptr;
    std::vector<std::uint32_t> registers;
    std::function<void(Outcome)> finish;  // called once, on the unit's thread or in abort()
};

// Faults that happen to a run.
struct PlannedFaults {
    bool is_lost = false;
    bool has_error = false;
    std::uint64_t delay_ms = 0;
};

// Kernels never run on the caller's thread. Any thread may call. Never destroyed.
class ComputeUnit {
public:
    using Planner = std::function<PlannedFaults()>;

    ComputeUnit(std::string kernel, Translate translate, Planner plan);
    ComputeUnit(const ComputeUnit&) = delete;
    ComputeUnit& operator=(const ComputeUnit&) = delete;
    ~ComputeUnit() = default;

    void submit(Command command);
    std::size_t pending();
    // Ends the command, whether queued, running or lost. False if there is no such command.
    bool abort(const void* owner, unsigned id);
    // Ends a lost run, like a reset of the card.
    void reset();

private:
    void run();
    // Waits as `plan` says. Returns false if the command is aborted.
    bool stay(const PlannedFaults& plan);

    std::string kernel_;
    Translate translate_;
    Planner plan_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Command> queue_;  // the front runs while is_running_
    bool is_running_ = false;
    bool is_lost_ = false;  // the run will never be reported
    bool is_aborted_ = false;
    std::thread thread_;
};

}  // namespace nearstep::emulator
