// Token files, which nearstep-tokenize writes (docs/formats/token-file.md).
#pragma once

#include "config/run.hpp"
#include "data/tokens.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nearstep::data {

// The file is mapped, so unread tokens take no memory. Copies share the mapping.
class TokenFile {
public:
    // True if the file begins like a token file; false if it cannot be read.
    static bool is_one(const std::string& path);

    // Throws ConfigError if the file cannot be opened, has the wrong length or has an invalid
    // header.
    explicit TokenFile(const std::string& path);

    const std::string& path() const { return path_; }
    std::size_t size() const { return tokens_; }
    std::size_t vocabulary() const { return vocabulary_; }
    std::uint64_t tokenizer_digest() const { return tokenizer_digest_; }
    // Digest of all tokens; files with the same tokens have the same digest.
    std::uint64_t tokens_digest() const { return tokens_digest_; }
    Tokens tokens() const;
    // Position after a document's last token. The last document's is size().
    std::uint64_t document_end(std::size_t document) const;
    std::size_t documents() const { return documents_; }
    // Offset in texts() after the text of a vocabulary token.
    std::uint64_t text_end(std::size_t token) const;
    std::string_view texts() const;

private:
    const std::byte* at(std::size_t offset) const;
    std::uint64_t number_at(std::size_t offset) const;
    [[noreturn]] void refuse(const std::string& why) const;
    void read_header(std::size_t bytes);

    std::string path_;
    std::shared_ptr<const void> mapping_;
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
