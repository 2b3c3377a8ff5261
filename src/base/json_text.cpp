// Refuses JSON text that nests too deeply to be parsed. Used by the readers of JSON in model, plan
// and checkpoint.
#include "base/json_text.hpp"

#include <cstddef>

namespace nearstep {

bool is_nested_too_deeply(std::string_view json) {
    constexpr std::size_t kMost = 100;
    std::size_t depth = 0;
    bool is_in_text = false;
    for (std::size_t i = 0; i < json.size(); ++i) {
        const char sign = json[i];
        if (is_in_text) {
            i += sign == '\\' ? 1 : 0;
            is_in_text = sign != '"';
        } else if (sign == '"') {
            is_in_text = true;
        } else if (sign == '[' || sign == '{') {
            if (++depth > kMost) {
                return true;
            }
        } else if ((sign == ']' || sign == '}') && depth > 0) {
            --depth;
        }
    }
    return false;
}

}  // namespace nearstep
