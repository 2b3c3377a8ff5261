// Finds the known word that a mistyped one resembles: for "did you mean".
#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <string_view>

namespace nearstep {

// Levenshtein distance: insertions, removals and replacements of letters that turn `from` into
// `to`. Texts longer than any word are cut off, because comparing them would take seconds.
std::size_t edits_between(std::string_view from, std::string_view to);

// The first of the words that the fewest edits lead to; null if all need more than `most_edits`.
const std::string* nearest_word(std::string_view word, std::span<const std::string> words,
                                std::size_t most_edits = std::numeric_limits<std::size_t>::max());

}  // namespace nearstep
