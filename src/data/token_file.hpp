// Token files, which nearstep-tokenize writes (docs/formats/token-file.md).
#pragma once

#include "base/input_file.hpp"
#include "config/run_settings.hpp"
#include "data/tokens.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace nearstep::data {

// Tokens are read when they are used, so they take no memory; the texts of the vocabulary stay in
// memory. Copies share both.
class TokenFile {
public:
    // True if the file begins like a token file; false if it cannot be read.
    static bool is_one(const std::string& path);

    // Throws ConfigError if the file cannot be opened, has the wrong length or has an invalid
    // header.
    explicit TokenFile(const std::string& path);

    const std::string& path() const { return file_.path(); }
    std::size_t size() const { return tokens_; }
    std::size_t vocabulary() const { return vocabulary_; }
    std::uint64_t tokenizer_digest() const { return tokenizer_digest_; }
    // Digest of all tokens; files with the same tokens have the same digest.
    std::uint64_t tokens_digest() const { return tokens_digest_; }
    Tokens tokens() const;
    // Offset in texts() after the text of a vocabulary token.
    std::uint64_t text_end(std::size_t token) const;
    std::string_view texts() const;

private:
    template <typename Use>
    void visit_numbers(std::size_t offset, std::size_t count, const Use& use) const;
    std::uint64_t number_at(std::size_t offset) const;  // of the header
    [[noreturn]] void refuse(const std::string& why) const;
    void read_header();
    void check_documents() const;
    void read_texts();

    InputFile file_;
    std::vector<std::byte> header_;
    std::shared_ptr<const std::vector<std::uint64_t>> text_ends_;
    std::shared_ptr<const std::string> all_texts_;
    std::size_t width_ = 0;
    std::size_t tokens_ = 0;
    std::size_t documents_ = 0;
    std::size_t vocabulary_ = 0;
    std::size_t text_bytes_ = 0;
    std::uint64_t tokenizer_digest_ = 0;
    std::uint64_t tokens_digest_ = 0;
    std::size_t ends_ = 0;   // offset of the documents' ends
    std::size_t texts_ = 0;  // offset of the ends of the vocabulary's texts
};

// Whether data.train or data.valid names a token file.
bool names_token_files(const config::DataSettings& settings);

// Opens the only one of `paths`. Throws ConfigError, which names the key, for anything else.
TokenFile open_token_file(const std::vector<std::string>& paths, const char* key);

}  // namespace nearstep::data
