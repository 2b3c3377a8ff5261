// The only thread of this process that calls MPI. It starts MPI with its first work, and end() ends
// it.
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

    // Adds work, which runs in the order of the calls and must not throw. Starts the thread.
    void post(std::function<void()> work);

    // Ends MPI together with the other ranks. Ends the processes of all ranks if `has_failed`, or
    // if the others do not come in time. Call it from any thread, and post nothing afterwards.
    // Posted work is finished first, unless this rank has failed.
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
