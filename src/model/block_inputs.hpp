// Keeps the blocks' inputs for all micro-batches of a step, from the forward that makes them to the
// backward that recomputes the block: on the network's device or in host memory.
#pragma once

#include "base/dtype.hpp"
#include "feed/block_feed.hpp"
#include "memory/buffer.hpp"
#include "memory/gpu.hpp"
#include "model/compute_device.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace at {
class Tensor;
}

namespace nearstep::model {

enum class InputPlace { with_network, on_host };

// Use from one thread, for work on the device's default stream. A step calls, in this order:
//   begin(), put() for block 0;
//   for each block but the last, ascending: get(), put() for the next block, end_forward();
//   take() for the last block;
//   for the others, descending: begin_backward(), take(), end_backward().
// The inputs of the first block (tokens) and of the last one (used at once) never leave the device.
// Host memory is allocated in the first step, and again when a step needs more.
class BlockInputs {
public:
    // `format`: the inputs' format for all blocks but the first.
    BlockInputs(int blocks, Dtype format, const ComputeDevice& device, InputPlace place);
    BlockInputs(const BlockInputs&) = delete;
    BlockInputs& operator=(const BlockInputs&) = delete;
    BlockInputs(BlockInputs&&) = delete;
    BlockInputs& operator=(BlockInputs&&) = delete;
    ~BlockInputs();

    // Drops the previous step's inputs. `bytes`: size of each micro-batch's input for one block,
    // the same for all blocks but the first.
    void begin(std::span<const std::size_t> bytes);

    void put(int block, std::size_t micro_batch, const at::Tensor& input);
    at::Tensor get(int block, std::size_t micro_batch) const;
    // Returns the input as get() does, and forgets it.
    at::Tensor take(int block, std::size_t micro_batch);

    // Call when all forward work that reads the block's inputs has been enqueued.
    void end_forward(int block);
    void begin_backward(int block);
    void end_backward(int block);

    // Total bytes moved to the host and back so far.
    std::size_t moved_bytes() const { return moved_bytes_; }

private:
    struct OfBlock {
        std::vector<at::Tensor> inputs;  // one per micro-batch; undefined: on the host
        memory::PinnedBuffer pinned;
        memory::Buffer unpinned;
        std::optional<memory::Event> is_out;
    };
    // Where a micro-batch's input lies; the same for every block.
    struct MicroBatchInput {
        std::size_t bytes = 0;
        std::size_t offset = 0;  // in the block's host memory and in a slot
        std::vector<std::int64_t> shape = {};
    };

    bool moves(int block) const;
    OfBlock& of(int block) { return blocks_.at(static_cast<std::size_t>(block)); }
    const OfBlock& of(int block) const { return blocks_.at(static_cast<std::size_t>(block)); }
    std::span<std::byte> on_host(int block);
    void make_room();
    void take_out(int block, std::size_t micro_batch, const at::Tensor& input);
    void bring_back();

    Dtype format_;
    ComputeDevice device_;
    InputPlace place_;
    bool has_streams_;
    std::vector<OfBlock> blocks_;
    std::vector<MicroBatchInput> micro_batches_;
    std::size_t bytes_ = 0;       // size of a block's inputs in this step
    std::size_t room_bytes_ = 0;  // size of a block's host memory and of a slot
    std::size_t moved_bytes_ = 0;
    std::vector<at::Tensor> slots_;
    std::unique_ptr<feed::BlockCopies> copies_;
    std::optional<feed::BlockFeed> feed_;
    std::optional<memory::Stream> out_;
    std::optional<memory::Event> is_made_;
};

}  // namespace nearstep::model
