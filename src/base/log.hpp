// Log lines on stderr: one event each, with key=value fields.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nearstep {

using LogField = std::pair<std::string_view, std::string>;

// Writes the line "nearstep event=EVENT key=value ...". Quotes a value that is empty or contains a
// space, a quote or "=". After kMostNamed lines of an event a process writes no more of it, and
// says so. Any thread may call.
void log_event(std::string_view event, const std::vector<LogField>& fields = {});

// An event of one rank often happens on all. So ranks from kMostNamed on write no events from here
// on; others name them by silent_events().
void write_log_of(int rank);

// The names of events that this process has not written, ascending, each once.
std::vector<std::string> silent_events();

}  // namespace nearstep
