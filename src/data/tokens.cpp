// Draws rows of tokens for steps and evaluations. Used by the trainer.
#include "data/tokens.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace nearstep::data {

namespace {

// Read from a file at once; a multiple of a token's size.
constexpr std::size_t kPieceBytes = 16384;

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

Tokens::Tokens(std::vector<std::uint8_t> bytes)
    : bytes_(std::make_shared<const std::vector<std::uint8_t>>(std::move(bytes))),
      count_(bytes_->size()) {}

Tokens::Tokens(InputFile file, std::size_t offset, std::size_t width, std::size_t count,
               std::size_t vocabulary)
    : file_(std::move(file)),
      offset_(offset),
      width_(width),
      count_(count),
      vocabulary_(vocabulary) {
    expects(width == 2 || width == 4, "a token of a file has 2 or 4 bytes");
}

Tokens Tokens::part(std::size_t begin, std::size_t end) const {
    expects(begin <= end && end <= count_, "the part is inside the tokens");
    Tokens part = *this;
    part.offset_ += begin * width_;
    part.count_ = end - begin;
    return part;
}

void Tokens::read(std::size_t offset, std::span<std::byte> to) const {
    if (file_) {
        file_->read(offset_ + offset, to);
    } else {
        std::ranges::copy(std::as_bytes(std::span(*bytes_)).subspan(offset_ + offset, to.size()),
                          to.begin());
    }
}

void Tokens::copy(std::size_t begin, std::span<std::int32_t> to) const {
    expects(begin <= count_ && to.size() <= count_ - begin, "the tokens are there");
    std::array<std::byte, kPieceBytes> piece;  // NOLINT(cppcoreguidelines-pro-type-member-init)
    for (std::span<std::int32_t> rest = to; !rest.empty();) {
        const std::size_t size = std::min(rest.size(), piece.size() / width_);
        read((begin + to.size() - rest.size()) * width_, std::span(piece).first(size * width_));
        if (width_ == 1) {
            widen<std::uint8_t>(piece.data(), rest.first(size));
        } else if (width_ == 2) {
            widen<std::uint16_t>(piece.data(), rest.first(size));
        } else {
            widen<std::uint32_t>(piece.data(), rest.first(size));
        }
        rest = rest.subspan(size);
    }
    const auto wrong = std::ranges::find_if(
        to, [&](std::int32_t token) { return static_cast<std::uint32_t>(token) >= vocabulary_; });
    if (wrong != to.end()) {
        throw ConfigError(text("The token file ", file_ ? file_->path() : "", " has token ",
                               static_cast<std::uint32_t>(*wrong), ", and its vocabulary ends at ",
                               vocabulary_, ": make it again with nearstep-tokenize."));
    }
}

std::uint64_t Tokens::digest() const {
    Xxh3Stream digest;
    std::array<std::byte, kPieceBytes> piece{};
    std::array<std::uint16_t, kPieceBytes> wide{};
    const std::size_t bytes = count_ * width_;
    for (std::size_t at = 0; at < bytes; at += piece.size()) {
        const std::size_t size = std::min(piece.size(), bytes - at);
        read(at, std::span(piece).first(size));
        if (width_ == 1) {
            std::transform(piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(size),
                           wide.begin(),
                           [](std::byte byte) { return std::to_integer<std::uint16_t>(byte); });
            digest.add(std::as_bytes(std::span(wide).first(size)));
        } else {
            digest.add(std::span(piece).first(size));
        }
    }
    return digest.digest();
}

}  // namespace nearstep::data
