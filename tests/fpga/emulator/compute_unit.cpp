// Runs the commands of a compute unit on a thread. Used by boards.
#include "fpga/emulator/compute_unit.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace nearstep::emulator {

ComputeUnit::ComputeUnit(std::string kernel, Translate translate, Planner plan)
    : kernel_(std::move(kernel)),
      translate_(std::move(translate)),
      plan_(std::move(plan)),
      thread_([this] { run(); }) {}

void ComputeUnit::submit(Command command) {
    {
        const std::lock_guard lock(mutex_);
        queue_.push_back(std::move(command));
    }
    changed_.notify_all();
}

std::size_t ComputeUnit::pending() {
    const std::lock_guard lock(mutex_);
    return queue_.size();
}

bool ComputeUnit::abort(const void* owner, unsigned id) {
    std::unique_lock lock(mutex_);
    const auto found = std::ranges::find_if(
        queue_, [&](const Command& command) { return command.owner == owner && command.id == id; });
    if (found == queue_.end()) {
        return false;
    }
    if (found == queue_.begin() && is_running_) {
        is_aborted_ = true;
        changed_.notify_all();
        return true;
    }
    const Command victim = std::move(*found);
    queue_.erase(found);
    lock.unlock();
    victim.finish(Outcome::aborted);
    return true;
}

void ComputeUnit::reset() {
    const std::lock_guard lock(mutex_);
    is_aborted_ = is_aborted_ || is_lost_;
    changed_.notify_all();
}

bool ComputeUnit::stay(const PlannedFaults& plan) {
    std::unique_lock lock(mutex_);
    is_lost_ = plan.is_lost;
    if (is_lost_) {
        changed_.wait(lock, [this] { return is_aborted_; });
    } else if (plan.delay_ms > 0) {
        changed_.wait_for(lock, std::chrono::milliseconds(plan.delay_ms),
                          [this] { return is_aborted_; });
    }
    is_lost_ = false;
    return !is_aborted_;
}

void ComputeUnit::run() {
    while (true) {
        std::vector<std::uint32_t> registers;
        {
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [this] { return !queue_.empty(); });
            is_running_ = true;
            is_aborted_ = false;
            registers = queue_.front().registers;
        }
        const PlannedFaults plan = plan_();
        const bool is_done = !plan.has_error && run_kernel(kernel_, registers, translate_);
        const bool is_reported = stay(plan);
        Command done;
        {
            const std::lock_guard lock(mutex_);
            done = std::move(queue_.front());
            queue_.pop_front();
            is_running_ = false;
        }
        done.finish(!is_reported ? Outcome::aborted
                    : is_done    ? Outcome::completed
                                 : Outcome::error);
    }
}

}  // namespace nearstep::emulator
