// Plans for tests: when a process kills itself or an operation fails. Used by runs and the store.
#include "base/fault_point.hpp"

#include "base/error.hpp"
#include "base/words.hpp"

#include <array>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <optional>

namespace nearstep {

template <>
inline constexpr std::array kWords<FaultAction> = {"none", "kill", "stop", "fail", "full"};

template <>
inline constexpr std::array kWords<FaultPhase> = {"gradient",
                                                  "after_scatter",
                                                  "after_gradients",
                                                  "after_undo",
                                                  "mid_read",
                                                  "mid_write",
                                                  "before_flush",
                                                  "after_flush",
                                                  "before_rename",
                                                  "after_rename",
                                                  "before_commit",
                                                  "after_commit",
                                                  "mid_checkpoint",
                                                  "before_checkpoint_index",
                                                  "after_checkpoint_index"};

namespace {

[[noreturn]] void refuse(std::string_view field) {
    throw ConfigError(text("The fault plan has \"", field,
                           "\", which is none of rank=N, count=N, action=kill, action=stop, "
                           "action=fail, action=full and phase=NAME with one of ",
                           joined(kWords<FaultPhase>),
                           ": write it like \"rank=1 phase=mid_write count=7\"."));
}

template <typename Number>
void read_number(std::string_view field, std::string_view value, Number& number) {
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || end != value.data() + value.size() || number < 0) {
        refuse(field);
    }
}

template <Worded E>
E parsed(std::string_view field, std::string_view word) {
    const std::optional<E> value = parse_word<E>(word);
    if (!value) {
        refuse(field);
    }
    return *value;
}

}  // namespace

FaultPoints::FaultPoints(std::string_view plan, int rank) {
    const bool is_planned = !plan.empty();
    action_ = FaultAction::kill;
    while (!plan.empty()) {
        const std::size_t end = plan.find(' ');
        read_field(plan.substr(0, end));
        plan.remove_prefix(end == std::string_view::npos ? plan.size() : end + 1);
    }
    if (!is_planned || rank != rank_) {
        action_ = FaultAction::none;
    }
}

void FaultPoints::read_field(std::string_view field) {
    const std::size_t equals = field.find('=');
    const std::string_view key = field.substr(0, equals);
    const std::string_view value =
        equals == std::string_view::npos ? std::string_view() : field.substr(equals + 1);
    if (key == "rank") {
        read_number(field, value, rank_);
    } else if (key == "count") {
        read_number(field, value, count_);
    } else if (key == "action") {
        action_ = parsed<FaultAction>(field, value);
        if (action_ == FaultAction::none) {
            refuse(field);
        }
    } else if (key == "phase") {
        phase_ = parsed<FaultPhase>(field, value);
    } else {
        refuse(field);
    }
}

FaultAction FaultPoints::arrive(FaultPhase phase) {
    if (!is_armed() || phase != phase_ || ++arrivals_ != count_) {
        return FaultAction::none;
    }
    if (action_ == FaultAction::stop) {
        std::raise(SIGSTOP);
        return FaultAction::none;
    }
    return action_;
}

void FaultPoints::pass(FaultPhase phase) {
    if (arrive(phase) == FaultAction::kill) {
        end_process_at_once();
    }
}

void end_process_at_once() {
    std::raise(SIGKILL);
    std::abort();  // not reached
}

}  // namespace nearstep
