// Plans for tests: when a process kills itself or an operation fails. Used by runs and the store.
#include "base/fault_point.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <string>
#include <utility>

namespace nearstep {

namespace {

constexpr std::array<std::pair<std::string_view, FaultAction>, 4> kActions = {
    {{"kill", FaultAction::kill},
     {"stop", FaultAction::stop},
     {"fail", FaultAction::fail},
     {"full", FaultAction::full}}};

constexpr std::array<std::pair<std::string_view, FaultPhase>, 15> kPhases = {
    {{"gradient", FaultPhase::gradient},
     {"after_scatter", FaultPhase::after_scatter},
     {"after_gradients", FaultPhase::after_gradients},
     {"after_undo", FaultPhase::after_undo},
     {"mid_read", FaultPhase::mid_read},
     {"mid_write", FaultPhase::mid_write},
     {"before_flush", FaultPhase::before_flush},
     {"after_flush", FaultPhase::after_flush},
     {"before_rename", FaultPhase::before_rename},
     {"after_rename", FaultPhase::after_rename},
     {"before_commit", FaultPhase::before_commit},
     {"after_commit", FaultPhase::after_commit},
     {"mid_checkpoint", FaultPhase::mid_checkpoint},
     {"before_checkpoint_index", FaultPhase::before_checkpoint_index},
     {"after_checkpoint_index", FaultPhase::after_checkpoint_index}}};

[[noreturn]] void refuse(std::string_view field) {
    std::string names;
    for (const auto& [name, phase] : kPhases) {
        names += text(names.empty() ? "" : ", ", name);
    }
    throw ConfigError(text("The fault plan has \"", field,
                           "\", which is none of rank=N, count=N, action=kill, action=stop, "
                           "action=fail, action=full and phase=NAME with one of ",
                           names, ": write it like \"rank=1 phase=mid_write count=7\"."));
}

template <typename Number>
void read_number(std::string_view field, std::string_view value, Number& number) {
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || end != value.data() + value.size() || number < 0) {
        refuse(field);
    }
}

template <typename Table>
auto find_named(std::string_view field, std::string_view name, const Table& table) {
    const auto found =
        std::ranges::find_if(table, [&](const auto& known) { return known.first == name; });
    if (found == table.end()) {
        refuse(field);
    }
    return found->second;
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
        action_ = find_named(field, value, kActions);
    } else if (key == "phase") {
        phase_ = find_named(field, value, kPhases);
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
