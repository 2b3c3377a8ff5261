// Records when each part of a step was busy, for browsers' viewers of Chrome's trace format.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace nearstep::trace {

// The rows of a trace: things that work in parallel in a step. Device reads, the engine, device
// writes and a device's copies to the host have a row per device.
enum class Lane : std::uint8_t { compute, copy, exchange, device_read, engine, device_write };
constexpr std::size_t kLanes = 6;

// "compute", "copy", "exchange", "device read", "engine" or "device write".
const char* name_of(Lane lane);

// The subject that a span works on: "block 3".
struct Subject {
    const char* kind = nullptr;  // static text; null: nothing
    std::size_t number = 0;
    int device = -1;  // of this rank; -1: no device
};

// One per rank. Any thread may call add(); call the other functions only while nothing is running.
// Spans of one lane and device are disjoint or nested.
class Timeline {
public:
    using Clock = std::chrono::steady_clock;

    // Keeps up to `most_spans` spans; later ones are only counted.
    explicit Timeline(std::size_t most_spans = std::size_t{1} << 20U);

    // New spans belong to this step; new spans of devices belong to the step of the last
    // begin_update().
    void begin_step(std::int64_t step) { step_.store(step, std::memory_order_relaxed); }
    void begin_update(std::int64_t step) { update_.store(step, std::memory_order_relaxed); }

    // `name`: static text.
    void add(Lane lane, const char* name, const Subject& subject, Clock::time_point begin,
             Clock::time_point end);

    // Sets time 0. All ranks call it at the same moment, so that their times match.
    void set_origin() { origin_ = Clock::now(); }

    std::size_t spans() const;
    std::size_t left_out() const;

    // Seconds per lane that its spans last, summed over its devices.
    std::array<double, kLanes> busy_seconds() const;

    // The event array's elements in Chrome's format, separated by commas; `rank` is the process.
    std::string events(int rank) const;

private:
    struct Recorded {
        Clock::time_point begin;
        Clock::time_point end;
        std::int64_t step;
        const char* name;
        Subject subject;
        Lane lane;
    };

    std::size_t most_spans_;
    std::unique_ptr<Recorded[]> recorded_;  // NOLINT(modernize-avoid-c-arrays): not touched first
    std::atomic<std::size_t> next_{0};
    std::atomic<std::int64_t> step_{0};
    std::atomic<std::int64_t> update_{0};
    Clock::time_point origin_;
};

// Adds a span from its construction to its destruction; does nothing without a timeline.
class Span {
public:
    Span(Timeline* timeline, Lane lane, const char* name, const Subject& subject = {})
        : timeline_(timeline), name_(name), subject_(subject), lane_(lane) {
        if (timeline_ != nullptr) {
            begin_ = Timeline::Clock::now();
        }
    }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;
    ~Span() {
        if (timeline_ != nullptr) {
            timeline_->add(lane_, name_, subject_, begin_, Timeline::Clock::now());
        }
    }

private:
    Timeline* timeline_;
    const char* name_;
    Subject subject_;
    Lane lane_;
    Timeline::Clock::time_point begin_;
};

}  // namespace nearstep::trace
