// The two files of a byte-pair tokenizer, then a text by what they say.
#include "base/error.hpp"
#include "data/byte_pair_tokenizer.hpp"
#include "data/small_tokenizer.hpp"
#include "fuzz.hpp"

namespace nearstep::fuzz {

namespace {

constexpr const char* kMerges = "#version: 0.2\na b\na a\nb c\nab c\naa aa\n\xC4\xA0 a\n";
constexpr std::string_view kText = "abc aaaa  don't aabc 123 aaaaaaaab\n\xC3\xA4 \xFF a";

}  // namespace

std::vector<std::string> seeds() {
    const std::string entries = data::small_entries();
    const auto with = [&](const std::string& value) {
        return Output().part(entries + ", \"x\": " + value + "}").part(kMerges);
    };
    return {Output().part(entries + "}").part(kMerges),
            with(std::string(20000, '[') + std::string(20000, ']')),
            with("-1"),
            with("1e99"),
            with("[1, {\"a\": \"b\"}]"),
            Output().part("{}").part("a b\n")};
}

void read(Bytes bytes) {
    Input input(bytes);
    const std::string& folder = scratch_folder();
    write_file(folder + "/encoder.json", input.part());
    write_file(folder + "/vocab.bpe", input.part());
    const data::BytePairTokenizer tokenizer(data::read_byte_pairs(folder));
    const Bytes text(reinterpret_cast<const std::uint8_t*>(kText.data()), kText.size());
    for (const data::Token token : tokenizer.encode(text, 1)) {
        require(token < tokenizer.vocabulary(), "tokens are below the vocabulary");
        require(!tokenizer.bytes_of(token).empty(), "a token stands for a text");
    }
}

}  // namespace nearstep::fuzz
