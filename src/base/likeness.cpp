// Finds the known word that is most like a mistyped one. Used by config/load.cpp and
// app/commands.cpp.
#include "base/likeness.hpp"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace nearstep {

std::size_t edits_between(std::string_view from, std::string_view to) {
    constexpr std::size_t kMostLetters = 256;
    from = from.substr(0, kMostLetters);
    std::vector<std::size_t> row(to.size() + 1);
    std::iota(row.begin(), row.end(), std::size_t{0});
    for (std::size_t i = 0; i < from.size(); ++i) {
        std::size_t diagonal = std::exchange(row[0], i + 1);
        for (std::size_t j = 0; j < to.size(); ++j) {
            const std::size_t replaced = diagonal + (from[i] == to[j] ? 0 : 1);
            diagonal = row[j + 1];
            row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
        }
    }
    return row.back();
}

const std::string* nearest_word(std::string_view word, std::span<const std::string> words,
                                std::size_t most_edits) {
    const std::string* nearest = nullptr;
    std::size_t fewest = 0;
    for (const std::string& known : words) {
        const std::size_t edits = edits_between(word, known);
        if (edits <= most_edits && (nearest == nullptr || edits < fewest)) {
            nearest = &known;
            fewest = edits;
        }
    }
    return nearest;
}

}  // namespace nearstep
