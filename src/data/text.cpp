// Reads a run's text or token files. Used by the trainer, and by checks of a host.
#include "data/text.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/folder_tree.hpp"
#include "base/random.hpp"
#include "data/token_file.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace nearstep::data {

namespace {

namespace fs = std::filesystem;

using Bytes = std::vector<std::uint8_t>;

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

bool looks_like_text(std::span<const std::uint8_t> bytes) {
    constexpr std::size_t kProbeBytes = 4096;
    const auto probe = bytes.first(std::min(bytes.size(), kProbeBytes));
    return std::ranges::find(probe, std::uint8_t{0}) == probe.end();
}

Bytes read_file(const fs::path& path) {
    const char* const advice = "check that it may be read.";
    std::error_code error;
    const std::uintmax_t size = fs::file_size(path, error);
    if (error) {  // also of a pipe, which would wait for its writer
        throw_path_error(text("The text file ", path, " cannot be opened"), error.value(), advice);
    }
    errno = 0;
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        throw_path_error(text("The text file ", path, " cannot be opened"),
                         errno != 0 ? errno : EIO, advice);
    }
    Bytes bytes(size);
    // iostreams read char; the bytes are the same.
    file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(size));
    if (static_cast<std::uintmax_t>(file.gcount()) != size) {
        throw ConfigError(text("The text file ", path, " gave ", file.gcount(), " of its ", size,
                               " bytes: check the file and its disk."));
    }
    return bytes;
}

std::vector<fs::path> files_below(const fs::path& folder) {
    std::vector<fs::path> files;
    try {
        walk_tree(
            folder, [](const fs::path& below) { return !is_hidden(below); },
            [&](const fs::directory_entry& entry) {
                if (!is_hidden(entry.path()) && entry.is_regular_file()) {
                    files.push_back(entry.path());
                }
            });
    } catch (const fs::filesystem_error& error) {
        throw_path_error(text("The data folder ", folder, " cannot be read at ", error.path1()),
                         error.code().value(), "check its permissions.");
    }
    std::ranges::sort(files);
    return files;
}

// The places where a row and its last target fit.
std::uint64_t count_places(const Tokens& text, int context) {
    expects(context > 0 && text.size() > static_cast<std::size_t>(context),
            "the text holds more tokens than one row");
    return text.size() - static_cast<std::size_t>(context);
}

void copy_row(const Tokens& text, std::size_t start, std::span<std::int32_t> tokens,
              std::span<std::int32_t> targets) {
    text.copy(start, tokens);
    text.copy(start + 1, targets);
}

void check_length(const Tokens& tokens, const char* which, int context, const char* remedy) {
    if (tokens.size() <= static_cast<std::size_t>(context)) {
        throw ConfigError(text("The ", which, " text has ", tokens.size(),
                               tokens.are_bytes() ? " bytes" : " tokens",
                               " and a row of model.context ", context, " needs ", context + 1,
                               ": ", remedy, " or lower model.context."));
    }
}

// How many of `count` tokens are trained on where the last share is held out.
std::size_t kept_of(std::size_t count, double valid_share) {
    const double held_out = static_cast<double>(count) * valid_share;
    return count - std::min(count, static_cast<std::size_t>(held_out));
}

std::string digest_of(const Tokens& tokens) { return to_hex(tokens.digest()); }

// A digest of the file's, so that nothing need be read.
std::string digest_of(const TokenFile& file, std::size_t begin, std::size_t end) {
    const std::array<std::uint64_t, 3> part = {file.tokens_digest(), begin, end};
    return to_hex(xxh3(std::as_bytes(std::span(part))));
}

// Throws ConfigError for a token that the vocabulary does not have, among up to 4,096 pieces that
// are spread over the text: all of one with 4 million tokens, and a moment's work for any other.
void look_at_tokens(const Tokens& tokens) {
    constexpr std::size_t kPieces = 4096;
    constexpr std::size_t kPiece = 1024;
    std::vector<std::int32_t> piece(std::min(kPiece, tokens.size()));
    const std::size_t last = tokens.size() - piece.size();  // place of the last piece
    const std::size_t pieces = std::min(kPieces, (tokens.size() + kPiece - 1) / kPiece);
    for (std::size_t i = 0; i + 1 < pieces; ++i) {
        tokens.copy(last * i / (pieces - 1), piece);
    }
    tokens.copy(last, piece);
}

Corpus map_corpus(const config::DataSettings& settings) {
    const TokenFile train = open_token_file(settings.train, "data.train");
    look_at_tokens(train.tokens());
    const std::size_t all = train.size();
    if (settings.valid.empty()) {
        const std::size_t kept = kept_of(all, settings.valid_share);
        return {.tokenizer = make_tokenizer(train),
                .train = train.tokens().part(0, kept),
                .valid = train.tokens().part(kept, all),
                .train_digest = digest_of(train, 0, kept),
                .valid_digest = digest_of(train, kept, all)};
    }
    const TokenFile valid = open_token_file(settings.valid, "data.valid");
    if (valid.tokenizer_digest() != train.tokenizer_digest()) {
        throw ConfigError(text("The token files ", train.path(), " and ", valid.path(),
                               " are of different tokenizers: make one of them again with "
                               "nearstep-tokenize."));
    }
    look_at_tokens(valid.tokens());
    return {.tokenizer = make_tokenizer(train),
            .train = train.tokens(),
            .valid = valid.tokens(),
            .train_digest = digest_of(train, 0, all),
            .valid_digest = digest_of(valid, 0, valid.size())};
}

}  // namespace

Bytes read_text(const std::vector<std::string>& paths) {
    Bytes all;
    for (const std::string& path : paths) {
        std::error_code error;
        const fs::file_status status = fs::status(path, error);
        if (!is_present(path)) {
            throw ConfigError(text("The data path \"", path,
                                   "\" does not exist: correct data.train or "
                                   "data.valid."));
        }
        const bool is_folder = fs::is_directory(status);
        for (const fs::path& file : is_folder ? files_below(path) : std::vector<fs::path>{path}) {
            const Bytes bytes = read_file(file);
            if (!is_folder || looks_like_text(bytes)) {
                all.insert(all.end(), bytes.begin(), bytes.end());
            }
        }
    }
    if (all.empty()) {
        std::string names;
        for (const std::string& path : paths) {
            names += text(names.empty() ? "" : ", ", '"', path, '"');
        }
        throw ConfigError(text("No text was found in ",
                               names.empty() ? "an empty list of paths" : names,
                               ": name files or folders with text in data.train."));
    }
    return all;
}

Corpus read_corpus(const config::DataSettings& settings) {
    if (names_token_files(settings)) {
        return map_corpus(settings);
    }
    Corpus corpus;
    corpus.tokenizer = make_tokenizer();
    corpus.train = Tokens(read_text(settings.train));
    if (settings.valid.empty()) {
        const Tokens all = corpus.train;
        const std::size_t kept = kept_of(all.size(), settings.valid_share);
        corpus.train = all.part(0, kept);
        corpus.valid = all.part(kept, all.size());
    } else {
        corpus.valid = Tokens(read_text(settings.valid));
    }
    corpus.train_digest = digest_of(corpus.train);
    corpus.valid_digest = digest_of(corpus.valid);
    return corpus;
}

void check_lengths(const Corpus& corpus, const config::DataSettings& settings, int context) {
    check_length(corpus.train, "training", context, "give more text in data.train");
    check_length(corpus.valid, "held-out", context,
                 settings.valid.empty() ? "raise data.valid_share, set data.valid"
                                        : "give more text in data.valid");
}

void draw_rows(const Tokens& text, std::uint64_t seed, std::int64_t step, std::int64_t first_row,
               int rows, int context, std::span<std::int32_t> tokens,
               std::span<std::int32_t> targets) {
    const std::uint64_t places = count_places(text, context);
    const auto columns = static_cast<std::size_t>(context);
    expects(rows >= 0 && tokens.size() == static_cast<std::size_t>(rows) * columns &&
                targets.size() == tokens.size(),
            "tokens and targets hold rows x context elements");
    for (std::size_t i = 0; i < static_cast<std::size_t>(rows); ++i) {
        const std::uint64_t row = static_cast<std::uint64_t>(first_row) + i;
        const std::uint64_t start =
            random_bits(seed, static_cast<std::uint64_t>(step), row) % places;
        copy_row(text, start, tokens.subspan(i * columns, columns),
                 targets.subspan(i * columns, columns));
    }
}

void evaluation_row(const Tokens& text, std::int64_t row, std::int64_t rows, int context,
                    std::span<std::int32_t> tokens, std::span<std::int32_t> targets) {
    const std::uint64_t places = count_places(text, context);
    expects(0 <= row && row < rows, "row is one of the evaluation's rows");
    expects(tokens.size() == static_cast<std::size_t>(context) && targets.size() == tokens.size(),
            "tokens and targets hold one row");
    const std::uint64_t start =
        static_cast<std::uint64_t>(row) * places / static_cast<std::uint64_t>(rows);
    copy_row(text, start, tokens, targets);
}

}  // namespace nearstep::data
