// The memory of an emulated card. Used by its board and by what is open on it.
#include "fpga/emulator/bank.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

namespace nearstep::emulator {

namespace {

constexpr int kPoison = 0xA5;  // as a float -2.9e-16, as a pointer not an address

constexpr std::size_t kPageBytes = 4096;

}  // namespace

void refuse(int reason, const char* what) {
    throw std::system_error(reason, std::system_category(), what);
}

std::size_t whole_pages(std::size_t bytes) {
    return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

Bank::Bank(const std::string& tag, std::uint64_t base, std::uint64_t bytes)
    : base_(base), bytes_(bytes) {
    const int file = ::memfd_create(tag.c_str(), MFD_CLOEXEC);
    if (file < 0 || ::ftruncate(file, static_cast<off_t>(bytes)) != 0) {
        throw std::system_error(errno, std::system_category(), "a bank's memory file");
    }
    void* mapped =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    const int reason = errno;
    ::close(file);
    if (mapped == MAP_FAILED) {
        throw std::system_error(reason, std::system_category(), "a bank's memory");
    }
    memory_ = static_cast<std::byte*>(mapped);
}

std::optional<std::uint64_t> Bank::allocate(std::uint64_t bytes) {
    const std::uint64_t wanted = whole_pages(bytes);
    const std::lock_guard lock(mutex_);
    std::uint64_t begin = 0;
    for (const auto& [offset, taken] : buffers_) {
        if (offset - begin >= wanted) {
            break;
        }
        begin = offset + taken;
    }
    if (wanted > bytes_ || begin > bytes_ - wanted) {
        return std::nullopt;
    }
    buffers_[begin] = wanted;
    std::memset(memory_ + begin, kPoison, wanted);
    return base_ + begin;
}

void Bank::release(std::uint64_t address) {
    const std::lock_guard lock(mutex_);
    const auto found = buffers_.find(address - base_);
    if (found != buffers_.end()) {
        ::madvise(memory_ + found->first, found->second, MADV_REMOVE);
        buffers_.erase(found);
    }
}

std::byte* Bank::find(std::uint64_t address, std::uint64_t bytes) {
    if (address < base_ || address - base_ >= bytes_) {
        return nullptr;
    }
    const std::uint64_t offset = address - base_;
    const std::lock_guard lock(mutex_);
    auto after = buffers_.upper_bound(offset);
    if (after == buffers_.begin()) {
        return nullptr;
    }
    --after;
    const std::uint64_t within = offset - after->first;
    const bool fits = within < after->second && bytes <= after->second - within;
    return fits ? memory_ + offset : nullptr;
}

}  // namespace nearstep::emulator
