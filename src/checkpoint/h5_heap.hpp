// Reads what HDF5 keeps outside of object headers: strings, and the links and attributes of an
// object that has many. Used by h5_reader.cpp.
#pragma once

#include "checkpoint/h5_bytes.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace nearstep::h5 {

// The records of a B-tree of version 2.
enum class Indexed : unsigned char { links = 5, attributes = 8 };

// Calls `take` with the message of each link or attribute in a fractal heap, by the tree that lists
// them by name.
void visit_messages(Source& source, std::uint64_t heap, std::uint64_t tree, Indexed kind,
                    const std::function<void(std::span<const std::byte>)>& take);

// Strings of variable length, which lie in collections.
class Strings {
public:
    // A string's reference: length, address of its collection, number in it.
    static constexpr std::size_t kReferenceBytes = 16;

    std::string read(Source& source, std::span<const std::byte> reference);

private:
    struct Collection {
        std::vector<std::byte> bytes;
        std::map<std::uint64_t, std::span<const std::byte>> objects;
    };

    static Collection open(Source& source, std::uint64_t address);

    std::map<std::uint64_t, Collection> collections_;
    std::uint64_t taken_ = 0;
};

}  // namespace nearstep::h5
