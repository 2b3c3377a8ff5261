// Threads that share out a loop.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace nearstep {

// How many threads a rank's loops use: what OMP_NUM_THREADS says, else one for each CPU of the
// process; never more than 16, with which copies are as fast as memory.
int team_threads();

// One thread makes it and calls share(). The others sleep between the calls.
class Team {
public:
    // `threads`: with the caller's, at least 1.
    explicit Team(int threads);
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;
    Team(Team&&) = delete;
    Team& operator=(Team&&) = delete;
    ~Team();

    int threads() const { return static_cast<int>(others_.size()) + 1; }

    // `member`, from 0 to threads(), tells threads apart: the calls with one come one after the
    // other.
    using Work = std::function<void(std::size_t i, int member)>;

    // work(i) for each i < count, once, in any order. Returns when all of it is done; rethrows the
    // first error, after which what is left may not be done. Not from within itself.
    void share(std::size_t count, const Work& work);

private:
    void follow(int member);
    void take_turns(int member);

    std::mutex mutex_;
    std::condition_variable changed_;
    std::condition_variable done_;
    // Of the loop under way; the lock holds all of it.
    const Work* work_ = nullptr;
    std::size_t next_ = 0;
    std::size_t count_ = 0;
    std::uint64_t loops_ = 0;
    int busy_ = 0;  // others that have not come to the end of the loop
    std::exception_ptr error_;
    bool is_closing_ = false;
    std::vector<std::thread> others_;  // last: they use the rest
};

}  // namespace nearstep
