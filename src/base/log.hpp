// Log lines on stderr: one event each, with key=value fields.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nearstep {

using LogField = std::pair<std::string_view, std::string>;

// Writes the line "nearstep event=EVENT key=value ...". Quotes a value that is empty or contains a
// space, a quote or "=".
void log_event(std::string_view event, const std::vector<LogField>& fields = {});

}  // namespace nearstep
