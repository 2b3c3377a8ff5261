// A slot in a card's memory: a subgroup's state, its update's results, and the kernel runs on it.
#pragma once

#include "base/dtype.hpp"
#include "base/executor.hpp"
#include "codec/codec.hpp"
#include "csd/card_groups.hpp"
#include "csd/card_payloads.hpp"
#include "csd/device.hpp"
#include "csd/update_engine.hpp"
#include "fpga/host/card.hpp"
#include "memory/buffer.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

namespace nearstep::csd {

// Sizes for the largest subgroup.
struct CardSlotSizes {
    std::size_t payload_bytes = 0;
    std::size_t parameter_bytes = 0;  // or of a message
    std::size_t tiles = 0;
    std::size_t group_words = 0;  // of the largest table
};

// Tiles of an update and their encoding.
struct CardUpdate {
    std::size_t tiles = 0;
    std::size_t first_tile = 0;  // in the parameter vector
    StateFormat format = StateFormat::fp32;
    Dtype parameter_dtype = Dtype::bf16;
    Delivery delivery = Delivery::parameters;
    codec::KernelForm gradient;
    std::uint32_t sources = 1;
    PayloadPlace payloads;
};

// Computes a digest of card memory on the card, so no host core reads the data.
class CardDigest {
public:
    explicit CardDigest(fpga::Card& card);

    // XXH3 of the first `bytes` of the buffer. Throws XrtError that mentions `purpose`. One thread
    // at a time.
    std::uint64_t digest(const fpga::CardBuffer& buffer, std::size_t bytes,
                         const std::string& purpose);

private:
    fpga::CardBuffer result_;
    fpga::KernelRun run_;
};

struct CardSlot {
    // Throws XrtError if the card has too little memory.
    CardSlot(fpga::Card& card, const CardSlotSizes& sizes, bool is_peer_to_peer);
    CardSlot(const CardSlot&) = delete;
    CardSlot& operator=(const CardSlot&) = delete;
    // Waits for pending operations.
    ~CardSlot() = default;

    // Runs the updater on the state; start_update() returns at once. Both throw XrtError.
    void start_update(const CardUpdate& update, const GroupTable& groups);
    void finish_update(const std::string& purpose);
    // Bytes of the new parameters or of the message. Call after finish_update().
    std::size_t parameter_bytes() const;

    memory::Buffer header;   // of the subgroup, in host memory
    fpga::CardBuffer state;  // its payload
    fpga::CardBuffer groups;
    fpga::CardBuffer parameters;
    fpga::CardBuffer report;
    fpga::KernelRun updater;
    CardDigest verifying;
    CardDigest sealing_digest;

    Completion updated;
    Ticket updating;
};

}  // namespace nearstep::csd
