// Turns text into tokens and back. Used by text.cpp and the trainer.
#include "data/tokenizer.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"
#include "data/token_file.hpp"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

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
    std::string_view bytes_of(std::int32_t token) const override {
        const auto index = static_cast<std::size_t>(token);
        return token >= 0 && index < kBytes ? std::string_view(&kAllBytes.at(index), 1) : "";
    }

    std::vector<std::int32_t> encode(std::string_view text) const override {
        std::vector<std::int32_t> tokens;
        for (const char c : text) {
            tokens.push_back(static_cast<std::uint8_t>(c));
        }
        return tokens;
    }
};

class FileTokenizer final : public Tokenizer {
public:
    explicit FileTokenizer(TokenFile file) : file_(std::move(file)) {}

    std::size_t vocabulary() const override { return file_.vocabulary(); }
    std::string name() const override { return "file " + to_hex(file_.tokenizer_digest()); }

    std::string_view bytes_of(std::int32_t token) const override {
        const auto index = static_cast<std::size_t>(token);
        if (token < 0 || index >= file_.vocabulary()) {
            return "";
        }
        const std::uint64_t begin = index == 0 ? 0 : file_.text_end(index - 1);
        return file_.texts().substr(begin, file_.text_end(index) - begin);
    }

    std::vector<std::int32_t> encode(std::string_view given) const override {
        std::unordered_map<std::string_view, std::int32_t> tokens_of;
        std::size_t longest = 0;
        for (std::size_t i = 0; i < file_.vocabulary(); ++i) {
            const auto token = static_cast<std::int32_t>(i);
            tokens_of.try_emplace(bytes_of(token), token);
            longest = std::max(longest, bytes_of(token).size());
        }
        std::vector<std::int32_t> tokens;
        for (std::string_view left = given; !left.empty();) {
            std::size_t size = std::min(longest, left.size());
            while (size > 0 && !tokens_of.contains(left.substr(0, size))) {
                --size;
            }
            if (size == 0) {
                throw ConfigError(text("The text \"", left.substr(0, 20), "\" begins with what ",
                                       "the vocabulary of ", file_.path(),
                                       " does not have: give another --prompt."));
            }
            tokens.push_back(tokens_of.at(left.substr(0, size)));
            left.remove_prefix(size);
        }
        return tokens;
    }

private:
    TokenFile file_;
};

}  // namespace

std::shared_ptr<const Tokenizer> make_tokenizer() { return std::make_shared<ByteTokenizer>(); }

std::shared_ptr<const Tokenizer> make_tokenizer(const TokenFile& file) {
    return std::make_shared<FileTokenizer>(file);
}

void check_vocabulary(const Tokenizer& tokenizer, int model_vocabulary) {
    if (static_cast<std::size_t>(model_vocabulary) < tokenizer.vocabulary()) {
        throw ConfigError(text("model.vocabulary = ", model_vocabulary, " does not hold the ",
                               tokenizer.vocabulary(),
                               " kinds of tokens of data.train: set model.vocabulary to ",
                               tokenizer.vocabulary(), " or more."));
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
