// The thread of this process that calls MPI, and no other does: it starts MPI with its first work
// and ends it with end().
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace nearstep::python {

class MpiThread {
public:
    static MpiThread& instance();

    MpiThread(const MpiThread&) = delete;
    MpiThread& operator=(const MpiThread&) = delete;
    ~MpiThread() = delete;  // ends with the process

    // Hands work in, which is done in the order of the calls and does not throw. Starts the thread.
    void post(std::function<void()> work);

    // Ends MPI together with the other ranks. If they do not come within the time, or `has_failed`,
    // ends the processes of all ranks. Nothing may be posted behind it. Any thread; the rest of
    // what was posted is done first, unless this rank has failed.
    void end(bool has_failed);

private:
    MpiThread() = default;

    void run();

    std::mutex mutex_;
    std::condition_variable has_work_;
    std::deque<std::function<void()>> work_;
    std::thread thread_;
};

}  // namespace nearstep::python
