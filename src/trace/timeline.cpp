// Keeps the spans of a rank and writes them as JSON. Used by engine, devices and trainer.
#include "trace/timeline.hpp"

#include "base/formatted.hpp"

#include <algorithm>
#include <set>

namespace nearstep::trace {

namespace {

double microseconds(Timeline::Clock::duration time) {
    return std::chrono::duration<double, std::micro>(time).count();
}

// The display row: the rank's own lanes first, then those of each device.
std::size_t row_of(Lane lane, const Subject& subject) {
    return static_cast<std::size_t>(lane) +
           kLanes * static_cast<std::size_t>(std::max(subject.device + 1, 0));
}

std::string row_name(std::size_t row) {
    const std::string lane = name_of(static_cast<Lane>(row % kLanes));
    return row < kLanes ? lane : lane + " " + std::to_string(row / kLanes - 1);
}

std::string metadata(const char* what, int rank, std::size_t row, const std::string& name) {
    return formatted(R"({"ph":"M","name":"%s","pid":%d,"tid":%zu,"args":{"name":"%s"}})", what,
                     rank, row, name.c_str());
}

}  // namespace

const char* name_of(Lane lane) {
    constexpr std::array<const char*, kLanes> kNames = {"compute",     "copy",   "exchange",
                                                        "device read", "engine", "device write"};
    return kNames.at(static_cast<std::size_t>(lane));
}

Timeline::Timeline(std::size_t most_spans)
    : most_spans_(most_spans),
      // A vector would touch all pages at once. NOLINTNEXTLINE(modernize-avoid-c-arrays)
      recorded_(std::make_unique_for_overwrite<Recorded[]>(most_spans)),
      origin_(Clock::now()) {}

void Timeline::add(Lane lane, const char* name, const Subject& subject, Clock::time_point begin,
                   Clock::time_point end) {
    const std::size_t place = next_.fetch_add(1, std::memory_order_relaxed);
    const std::atomic<std::int64_t>& step = subject.device < 0 ? step_ : update_;
    if (place < most_spans_) {
        recorded_[place] = {.begin = begin,
                            .end = end,
                            .step = step.load(std::memory_order_relaxed),
                            .name = name,
                            .subject = subject,
                            .lane = lane};
    }
}

std::size_t Timeline::spans() const { return std::min(next_.load(), most_spans_); }

std::size_t Timeline::left_out() const { return next_.load() - spans(); }

std::array<double, kLanes> Timeline::busy_seconds() const {
    std::array<double, kLanes> seconds{};
    for (std::size_t i = 0; i < spans(); ++i) {
        const Recorded& span = recorded_[i];
        seconds.at(static_cast<std::size_t>(span.lane)) +=
            std::chrono::duration<double>(span.end - span.begin).count();
    }
    return seconds;
}

std::string Timeline::events(int rank) const {
    std::set<std::size_t> rows;
    std::string text = metadata("process_name", rank, 0, "rank " + std::to_string(rank));
    for (std::size_t i = 0; i < spans(); ++i) {
        const Recorded& span = recorded_[i];
        const std::size_t row = row_of(span.lane, span.subject);
        rows.insert(row);
        text += formatted(
            ",\n"
            R"({"ph":"X","name":"%s","cat":"%s","pid":%d,"tid":%zu,"ts":%.3f,"dur":%.3f,)"
            R"("args":{"step":%lld)",
            span.name, name_of(span.lane), rank, row, microseconds(span.begin - origin_),
            microseconds(span.end - span.begin), static_cast<long long>(span.step));
        if (span.subject.kind != nullptr) {
            text += ",\"" + std::string(span.subject.kind) +
                    "\":" + std::to_string(span.subject.number);
        }
        text += "}}";
    }
    for (const std::size_t row : rows) {
        text += ",\n" + metadata("thread_name", rank, row, row_name(row));
        text += formatted(
            ",\n"
            R"({"ph":"M","name":"thread_sort_index","pid":%d,"tid":%zu,"args":{"sort_index":%zu}})",
            rank, row, row);
    }
    return text;
}

}  // namespace nearstep::trace
