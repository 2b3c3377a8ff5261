// Reads what Linux reports about the machine through /proc and /sys.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace nearstep::doctor {

// Reads a file of /proc or /sys, which has no size, to its end. Empty if there is none, or if the
// kernel refuses to say.
std::string read_whole(const std::filesystem::path& path);

// The text after "name :" in the first line of `table` with that name.
std::string value_of(const std::string& table, const std::string& name);

// The words of `wanted` found in the line "flags" (x86) or "Features" (Arm) of /proc/cpuinfo, in
// the order of `wanted`.
std::vector<std::string> find_features(const std::string& cpuinfo,
                                       const std::vector<std::string>& wanted);

// The word in brackets: "madvise" in "always [madvise] never"; empty if there is none.
std::string chosen_word(const std::string& choices);

}  // namespace nearstep::doctor
