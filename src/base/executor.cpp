// Executor and Ticket. Used by devices, their transports and links, and by a rank's loops.
#include "base/executor.hpp"

#include "base/error.hpp"
#include "base/machine.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>

namespace nearstep {

struct Ticket::Operation {
    void wait() {
        std::unique_lock lock(mutex);
        changed.wait(lock, [this] { return is_done; });
    }

    std::mutex mutex;
    std::condition_variable changed;
    bool is_done = false;
    std::exception_ptr error;
    std::vector<Next> next;
};

namespace {

// Lowers the priority of this thread alone, as Linux does for a thread's number.
void give_way() {
    constexpr int kNiceness = 5;
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNiceness);
}

}  // namespace

Ticket& Ticket::operator=(Ticket&& other) noexcept {
    if (this != &other) {
        const Ticket old = std::move(*this);  // waits
        pending_ = std::exchange(other.pending_, {});
    }
    return *this;
}

Ticket::~Ticket() {
    for (const auto& operation : pending_) {
        operation->wait();
    }
}

void Ticket::add(Ticket other) {
    for (auto& operation : other.pending_) {
        pending_.push_back(std::move(operation));
    }
    other.pending_.clear();
}

bool Ticket::is_complete() const {
    return std::ranges::all_of(pending_, [](const auto& operation) {
        const std::lock_guard lock(operation->mutex);
        return operation->is_done;
    });
}

void Ticket::wait() {
    // All operations must end before an error unwinds the owner of their memory.
    std::exception_ptr first;
    for (const auto& operation : std::exchange(pending_, {})) {
        operation->wait();
        first = first ? first : operation->error;
    }
    if (first) {
        std::rethrow_exception(first);
    }
}

void Ticket::on_complete(Next next) {
    if (pending_.empty()) {
        next(nullptr);
        return;
    }
    const std::shared_ptr<Operation> last = std::move(pending_.back());
    pending_.pop_back();
    const auto rest = std::make_shared<Ticket>(std::move(*this));
    pending_.clear();
    Next then = [rest, next = std::move(next)](const std::exception_ptr& error) {
        rest->on_complete(
            [error, next](const std::exception_ptr& earlier) { next(earlier ? earlier : error); });
    };
    std::unique_lock lock(last->mutex);
    if (last->is_done) {
        lock.unlock();
        then(last->error);
    } else {
        last->next.push_back(std::move(then));
    }
}

Ticket Ticket::chain(Work work) {
    const Completion done;
    Ticket ticket = done.ticket();
    on_complete([done, work = std::move(work)](const std::exception_ptr& error) {
        if (error) {
            done.complete(error);
        } else {
            done.complete_with(work);
        }
    });
    return ticket;
}

Completion::Completion() : operation_(std::make_shared<Ticket::Operation>()) {}

Ticket Completion::ticket() const {
    Ticket ticket;
    ticket.pending_.push_back(operation_);
    return ticket;
}

void Completion::complete(const std::exception_ptr& error) const {
    std::vector<Ticket::Next> next;
    {
        const std::lock_guard lock(operation_->mutex);
        expects(!operation_->is_done, "an operation is completed once");
        operation_->is_done = true;
        operation_->error = error;
        next.swap(operation_->next);
        operation_->changed.notify_all();
    }
    for (const Ticket::Next& call : next) {
        call(error);
    }
}

void Completion::complete_with(const Work& work) const {
    try {
        work().on_complete([*this](const std::exception_ptr& error) { complete(error); });
    } catch (...) {
        complete(std::current_exception());
    }
}

namespace {

long number_in_environment(const char* variable) {
    const char* given = std::getenv(variable);
    return given != nullptr ? std::strtol(given, nullptr, 10) : 0;
}

// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): a process has one host.
std::atomic<int> processes_found = 0;

}  // namespace

void share_cores(int processes) { processes_found = processes; }

int pool_threads() {
    constexpr long kMost = 16;
    const long given = number_in_environment("OMP_NUM_THREADS");
    const long told = number_in_environment("LOCAL_WORLD_SIZE");
    if (given > 1 || (given == 1 && told <= 1)) {
        return static_cast<int>(std::min(given, kMost));
    }
    const long found = processes_found;
    const long processes = found > 0 ? found : told;
    const long share = processes > 1 ? host_cores() / processes : kMost;
    return static_cast<int>(std::clamp<long>(std::min<long>(share, usable_cores()), 1, kMost));
}

// A loop of one caller of share().
struct Executor::Loop {
    bool has_turns() const { return next < count; }

    void take_turns(int member) {
        for (std::size_t mine = next++; mine < count; mine = next++) {
            try {
                (*turn)(mine, member);
            } catch (...) {
                const std::lock_guard lock(mutex);
                next = count;
                error = error ? error : std::current_exception();
            }
        }
    }

    const Turn* turn = nullptr;
    std::size_t count = 0;
    std::atomic<std::size_t> next = 0;
    int helpers = 0;  // the executor's mutex guards it
    std::mutex mutex;
    std::exception_ptr error;
};

Executor::Executor(int threads, Priority priority) {
    expects(threads >= 0, "an executor has no negative number of threads");
    threads_.reserve(static_cast<std::size_t>(threads));
    for (int member = 1; member <= threads; ++member) {
        threads_.emplace_back([this, member, priority] {
            if (priority == Priority::background) {
                give_way();
            }
            run(member);
        });
    }
}

Executor::~Executor() {
    {
        const std::lock_guard lock(mutex_);
        is_closing_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) {
        thread.join();
    }
}

Ticket Executor::enqueue(Ticket before, Work work, Place place) {
    expects(!threads_.empty(), "an executor that takes work has a thread");
    const Completion completion;
    Ticket ticket = completion.ticket();
    {
        const std::lock_guard lock(mutex_);
        ++expected_;
    }
    before.on_complete(
        [this, completion, place, work = std::move(work)](const std::exception_ptr& error) {
            if (error) {
                completion.complete(error);
            }
            const std::lock_guard lock(mutex_);
            --expected_;
            if (!error) {
                (place == Place::last ? last_ : queue_).push_back({work, completion});
            }
            // Under the lock, because the executor may end after it.
            is_closing_ ? changed_.notify_all() : changed_.notify_one();
        });
    return ticket;
}

void Executor::share(std::size_t count, const Turn& turn) {
    Loop loop;
    loop.turn = &turn;
    loop.count = count;
    const bool has_helpers = count > 1 && !threads_.empty();
    if (has_helpers) {
        const std::lock_guard lock(mutex_);
        loops_.push_back(&loop);
        changed_.notify_all();
    }
    loop.take_turns(0);
    if (has_helpers) {
        std::unique_lock lock(mutex_);
        std::erase(loops_, &loop);
        helped_.wait(lock, [&] { return loop.helpers == 0; });
    }
    if (loop.error) {
        std::rethrow_exception(loop.error);
    }
}

// The loop with the fewest helpers of those that have turns left, or null.
Executor::Loop* Executor::find_loop() const {
    Loop* found = nullptr;
    for (Loop* loop : loops_) {
        if (loop->has_turns() && (found == nullptr || loop->helpers < found->helpers)) {
            found = loop;
        }
    }
    return found;
}

void Executor::do_first(std::deque<Queued>& queue, std::unique_lock<std::mutex>& lock) {
    const Queued next = std::move(queue.front());
    queue.pop_front();
    lock.unlock();
    next.completion.complete_with(next.work);
    lock.lock();
}

// Submitted work comes first: a device waits for it, and the caller of a loop goes on by itself.
void Executor::run(int member) {
    std::unique_lock lock(mutex_);
    while (true) {
        Loop* loop = nullptr;
        changed_.wait(lock, [&] {
            loop = find_loop();
            return loop != nullptr || !queue_.empty() || !last_.empty() ||
                   (is_closing_ && expected_ == 0);
        });
        if (!queue_.empty()) {
            do_first(queue_, lock);
        } else if (loop != nullptr) {
            ++loop->helpers;
            lock.unlock();
            loop->take_turns(member);
            lock.lock();
            if (--loop->helpers == 0) {
                helped_.notify_all();
            }
        } else if (!last_.empty()) {
            do_first(last_, lock);
        } else {
            return;
        }
    }
}

}  // namespace nearstep
