// Tells when transfers have crossed their links, by one thread for all of them.
#pragma once

#include "base/executor.hpp"
#include "shaping/link.hpp"

#include <condition_variable>
#include <cstddef>
#include <list>
#include <mutex>
#include <optional>
#include <thread>

namespace nearstep::shaping {

// Transfers of one path follow one another; others run at once. Any thread may call.
class Pacer {
public:
    // The clock outlives this.
    explicit Pacer(const Clock& clock) : clock_(clock), thread_([this] { run(); }) {}
    Pacer(const Pacer&) = delete;
    Pacer& operator=(const Pacer&) = delete;
    // Waits for all transfers.
    ~Pacer();

    Time now() const { return clock_.now(); }

    // The ticket completes when `bytes`, ready to move at time `ready`, have crossed the path,
    // which outlives the transfer.
    Ticket cross(const Path& path, std::size_t bytes, Time ready);

private:
    struct Transfer {
        const Path* path = nullptr;
        std::size_t bytes = 0;
        Time ready = 0;
        std::optional<Crossing> crossing = {};  // once it is the first of its path
        Completion crossed = {};
    };

    void run();
    void move(std::list<Transfer>& over);
    void begin_next(const Path* path, Time ready);
    Time next_due() const;

    const Clock& clock_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::list<Transfer> transfers_;
    bool is_closing_ = false;
    std::thread thread_;  // declared last: it uses the other members
};

}  // namespace nearstep::shaping
