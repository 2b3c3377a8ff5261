// Provides a network's parameters on its device: in place on the CPU, or in slots to which each
// block is copied before its visits.
#pragma once

#include "base/dtype.hpp"
#include "feed/block_feed.hpp"
#include "feed/block_parts.hpp"
#include "model/compute_device.hpp"
#include "model/geometry.hpp"

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace at {
class Tensor;
}

namespace nearstep::model {

// Whether the joint ranks copy the blocks of the next visits together, or this rank copies whole
// blocks because the others do not make the same visits.
enum class Bringing { together, alone };

// Use it like BlockFeed: begin, then enter and leave for each visit, for work on the device's
// default stream. The constructor allocates the slots. Cannot be moved.
class ParameterStore {
public:
    // `parameters`: the vector of all blocks in `dtype`. It and `geometry` outlive this object.
    // `slots`: as in Residence. `joint`: the ranks that copy blocks together; unused on the CPU.
    ParameterStore(const Geometry& geometry, std::span<const std::byte> parameters, Dtype dtype,
                   const ComputeDevice& device, int slots, const feed::JointCopy& joint = {});
    ParameterStore(const ParameterStore&) = delete;
    ParameterStore& operator=(const ParameterStore&) = delete;
    ParameterStore(ParameterStore&&) = delete;
    ParameterStore& operator=(ParameterStore&&) = delete;
    ~ParameterStore();

    bool is_in_place() const { return !feed_.has_value(); }

    // With Bringing::together, all joint ranks make the same calls below in the same order.
    void begin(std::vector<feed::Visit> visits, Bringing bringing);
    // Call when the block is final in the vector until the visits are over.
    void allow(int block);
    void allow_all();
    void enter();
    void leave();

    // The block's elements, flat, during a visit that reads it. Do not write to them, although the
    // tensor is mutable.
    at::Tensor elems(int block) const;

    // Bytes copied from host memory to slots so far.
    std::size_t brought_bytes() const { return brought_bytes_; }

private:
    std::span<const std::byte> bytes_of(int block) const;
    void make_slots(const ComputeDevice& device, int slots, int ranks);

    const Geometry& geometry_;
    std::span<const std::byte> parameters_;
    Dtype dtype_;
    std::size_t brought_bytes_ = 0;
    bool has_company_ = false;       // there are other joint ranks
    bool is_together_ = false;       // they copy the current visits' blocks with this rank
    std::vector<at::Tensor> slots_;  // tensors of bytes
    std::unique_ptr<feed::BlockCopies> copies_;
    std::optional<feed::BlockFeed> feed_;  // none: in place
};

}  // namespace nearstep::model
