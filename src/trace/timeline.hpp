// When each part of a step was at work, as a timeline that browsers show (Chrome's trace format).
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace nearstep::trace {

// What works side by side in a step. The last three are each device's own, and so is what it
// copies to the host.
enum class Lane : std::uint8_t { compute, copy, exchange, device_read, engine, device_write };
constexpr std::size_t kLanes = 6;

// "compute", "copy", "exchange", "device read", "engine" or "device write".
const char* name_of(Lane lane);

// What a span is of: "block 3".
struct Subject {
    const char* kind = nullptr;  // static text; null: nothing to name
    std::size_t number = 0;
    int device = -1;  // of the rank; -1: no device
};

// One per rank. Any thread may add; spans of one lane and device do not overlap or lie one in the
// other. The others are called when nothing is under way.
class Timeline {
public:
    using Clock = std::chrono::steady_clock;

    // Has room for `most_spans` and leaves out, but counts, what comes after them.
    explicit Timeline(std::size_t most_spans = std::size_t{1} << 20U);

    // Spans added from now on belong to this step, those of devices to the one whose update began.
    void begin_step(std::int64_t step) { step_.store(step, std::memory_order_relaxed); }
    void begin_update(std::int64_t step) { update_.store(step, std::memory_order_relaxed); }

    // `name`: static text.
    void add(Lane lane, const char* name, const Subject& subject, Clock::time_point begin,
             Clock::time_point end);

    // Times count from here; all ranks at once, so that theirs fit together.
    void set_origin() { origin_ = Clock::now(); }

    std::size_t spans() const;
    std::size_t left_out() const;

    // Seconds that the lane was at work, summed over its devices.
    std::array<double, kLanes> busy_seconds() const;

    // The elements of the format's array of events, commas between, with the rank as the process.
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

// From construction to destruction; nothing without a timeline.
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
