// A network's parameters where it computes: in place on the CPU, or in slots that they are brought
// to, each block ahead of its visits.
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

// Whether a rank that others bring blocks with does so in the visits to come, or copies whole ones:
// the others' visits are not these.
enum class Bringing { together, alone };

// As BlockFeed: begin, then enter and leave of each visit, for work in the order of the device's
// default stream. Slots are allocated here, once. Not to be moved.
class ParameterStore {
public:
    // `parameters`: the vector of all blocks in `dtype`; outlives this, and so does `geometry`.
    // `slots`: as in Residence. `joint`: who brings blocks with this rank; on the CPU nobody.
    ParameterStore(const Geometry& geometry, std::span<const std::byte> parameters, Dtype dtype,
                   const ComputeDevice& device, int slots, const feed::JointCopy& joint = {});
    ParameterStore(const ParameterStore&) = delete;
    ParameterStore& operator=(const ParameterStore&) = delete;
    ParameterStore(ParameterStore&&) = delete;
    ParameterStore& operator=(ParameterStore&&) = delete;
    ~ParameterStore();

    bool is_in_place() const { return !feed_.has_value(); }

    // Together: all who bring blocks together call the same of everything below in the same order.
    void begin(std::vector<feed::Visit> visits, Bringing bringing);
    // The block is final in the vector until the visits are over.
    void allow(int block);
    void allow_all();
    void enter();
    void leave();

    // The block's elements, flat, in a visit that reads it. They are only read, though torch asks
    // for void*.
    at::Tensor elems(int block) const;

    // What was brought to slots from host memory so far.
    std::size_t brought_bytes() const { return brought_bytes_; }

private:
    std::span<const std::byte> bytes_of(int block) const;
    void make_slots(const ComputeDevice& device, int slots, int ranks);

    const Geometry& geometry_;
    std::span<const std::byte> parameters_;
    Dtype dtype_;
    std::size_t brought_bytes_ = 0;
    bool has_company_ = false;       // in bringing blocks
    bool is_together_ = false;       // now
    std::vector<at::Tensor> slots_;  // bytes
    std::unique_ptr<feed::BlockCopies> copies_;
    std::optional<feed::BlockFeed> feed_;  // none: in place
};

}  // namespace nearstep::model
