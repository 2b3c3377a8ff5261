// Takes an HDF5 file apart that anybody may have written: every place and size is checked before it
// is used. Used by h5_reader.cpp and h5_heap.cpp.
#pragma once

#include "base/input_file.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nearstep::h5 {

// Throws Hdf5Error. `reason`: a phrase about the file, such as "its root is not a group".
[[noreturn]] void refuse_file(const std::string& reason);

// The address of what is not stored.
constexpr std::uint64_t kNowhere = ~std::uint64_t{0};

// Takes values from the front of some bytes, which outlive it. Each function throws Hdf5Error if
// there are fewer bytes.
class Cursor {
public:
    explicit Cursor(std::span<const std::byte> bytes) : rest_(bytes) {}

    std::size_t left() const { return rest_.size(); }
    std::span<const std::byte> take(std::uint64_t bytes);
    void skip(std::uint64_t bytes) { take(bytes); }
    std::uint64_t number(std::size_t bytes);  // little-endian, of at most 8 bytes
    std::uint64_t address() { return number(8); }
    std::string text(std::uint64_t bytes);
    void expect(std::string_view signature);

private:
    std::span<const std::byte> rest_;
};

// A file whose addresses count from `base`.
class Source {
public:
    Source(const InputFile& file, std::uint64_t base);

    // Returns where `bytes` at `address` begin in the file, which has all of them.
    std::uint64_t place(std::uint64_t address, std::uint64_t bytes) const;
    // Reads a part of the file's structure. All parts together may be a little larger than the
    // file, so that parts that lead to each other come to an end.
    std::vector<std::byte> block(std::uint64_t address, std::uint64_t bytes);

private:
    const InputFile* file_;
    std::uint64_t base_;
    std::uint64_t budget_;
};

}  // namespace nearstep::h5
