// Text, and the batches that are drawn from its tokens.
#pragma once

#include "config/run.hpp"
#include "data/tokens.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace nearstep::data {

// All text of the files and folders, one after another: files in the order given, folders
// recursively in the order of their paths. In a folder, hidden files and files that do not look
// like text (a NUL byte in the first 4 KiB) are passed over. Throws ConfigError if a path is
// missing, cannot be read, or no text is found.
std::vector<std::uint8_t> read_text(const std::vector<std::string>& paths);

struct Corpus {
    Tokens train;
    Tokens valid;
    // Equal only for the same tokens.
    std::string train_digest;
    std::string valid_digest;
};

// Text, whose bytes are tokens, or a token file (token_file.hpp) in train and in valid. Without
// valid paths the last valid_share of train is held out. Throws ConfigError.
Corpus read_corpus(const config::DataSettings& settings);

// Throws ConfigError unless both parts hold more than `context` tokens.
void check_lengths(const Corpus& corpus, const config::DataSettings& settings, int context);

// Rows of `context` tokens with their targets (the next token). Row `row` of step `step` starts at
// a place drawn from (seed, step, row) alone, so any number of ranks sees the same global batch.
// tokens and targets: rows x context, row-major.
void draw_rows(const Tokens& text, std::uint64_t seed, std::int64_t step, std::int64_t first_row,
               int rows, int context, std::span<std::int32_t> tokens,
               std::span<std::int32_t> targets);

// Row `row` of the evaluation: `rows` rows spread evenly over the text, the same every time.
void evaluation_row(const Tokens& text, std::int64_t row, std::int64_t rows, int context,
                    std::span<std::int32_t> tokens, std::span<std::int32_t> targets);

}  // namespace nearstep::data
