// Takes and frees host memory. Used by devices, windows and exchanges.
#include "memory/buffer.hpp"

#include "base/machine.hpp"
#include "base/units.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace nearstep::memory {

namespace {

constexpr std::size_t kHugePage = 2 * MiB;

[[noreturn]] void refuse(std::size_t bytes, const std::string& why) {
    throw Error(text("Cannot get ", human_bytes(static_cast<double>(bytes)), " of host memory (",
                     why, "): use a smaller model, fewer ranks per node or fewer slots."));
}

// A process that takes more than its cgroup grants is killed without a word.
void refuse_more_than_left(std::size_t bytes) {
    constexpr std::size_t kLarge = 16 * MiB;
    if (bytes < kLarge) {
        return;
    }
    const MachineMemory memory = machine_memory();
    if (memory.is_limited && bytes > memory.available_bytes) {
        refuse(bytes, text(human_bytes(static_cast<double>(memory.available_bytes)), " of ",
                           human_bytes(static_cast<double>(memory.total_bytes)),
                           " are left in this process's cgroup"));
    }
}

// The kernel clears a page when it is touched first, of which one thread does a few GB in a second.
void touch(std::span<std::byte> memory) {
    constexpr std::size_t kPage = 4 * KiB;
    constexpr std::size_t kOfThread = 128 * MiB;
    constexpr std::size_t kMostThreads = 16;
    const std::size_t threads = std::min(
        {memory.size() / kOfThread + 1, kMostThreads, static_cast<std::size_t>(usable_cores())});
    const std::size_t each = round_up(memory.size() / threads + 1, kHugePage);
    std::vector<std::jthread> others;
    for (std::size_t begin = 0; begin < memory.size(); begin += each) {
        const auto part = memory.subspan(begin, std::min(each, memory.size() - begin));
        const auto touch_part = [part] {
            for (std::size_t at = 0; at < part.size(); at += kPage) {
                part[at] = std::byte{};
            }
        };
        if (begin + each < memory.size()) {
            others.emplace_back(touch_part);
        } else {
            touch_part();
        }
    }
}

}  // namespace

void Unmap::operator()(std::byte* memory) const noexcept { ::munmap(memory, bytes); }

Buffer::Buffer(void* mapped, std::size_t mapped_bytes, std::size_t bytes)
    : memory_(static_cast<std::byte*>(mapped), {mapped_bytes}), bytes_(bytes) {}

Buffer::Buffer(std::size_t bytes) {
    if (bytes == 0) {
        return;
    }
    refuse_more_than_left(bytes);
    // Reserve one extra huge page, so that the start can be aligned.
    const std::size_t mapped_bytes = round_up(bytes, kHugePage);
    const std::size_t reserved = mapped_bytes + kHugePage;
    void* base =
        ::mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        refuse(bytes, std::strerror(errno));
    }
    auto* start = static_cast<std::byte*>(base);
    const std::size_t head = round_up(reinterpret_cast<std::uintptr_t>(start), kHugePage) -
                             reinterpret_cast<std::uintptr_t>(start);
    if (head > 0) {
        ::munmap(start, head);
    }
    if (head < kHugePage) {
        ::munmap(start + head + mapped_bytes, kHugePage - head);
    }
    *this = Buffer(start + head, mapped_bytes, bytes);
    ::madvise(start + head, mapped_bytes, MADV_HUGEPAGE);
    touch({memory_.get(), mapped_bytes});
}

Buffer Buffer::untouched(std::size_t bytes) {
    if (bytes == 0) {
        return {};
    }
    void* const start = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) {
        throw Error(text("Cannot get ", human_bytes(static_cast<double>(bytes)), " of addresses (",
                         std::strerror(errno), "): use a smaller model."));
    }
    ::madvise(start, bytes, MADV_NOHUGEPAGE);
    return {start, bytes, bytes};
}

void Buffer::drop(std::size_t offset, std::size_t bytes) {
    expects(offset + bytes <= size(), "what is dropped is in the buffer");
    expects(::madvise(memory_.get() + offset, bytes, MADV_DONTNEED) == 0,
            "whole pages are dropped");
}

std::size_t Buffer::resident_bytes() const {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t mapped_bytes = memory_.get_deleter().bytes;
    std::vector<unsigned char> pages((mapped_bytes + page - 1) / page);
    if (!memory_ || ::mincore(memory_.get(), mapped_bytes, pages.data()) != 0) {
        return 0;
    }
    return page * static_cast<std::size_t>(
                      std::ranges::count_if(pages, [](unsigned char p) { return (p & 1U) != 0; }));
}

Buffer Buffer::of_file(int descriptor, std::size_t bytes) {
    void* const start = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (start == MAP_FAILED) {
        throw Error(text("Cannot map ", human_bytes(static_cast<double>(bytes)),
                         " of shared memory (", std::strerror(errno), ")."));
    }
    return {start, bytes, bytes};
}

std::size_t huge_page_bytes(std::span<const Buffer* const> buffers) {
    const auto begin_of = [](const Buffer* one) {
        return reinterpret_cast<std::uintptr_t>(one->memory_.get());
    };
    const auto bytes_of = [](const Buffer* one) {
        return one->memory_ ? one->memory_.get_deleter().bytes : 0;
    };
    std::uintptr_t last = 0;
    std::size_t most = 0;
    for (const Buffer* one : buffers) {
        last = std::max(last, begin_of(one) + bytes_of(one));
        most += bytes_of(one);
    }
    std::ifstream maps("/proc/self/smaps");
    bool is_inside = false;
    std::size_t bytes = 0;
    for (std::string line; std::getline(maps, line);) {
        const std::size_t dash = line.find('-');
        if (dash != std::string::npos && dash < line.find(' ')) {  // "from-to permissions ..."
            const std::uintptr_t from = std::stoull(line.substr(0, dash), nullptr, 16);
            const std::uintptr_t to = std::stoull(line.substr(dash + 1), nullptr, 16);
            if (from >= last) {
                break;
            }
            is_inside = std::ranges::any_of(buffers, [&](const Buffer* one) {
                return from < begin_of(one) + bytes_of(one) && begin_of(one) < to;
            });
        } else if (is_inside && line.rfind("AnonHugePages:", 0) == 0) {
            bytes += std::stoull(line.substr(14)) * KiB;
        }
    }
    return std::min(bytes, most);
}

}  // namespace nearstep::memory
