// A card with an FPGA and its own memory, such as a SmartSSD: buffers and kernel runs.
//
// Only code behind this header uses XRT: card_xrt.cpp and run_xrt.cpp, and xrt_library.cpp loads
// it. A build without XRT's headers has card_absent.cpp instead, which refuses to open a card.
#pragma once

#include "fpga/kernel/arguments.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace nearstep::fpga {

// Limit of one buffer, set by XRT's driver.
constexpr std::size_t kMostBufferBytes = 0xFFFFF000;

// normal: host memory and card memory, synchronised by DMA on request. peer_to_peer: card memory
// that drives read and write directly. The host must not access it, because that is very slow.
enum class BufferKind { normal, peer_to_peer };

// Shared handle. The memory is freed with the last handle, once no run uses it.
class CardBuffer {
public:
    struct Memory;

    CardBuffer() = default;
    CardBuffer(std::shared_ptr<Memory> memory, std::span<std::byte> host)
        : memory_(std::move(memory)), host_(host) {}

    std::size_t size() const { return host_.size(); }
    // The host's view: its own copy, or the mapped window of the card.
    std::span<std::byte> host() const { return host_; }

    // Copy the host's part to the card, or back, and return when done. Offsets and sizes are
    // multiples of kWordBytes. Throw XrtError. No effect on a peer-to-peer buffer.
    void to_card(std::size_t offset, std::size_t bytes) const {
        synchronise(Way::to_card, offset, bytes);
    }
    void from_card(std::size_t offset, std::size_t bytes) const {
        synchronise(Way::from_card, offset, bytes);
    }

    const std::shared_ptr<Memory>& memory() const { return memory_; }

private:
    enum class Way { to_card, from_card };
    void synchronise(Way way, std::size_t offset, std::size_t bytes) const;

    std::shared_ptr<Memory> memory_;
    std::span<std::byte> host_;
};

// One run of a kernel: set its arguments by name, then start and wait. The caller keeps and reuses
// it, and must not destroy it in flight unless a wait has failed.
class KernelRun {
public:
    struct State;

    explicit KernelRun(std::unique_ptr<State> state);
    KernelRun(KernelRun&&) noexcept;
    KernelRun& operator=(KernelRun&&) noexcept;
    KernelRun(const KernelRun&) = delete;
    KernelRun& operator=(const KernelRun&) = delete;
    ~KernelRun();

    // The type must match the kernel's table, and a buffer must lie in the argument's bank. Throw
    // ContractError, or XrtError for a buffer in another bank.
    void set(const char* argument, const CardBuffer& buffer);
    void set(const char* argument, std::uint64_t value);
    void set(const char* argument, std::uint32_t value);
    void set(const char* argument, float value);

    // Returns at once. The first free compute unit executes the run.
    void start();
    // Blocks until the run ends. Throws XrtError naming the card, the kernel and `purpose` if the
    // run failed or exceeded the card's time limit. After that the card must not be used.
    void wait(const std::string& purpose);

private:
    std::unique_ptr<State> state_;
};

struct CardSettings {
    std::string card;    // PCI address or index
    std::string xclbin;  // file with nearstep's kernels
    std::chrono::milliseconds longest_run{30000};
};

// Throws ConfigError if this program was built without XRT, or XRT is not here.
void require_cards();

// One thread must open all cards of a process and make a first run of each of their kernels.
// Afterwards any thread may call.
class Card {
public:
    struct State;

    // Throws ConfigError if the card or the file does not exist, or XRT is missing.
    explicit Card(const CardSettings& settings);
    Card(Card&&) noexcept;
    Card& operator=(Card&&) noexcept;
    Card(const Card&) = delete;
    Card& operator=(const Card&) = delete;
    ~Card();

    // "0000:e0:00.1 (xilinx_u2_gen3x4_xdma_gc_2)": for messages.
    const std::string& name() const;

    // True if drives can access buffers of the card directly.
    bool has_peer_to_peer() const;

    // Allocates in the bank of the kernel's argument. Throws XrtError with `purpose` if there is no
    // room or no buffer of this kind, ContractError above kMostBufferBytes.
    CardBuffer allocate(BufferKind kind, std::size_t bytes, const KernelDescription& kernel,
                        const char* argument, const std::string& purpose);

    // Number of the kernel's compute units.
    int units(const KernelDescription& kernel) const;
    KernelRun make_run(const KernelDescription& kernel);

private:
    std::unique_ptr<State> state_;
};

}  // namespace nearstep::fpga
