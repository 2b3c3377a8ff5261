// Simulates processes and bounded FIFOs cycle by cycle, to see which process waits for which. Only
// tokens move, no data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

namespace nearstep::fpga {

struct Fifo {
    std::uint64_t depth = 0;
    std::uint64_t level = 0;
    std::uint64_t passed = 0;  // tokens read so far
};

// A FIFO connected to a process. The process uses it in those steps for which `is_touched` is true.
struct Tap {
    Fifo* fifo = nullptr;
    std::function<bool(std::uint64_t)> is_touched;
};

// True in every step; in every period-th step starting with the first; in the last step of every
// period.
bool always(std::uint64_t step);
std::function<bool(std::uint64_t)> first_of(std::uint64_t period);
std::function<bool(std::uint64_t)> last_of(std::uint64_t period);

// Cycles of a process: working, waiting for a token, waiting for room.
struct Activity {
    std::uint64_t busy = 0;
    std::uint64_t starved = 0;
    std::uint64_t blocked = 0;
};

// A loop of `steps` steps. Each takes one cycle plus `extra` cycles.
struct Process {
    std::string name;
    std::uint64_t steps = 0;
    std::vector<Tap> reads = {};
    std::vector<Tap> writes = {};
    std::function<std::uint64_t(std::uint64_t)> extra = {};
    std::uint64_t step = 0;
    std::uint64_t waits = 0;  // cycles left of the last step
    Activity activity = {};

    bool is_done() const { return step == steps && waits == 0; }
};

// A channel of a port: moves words between memory and a FIFO, in bursts.
struct Channel {
    std::string name;
    bool is_read = true;
    Fifo* fifo = nullptr;  // null: independent of the kernel
    std::uint64_t words = 0;
    std::uint64_t moved = 0;
};

// One memory that all channels share; it serves one burst at a time.
struct Memory {
    double words_per_cycle = 0;  // 0: unlimited, each channel has its own memory
    std::uint64_t burst_words = 0;
};

class TokenNetwork {
public:
    explicit TokenNetwork(Memory memory) : memory_(memory) {}

    Fifo* add_fifo(std::uint64_t depth);
    void add(Process process) { processes_.push_back(std::move(process)); }
    void add(Channel channel) { channels_.push_back(std::move(channel)); }

    // Returns the cycles until everything is done. Throws Error on a deadlock, when nothing can
    // move.
    std::uint64_t run();

    const std::deque<Process>& processes() const { return processes_; }

private:
    bool tick_memory();
    bool tick(Process& process);
    bool can_burst(const Channel& channel) const;
    static void move_word(Channel& channel);
    std::string describe_deadlock() const;

    Memory memory_;
    std::deque<Fifo> fifos_;
    std::deque<Process> processes_;
    std::deque<Channel> channels_;
    std::size_t turn_ = 0;          // next channel to serve
    std::uint64_t burst_left_ = 0;  // words left of the current burst
    double credit_ = 0;             // words that memory may move now
};

}  // namespace nearstep::fpga
