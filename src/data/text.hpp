// Reads text and draws batches of its tokens.
#pragma once

#include "config/run_settings.hpp"
#include "data/tokenizer.hpp"
#include "data/tokens.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace nearstep::data {

struct PlainText {
    std::vector<std::uint8_t> bytes;
    // Sentences on what is named or lies in a folder and is no text, with its amount.
    std::vector<std::string> notes;
};

// Concatenates the text of files and folders: paths in the given order, and the files of a folder,
// recursively, in path order. The byte order mark of UTF-8 is no part of a file's text. In a folder
// it skips hidden files, and leaves out what is no text: compressed files, UTF-16, files with a NUL
// byte in the first 4 KiB, links to folders and links that lead nowhere. `key`: of the config, for
// notes. Throws ConfigError if a path is missing or cannot be read, or if there is no text.
PlainText read_text(const std::vector<std::string>& paths, const char* key = "data.train");

struct Corpus {
    std::shared_ptr<const Tokenizer> tokenizer;
    Tokens train;
    Tokens valid;
    // Equal digests mean equal tokens.
    std::string train_digest;
    std::string valid_digest;
    std::vector<std::string> notes = {};  // see PlainText
};

// Reads train and valid, each from text, whose bytes are tokens, or from a token file
// (token_file.hpp). Without valid paths it holds out the last valid_share of train. Throws
// ConfigError.
Corpus read_corpus(const config::DataSettings& settings);

// Throws ConfigError unless both parts have more than `context` tokens.
void check_lengths(const Corpus& corpus, const config::DataSettings& settings, int context);

// Draws rows of `context` tokens with their targets (the next tokens). The start of a row depends
// only on (seed, step, row), so the global batch does not depend on the number of ranks. tokens and
// targets: rows x context, row-major.
void draw_rows(const Tokens& text, std::uint64_t seed, std::int64_t step, std::int64_t first_row,
               int rows, int context, std::span<std::int32_t> tokens,
               std::span<std::int32_t> targets);

// Reads row `row` of the evaluation, whose `rows` rows are spread evenly over the text.
void evaluation_row(const Tokens& text, std::int64_t row, std::int64_t rows, int context,
                    std::span<std::int32_t> tokens, std::span<std::int32_t> targets);

}  // namespace nearstep::data
