// Threads for work: an executor runs it, and a ticket tells when it is done.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace nearstep {

class Ticket;

// The work that a ticket is for. A ticket that the work returns is a part of the operation.
using Work = std::function<Ticket()>;

// A pending operation; move-only. The destructor waits and ignores an error that nobody asked for.
class Ticket {
public:
    Ticket() = default;  // of an operation that is complete
    Ticket(Ticket&&) noexcept = default;
    Ticket& operator=(Ticket&& other) noexcept;
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;
    ~Ticket();

    // From now on this ticket covers both operations.
    void add(Ticket other);

    // Whether wait() would return at once.
    bool is_complete() const;

    // Blocks until the operation is complete; rethrows its first error. A second call, or one on an
    // empty ticket, returns at once.
    void wait();

    // Empties the ticket. `next` is called once with the first error or null: on the thread that
    // completes the operation, or at once if it is complete. It must neither throw nor block.
    using Next = std::function<void(std::exception_ptr error)>;
    void on_complete(Next next);

    // `work` runs when this operation is complete, unless it failed. The new ticket reports the
    // errors of `work`.
    template <typename F>
    Ticket then(F work) {
        return chain(work_of(std::move(work)));
    }

    // Work from a function that returns nothing or a ticket.
    template <typename F>
    static Work work_of(F function) {
        if constexpr (std::is_void_v<std::invoke_result_t<F&>>) {
            return [function = std::move(function)]() mutable {
                function();
                return Ticket();
            };
        } else {
            return function;
        }
    }

private:
    friend class Completion;
    struct Operation;
    Ticket chain(Work work);

    std::vector<std::shared_ptr<Operation>> pending_;
};

// The end of a ticket that completes the operation. All copies stand for the same operation, and
// one of them completes it once.
class Completion {
public:
    Completion();
    Ticket ticket() const;
    void complete(const std::exception_ptr& error = nullptr) const;
    // Does the work and completes when its ticket does, or with its error.
    void complete_with(const Work& work) const;

private:
    std::shared_ptr<Ticket::Operation> operation_;
};

// Threads for a rank's loops: OMP_NUM_THREADS if set, else usable_cores(), of which each of several
// processes of the host takes its share. At most 16, because 16 threads saturate memory bandwidth.
// torchrun and accelerate set OMP_NUM_THREADS to 1 where the user did not, so that 1 counts as not
// set beside a LOCAL_WORLD_SIZE above 1.
int pool_threads();
// Says how many processes share the host's cores; 0: LOCAL_WORLD_SIZE says so. A start calls it
// when its ranks have found each other. Any thread may call.
void share_cores(int processes);

// Any thread may call, except that work of an executor must not call share() of the same one.
class Executor {
public:
    // background: the threads leave the CPU to threads that keep a GPU busy.
    enum class Priority { normal, background };

    // `threads` of its own; without one, submit() and after() are not allowed.
    explicit Executor(int threads, Priority priority = Priority::normal);
    Executor(const Executor&) = delete;
    Executor& operator=(const Executor&) = delete;
    // Waits until all work is done, also work that waits for a ticket.
    ~Executor();

    // Runs the work on one of the threads. The threads take work in the order of these calls, so
    // that one thread does one piece after another.
    template <typename F>
    Ticket submit(F work) {
        return after(Ticket(), std::move(work));
    }
    // Runs it once `before` is complete, or not at all after an error, which is then the ticket's.
    // last: not before threads have no other work and no loop to help.
    enum class Place { in_turn, last };
    template <typename F>
    Ticket after(Ticket before, F work, Place place = Place::in_turn) {
        return enqueue(std::move(before), Ticket::work_of(std::move(work)), place);
    }

    // Threads of a loop: the caller and the executor's.
    int members() const { return static_cast<int>(threads_.size()) + 1; }

    // `member` is the thread's number in [0, members()), 0 for the caller. Calls of one loop with
    // the same number never overlap.
    using Turn = std::function<void(std::size_t i, int member)>;

    // Calls `turn` once for each i < count, in any order, and returns when all calls are done.
    // After an error it starts no more calls and rethrows the first one. Threads help that have no
    // other work; loops of several callers share them.
    void share(std::size_t count, const Turn& turn);

private:
    struct Loop;
    struct Queued {
        Work work;
        Completion completion;
    };

    Ticket enqueue(Ticket before, Work work, Place place);
    void do_first(std::deque<Queued>& queue, std::unique_lock<std::mutex>& lock);
    void run(int member);
    Loop* find_loop() const;

    std::mutex mutex_;
    std::condition_variable changed_;
    std::condition_variable helped_;  // a loop has one helper less
    std::deque<Queued> queue_;
    std::deque<Queued> last_;
    std::size_t expected_ = 0;  // work that waits for a ticket
    std::vector<Loop*> loops_;
    bool is_closing_ = false;
    std::vector<std::thread> threads_;  // declared last: the threads use the other members
};

}  // namespace nearstep
