// The only thread of this process that calls MPI. It starts MPI with its first work, and end() ends
// it.
#pragma once

#include "mpi/communicator.hpp"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace nearstep::python {

// The operation that all ranks call together.
enum class CollectiveCall { end, close, open, begin, step, change, save, digest };

// The next operation of a rank that serves, which it does together with the other ranks.
enum class Command : std::uint8_t {
    match_calls,
    open,
    prepare,
    expect,
    begin_step,
    put,
    end_step,
    change,
    claim,
    save,
    digest,
    close
};

// A command to a rank that serves.
struct ServeOrder {
    Command command = Command::match_calls;
    std::uint64_t number = 0;  // of the process's engines, in the order in which they were opened
    std::string content = {};  // see calls.hpp; the call to match
};

class MpiThread {
public:
    // How long a finished rank waits for the others, which may be evaluating or writing files.
    static constexpr std::chrono::hours kEndLimit{24};

    static MpiThread& instance();

    MpiThread(const MpiThread&) = delete;
    MpiThread& operator=(const MpiThread&) = delete;
    ~MpiThread() = delete;  // ends with the process

    // Whether the thread runs in the process that this one is a fork of. Nothing here may be used
    // then: neither the thread nor MPI's connections are in the fork, and locks may be held
    // forever.
    bool is_of_parent() const {
        const pid_t owner = owner_;
        return owner != 0 && owner != getpid();
    }
    // Throws an Error in such a fork.
    void refuse_fork() const;

    // Adds work, which runs in the order of the calls and must not throw. Starts the thread. Not
    // for a fork of its process: see refuse_fork().
    void post(std::function<void()> work);

    // Waits until all ranks are here, and returns whether any of them `raises` its flag. Collective
    // work calls it first, on this thread. Throws MpiError if a rank makes another call, such as
    // end(), or none within the limit. Collective.
    bool match_calls(CollectiveCall call, bool raises, std::chrono::seconds limit);

    // Makes this rank one that serves: hear() says what it does. For posted work, before all else.
    // Collective with the others' first match_calls().
    void serve();
    // The ranks that serve, all behind the others. After the first match_calls().
    int serving() const { return serving_; }
    bool serves() const { return all_ranks_->rank() >= all_ranks_->size() - serving_; }
    // The number of an engine that all ranks open now.
    std::uint64_t count_engine() { return engines_++; }
    // Rank 0 tells the ranks that serve what all do next; other ranks say nothing.
    void command(const ServeOrder& order);
    // The next order; none: rank 0 ends its program.
    std::optional<ServeOrder> hear();

    // Ends MPI together with the other ranks. Ends the processes of all ranks if `has_failed`, or
    // if the others do not come in time. Call it from any thread, and post nothing afterwards.
    // Posted work is finished first, unless this rank has failed. Without posted work it does
    // nothing, unless others wait: then it starts MPI to tell them. Does nothing in a fork.
    void end(bool has_failed, bool others_wait);

private:
    MpiThread() = default;

    void run();
    void join(bool serves, std::chrono::seconds limit);
    mpi::MatchedCalls matched_calls(CollectiveCall call, bool raises, std::chrono::seconds limit);
    bool end_with_others(bool others_wait);

    std::atomic<pid_t> owner_ = 0;                // the process that started the thread
    std::optional<mpi::Communicator> all_ranks_;  // used only by the thread
    int serving_ = 0;                             // likewise
    std::uint64_t engines_ = 0;                   // likewise
    std::mutex mutex_;
    std::condition_variable has_work_;
    std::deque<std::function<void()>> work_;
    std::thread thread_;
};

}  // namespace nearstep::python
