#include "data/tokenizer.hpp"

#include "base/error.hpp"
#include "data/byte_pair_tokenizer.hpp"

#include <array>

namespace nearstep::data {

namespace {

constexpr std::array<char, kBytes> kAllBytes = [] {
    std::array<char, kBytes> all{};
    for (std::size_t i = 0; i < kBytes; ++i) {
        all.at(i) = static_cast<char>(i);
    }
    return all;
}();

// Every byte is a token.
class ByteTokenizer final : public Tokenizer {
public:
    std::size_t vocabulary() const override { return kBytes; }
    std::string name() const override { return "bytes"; }
    bool is_worth_sharing() const override { return false; }

    std::vector<Token> encode(std::span<const std::uint8_t> text, int /*threads*/) const override {
        return {text.begin(), text.end()};
    }

    std::string_view bytes_of(std::int32_t token) const override {
        const auto index = static_cast<std::size_t>(token);
        return token >= 0 && index < kBytes ? std::string_view(&kAllBytes.at(index), 1) : "";
    }
};

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& setting) {
    if (setting == "bytes") {
        return std::make_unique<ByteTokenizer>();
    }
    return std::make_unique<BytePairTokenizer>(read_byte_pairs(setting));
}

void check_vocabulary(const Tokenizer& tokenizer, const std::string& setting,
                      int model_vocabulary) {
    if (static_cast<std::size_t>(model_vocabulary) < tokenizer.vocabulary()) {
        throw ConfigError(text("model.vocabulary = ", model_vocabulary, " does not hold the ",
                               tokenizer.vocabulary(), " tokens of data.tokenizer = \"", setting,
                               "\": set model.vocabulary to ", tokenizer.vocabulary(),
                               " or more."));
    }
}

std::string decode(const Tokenizer& tokenizer, std::span<const std::int32_t> tokens) {
    std::string out;
    for (const std::int32_t token : tokens) {
        const std::string_view bytes = tokenizer.bytes_of(token);
        out += bytes.empty() ? "?" : bytes;
    }
    return out;
}

}  // namespace nearstep::data
