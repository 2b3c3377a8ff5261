// The tokens of a text: bytes in memory, or a mapped file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace nearstep::data {

// Copies are cheap and share the memory. Immutable; any thread may call it.
class Tokens {
public:
    Tokens() = default;
    // Each byte is a token.
    explicit Tokens(std::vector<std::uint8_t> bytes);
    // `count` little-endian numbers of `width` bytes (1, 2 or 4), all below `vocabulary` unless the
    // file is wrong. `owner` keeps `first` valid; `name` is for messages.
    Tokens(std::shared_ptr<const void> owner, const std::byte* first, std::size_t width,
           std::size_t count, std::size_t vocabulary, std::string name);

    std::size_t size() const { return count_; }
    bool are_bytes() const { return width_ == 1; }
    Tokens part(std::size_t begin, std::size_t end) const;

    // Copies the tokens from `begin` on. Throws ConfigError for a token outside the vocabulary.
    void copy(std::size_t begin, std::span<std::int32_t> to) const;

    // XXH3 of the tokens as 16-bit numbers, or as 32-bit numbers if stored so. Reads all tokens.
    std::uint64_t digest() const;

private:
    std::shared_ptr<const void> owner_;
    const std::byte* first_ = nullptr;
    std::size_t width_ = 1;
    std::size_t count_ = 0;
    std::size_t vocabulary_ = 256;
    std::string name_;
};

}  // namespace nearstep::data
