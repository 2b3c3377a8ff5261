// Byte pairs merged inside one word after another.
#pragma once

#include "data/byte_pair_tokenizer.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace nearstep::data {

// Keeps the tokens of words that it has seen. For one thread.
class WordEncoder {
public:
    // `pairs` outlives it, and so does the text of every word that append() is given.
    explicit WordEncoder(const BytePairs& pairs) : pairs_(pairs) {}

    // Appends the word's tokens to `out`. Takes n log n for a word of n bytes.
    void append(std::span<const std::uint8_t> word, std::vector<Token>& out);

private:
    static constexpr std::uint32_t kNone = UINT32_MAX;

    // A token of the word with its neighbours; a merge keeps the left one.
    struct Node {
        Token token = 0;
        bool is_gone = false;
        std::uint32_t previous = kNone;
        std::uint32_t next = kNone;
    };
    // A pair that could be merged; out of date once one of its nodes has changed.
    struct Candidate {
        Merge merge;
        std::uint32_t left_node = 0;
        Token left = 0;
        Token right = 0;
    };
    // Tokens of a known word, in known_.
    struct Place {
        std::size_t begin = 0;
        std::size_t count = 0;
    };

    void merge_pairs(std::span<const std::uint8_t> word, std::vector<Token>& out);
    void consider(std::uint32_t left_node);
    bool is_up_to_date(const Candidate& candidate) const;
    // True if `a` is merged behind `b`: lower ranks first, then from left to right.
    static bool is_behind(const Candidate& a, const Candidate& b);

    const BytePairs& pairs_;
    std::unordered_map<std::string_view, Place> places_;
    std::vector<Token> known_;
    std::vector<Node> nodes_;
    std::vector<Candidate> candidates_;  // a heap
};

}  // namespace nearstep::data
