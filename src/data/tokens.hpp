// The tokens of a text: bytes in memory, or a file that is mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace nearstep::data {

// Copies are cheap and share the memory. Immutable; any thread calls.
class Tokens {
public:
    Tokens() = default;
    // Each byte is a token.
    explicit Tokens(std::vector<std::uint8_t> bytes);
    // `count` little-endian numbers of `width` bytes (1, 2 or 4), all below `vocabulary` unless the
    // file is wrong. `first` is valid as long as `owner` is kept; `name` is for messages.
    Tokens(std::shared_ptr<const void> owner, const std::byte* first, std::size_t width,
           std::size_t count, std::size_t vocabulary, std::string name);

    std::size_t size() const { return count_; }
    bool are_bytes() const { return width_ == 1; }
    Tokens part(std::size_t begin, std::size_t end) const;

    // The tokens from `begin` on. Throws ConfigError for one that the vocabulary does not have.
    void copy(std::size_t begin, std::span<std::int32_t> to) const;

    // XXH3 of the tokens as 16-bit numbers, or of 32 bits if they are stored so. Reads all.
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
