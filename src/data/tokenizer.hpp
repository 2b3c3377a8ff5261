// Tokenizers convert between text and the token numbers that a model reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nearstep::data {

constexpr std::size_t kBytes = 256;  // kinds of bytes

// Immutable; any thread may call it.
class Tokenizer {
public:
    virtual ~Tokenizer() = default;

    // All tokens are below it.
    virtual std::size_t vocabulary() const = 0;

    // "bytes", or "file 1234567890abcdef" with the digest of a token file's tokenizer. Tokenizers
    // with equal names give equal tokens.
    virtual std::string name() const = 0;

    // The token's text; empty for a number that is not a token.
    virtual std::string_view bytes_of(std::int32_t token) const = 0;

    // Encodes text greedily with the longest token that fits. The original tokenizer may choose
    // other tokens. Throws ConfigError if no token fits.
    virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
};

class TokenFile;

// The tokenizer of text, whose bytes are tokens, and that of a token file.
std::shared_ptr<const Tokenizer> make_tokenizer();
std::shared_ptr<const Tokenizer> make_tokenizer(const TokenFile& file);

// Throws ConfigError if the tokenizer's vocabulary is larger than `model_vocabulary`.
void check_vocabulary(const Tokenizer& tokenizer, int model_vocabulary);

// The text of the tokens, with '?' for each number that is not a token.
std::string decode(const Tokenizer& tokenizer, std::span<const std::int32_t> tokens);

}  // namespace nearstep::data
