// Named moments of a run at which a test kills the process or makes an operation fail.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

namespace nearstep {

enum class FaultPhase {
    gradient,         // a block's gradient is computed; any action but stop makes it infinite
    after_scatter,    // a block's gradient has reached its owners
    after_gradients,  // all gradients have reached their owners, and the norm is known
    after_undo,       // an update that began with the wrong clipping factor was cancelled
    mid_read,         // a read from storage
    mid_write,        // a write to storage is half done
    before_flush,     // of a file
    after_flush,
    before_rename,  // of a manifest
    after_rename,
    before_commit,  // the step's state is written but not flushed
    after_commit,
    mid_checkpoint,           // a subgroup is about to be written to a rank file
    before_checkpoint_index,  // all rank files are written
    after_checkpoint_index
};

// kill ends the process like kill -9. stop suspends it until SIGCONT. fail and full make a storage
// operation fail with EIO and ENOSPC.
enum class FaultAction { none, kill, stop, fail, full };

// Any thread may call it. A process has one plan.
class FaultPoints {
public:
    // No plan: nothing happens.
    FaultPoints() = default;

    // `plan` "rank=1 phase=mid_write count=7 action=kill" kills rank 1 when it reaches the phase
    // for the 7th time. The defaults are rank 0, phase after_scatter, count 1 and action kill. An
    // empty plan does nothing. Throws ConfigError.
    FaultPoints(std::string_view plan, int rank);

    // True if the plan has an action for this rank.
    bool is_armed() const { return action_ != FaultAction::none; }

    // Counts an arrival at the phase and returns the action that is due. A stop happens inside the
    // call, which then returns none.
    FaultAction arrive(FaultPhase phase);

    // arrive() for a place where nothing can fail: it only kills or stops the process.
    void pass(FaultPhase phase);

private:
    void read_field(std::string_view field);

    FaultPhase phase_ = FaultPhase::after_scatter;
    FaultAction action_ = FaultAction::none;
    int rank_ = 0;
    std::int64_t count_ = 1;
    std::atomic<std::int64_t> arrivals_{0};
};

// Ends the process as kill -9 does: no handlers and no destructors run, and no buffers are flushed.
[[noreturn]] void end_process_at_once();

}  // namespace nearstep
