#include "engine/layout_line.hpp"

namespace nearstep::engine {

std::string value_in(const std::string& layout, const std::string& key) {
    std::istringstream words(layout);
    for (std::string word; words >> word;) {
        if (word.starts_with(key + "=")) {
            return word.substr(key.size() + 1);
        }
    }
    return "";
}

}  // namespace nearstep::engine
