// Runs the sessions of a rank that serves, by rank 0's commands. Called by module.cpp for
// python/nearstep/_serve.py.
#include "python/binding/server.hpp"

#include "base/error.hpp"
#include "base/packed.hpp"
#include "python/binding/calls.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <future>
#include <latch>
#include <string_view>
#include <utility>

namespace nearstep::python {

namespace {

// Does a call as rank 0 has told it.
template <typename Call>
void follow_call(OptimizerSession& session, std::string_view content) {
    Call call;
    Unpacker told(content);
    call.told(told);
    session.run(call);
}

struct Follower {
    Command command;
    void (*follow)(OptimizerSession& session, std::string_view content);
};

template <typename... Calls>
constexpr auto followers_of() {
    return std::array{Follower{Calls::kCommand, &follow_call<Calls>}...};
}

// All calls that a session opened by rank 0 takes part in.
constexpr auto kFollowers =
    followers_of<PrepareCall, ExpectCall, BeginStepCall, PutCall, EndStepCall, ChangeMastersCall,
                 ClaimFolderCall, SaveCall, DigestCall>();

}  // namespace

Server::~Server() {
    if (sessions_.empty() || MpiThread::instance().is_of_parent()) {
        return;
    }
    std::latch over(1);
    MpiThread::instance().post([&] {
        sessions_.clear();
        over.count_down();
    });
    over.wait();
}

void Server::run(const Poll& poll) {
    MpiThread::instance().refuse_fork();
    std::promise<void> over;
    std::future<void> ended = over.get_future();
    MpiThread::instance().post([this, &over] {
        try {
            follow_all();
            over.set_value();
        } catch (...) {
            over.set_exception(std::current_exception());
        }
    });
    while (ended.wait_for(std::chrono::milliseconds(100)) != std::future_status::ready) {
        poll();
    }
    ended.get();
}

void Server::follow_all() {
    MpiThread& thread = MpiThread::instance();
    thread.serve();
    while (const std::optional<ServeOrder> order = thread.hear()) {
        follow(*order);
    }
}

// Rank 0's first state is in this rank's folders, and each further one in a folder of its own
// there.
std::string Server::below_path(const std::vector<std::string>& settings) {
    const auto is_path = [](const std::string& one) { return one.starts_with("csd.path="); };
    const auto path = std::ranges::find_if(settings, is_path);
    const auto number =
        states_.try_emplace(path == settings.end() ? "" : *path, states_.size()).first->second;
    const bool shares = number > 0 && std::ranges::any_of(settings_, is_path);
    return shares ? text("/optimizer-", number + 1) : "";
}

// Throws what this rank's own settings are refused for: the others wait for it, so that it must
// end.
engine::StartRequest Server::make_session(const ServeOrder& order) {
    OptimizerPlan plan;
    engine::StartRequest request;
    unpack(order.content, plan, request);
    plan.below_path = below_path(plan.settings);
    plan.settings.insert(plan.settings.end(), settings_.begin(), settings_.end());
    plan.granted_devices = granted_devices_;
    sessions_[order.number] = std::make_unique<OptimizerSession>(std::move(plan), queue_);
    return request;
}

OptimizerSession& Server::session_of(const ServeOrder& order) {
    const auto found = sessions_.find(order.number);
    expects(found != sessions_.end() && found->second->is_open(),
            "an engine is opened before it works");
    return *found->second;
}

void Server::follow(const ServeOrder& order) {
    if (order.command == Command::match_calls) {
        CollectiveCall call = CollectiveCall::end;
        unpack(order.content, call);
        MpiThread::instance().match_calls(call, false, MpiThread::kEndLimit);
        return;
    }
    const auto request =
        order.command == Command::open ? std::optional(make_session(order)) : std::nullopt;
    // If all ranks refuse an order alike, this rank stays ready for the next order, as they do.
    try {
        if (request) {
            sessions_.at(order.number)->open(*request);
        } else if (order.command == Command::close) {
            session_of(order).let_go();
            sessions_.erase(order.number);
        } else {
            const auto follower = std::ranges::find(kFollowers, order.command, &Follower::command);
            expects(follower != kFollowers.end(), "rank 0 gives commands that are known");
            follower->follow(session_of(order), order.content);
        }
    } catch (const ConfigError&) {
    } catch (const IoError&) {
    }
}

}  // namespace nearstep::python
