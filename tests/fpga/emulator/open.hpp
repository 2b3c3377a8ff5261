// One open handle of an emulated card: its buffers and completions, like a file descriptor.
#pragma once

#include "fpga/emulator/board.hpp"

#include <xrt.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace nearstep::emulator {

// Errors are std::system_error. Any thread may call. Never destroyed: XRT keeps its address.
class Open {
public:
    explicit Open(Board& board) : board_(&board) {}
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;
    ~Open() = default;

    Board& board() { return *board_; }

    // `user` is the host's part of a normal buffer. If null, the driver provides it, if the buffer
    // has one.
    unsigned allocate(void* user, std::size_t bytes, unsigned flags);
    void release(unsigned buffer);
    // Null if the host cannot access the buffer.
    void* map(unsigned buffer);
    void describe(unsigned buffer, xclBOProperties& properties);
    void synchronise(unsigned buffer, xclBOSyncDirection direction, std::size_t bytes,
                     std::size_t offset);
    void copy(unsigned to, unsigned from, std::size_t bytes, std::size_t to_offset,
              std::size_t from_offset);

    // Starts the command in the buffer and returns at once.
    void execute(unsigned buffer);
    // True after taking one completion, false after `milliseconds` without one. Negative: no limit.
    bool wait_for_completion(int milliseconds);

private:
    struct Buffer;
    using Shared = std::shared_ptr<Buffer>;

    Shared find(unsigned buffer);
    void place(Buffer& buffer, void* user);
    void start_run(unsigned id, const Shared& packet);
    void abort_run(const Shared& packet);
    // The state is set before the completion, because whoever takes a completion must see the
    // state.
    void complete(const Shared& packet, Outcome outcome);

    Board* board_;
    std::mutex mutex_;
    std::map<unsigned, Shared> buffers_;
    unsigned next_ = 1;

    std::mutex completion_mutex_;
    std::condition_variable completed_;
    std::uint64_t completions_ = 0;  // not yet taken
};

}  // namespace nearstep::emulator
