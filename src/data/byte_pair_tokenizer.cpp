#include "data/byte_pair_tokenizer.hpp"

#include "base/digest.hpp"
#include "base/team.hpp"
#include "base/units.hpp"
#include "data/pretokenizer.hpp"
#include "data/word_encoder.hpp"

#include <algorithm>
#include <utility>

namespace nearstep::data {

namespace {

// A thread is not worth its start, and its own cache of words, for less.
constexpr std::size_t kLeastPart = 256 * KiB;

void encode_part(const BytePairs& pairs, std::span<const std::uint8_t> text,
                 std::vector<Token>& out) {
    WordEncoder encoder(pairs);
    out.reserve(text.size() / 3);
    while (!text.empty()) {
        const std::size_t bytes = first_word_bytes(text);
        encoder.append(text.first(bytes), out);
        text = text.subspan(bytes);
    }
}

}  // namespace

BytePairTokenizer::BytePairTokenizer(BytePairs pairs) : pairs_(std::move(pairs)) {}

std::string BytePairTokenizer::name() const { return "gpt2 " + to_hex(pairs_.digest); }

std::vector<Token> BytePairTokenizer::encode(std::span<const std::uint8_t> text,
                                             int threads) const {
    const std::size_t most =
        std::clamp<std::size_t>(static_cast<std::size_t>(std::max(threads, 1)), 1,
                                std::max<std::size_t>(text.size() / kLeastPart, 1));
    const std::vector<std::size_t> cuts = cut_between_words(text, most);
    std::vector<std::vector<Token>> parts(most);
    Team(static_cast<int>(most)).share(most, [&](std::size_t i, int) {
        encode_part(pairs_, text.subspan(cuts[i], cuts[i + 1] - cuts[i]), parts[i]);
    });
    std::vector<Token> all = std::move(parts[0]);
    for (std::size_t i = 1; i < most; ++i) {
        all.insert(all.end(), parts[i].begin(), parts[i].end());
    }
    all.shrink_to_fit();
    return all;
}

std::string_view BytePairTokenizer::bytes_of(std::int32_t token) const {
    const auto index = static_cast<std::size_t>(token);
    return token >= 0 && index < pairs_.tokens.size() ? std::string_view(pairs_.tokens[index]) : "";
}

}  // namespace nearstep::data
