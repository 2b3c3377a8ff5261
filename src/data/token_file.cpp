// Opens and checks a file of tokens. Used by text.cpp and tokenizer.cpp.
#include "data/token_file.hpp"

#include "base/descriptor.hpp"
#include "base/error.hpp"
#include "base/units.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace nearstep::data {

namespace {

constexpr std::string_view kMagic = "nearstep tokens\n";
constexpr std::uint64_t kVersion = 1;
constexpr std::size_t kHeaderBytes = 4096;
constexpr std::size_t kNumber = sizeof(std::uint64_t);

// Offsets of the header's numbers.
constexpr std::size_t kVersionAt = 16;
constexpr std::size_t kWidthAt = 24;
constexpr std::size_t kTokensAt = 32;
constexpr std::size_t kDocumentsAt = 40;
constexpr std::size_t kVocabularyAt = 48;
constexpr std::size_t kTextBytesAt = 56;
constexpr std::size_t kTokenizerDigestAt = 64;
constexpr std::size_t kTokensDigestAt = 72;

}  // namespace

bool TokenFile::is_one(const std::string& path) {
    // Without O_NONBLOCK a pipe would wait for its writer.
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    std::array<char, kMagic.size()> begin{};
    struct stat status {};
    return file && ::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode) &&
           ::read(file.get(), begin.data(), begin.size()) == static_cast<ssize_t>(begin.size()) &&
           std::string_view(begin.data(), begin.size()) == kMagic;
}

TokenFile::TokenFile(const std::string& path)
    : file_(path, "The token file", "correct data.train or data.valid.") {
    if (file_.size() < kHeaderBytes) {
        refuse("it ends within its header");
    }
    read_header();
    check_documents();
    read_texts();
    file_.expect_random_reads();  // rows are drawn anywhere
}

void TokenFile::read_header() {
    const std::size_t bytes = file_.size();
    header_.resize(kHeaderBytes);
    file_.read(0, header_);
    if (std::memcmp(header_.data(), kMagic.data(), kMagic.size()) != 0) {
        refuse("it does not begin as one");
    }
    if (number_at(kVersionAt) != kVersion) {
        refuse(text("its format is version ", number_at(kVersionAt), ", not ", kVersion));
    }
    width_ = number_at(kWidthAt);
    if (width_ != 2 && width_ != 4) {
        refuse(text("a token has ", width_, " bytes, not 2 or 4"));
    }
    // Each count is checked against the file's length before it is multiplied.
    const auto count_at = [&](std::size_t offset, std::size_t each, const char* what) {
        const std::uint64_t count = number_at(offset);
        if (count > bytes / each) {
            refuse(text("it is too short for its ", count, " ", what));
        }
        return static_cast<std::size_t>(count);
    };
    tokens_ = count_at(kTokensAt, width_, "tokens");
    documents_ = count_at(kDocumentsAt, kNumber, "documents");
    vocabulary_ = count_at(kVocabularyAt, kNumber, "entries of the vocabulary");
    text_bytes_ = count_at(kTextBytesAt, 1, "bytes of texts");
    tokenizer_digest_ = number_at(kTokenizerDigestAt);
    tokens_digest_ = number_at(kTokensDigestAt);
    ends_ = kHeaderBytes + round_up(tokens_ * width_, kNumber);
    texts_ = ends_ + documents_ * kNumber;
    if (texts_ + vocabulary_ * kNumber + text_bytes_ != bytes) {
        refuse("it is longer or shorter than it says");
    }
    constexpr std::uint64_t kMostTokens = std::uint64_t{1} << 31U;
    if (tokens_ == 0 || vocabulary_ == 0 || vocabulary_ > kMostTokens) {
        refuse("it has no tokens, or a vocabulary that cannot be");
    }
}

// Reads numbers of the file in pieces.
template <typename Use>
void TokenFile::visit_numbers(std::size_t offset, std::size_t count, const Use& use) const {
    std::vector<std::uint64_t> piece(std::min<std::size_t>(count, 64 * KiB));
    for (std::size_t done = 0; done < count; done += piece.size()) {
        const std::span<std::uint64_t> some =
            std::span(piece).first(std::min(piece.size(), count - done));
        file_.read(offset + done * kNumber, std::as_writable_bytes(some));
        std::ranges::for_each(some, use);
    }
}

void TokenFile::check_documents() const {
    std::uint64_t last = 0;
    visit_numbers(ends_, documents_, [&](std::uint64_t end) {
        if (end < last || end > tokens_) {
            refuse("the ends of its documents do not ascend");
        }
        last = end;
    });
    if (last != tokens_) {
        refuse("its documents end before or after its tokens");
    }
}

void TokenFile::read_texts() {
    std::vector<std::uint64_t> ends;
    ends.reserve(vocabulary_);
    visit_numbers(texts_, vocabulary_, [&](std::uint64_t end) {
        if (end < (ends.empty() ? 0 : ends.back()) || end > text_bytes_) {
            refuse("the texts of its vocabulary do not ascend");
        }
        ends.push_back(end);
    });
    std::string bytes(text_bytes_, '\0');
    file_.read(texts_ + vocabulary_ * kNumber, std::as_writable_bytes(std::span(bytes)));
    text_ends_ = std::make_shared<const std::vector<std::uint64_t>>(std::move(ends));
    all_texts_ = std::make_shared<const std::string>(std::move(bytes));
}

void TokenFile::refuse(const std::string& why) const {
    throw ConfigError(text("The token file ", path(), " cannot be used, since ", why,
                           ": make it again with nearstep-tokenize."));
}

std::uint64_t TokenFile::number_at(std::size_t offset) const {
    std::uint64_t number = 0;
    std::memcpy(&number, header_.data() + offset, sizeof number);
    return number;
}

Tokens TokenFile::tokens() const { return {file_, kHeaderBytes, width_, tokens_, vocabulary_}; }

std::uint64_t TokenFile::text_end(std::size_t token) const { return text_ends_->at(token); }

std::string_view TokenFile::texts() const { return *all_texts_; }

bool names_token_files(const config::DataSettings& settings) {
    const auto names_one = [](const std::vector<std::string>& paths) {
        return std::ranges::any_of(paths, TokenFile::is_one);
    };
    return names_one(settings.train) || names_one(settings.valid);
}

TokenFile open_token_file(const std::vector<std::string>& paths, const char* key) {
    if (paths.size() != 1 || !TokenFile::is_one(paths.front())) {
        throw ConfigError(text(key,
                               " is not one token file, but data.train or data.valid names one: "
                               "make one token file for each with nearstep-tokenize."));
    }
    return TokenFile(paths.front());
}

}  // namespace nearstep::data
