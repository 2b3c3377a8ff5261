// Named moments of a run at which a test ends the process or lets an operation fail.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

namespace nearstep {

enum class FaultPhase {
    gradient,         // a block's gradient is computed; fail: it is not finite
    after_scatter,    // a block's gradient is with its owners
    after_gradients,  // all of them are, and the norm is known
    after_undo,       // an update that began with the wrong factor is given up
    mid_read,         // a read from storage
    mid_write,        // a write to storage, half of it done
    before_flush,     // of a file
    after_flush,
    before_rename,  // of a manifest
    after_rename,
    before_commit,  // the step is computed, its state written and not flushed
    after_commit,
    mid_checkpoint,           // a subgroup is copied to a rank file
    before_checkpoint_index,  // all rank files are written
    after_checkpoint_index
};

// kill ends the process as if by kill -9; stop holds all of its threads until it gets SIGCONT. fail
// and full are for storage operations, which then return EIO and ENOSPC; fail is for gradients,
// too.
enum class FaultAction { none, kill, stop, fail, full };

// Any thread may call; one plan per process.
class FaultPoints {
public:
    // Without a plan nothing ever happens.
    FaultPoints() = default;

    // `plan`: "rank=1 phase=mid_write count=7 action=kill": what is to happen on that rank when it
    // comes to the phase for the 7th time. Count is 1 and action kill unless given. Empty: no plan.
    // Throws ConfigError.
    FaultPoints(std::string_view plan, int rank);

    // True if something is going to happen on this rank.
    bool is_armed() const { return action_ != FaultAction::none; }

    // Counts an arrival at the phase; what is to happen there now. A stop happens within the call,
    // which then returns none.
    FaultAction arrive(FaultPhase phase);

    // As arrive(), where nothing can fail: ends the process if it is its time.
    void pass(FaultPhase phase);

private:
    void read_field(std::string_view field);

    FaultPhase phase_ = FaultPhase::after_scatter;
    FaultAction action_ = FaultAction::none;
    int rank_ = 0;
    std::int64_t count_ = 1;
    std::atomic<std::int64_t> arrivals_{0};
};

// As kill -9 does: no handler, no destructor, no flush of buffers.
[[noreturn]] void end_process_at_once();

}  // namespace nearstep
