#include "data/text.hpp"

#include "base/error.hpp"
#include "base/folder_tree.hpp"
#include "base/random.hpp"

#include <algorithm>
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
    return std::find(probe.begin(), probe.end(), std::uint8_t{0}) == probe.end();
}

Bytes read_file(const fs::path& path) {
    std::error_code error;
    const std::uintmax_t size = fs::file_size(path, error);
    std::ifstream file(path, std::ios::binary);
    if (error || !file) {
        throw ConfigError(
            text("The text file ", path, " cannot be opened: check that it may be read."));
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
        throw ConfigError(text("The data folder ", folder, " cannot be read (",
                               error.code().message(), " at ", error.path1(),
                               "): check its permissions."));
    }
    std::sort(files.begin(), files.end());
    return files;
}

// The places where a row and its last target fit.
std::uint64_t count_places(std::span<const Token> text, int context) {
    expects(context > 0 && text.size() > static_cast<std::size_t>(context),
            "the text holds more tokens than one row");
    return text.size() - static_cast<std::size_t>(context);
}

void copy_row(std::span<const Token> text, std::size_t start, std::span<std::int32_t> tokens,
              std::span<std::int32_t> targets) {
    const auto row = text.subspan(start, tokens.size() + 1);
    std::copy(row.begin(), row.end() - 1, tokens.begin());
    std::copy(row.begin() + 1, row.end(), targets.begin());
}

void check_length(std::span<const Token> tokens, const char* which, const char* unit, int context,
                  const char* remedy) {
    if (tokens.size() <= static_cast<std::size_t>(context)) {
        throw ConfigError(text("The ", which, " text has ", tokens.size(), " ", unit,
                               " and a row of model.context ", context, " needs ", context + 1,
                               ": ", remedy, " or lower model.context."));
    }
}

}  // namespace

Bytes read_text(const std::vector<std::string>& paths) {
    Bytes all;
    for (const std::string& path : paths) {
        std::error_code error;
        const fs::file_status status = fs::status(path, error);
        if (!fs::exists(status)) {
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

CorpusText read_corpus(const config::DataSettings& settings) {
    CorpusText corpus{.train = read_text(settings.train), .valid = {}};
    if (settings.valid.empty()) {
        const double held_out = static_cast<double>(corpus.train.size()) * settings.valid_share;
        const auto kept =
            corpus.train.size() - std::min(corpus.train.size(), static_cast<std::size_t>(held_out));
        const auto cut = corpus.train.begin() + static_cast<std::ptrdiff_t>(kept);
        corpus.valid.assign(cut, corpus.train.end());
        corpus.train.erase(cut, corpus.train.end());
    } else {
        corpus.valid = read_text(settings.valid);
    }
    return corpus;
}

void check_lengths(const Corpus& corpus, const config::DataSettings& settings, int context) {
    const char* unit = settings.tokenizer == "bytes" ? "bytes" : "tokens";
    check_length(corpus.train, "training", unit, context, "give more text in data.train");
    check_length(corpus.valid, "held-out", unit, context,
                 settings.valid.empty() ? "raise data.valid_share, set data.valid"
                                        : "give more text in data.valid");
}

void draw_rows(std::span<const Token> text, std::uint64_t seed, std::int64_t step,
               std::int64_t first_row, int rows, int context, std::span<std::int32_t> tokens,
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

void evaluation_row(std::span<const Token> text, std::int64_t row, std::int64_t rows, int context,
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
