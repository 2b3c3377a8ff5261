// Tokenizers: what turns the numbers that a model reads into text.
#pragma once

#include "config/run.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nearstep::data {

constexpr std::size_t kBytes = 256;  // kinds of bytes

// Immutable; any thread calls.
class Tokenizer {
public:
    virtual ~Tokenizer() = default;

    // Tokens are below it.
    virtual std::size_t vocabulary() const = 0;

    // "bytes", or "file 1234567890abcdef" with the digest of a token file's tokenizer: texts have
    // the same tokens if the names are equal.
    virtual std::string name() const = 0;

    // The text that a token stands for; empty for what is no token.
    virtual std::string_view bytes_of(std::int32_t token) const = 0;

    // Tokens whose text this is, each the longest that fits: a tokenizer of its own may choose
    // others. Throws ConfigError where none fits.
    virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
};

// Of data.train: bytes, or what a token file says. Throws ConfigError.
std::unique_ptr<Tokenizer> make_tokenizer(const config::DataSettings& settings);

// Throws ConfigError unless a model with `model_vocabulary` kinds of tokens can read the tokens.
void check_vocabulary(const Tokenizer& tokenizer, int model_vocabulary);

// The text of the tokens, with '?' for each that is none of the tokenizer's.
std::string decode(const Tokenizer& tokenizer, std::span<const std::int32_t> tokens);

}  // namespace nearstep::data
