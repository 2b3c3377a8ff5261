// How GPT-2 cuts a text into words, before byte pairs are merged inside each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace nearstep::data {

// Bytes of the first word of a text that is not empty, by GPT-2's expression
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// (https://github.com/openai/gpt-2, src/encoder.py). The words of a text, one after another, are
// the text.
std::size_t first_word_bytes(std::span<const std::uint8_t> text);

// parts + 1 places, from 0 to the text's end, that cut it into parts of about the same size, some
// perhaps empty, so that the words of the parts are the words of the whole: in front of a space or
// the end of a line, behind a visible ASCII character.
std::vector<std::size_t> cut_between_words(std::span<const std::uint8_t> text, std::size_t parts);

}  // namespace nearstep::data
