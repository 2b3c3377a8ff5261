// Reads the machine's CPU, memory and kernel settings from /proc and /sys. Called by doctor.cpp.
#include "doctor/system.hpp"

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

namespace nearstep::doctor {

namespace {

std::string trimmed(const std::string& text) {
    constexpr const char* kBlanks = " \t\n";
    const std::size_t begin = text.find_first_not_of(kBlanks);
    return begin == std::string::npos
               ? ""
               : text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

}  // namespace

std::string read_whole(const std::filesystem::path& path) {
    std::ifstream file(path);
    std::ostringstream words;
    words << file.rdbuf();  // unlike an iterator, it stops where a read fails
    return words.str();
}

std::string value_of(const std::string& table, const std::string& name) {
    std::istringstream lines(table);
    for (std::string line; std::getline(lines, line);) {
        const std::size_t colon = line.find(':');
        if (colon != std::string::npos && trimmed(line.substr(0, colon)) == name) {
            return trimmed(line.substr(colon + 1));
        }
    }
    return "";
}

std::vector<std::string> find_features(const std::string& cpuinfo,
                                       const std::vector<std::string>& wanted) {
    std::istringstream flags(value_of(cpuinfo, "flags") + " " + value_of(cpuinfo, "Features"));
    const std::set<std::string> all{std::istream_iterator<std::string>(flags), {}};
    std::vector<std::string> found;
    std::ranges::copy_if(wanted, std::back_inserter(found),
                         [&](const std::string& word) { return all.count(word) > 0; });
    return found;
}

std::string chosen_word(const std::string& choices) {
    const std::size_t open = choices.find('[');
    const std::size_t close = choices.find(']', open == std::string::npos ? 0 : open);
    return open == std::string::npos || close == std::string::npos
               ? ""
               : choices.substr(open + 1, close - open - 1);
}

}  // namespace nearstep::doctor
