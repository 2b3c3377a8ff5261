// Tracks where a step is on a rank, and refuses what does not come next.
#pragma once

#include "base/error.hpp"

#include <atomic>

namespace nearstep::offload {

// idle: there is no step. backward: gradients come. summed: the devices have all gradients, whose
// norm is known. ending: the step was accepted or skipped; its update, if it has one, goes on while
// the client computes the next forward.
enum class Stage { idle, backward, summed, ending };

// none: devices do nothing. reading: they read state ahead of an update. begun: they update, which
// can still be cancelled. accepted: the new parameters go to the ranks.
enum class UpdateStage { none, reading, begun, accepted };

// One thread changes it; others may read update().
class StepState {
public:
    Stage stage() const { return stage_; }
    UpdateStage update() const { return update_; }

    void enter(Stage next) {
        switch (next) {
            case Stage::idle:
                expects(stage_ == Stage::ending, "a step is accepted or skipped before it ends");
                break;
            case Stage::backward:
                expects(stage_ == Stage::idle, "a step is finished before the next one begins");
                break;
            case Stage::summed:
                expects(stage_ == Stage::backward, "a step begins before its gradients are summed");
                break;
            case Stage::ending:
                expects(stage_ == Stage::summed, "gradients are summed before they are used");
                break;
        }
        stage_ = next;
    }

    void enter(UpdateStage next) {
        const bool is_running = update_ == UpdateStage::begun || update_ == UpdateStage::accepted;
        switch (next) {
            case UpdateStage::none:
                break;
            case UpdateStage::reading:
            case UpdateStage::begun:
                expects(!is_running, "an update is over before the next one begins");
                expects(stage_ != Stage::ending, "a step is finished before the next one begins");
                break;
            case UpdateStage::accepted:
                expects(update_ == UpdateStage::begun && stage_ == Stage::summed,
                        "an update has begun and has all gradients before it is accepted");
                break;
        }
        update_ = next;
    }

private:
    Stage stage_ = Stage::idle;
    std::atomic<UpdateStage> update_ = UpdateStage::none;
};

}  // namespace nearstep::offload
