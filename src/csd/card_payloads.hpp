// The part of a card's memory that holds the gradient payloads of the next update.
#pragma once

#include "base/executor.hpp"
#include "codec/codec.hpp"
#include "csd/payload_memory.hpp"
#include "csd/state_layout.hpp"
#include "fpga/host/card.hpp"
#include "shard/partition.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace nearstep::csd {

// The place of a subgroup's payloads.
struct PayloadPlace {
    const fpga::CardBuffer* buffer = nullptr;
    std::uint64_t offset = 0;
    std::uint32_t stride = 0;  // bytes from one payload to the next
};

// Sends payloads to the card one subgroup at a time while more arrive. Used by one thread.
class CardPayloads {
public:
    // `most_payload_bytes` is the largest among the codecs that use() may name. Throws XrtError if
    // the card has too little memory. The layout and the card outlive this.
    CardPayloads(fpga::Card& card, const StateLayout& layout, std::size_t subgroups,
                 std::size_t most_payload_bytes, std::size_t sources);

    // The codec outlives this.
    void use(const codec::Codec& codec) { codec_ = &codec; }
    const codec::Codec& codec() const { return *codec_; }

    // Takes the payloads of one tile of the device, one per source in rank order. Returns the bytes
    // that go to the card.
    std::size_t put(std::size_t subgroup, std::size_t tile, Payloads payloads);

    // Returns when all payloads are on the card; rethrows the first error of a transfer.
    void finish();

    PayloadPlace place_of(std::size_t subgroup) const;

private:
    struct OpenPlace {
        std::size_t buffer = 0;
        std::size_t offset = 0;
        std::size_t tiles_put = 0;  // of this step
        // Range within the subgroup that covers all tiles put but not yet sent.
        shard::TileRange unsent = {};
    };

    std::size_t tile_bytes() const { return sources_ * stride_; }
    std::size_t subgroup_bytes(std::size_t subgroup) const;
    void send(OpenPlace& place);

    const StateLayout* layout_;
    const codec::Codec* codec_ = nullptr;
    std::size_t sources_;
    std::size_t stride_;
    std::vector<fpga::CardBuffer> buffers_;
    std::vector<OpenPlace> places_;  // one per subgroup
    Ticket sending_;
    Executor worker_{1};
};

}  // namespace nearstep::csd
