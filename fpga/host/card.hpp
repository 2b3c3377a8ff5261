// A card with an FPGA and memory of its own, such as a SmartSSD: buffers and runs of kernels.
//
// Everything of XRT is behind this header: card_xrt.cpp and run_xrt.cpp where the machine has XRT,
// else card_absent.cpp, which refuses to open a card.
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

// Of one buffer; XRT's driver takes no larger ones.
constexpr std::size_t kMostBufferBytes = 0xFFFFF000;

// normal: memory of the host and of the card, synchronised by DMA when asked. peer_to_peer: memory
// of the card that drives read and write directly; the host must not touch it, which is very slow.
enum class BufferKind { normal, peer_to_peer };

// Shared handle; the memory goes with the last one, when nothing uses it any more.
class Buffer {
public:
    struct Memory;

    Buffer() = default;
    Buffer(std::shared_ptr<Memory> memory, std::span<std::byte> host)
        : memory_(std::move(memory)), host_(host) {}

    std::size_t size() const { return host_.size(); }
    // What the host sees: its own copy, or the window on the card.
    std::span<std::byte> host() const { return host_; }

    // Copy the host's part to the card and back; return when it is done. Offsets and sizes are
    // multiples of kWordBytes. Throw XrtError. Nothing happens to a peer-to-peer buffer.
    void to_card(std::size_t offset, std::size_t bytes) const;
    void from_card(std::size_t offset, std::size_t bytes) const;

    const std::shared_ptr<Memory>& memory() const { return memory_; }

private:
    std::shared_ptr<Memory> memory_;
    std::span<std::byte> host_;
};

// One run of a kernel: its arguments by the names of its table, then start and wait. Kept by the
// caller and used again; never dropped in flight unless a wait has failed.
class Run {
public:
    struct State;

    explicit Run(std::unique_ptr<State> state);
    Run(Run&&) noexcept;
    Run& operator=(Run&&) noexcept;
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;
    ~Run();

    // The type is that of the table's kind; a buffer lies in the bank of the argument. Throw
    // ContractError, and XrtError for a buffer in another bank.
    void set(const char* argument, const Buffer& buffer);
    void set(const char* argument, std::uint64_t value);
    void set(const char* argument, std::uint32_t value);
    void set(const char* argument, float value);

    // Returns at once; the unit that is free first runs it.
    void start();
    // Blocks until the run is over. Throws XrtError that names the card, the kernel and `purpose`
    // if it failed or took longer than the card's limit; then the card is not to be used further.
    void wait(const std::string& purpose);

private:
    std::unique_ptr<State> state_;
};

struct CardSettings {
    std::string card;    // PCI address or index
    std::string xclbin;  // file with nearstep's kernels
    std::chrono::milliseconds longest_run{30000};
};

// Throws ConfigError if this program was built without XRT.
void require_cards();

// All cards of a process are opened, and a first run of each of their kernels is made, by one
// thread; from then on any thread may call.
class Card {
public:
    struct State;

    // Throws ConfigError if there is no such card or file, or this build has no XRT.
    explicit Card(const CardSettings& settings);
    Card(Card&&) noexcept;
    Card& operator=(Card&&) noexcept;
    Card(const Card&) = delete;
    Card& operator=(const Card&) = delete;
    ~Card();

    // "0000:e0:00.1 (xilinx_u2_gen3x4_xdma_gc_2)": for messages.
    const std::string& name() const;

    // True if drives reach buffers of the card directly.
    bool has_peer_to_peer() const;

    // In the bank of the kernel's argument; throws XrtError with `purpose` if there is no room, or
    // no buffer of this kind, ContractError above kMostBufferBytes.
    Buffer allocate(BufferKind kind, std::size_t bytes, const KernelDescription& kernel,
                    const char* argument, const std::string& purpose);

    // Compute units of the kernel.
    int units(const KernelDescription& kernel) const;
    Run make_run(const KernelDescription& kernel);

private:
    std::unique_ptr<State> state_;
};

}  // namespace nearstep::fpga
