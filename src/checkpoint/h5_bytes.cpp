// Checks places and sizes in an HDF5 file. Used by h5_reader.cpp and h5_heap.cpp.
#include "checkpoint/h5_bytes.hpp"

#include "base/error.hpp"
#include "base/units.hpp"

#include <algorithm>

namespace nearstep::h5 {

void refuse_file(const std::string& reason) {
    throw Hdf5Error(text("it is not a file that nearstep wrote: ", reason));
}

std::span<const std::byte> Cursor::take(std::uint64_t bytes) {
    if (bytes > rest_.size()) {
        refuse_file("a part of it ends too early");
    }
    const std::span<const std::byte> taken = rest_.first(bytes);
    rest_ = rest_.subspan(bytes);
    return taken;
}

std::uint64_t Cursor::number(std::size_t bytes) {
    std::uint64_t value = 0;
    unsigned shift = 0;
    for (const std::byte byte : take(bytes)) {
        value |= static_cast<std::uint64_t>(byte) << shift;
        shift += 8;
    }
    return value;
}

std::string Cursor::text(std::uint64_t bytes) {
    const std::span<const std::byte> taken = take(bytes);
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};  // NOLINT
}

void Cursor::expect(std::string_view signature) {
    if (text(signature.size()) != signature) {
        refuse_file("a part of it lacks the signature of its kind");
    }
}

Source::Source(const InputFile& file, std::uint64_t base)
    : file_(&file), base_(base), budget_(2 * file.size() + MiB) {}

std::uint64_t Source::place(std::uint64_t address, std::uint64_t bytes) const {
    const std::uint64_t size = file_->size() - std::min<std::uint64_t>(base_, file_->size());
    if (address > size || bytes > size - address) {
        refuse_file("a part of it lies outside of the file");
    }
    return base_ + address;
}

std::vector<std::byte> Source::block(std::uint64_t address, std::uint64_t bytes) {
    const std::uint64_t at = place(address, bytes);
    if (bytes > budget_) {
        refuse_file("its parts are larger than the file");
    }
    budget_ -= bytes;
    std::vector<std::byte> block(bytes);
    file_->read(at, block);
    return block;
}

}  // namespace nearstep::h5
