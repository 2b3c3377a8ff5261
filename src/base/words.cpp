// Lists the words of enumerations and refuses unknown words. Called by words.hpp's templates.
#include "base/words.hpp"

#include "base/error.hpp"

namespace nearstep {

std::string listed(std::span<const char* const> words) {
    std::string out;
    for (std::size_t i = 0; i < words.size(); ++i) {
        const bool is_last = i + 1 == words.size();
        out += text(i == 0 ? "" : is_last ? " or " : ", ", '"', words[i], '"');
    }
    return out;
}

void refuse_word(const char* what, std::string_view word, std::span<const char* const> words) {
    throw ConfigError(text("The ", what, " \"", word, "\" is not known: use ", listed(words), "."));
}

}  // namespace nearstep
