// GPT-2's byte-level byte-pair encoding.
#pragma once

#include "data/tokenizer.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace nearstep::data {

// Two neighbouring tokens become one; those of the lowest rank first.
struct Merge {
    std::uint32_t rank = 0;
    Token merged = 0;
};

// What the two files of a tokenizer say.
struct BytePairs {
    std::vector<std::string> tokens;   // bytes of each
    std::vector<Token> token_of_byte;  // 256
    std::unordered_map<std::uint32_t, Merge> merges;
    std::uint64_t digest = 0;  // of tokens and merges, however the files are laid out

    static std::uint32_t key_of(Token left, Token right) {
        return std::uint32_t{left} << 16U | right;
    }
    std::optional<Merge> find(Token left, Token right) const {
        const auto found = merges.find(key_of(left, right));
        return found == merges.end() ? std::nullopt : std::optional(found->second);
    }
};

// Reads `folder`/encoder.json and `folder`/vocab.bpe, as published with GPT-2. Throws ConfigError
// if one is missing or makes no sense, or with more than 65,536 tokens.
BytePairs read_byte_pairs(const std::string& folder);

// Like GPT-2's own: special tokens, as <|endoftext|>, are text when they stand in a text.
class BytePairTokenizer final : public Tokenizer {
public:
    explicit BytePairTokenizer(BytePairs pairs);

    std::size_t vocabulary() const override { return pairs_.tokens.size(); }
    std::string name() const override;
    bool is_worth_sharing() const override { return true; }
    std::vector<Token> encode(std::span<const std::uint8_t> text, int threads) const override;
    std::string_view bytes_of(std::int32_t token) const override;

private:
    BytePairs pairs_;
};

}  // namespace nearstep::data
