// Moves tokens through processes and FIFOs, cycle by cycle. Used by the cycle model.
#include "fpga/model/network.hpp"

#include "base/error.hpp"

#include <algorithm>

namespace nearstep::fpga {

bool always(std::uint64_t /*step*/) { return true; }

std::function<bool(std::uint64_t)> first_of(std::uint64_t period) {
    return [period](std::uint64_t step) { return step % period == 0; };
}

std::function<bool(std::uint64_t)> last_of(std::uint64_t period) {
    return [period](std::uint64_t step) { return step % period == period - 1; };
}

Fifo* TokenNetwork::add_fifo(std::uint64_t depth) {
    fifos_.push_back({.depth = depth});
    return &fifos_.back();
}

// True if the process made progress.
bool TokenNetwork::tick(Process& process) {
    if (process.waits > 0) {
        --process.waits;
        ++process.activity.busy;
        return true;
    }
    if (process.step == process.steps) {
        return false;
    }
    const std::uint64_t step = process.step;
    for (const Tap& tap : process.reads) {
        if (tap.fifo->level == 0 && tap.is_touched(step)) {
            ++process.activity.starved;
            return false;
        }
    }
    for (const Tap& tap : process.writes) {
        if (tap.fifo->level == tap.fifo->depth && tap.is_touched(step)) {
            ++process.activity.blocked;
            return false;
        }
    }
    for (const Tap& tap : process.reads) {
        const std::uint64_t taken = tap.is_touched(step) ? 1 : 0;
        tap.fifo->level -= taken;
        tap.fifo->passed += taken;
    }
    for (const Tap& tap : process.writes) {
        tap.fifo->level += tap.is_touched(step) ? 1 : 0;
    }
    ++process.activity.busy;
    ++process.step;
    process.waits = process.extra ? process.extra(step) : 0;
    return true;
}

// A burst starts only if all its words can move: a read needs room, a write needs the data.
bool TokenNetwork::can_burst(const Channel& channel) const {
    const std::uint64_t words = std::min(memory_.burst_words, channel.words - channel.moved);
    if (words == 0 || channel.fifo == nullptr) {
        return words > 0;
    }
    return channel.is_read ? channel.fifo->level + words <= channel.fifo->depth
                           : channel.fifo->level >= words;
}

void TokenNetwork::move_word(Channel& channel) {
    ++channel.moved;
    if (channel.fifo == nullptr) {
        return;
    }
    if (channel.is_read) {
        ++channel.fifo->level;
    } else {
        --channel.fifo->level;
        ++channel.fifo->passed;
    }
}

bool TokenNetwork::tick_memory() {
    if (memory_.words_per_cycle == 0) {
        bool has_moved = false;
        for (Channel& channel : channels_) {
            const bool can_move = channel.moved < channel.words &&
                                  (channel.fifo == nullptr ||
                                   (channel.is_read ? channel.fifo->level < channel.fifo->depth
                                                    : channel.fifo->level > 0));
            if (can_move) {
                move_word(channel);
                has_moved = true;
            }
        }
        return has_moved;
    }
    credit_ = std::min(credit_ + memory_.words_per_cycle, 2.0);
    bool has_moved = burst_left_ > 0;
    while (credit_ >= 1) {
        for (std::size_t i = 0; i < channels_.size() && burst_left_ == 0; ++i) {
            turn_ = (turn_ + 1) % channels_.size();
            const Channel& next = channels_[turn_];
            if (can_burst(next)) {
                burst_left_ = std::min(memory_.burst_words, next.words - next.moved);
            }
        }
        if (burst_left_ == 0) {
            break;
        }
        move_word(channels_[turn_]);
        --burst_left_;
        credit_ -= 1;
        has_moved = true;
    }
    return has_moved;
}

std::string TokenNetwork::describe_deadlock() const {
    std::string who;
    for (const Process& process : processes_) {
        if (!process.is_done()) {
            who += text(who.empty() ? "" : ", ", process.name, " at ", process.step, " of ",
                        process.steps);
        }
    }
    return text("The processes wait for each other: ", who,
                ". A FIFO between them is too shallow, or they disagree on how much passes it.");
}

std::uint64_t TokenNetwork::run() {
    std::uint64_t cycles = 0;
    std::uint64_t idle = 0;
    const auto is_done = [this] {
        return std::ranges::all_of(processes_, [](const Process& p) { return p.is_done(); }) &&
               std::ranges::all_of(channels_, [](const Channel& c) { return c.moved == c.words; });
    };
    while (!is_done()) {
        bool has_moved = tick_memory();
        // Consumers run first, so that a token written in one cycle is read in the next.
        for (std::size_t i = processes_.size(); i > 0; --i) {
            has_moved = tick(processes_[i - 1]) || has_moved;
        }
        ++cycles;
        idle = has_moved ? 0 : idle + 1;
        if (idle > 8) {  // memory may need a few cycles per word
            throw Error(describe_deadlock());
        }
    }
    return cycles;
}

}  // namespace nearstep::fpga
