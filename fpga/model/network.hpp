// Processes and bounded FIFOs, cycle by cycle: who waits for whom. No data moves, only tokens.
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

// A FIFO at a process: touched in those steps for which `is_touched` is true.
struct Tap {
    Fifo* fifo = nullptr;
    std::function<bool(std::uint64_t)> is_touched;
};

// In every step once, in every period-th from the first on, in every period-th from the last of
// the first period on.
bool always(std::uint64_t step);
std::function<bool(std::uint64_t)> first_of(std::uint64_t period);
std::function<bool(std::uint64_t)> last_of(std::uint64_t period);

// What a process did in its cycles: worked, waited for a token, waited for room.
struct Activity {
    std::uint64_t busy = 0;
    std::uint64_t starved = 0;
    std::uint64_t blocked = 0;
};

// A loop of `steps` steps, each a cycle and `extra` cycles more.
struct Process {
    std::string name;
    std::uint64_t steps = 0;
    std::vector<Tap> reads = {};
    std::vector<Tap> writes = {};
    std::function<std::uint64_t(std::uint64_t)> extra = {};
    std::uint64_t step = 0;
    std::uint64_t waits = 0;  // cycles that the last step still takes
    Activity activity = {};

    bool is_done() const { return step == steps && waits == 0; }
};

// A channel of a port: words between memory and a FIFO, in bursts.
struct Channel {
    std::string name;
    bool is_read = true;
    Fifo* fifo = nullptr;  // null: moves whatever the kernel does
    std::uint64_t words = 0;
    std::uint64_t moved = 0;
};

// One memory that all channels share, a burst of one after a burst of another.
struct Memory {
    double words_per_cycle = 0;  // 0: every channel has one of its own
    std::uint64_t burst_words = 0;
};

class Network {
public:
    explicit Network(Memory memory) : memory_(memory) {}

    Fifo* add_fifo(std::uint64_t depth);
    void add(Process process) { processes_.push_back(std::move(process)); }
    void add(Channel channel) { channels_.push_back(std::move(channel)); }

    // Cycles until all is done. Throws Error if nothing can move any more: a deadlock.
    std::uint64_t run();

    const std::deque<Process>& processes() const { return processes_; }
    const std::deque<Channel>& channels() const { return channels_; }

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
    std::size_t turn_ = 0;          // of the channels
    std::uint64_t burst_left_ = 0;  // words of the burst underway
    double credit_ = 0;             // words that memory may move by now
};

}  // namespace nearstep::fpga
