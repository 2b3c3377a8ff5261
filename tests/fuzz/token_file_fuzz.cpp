// Any bytes as a token file: an accepted file has only tokens below its vocabulary, or reading it
// fails with a message.
#include "base/error.hpp"
#include "data/small_token_file.hpp"
#include "data/text.hpp"
#include "data/token_file.hpp"
#include "data/tokenizer.hpp"
#include "fuzz.hpp"

#include <numeric>

namespace nearstep::fuzz {

std::vector<std::string> seeds() {
    data::SmallTokenFile wide;
    wide.width = 4;
    data::SmallTokenFile beyond;
    beyond.tokens.at(3) = 60000;
    return {data::SmallTokenFile().bytes(), wide.bytes(), beyond.bytes()};
}

void read(Bytes bytes) {
    const std::string path = scratch_folder() + "/tokens";
    write_file(path, std::string(bytes.begin(), bytes.end()));
    const config::DataSettings settings{.train = {path}, .valid = {}};
    if (!data::TokenFile::is_one(path)) {
        return;
    }
    const data::Corpus corpus = data::read_corpus(settings);
    std::vector<std::int32_t> tokens(corpus.train.size());
    corpus.train.copy(0, tokens);
    for (const std::int32_t token : tokens) {
        require(token >= 0 && static_cast<std::size_t>(token) < corpus.tokenizer->vocabulary(),
                "tokens are below the vocabulary");
        require(corpus.tokenizer->bytes_of(token).size() <= bytes.size(), "texts are in the file");
    }
}

}  // namespace nearstep::fuzz
