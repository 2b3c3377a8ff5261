// XXH3 digests, from the xxHash library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace nearstep {

// XXH3, 64 bits, seed 0.
std::uint64_t xxh3(std::span<const std::byte> bytes);

// Computes xxh3() of bytes that come in pieces: digest() equals xxh3() of all added bytes.
class Xxh3Stream {
public:
    Xxh3Stream();
    void add(std::span<const std::byte> bytes);
    std::uint64_t digest() const;

private:
    struct Free {
        void operator()(void* state) const noexcept;
    };
    std::unique_ptr<void, Free> state_;  // an XXH3_state_t
};

// Version of the xxHash library: "0.8.1".
std::string xxhash_version();

// 16 hexadecimal digits.
std::string to_hex(std::uint64_t digest);

}  // namespace nearstep
