// The tokens of a text: bytes in memory, or in a file.
#pragma once

#include "base/input_file.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace nearstep::data {

// Copies are cheap and share the memory or the file. Immutable; any thread may call it.
class Tokens {
public:
    Tokens() = default;
    // Each byte is a token.
    explicit Tokens(std::vector<std::uint8_t> bytes);
    // `count` little-endian numbers of `width` bytes (1, 2 or 4), all below `vocabulary` unless the
    // file is wrong. The first is at `offset` of the file.
    Tokens(InputFile file, std::size_t offset, std::size_t width, std::size_t count,
           std::size_t vocabulary);

    std::size_t size() const { return count_; }
    bool are_bytes() const { return width_ == 1; }
    Tokens part(std::size_t begin, std::size_t end) const;

    // Copies the tokens from `begin` on. Throws ConfigError for a token outside the vocabulary, and
    // IoError if the file cannot be read.
    void copy(std::size_t begin, std::span<std::int32_t> to) const;

    // XXH3 of the tokens as 16-bit numbers, or as 32-bit numbers if stored so. Reads all tokens.
    std::uint64_t digest() const;

private:
    void read(std::size_t offset, std::span<std::byte> to) const;

    // Either bytes in memory or a file.
    std::shared_ptr<const std::vector<std::uint8_t>> bytes_;
    std::optional<InputFile> file_;
    std::size_t offset_ = 0;  // of the first token, in bytes
    std::size_t width_ = 1;
    std::size_t count_ = 0;
    std::size_t vocabulary_ = 256;
};

}  // namespace nearstep::data
