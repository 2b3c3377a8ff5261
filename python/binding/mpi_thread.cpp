// Runs posted work on the thread that calls MPI. Used by WorkQueue and Server.
#include "python/binding/mpi_thread.hpp"

#include "base/error.hpp"
#include "base/packed.hpp"
#include "mpi/session.hpp"

#include <algorithm>
#include <array>
#include <future>
#include <span>
#include <utility>

namespace nearstep::python {

namespace {

// How long a failed rank waits for its last MPI call to return.
constexpr std::chrono::seconds kFailureLimit{2};

}  // namespace

MpiThread& MpiThread::instance() {
    static auto* const thread = new MpiThread();  // NOLINT: it lives as long as the process
    return *thread;
}

void MpiThread::refuse_fork() const {
    if (is_of_parent()) {
        throw Error(
            "This process is a fork of one that trains, and only that one can use the optimizer: "
            "start other processes with the method \"spawn\", or before training begins.");
    }
}

void MpiThread::post(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    if (!thread_.joinable()) {
        owner_ = getpid();
        thread_ = std::thread([this] { run(); });
    }
    has_work_.notify_one();
}

void MpiThread::run() {
    for (;;) {
        std::function<void()> work;
        {
            std::unique_lock lock(mutex_);
            has_work_.wait(lock, [this] { return !work_.empty(); });
            work = std::move(work_.front());
            work_.pop_front();
        }
        if (!work) {
            return;
        }
        work();
    }
}

namespace {

const char* does(int call) {
    switch (static_cast<CollectiveCall>(call)) {
        case CollectiveCall::end:
            return "has ended its program";
        case CollectiveCall::close:
            return "closes its optimizer, as at the end of its program";
        case CollectiveCall::open:
            return "opens a state";
        case CollectiveCall::begin:
            return "begins to train";
        case CollectiveCall::step:
            return "takes a step";
        case CollectiveCall::change:
            return "goes on to train or to save";
        case CollectiveCall::save:
            return "saves a checkpoint";
        case CollectiveCall::digest:
            return "asks for the masters' digest";
    }
    return "";
}

}  // namespace

// Ranks that serve are the last ones, so that others count from 0.
void MpiThread::join(bool serves, std::chrono::seconds limit) {
    all_ranks_.emplace(mpi::Communicator::world(limit));
    const std::vector<double> all = all_ranks_->all_gather(std::array{serves ? 1.0 : 0.0});
    serving_ = static_cast<int>(std::ranges::count(all, 1.0));
    if (!std::ranges::is_sorted(all) || serving_ == all_ranks_->size()) {
        throw MpiError(text(serving_, " of ", all_ranks_->size(),
                            " ranks call nearstep.serve(): let the last ones do so, behind at "
                            "least one that trains."));
    }
}

mpi::MatchedCalls MpiThread::matched_calls(CollectiveCall call, bool raises,
                                           std::chrono::seconds limit) {
    if (!all_ranks_) {
        join(false, limit);
    }
    command({.command = Command::match_calls, .content = packed(call)});
    return all_ranks_->match_calls(static_cast<int>(call), raises, limit);
}

bool MpiThread::match_calls(CollectiveCall call, bool raises, std::chrono::seconds limit) {
    const mpi::MatchedCalls matched = matched_calls(call, raises, limit);
    // A rank without the optimizer has nothing to close.
    const bool is_only_closing =
        matched.highest == static_cast<int>(CollectiveCall::close) && !matched.is_raised;
    if (matched.lowest != matched.highest && !is_only_closing) {
        throw MpiError(text("Rank ", matched.rank, ' ', does(matched.lowest), ", and another rank ",
                            does(matched.highest),
                            ": let all ranks take the same steps in the same order. What is "
                            "durable stays."));
    }
    return matched.is_raised;
}

namespace {

constexpr int kOrderTag = 2;

struct OrderHead {
    Command command = Command::match_calls;
    std::uint64_t number = 0;
    std::uint64_t bytes = 0;          // of the content
    std::array<char, 16> first = {};  // bytes of it; with more, all are a message of their own

    bool has_message() const { return bytes > first.size(); }
};

}  // namespace

void MpiThread::serve() {
    mpi::start_for_library();
    join(true, kEndLimit);
}

void MpiThread::command(const ServeOrder& order) {
    if (all_ranks_->rank() != 0) {
        return;
    }
    OrderHead head{order.command, order.number, order.content.size()};
    if (!head.has_message()) {
        std::ranges::copy(order.content, head.first.begin());
    }
    std::vector<mpi::Request> sent;
    for (int to = all_ranks_->size() - serving_; to < all_ranks_->size(); ++to) {
        sent.push_back(all_ranks_->start_send(std::as_bytes(std::span(&head, 1)), to, kOrderTag));
        if (head.has_message()) {
            sent.push_back(
                all_ranks_->start_send(std::as_bytes(std::span(order.content)), to, kOrderTag));
        }
    }
    for (mpi::Request& request : sent) {
        request.wait();
    }
}

std::optional<ServeOrder> MpiThread::hear() {
    OrderHead head;
    all_ranks_->start_receive(std::as_writable_bytes(std::span(&head, 1)), 0, kOrderTag).wait();
    ServeOrder order{
        .command = head.command, .number = head.number, .content = std::string(head.bytes, 0)};
    if (head.has_message()) {
        all_ranks_->start_receive(std::as_writable_bytes(std::span(order.content)), 0, kOrderTag)
            .wait();
    } else {
        std::copy_n(head.first.begin(), head.bytes, order.content.begin());
    }
    const bool ends =
        order.command == Command::match_calls && order.content == packed(CollectiveCall::end);
    return ends ? std::nullopt : std::optional(std::move(order));
}

// Returns false if the other ranks do not come in time.
bool MpiThread::end_with_others(bool others_wait) {
    try {
        if (others_wait && !all_ranks_) {
            mpi::start_for_library();
            join(false, kEndLimit);
        }
        while (all_ranks_ && mpi::is_running() &&
               matched_calls(CollectiveCall::end, false, kEndLimit).highest !=
                   static_cast<int>(CollectiveCall::end)) {
        }
    } catch (const ConfigError&) {
        return true;  // MPI, which another library started, has ended
    } catch (const MpiError&) {
        return false;
    }
    all_ranks_.reset();
    return mpi::end_for_library(kEndLimit);
}

void MpiThread::end(bool has_failed, bool others_wait) {
    if (is_of_parent()) {
        return;
    }
    {
        const std::lock_guard lock(mutex_);
        if (!thread_.joinable() && (has_failed || !others_wait)) {
            return;
        }
        if (has_failed) {
            work_.clear();
        }
    }
    std::promise<bool> is_over;
    post([&] { is_over.set_value(!has_failed && end_with_others(others_wait)); });
    auto future = is_over.get_future();
    future.wait_for(has_failed ? std::chrono::seconds(kFailureLimit)
                               : std::chrono::seconds(2 * kEndLimit));
    if (has_failed || !future.get()) {
        mpi::abort_ranks(1);
    }
    post({});
    thread_.join();
}

}  // namespace nearstep::python
