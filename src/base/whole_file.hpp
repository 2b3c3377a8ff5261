// Writes result files whole.
#pragma once

#include <string>

namespace nearstep {

// Throws ConfigError unless write_whole_file can write to `path`. Called before a run, so that its
// result is not lost.
void check_writable(const std::string& path);

// Writes `text` to `path` atomically. Throws ConfigError.
void write_whole_file(const std::string& path, const std::string& text);

}  // namespace nearstep
