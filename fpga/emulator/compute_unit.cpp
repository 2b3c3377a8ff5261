#include "fpga/emulator/compute_unit.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace nearstep::emulator {

namespace {

constexpr std::size_t kRegisterBytes = 65536;
constexpr std::size_t kControlWords = 4;  // ap_ctrl and interrupts, before the arguments
constexpr std::uint32_t kBusy = 1;
constexpr std::uint32_t kDoneAndIdle = 6;

void* call_translate(void* context, std::uint64_t address, std::uint64_t bytes) {
    return (*static_cast<ComputeUnit::Translate*>(context))(address, bytes);
}

}  // namespace

ComputeUnit::ComputeUnit(std::string name, KernelModel model, Translate translate, Planner plan)
    : name_(std::move(name)),
      model_(model),
      translate_(std::move(translate)),
      plan_(std::move(plan)),
      registers_(kRegisterBytes / sizeof(std::uint32_t)),
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
    const auto found = std::find_if(queue_.begin(), queue_.end(), [&](const Command& command) {
        return command.owner == owner && command.id == id;
    });
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

std::uint32_t ComputeUnit::read_register(std::uint32_t offset) {
    const std::lock_guard lock(mutex_);
    if (offset == 0) {
        return is_running_ ? kBusy : kDoneAndIdle;
    }
    return registers_.at(offset / sizeof(std::uint32_t));
}

void ComputeUnit::write_register(std::uint32_t offset, std::uint32_t value) {
    const std::lock_guard lock(mutex_);
    registers_.at(offset / sizeof(std::uint32_t)) = value;
}

Outcome ComputeUnit::carry_out(const RunPlan& plan) {
    if (plan.has_error || model_ == nullptr) {
        return Outcome::error;
    }
    const KernelCall call{registers_.data(), registers_.size(), &translate_, call_translate};
    return model_(call) == 0 ? Outcome::completed : Outcome::error;
}

bool ComputeUnit::stay(const RunPlan& plan) {
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
        {
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [this] { return !queue_.empty(); });
            is_running_ = true;
            is_aborted_ = false;
            const std::vector<std::uint32_t>& given = queue_.front().registers;
            if (given.size() > kControlWords) {
                std::copy(given.begin() + kControlWords, given.end(),
                          registers_.begin() + kControlWords);
            }
        }
        const RunPlan plan = plan_();
        const Outcome outcome = carry_out(plan);
        const bool is_reported = stay(plan);
        Command done;
        {
            const std::lock_guard lock(mutex_);
            done = std::move(queue_.front());
            queue_.pop_front();
            is_running_ = false;
        }
        done.finish(is_reported ? outcome : Outcome::aborted);
    }
}

}  // namespace nearstep::emulator
