// XXH3 by the xxHash library. Used for state, manifests, checkpoints and reports.
#include "base/digest.hpp"

#include <xxhash.h>
#if NEARSTEP_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>  // the same digests, by the widest vectors that the CPU has
#endif

#include <array>
#include <cinttypes>
#include <cstdio>
#include <new>

namespace nearstep {

namespace {

// The library chooses its vectors in the first call with many bytes, which must not be made by
// several threads at once.
[[maybe_unused]] const std::uint64_t first_call = [] {
    const std::array<char, 1024> bytes{};
    return XXH3_64bits(bytes.data(), bytes.size());
}();

}  // namespace

std::uint64_t xxh3(std::span<const std::byte> bytes) {
    return XXH3_64bits(bytes.data(), bytes.size());
}

void Xxh3Stream::Free::operator()(void* state) const noexcept {
    XXH3_freeState(static_cast<XXH3_state_t*>(state));
}

Xxh3Stream::Xxh3Stream() : state_(XXH3_createState()) {
    if (!state_) {
        throw std::bad_alloc();
    }
    XXH3_64bits_reset(static_cast<XXH3_state_t*>(state_.get()));
}

void Xxh3Stream::add(std::span<const std::byte> bytes) {
    XXH3_64bits_update(static_cast<XXH3_state_t*>(state_.get()), bytes.data(), bytes.size());
}

std::uint64_t Xxh3Stream::digest() const {
    return XXH3_64bits_digest(static_cast<const XXH3_state_t*>(state_.get()));
}

std::string xxhash_version() {
    const unsigned number = XXH_versionNumber();  // 801 means 0.8.1
    return std::to_string(number / 10000) + "." + std::to_string(number / 100 % 100) + "." +
           std::to_string(number % 100);
}

std::string to_hex(std::uint64_t digest) {
    std::array<char, 17> out{};
    std::snprintf(out.data(), out.size(), "%016" PRIx64, digest);
    return out.data();
}

}  // namespace nearstep
