// Any bytes as a text, cut into words and tokens: the bytes of the tokens are the text.
#include "data/byte_pair_tokenizer.hpp"
#include "data/pretokenizer.hpp"
#include "data/small_tokenizer.hpp"
#include "fuzz.hpp"

namespace nearstep::fuzz {

namespace {

const data::Tokenizer& tokenizer() {
    static const std::unique_ptr<data::Tokenizer> made = [] {
        data::write_small_tokenizer(scratch_folder());
        return data::make_tokenizer(scratch_folder());
    }();
    return *made;
}

}  // namespace

std::vector<std::string> seeds() {
    return {"abc aaaa  don't\n\n aabc 123", "\xC3\xA4\xE2\x82\xAC \xF0\x9F\x98\x80 \xFF\xC3",
            "'s'll \t\r\n"};
}

void read(Bytes bytes) {
    const std::vector<data::Token> tokens = tokenizer().encode(bytes, 1);
    const std::string text =
        data::decode(tokenizer(), std::vector<std::int32_t>(tokens.begin(), tokens.end()));
    require(text == std::string(bytes.begin(), bytes.end()), "tokens are the text");
    for (const std::size_t parts : {1U, 3U}) {
        const std::vector<std::size_t> cuts = data::cut_between_words(bytes, parts);
        require(cuts.size() == parts + 1 && cuts.front() == 0 && cuts.back() == bytes.size(),
                "cuts go from the text's start to its end");
        for (std::size_t i = 0; i < parts; ++i) {
            require(cuts[i] <= cuts[i + 1], "cuts ascend");
        }
    }
}

}  // namespace nearstep::fuzz
