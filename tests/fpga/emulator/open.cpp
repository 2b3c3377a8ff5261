// Buffers and commands of one opening of an emulated card. Used by driver.cpp.
#include "fpga/emulator/open.hpp"

#include <ert.h>
#include <sys/mman.h>
#include <xrt_mem.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

namespace nearstep::emulator {

namespace {

constexpr std::size_t kWordBytes = sizeof(std::uint32_t);
constexpr unsigned kKindBits = ~static_cast<unsigned>(XRT_BO_FLAGS_MEMIDX_MASK);

}  // namespace

struct Open::Buffer {
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() {
        if (bank != nullptr) {
            bank->release(address);
        }
        if (owned != nullptr) {
            ::munmap(owned, whole_pages(bytes));
        }
    }

    std::size_t bytes = 0;
    unsigned flags = 0;
    Bank* bank = nullptr;       // null: no card memory
    std::uint64_t address = 0;  // device address
    std::byte* device = nullptr;
    std::byte* host = nullptr;  // null: the host has no access
    void* owned = nullptr;      // host memory provided by the driver
};

void Open::place(Buffer& buffer, void* user) {
    const unsigned kind = buffer.flags & kKindBits;
    if (kind != XCL_BO_FLAGS_EXECBUF) {
        if ((kind & (XCL_BO_FLAGS_HOST_ONLY | XCL_BO_FLAGS_SVM)) != 0) {
            refuse(EINVAL, "the card reaches no host memory");
        }
        const bool is_p2p = (kind & XCL_BO_FLAGS_P2P) != 0;
        if (is_p2p && board_->faults().next(FaultKind::no_p2p, board_->index()) != 0) {
            refuse(EINVAL, "p2p is not enabled");
        }
        Bank* bank = board_->bank(buffer.flags & XRT_BO_FLAGS_MEMIDX_MASK);
        if (bank == nullptr) {
            refuse(EINVAL, "no such bank");
        }
        const auto address = board_->faults().next(FaultKind::no_memory, board_->index()) != 0
                                 ? std::nullopt
                                 : bank->allocate(buffer.bytes);
        if (!address) {
            refuse(ENOMEM, "no room in the bank");
        }
        buffer.bank = bank;
        buffer.address = *address;
        buffer.device = bank->find(*address, buffer.bytes);
        if (is_p2p) {
            buffer.host = buffer.device;
            board_->counters().p2p_bytes.fetch_add(buffer.bytes);
        }
        if (is_p2p || kind == XCL_BO_FLAGS_DEV_ONLY) {
            return;
        }
    }
    buffer.host = static_cast<std::byte*>(user);
    if (user == nullptr) {
        void* mapped = ::mmap(nullptr, whole_pages(buffer.bytes), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED) {
            refuse(ENOMEM, "no host memory");
        }
        buffer.owned = mapped;
        buffer.host = static_cast<std::byte*>(mapped);
    }
}

unsigned Open::allocate(void* user, std::size_t bytes, unsigned flags) {
    if (bytes == 0) {
        refuse(EINVAL, "an empty buffer");
    }
    const auto buffer = std::make_shared<Buffer>();
    buffer->bytes = bytes;
    buffer->flags = flags;
    place(*buffer, user);
    board_->counters().allocations.fetch_add(1);
    const std::lock_guard lock(mutex_);
    buffers_[next_] = buffer;
    return next_++;
}

void Open::release(unsigned buffer) {
    Shared last;
    const std::lock_guard lock(mutex_);
    const auto found = buffers_.find(buffer);
    if (found != buffers_.end()) {
        last = std::move(found->second);
        buffers_.erase(found);
    }
}

Open::Shared Open::find(unsigned buffer) {
    const std::lock_guard lock(mutex_);
    const auto found = buffers_.find(buffer);
    if (found == buffers_.end()) {
        refuse(ENOENT, "no such buffer");
    }
    return found->second;
}

void* Open::map(unsigned buffer) { return find(buffer)->host; }

void Open::describe(unsigned buffer, xclBOProperties& properties) {
    const Shared found = find(buffer);
    properties = {};
    properties.handle = buffer;
    properties.flags = found->flags;
    properties.size = found->bytes;
    properties.paddr = found->address;
}

void Open::synchronise(unsigned buffer, xclBOSyncDirection direction, std::size_t bytes,
                       std::size_t offset) {
    const Shared found = find(buffer);
    if (found->device == nullptr || found->host == nullptr) {
        refuse(EOPNOTSUPP, "a buffer with one side has nothing to synchronise");
    }
    if (offset > found->bytes || bytes > found->bytes - offset) {
        refuse(EINVAL, "behind the end of the buffer");
    }
    if (found->host == found->device) {
        return;  // peer to peer has only one memory
    }
    if (board_->faults().next(FaultKind::lost_sync, board_->index()) != 0) {
        return;
    }
    const bool is_to_device = direction == XCL_BO_SYNC_BO_TO_DEVICE;
    std::byte* to = (is_to_device ? found->device : found->host) + offset;
    std::memcpy(to, (is_to_device ? found->host : found->device) + offset, bytes);
    Counters& counters = board_->counters();
    (is_to_device ? counters.to_device_bytes : counters.from_device_bytes).fetch_add(bytes);
}

void Open::copy(unsigned to, unsigned from, std::size_t bytes, std::size_t to_offset,
                std::size_t from_offset) {
    const Shared target = find(to);
    const Shared source = find(from);
    if (target->device == nullptr || source->device == nullptr) {
        refuse(EINVAL, "a buffer without memory of the card");
    }
    if (to_offset + bytes > target->bytes || from_offset + bytes > source->bytes) {
        refuse(EINVAL, "behind the end of a buffer");
    }
    std::memmove(target->device + to_offset, source->device + from_offset, bytes);
}

void Open::complete(const Shared& packet, Outcome outcome) {
    auto* header = reinterpret_cast<std::uint32_t*>(packet->host);
    constexpr std::uint32_t kStateBits = 0xF;
    const std::uint32_t rest = __atomic_load_n(header, __ATOMIC_RELAXED) & ~kStateBits;
    __atomic_store_n(header, rest | static_cast<std::uint32_t>(outcome), __ATOMIC_RELEASE);
    {
        const std::lock_guard lock(completion_mutex_);
        ++completions_;
    }
    completed_.notify_all();
}

void Open::start_run(unsigned id, const Shared& packet) {
    const auto* command = reinterpret_cast<const ert_start_kernel_cmd*>(packet->host);
    const std::size_t masks = 1 + command->extra_cu_masks;
    if (command->count < masks || (1 + command->count) * kWordBytes > packet->bytes) {
        refuse(EINVAL, "a command longer than its buffer");
    }
    const std::uint32_t* words = &command->cu_mask;
    const std::vector<std::uint32_t> mask(words, words + masks);
    ComputeUnit* unit = board_->choose_unit(mask);
    if (unit == nullptr) {
        refuse(EINVAL, "a command for no compute unit");
    }
    Command run;
    run.id = id;
    run.owner = this;
    run.registers.assign(words + masks, words + command->count);
    // Keeps the packet alive, because the host may free a command in flight.
    run.finish = [this, packet](Outcome outcome) { complete(packet, outcome); };
    unit->submit(std::move(run));
}

void Open::abort_run(const Shared& packet) {
    const auto* command = reinterpret_cast<const ert_abort_cmd*>(packet->host);
    std::uint64_t victim = 0;
    std::memcpy(&victim, reinterpret_cast<const std::byte*>(command) + 8, sizeof victim);
    board_->abort(this, static_cast<unsigned>(victim));
    complete(packet, Outcome::completed);
}

void Open::execute(unsigned buffer) {
    const Shared packet = find(buffer);
    if (packet->host == nullptr || (packet->flags & kKindBits) != XCL_BO_FLAGS_EXECBUF) {
        refuse(EINVAL, "not a buffer of commands");
    }
    const auto* header = reinterpret_cast<const ert_packet*>(packet->host);
    if (header->opcode == ERT_START_CU && header->type == ERT_CU) {
        start_run(buffer, packet);
    } else if (header->opcode == ERT_ABORT) {
        abort_run(packet);
    } else {
        // This includes copies by command: a SmartSSD's shell has no unit for them.
        refuse(EINVAL, "a command that the card does not know");
    }
}

bool Open::wait_for_completion(int milliseconds) {
    std::unique_lock lock(completion_mutex_);
    const auto has_one = [this] { return completions_ > 0; };
    if (milliseconds < 0) {
        completed_.wait(lock, has_one);
    } else if (!completed_.wait_for(lock, std::chrono::milliseconds(milliseconds), has_one)) {
        return false;
    }
    --completions_;
    return true;
}

}  // namespace nearstep::emulator
