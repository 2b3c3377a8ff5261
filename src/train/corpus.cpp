#include "train/corpus.hpp"

#include "base/cpus.hpp"
#include "base/digest.hpp"
#include "base/error.hpp"
#include "data/pretokenizer.hpp"
#include "mpi/topology.hpp"

#include <algorithm>
#include <span>
#include <string>

namespace nearstep::train {

namespace {

using data::Token;

// The CPUs that this process may use, shared with the ranks beside it.
int threads_of_rank(const mpi::Communicator& world) {
    const std::size_t ranks = mpi::discover_nodes(world).ranks_beside(world.rank()).size();
    return std::max(1, static_cast<int>(usable_cpus().size() / ranks));
}

void check_equal_texts(const mpi::Communicator& world, const data::CorpusText& text_read) {
    const std::string mine = to_hex(xxh3(std::as_bytes(std::span(text_read.train)))) +
                             to_hex(xxh3(std::as_bytes(std::span(text_read.valid))));
    const std::string first = world.broadcast(mine, 0);
    world.together([&] {
        if (mine != first) {
            throw ConfigError(text("Rank ", world.rank(),
                                   " reads another text than rank 0: give all nodes the same "
                                   "files in data.train and data.valid."));
        }
    });
}

// Each rank encodes the part between two cuts; all get all parts, in order.
std::vector<Token> encode_together(const mpi::Communicator& world, const data::Tokenizer& tokenizer,
                                   std::span<const std::uint8_t> bytes, int threads) {
    const auto ranks = static_cast<std::size_t>(world.size());
    const auto rank = static_cast<std::size_t>(world.rank());
    const std::vector<std::size_t> cuts = data::cut_between_words(bytes, ranks);
    const std::vector<Token> mine =
        tokenizer.encode(bytes.subspan(cuts[rank], cuts[rank + 1] - cuts[rank]), threads);
    std::vector<std::uint64_t> counts(ranks, 0);
    counts[rank] = mine.size();
    world.sum(std::span(counts));
    std::vector<Token> all;
    for (std::size_t root = 0; root < ranks; ++root) {
        const std::size_t begin = all.size();
        all.resize(begin + counts[root]);
        const std::span<Token> part = std::span(all).subspan(begin);
        if (root == rank) {
            std::copy(mine.begin(), mine.end(), part.begin());
        }
        // One message carries less than 2 GiB.
        constexpr std::size_t kMostTokens = std::size_t{1} << 28U;
        for (std::size_t at = 0; at < part.size(); at += kMostTokens) {
            const auto piece = part.subspan(at, std::min(kMostTokens, part.size() - at));
            world.start_broadcast(std::as_writable_bytes(piece), static_cast<int>(root)).wait();
        }
    }
    return all;
}

}  // namespace

std::unique_ptr<data::Tokenizer> make_tokenizer(const mpi::Communicator& world,
                                                const config::Run& run) {
    std::unique_ptr<data::Tokenizer> tokenizer;
    world.together([&] {
        tokenizer = data::make_tokenizer(run.data.tokenizer);
        data::check_vocabulary(*tokenizer, run.data.tokenizer, run.model.vocabulary);
    });
    return tokenizer;
}

data::Corpus load_corpus(const mpi::Communicator& world, const config::Run& run,
                         const data::Tokenizer& tokenizer) {
    data::CorpusText read;
    world.together([&] { read = data::read_corpus(run.data); });
    check_equal_texts(world, read);
    const int threads = threads_of_rank(world);
    data::Corpus corpus;
    if (tokenizer.is_worth_sharing() && world.size() > 1) {
        corpus.train = encode_together(world, tokenizer, read.train, threads);
        corpus.valid = encode_together(world, tokenizer, read.valid, threads);
    } else {
        corpus.train = tokenizer.encode(read.train, threads);
        corpus.valid = tokenizer.encode(read.valid, threads);
    }
    world.together([&] { data::check_lengths(corpus, run.data, run.model.context); });
    return corpus;
}

}  // namespace nearstep::train
