// The memory of an emulated card: one bank of DDR and its buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace nearstep::emulator {

// Throws std::system_error with this errno value, like the driver.
[[noreturn]] void refuse(int reason, const char* what);

// `bytes` rounded up to the page size, as buffers of card and host are.
std::size_t whole_pages(std::size_t bytes);

// Backed by a memory file of the bank's size; only touched pages use memory. Buffers are whole
// pages, placed first fit like the card's driver does. They are poisoned, because the driver does
// not clear them. Any thread may call. Never destroyed.
class Bank {
public:
    // Throws std::system_error if the memory cannot be allocated.
    Bank(const std::string& tag, std::uint64_t base, std::uint64_t bytes);
    Bank(const Bank&) = delete;
    Bank& operator=(const Bank&) = delete;
    ~Bank() = default;

    std::uint64_t base() const { return base_; }
    std::uint64_t bytes() const { return bytes_; }

    // Returns the device address of a new buffer; nullopt if there is no room.
    std::optional<std::uint64_t> allocate(std::uint64_t bytes);
    void release(std::uint64_t address);

    // Null unless the whole range lies in one buffer.
    std::byte* find(std::uint64_t address, std::uint64_t bytes);

private:
    std::uint64_t base_;
    std::uint64_t bytes_;
    std::byte* memory_ = nullptr;
    std::mutex mutex_;
    std::map<std::uint64_t, std::uint64_t> buffers_;  // size by offset
};

}  // namespace nearstep::emulator
