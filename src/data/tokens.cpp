#include "data/tokens.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace nearstep::data {

namespace {

// Reads unaligned little-endian numbers; assumes a little-endian machine.
template <typename Number>
void widen(const std::byte* from, std::span<std::int32_t> to) {
    for (std::int32_t& token : to) {
        Number number = 0;
        std::memcpy(&number, from, sizeof number);
        from += sizeof number;
        token = static_cast<std::int32_t>(number);
    }
}

}  // namespace

Tokens::Tokens(std::vector<std::uint8_t> bytes) : count_(bytes.size()) {
    const auto kept = std::make_shared<const std::vector<std::uint8_t>>(std::move(bytes));
    first_ = std::as_bytes(std::span(*kept)).data();
    owner_ = kept;
}

Tokens::Tokens(std::shared_ptr<const void> owner, const std::byte* first, std::size_t width,
               std::size_t count, std::size_t vocabulary, std::string name)
    : owner_(std::move(owner)),
      first_(first),
      width_(width),
      count_(count),
      vocabulary_(vocabulary),
      name_(std::move(name)) {
    expects(width == 1 || width == 2 || width == 4, "a token has 1, 2 or 4 bytes");
}

Tokens Tokens::part(std::size_t begin, std::size_t end) const {
    expects(begin <= end && end <= count_, "the part is inside the tokens");
    Tokens part = *this;
    part.first_ += begin * width_;
    part.count_ = end - begin;
    return part;
}

void Tokens::copy(std::size_t begin, std::span<std::int32_t> to) const {
    expects(begin <= count_ && to.size() <= count_ - begin, "the tokens are there");
    const std::byte* from = first_ + begin * width_;
    if (width_ == 1) {
        widen<std::uint8_t>(from, to);
        return;
    }
    if (width_ == 2) {
        widen<std::uint16_t>(from, to);
    } else {
        widen<std::uint32_t>(from, to);
    }
    const auto wrong = std::ranges::find_if(
        to, [&](std::int32_t token) { return static_cast<std::uint32_t>(token) >= vocabulary_; });
    if (wrong != to.end()) {
        throw ConfigError(text("The token file ", name_, " has token ",
                               static_cast<std::uint32_t>(*wrong), ", and its vocabulary ends at ",
                               vocabulary_, ": make it again with nearstep-tokenize."));
    }
}

std::uint64_t Tokens::digest() const {
    if (width_ != 1) {
        return xxh3({first_, count_ * width_});
    }
    Xxh3Stream digest;
    std::array<std::uint16_t, 4096> piece{};
    for (std::size_t at = 0; at < count_; at += piece.size()) {
        const std::size_t size = std::min(piece.size(), count_ - at);
        std::transform(first_ + at, first_ + at + size, piece.begin(),
                       [](std::byte byte) { return std::to_integer<std::uint16_t>(byte); });
        digest.add(std::as_bytes(std::span(piece).first(size)));
    }
    return digest.digest();
}

}  // namespace nearstep::data
