// Reads a run's text or token files. Used by the trainer, and by checks of a host.
#include "data/text.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/folder_tree.hpp"
#include "base/input_file.hpp"
#include "base/random.hpp"
#include "base/units.hpp"
#include "base/wording.hpp"
#include "data/token_file.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

namespace nearstep::data {

namespace {

namespace fs = std::filesystem;

using Bytes = std::vector<std::uint8_t>;

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

// The kinds of files and links that are no text.
enum class NoText { none, utf16, compressed, binary, broken_link, linked_folder, no_file };

struct Passed {
    NoText kind = NoText::none;
    fs::path path;
    std::size_t bytes = 0;
};

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // of UTF-8

NoText look_at(std::span<const std::uint8_t> bytes) {
    constexpr std::array<std::string_view, 2> kUtf16 = {"\xFF\xFE", "\xFE\xFF"};
    constexpr std::array<std::string_view, 6> kCompressed = {"\x1F\x8B",
                                                             "BZh91AY&SY",
                                                             "\xFD"
                                                             "7zXZ",
                                                             "\x28\xB5\x2F\xFD",
                                                             "PK\x03\x04",
                                                             "7z\xBC\xAF"};
    constexpr std::size_t kProbeBytes = 4096;
    const auto probe = bytes.first(std::min(bytes.size(), kProbeBytes));
    const std::string_view start(reinterpret_cast<const char*>(probe.data()), probe.size());
    const auto begins = [&](std::string_view mark) { return start.starts_with(mark); };
    if (std::ranges::any_of(kUtf16, begins)) {
        return NoText::utf16;
    }
    if (std::ranges::any_of(kCompressed, begins)) {
        return NoText::compressed;
    }
    return start.find('\0') == std::string_view::npos ? NoText::none : NoText::binary;
}

Bytes read_file(const fs::path& path) {
    const InputFile file(path.string(), "The text file", "check that it may be read.");
    Bytes bytes(file.size());
    file.read(0, std::as_writable_bytes(std::span(bytes)));
    return bytes;
}

NoText kind_of(const fs::directory_entry& entry) {
    std::error_code unknown;
    if (is_broken_link(entry.path().string())) {
        return NoText::broken_link;
    }
    if (entry.is_directory(unknown)) {
        return entry.is_symlink(unknown) ? NoText::linked_folder : NoText::none;
    }
    return entry.is_regular_file(unknown) ? NoText::none : NoText::no_file;
}

std::vector<fs::path> files_below(const fs::path& folder, std::vector<Passed>& passed) {
    std::vector<fs::path> files;
    try {
        walk_tree(
            folder, [](const fs::path& below) { return !is_hidden(below); },
            [&](const fs::directory_entry& entry) {
                if (is_hidden(entry.path())) {
                    return;
                }
                if (const NoText kind = kind_of(entry); kind != NoText::none) {
                    passed.push_back({kind, entry.path()});
                } else if (!entry.is_directory()) {
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

const char* words_of(NoText kind) {
    constexpr std::array kWords = {"text",
                                   "text in UTF-16",
                                   "compressed data",
                                   "binary data",
                                   "a link that leads nowhere",
                                   "a link to a folder",
                                   "a pipe, a socket or a device"};
    return kWords.at(static_cast<std::size_t>(kind));
}

// A line for each kind.
std::vector<std::string> describe(std::vector<Passed> passed, const char* key) {
    std::ranges::sort(passed, {}, [](const Passed& one) { return std::pair(one.kind, one.path); });
    std::vector<std::string> lines;
    for (auto at = passed.begin(); at != passed.end();) {
        const auto end = std::find_if(at, passed.end(),
                                      [&](const Passed& other) { return other.kind != at->kind; });
        std::size_t bytes = 0;
        std::for_each(at, end, [&](const Passed& one) { bytes += one.bytes; });
        lines.push_back(text(key, " leaves out what is ", words_of(at->kind), ": ",
                             counted(static_cast<int>(end - at), "name"), ", ",
                             human_bytes(static_cast<double>(bytes)), ", the first \"",
                             on_one_line(at->path.string()), '"'));
        at = end;
    }
    return lines;
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

PlainText read_text(const std::vector<std::string>& paths, const char* key) {
    PlainText all;
    std::vector<Passed> passed;
    for (const std::string& path : paths) {
        if (!is_present(path)) {
            throw ConfigError(text(
                "The data path \"", path,
                is_broken_link(path) ? "\" is a link that leads nowhere: " : "\" does not exist: ",
                "correct data.train or data.valid."));
        }
        std::error_code error;
        const bool is_folder = fs::is_directory(path, error);
        for (const fs::path& file :
             is_folder ? files_below(path, passed) : std::vector<fs::path>{path}) {
            const Bytes bytes = read_file(file);
            const NoText kind = look_at(bytes);
            if (kind != NoText::none && is_folder) {
                passed.push_back({kind, file, bytes.size()});
                continue;
            }
            if (kind != NoText::none) {
                all.notes.push_back(text(key, " names ", on_one_line(file.string()), ", which is ",
                                         words_of(kind), ": its bytes are trained on as they are"));
            }
            const bool has_mark = std::ranges::equal(
                std::span(bytes).first(std::min(bytes.size(), kByteOrderMark.size())),
                kByteOrderMark, {}, {}, [](char c) { return static_cast<std::uint8_t>(c); });
            all.bytes.insert(all.bytes.end(),
                             bytes.begin() + (has_mark ? std::ssize(kByteOrderMark) : 0),
                             bytes.end());
        }
    }
    const std::vector<std::string> lines = describe(std::move(passed), key);
    all.notes.insert(all.notes.end(), lines.begin(), lines.end());
    if (all.bytes.empty()) {
        std::string names;
        for (const std::string& path : paths) {
            names += text(names.empty() ? "" : ", ", '"', path, '"');
        }
        throw ConfigError(text("No text was found in ",
                               names.empty() ? "an empty list of paths" : names,
                               lines.empty() ? "" : text(" (", joined(lines, ". "), ")"),
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
    PlainText train = read_text(settings.train, "data.train");
    corpus.train = Tokens(std::move(train.bytes));
    corpus.notes = std::move(train.notes);
    if (settings.valid.empty()) {
        const Tokens all = corpus.train;
        const std::size_t kept = kept_of(all.size(), settings.valid_share);
        corpus.train = all.part(0, kept);
        corpus.valid = all.part(kept, all.size());
    } else {
        PlainText valid = read_text(settings.valid, "data.valid");
        corpus.valid = Tokens(std::move(valid.bytes));
        corpus.notes.insert(corpus.notes.end(), valid.notes.begin(), valid.notes.end());
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
