#include "base/thread_pool.hpp"

#include "base/error.hpp"
#include "base/machine.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace nearstep {

namespace {

// Lowers the priority of this thread alone, as Linux does for a thread's number.
void give_way() {
    constexpr int kNiceness = 5;
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNiceness);
}

}  // namespace

int pool_threads() {
    constexpr long kMost = 16;
    const char* given = std::getenv("OMP_NUM_THREADS");
    const long wanted = given != nullptr ? std::strtol(given, nullptr, 10) : 0;
    return static_cast<int>(std::clamp(wanted > 0 ? wanted : usable_cores(), 1L, kMost));
}

ThreadPool::ThreadPool(int threads, Priority priority) {
    expects(threads >= 1, "a pool has a thread");
    for (int member = 1; member < threads; ++member) {
        others_.emplace_back([this, member, priority] {
            if (priority == Priority::background) {
                give_way();
            }
            follow(member);
        });
    }
}

ThreadPool::~ThreadPool() {
    {
        const std::lock_guard lock(mutex_);
        is_closing_ = true;
    }
    changed_.notify_all();
    for (std::thread& other : others_) {
        other.join();
    }
}

void ThreadPool::share(std::size_t count, const Work& work) {
    if (count <= 1 || others_.empty()) {
        for (std::size_t i = 0; i < count; ++i) {
            work(i, 0);
        }
        return;
    }
    {
        const std::lock_guard lock(mutex_);
        expects(work_ == nullptr, "one loop is over before the next");
        work_ = &work;
        next_ = 0;
        count_ = count;
        ++loops_;
    }
    changed_.notify_all();
    take_turns(0);
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return busy_ == 0; });
    work_ = nullptr;
    if (const std::exception_ptr error = std::exchange(error_, nullptr)) {
        std::rethrow_exception(error);
    }
}

void ThreadPool::follow(int member) {
    std::uint64_t seen = 0;
    while (true) {
        {
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [&] { return is_closing_ || loops_ != seen; });
            if (is_closing_) {
                return;
            }
            seen = loops_;
            if (next_ >= count_) {
                continue;  // woke too late to help
            }
            ++busy_;
        }
        take_turns(member);
        const std::lock_guard lock(mutex_);
        if (--busy_ == 0) {
            done_.notify_one();
        }
    }
}

void ThreadPool::take_turns(int member) {
    while (true) {
        const std::size_t mine = next_++;
        if (mine >= count_) {
            return;
        }
        try {
            (*work_)(mine, member);
        } catch (...) {
            const std::lock_guard lock(mutex_);
            next_ = count_;
            if (error_ == nullptr) {
                error_ = std::current_exception();
            }
        }
    }
}

}  // namespace nearstep
