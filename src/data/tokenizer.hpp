// Tokenizers: what turns text into the numbers that a model reads, and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nearstep::data {

using Token = std::uint16_t;

constexpr std::size_t kBytes = 256;  // kinds of bytes

// Any bytes are a text, and the bytes of a text's tokens are the text. Immutable; any thread calls.
class Tokenizer {
public:
    virtual ~Tokenizer() = default;

    // Tokens are below it.
    virtual std::size_t vocabulary() const = 0;

    // "bytes", or "gpt2 1234567890abcdef" with a digest of all tokens and merges: texts have the
    // same tokens if the names are equal.
    virtual std::string name() const = 0;

    // True if to encode a text takes longer than to receive its tokens from another rank.
    virtual bool is_worth_sharing() const = 0;

    // The tokens of the text, found by at most so many threads; their number does not matter to
    // the result.
    virtual std::vector<Token> encode(std::span<const std::uint8_t> text, int threads) const = 0;

    // The text that a token stands for; empty for what is no token.
    virtual std::string_view bytes_of(std::int32_t token) const = 0;
};

// `setting`: data.tokenizer. "bytes", or a folder with GPT-2's encoder.json and vocab.bpe. Throws
// ConfigError.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& setting);

// Throws ConfigError unless a model with `model_vocabulary` kinds of tokens can read the tokens.
void check_vocabulary(const Tokenizer& tokenizer, const std::string& setting, int model_vocabulary);

// The text of the tokens, with '?' for each that is none of the tokenizer's.
std::string decode(const Tokenizer& tokenizer, std::span<const std::int32_t> tokens);

}  // namespace nearstep::data
