// Log lines: one event each, key=value, to stderr.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nearstep {

using LogField = std::pair<std::string_view, std::string>;

// Writes "nearstep event=EVENT key=value ..." as one line; values with spaces are quoted.
void log_event(std::string_view event, const std::vector<LogField>& fields = {});

}  // namespace nearstep
