#include "offload/gpu_gradients.hpp"

#include "base/error.hpp"
#include "base/units.hpp"

#include <algorithm>
#include <utility>

namespace nearstep::offload {

using shard::kTileElems;

namespace {

struct Sizes {
    std::size_t most_tiles = 0;
    std::size_t values_bytes = 0;
    std::size_t batch_bytes = 0;
};

// For the largest block, plus the first tile's head before it and the last tile's rest after it.
// Also for the payloads of the block with the most tiles.
Sizes sizes_of(std::span<const ElementRange> blocks, std::size_t most_payload_bytes) {
    std::size_t largest = 0;
    std::size_t most_tiles = 0;
    for (const ElementRange block : blocks) {
        largest = std::max(largest, block.size());
        most_tiles = std::max(most_tiles, complete_tiles(block).size());
    }
    return {.most_tiles = most_tiles,
            .values_bytes = (largest + 2 * kTileElems) * sizeof(float),
            .batch_bytes = most_tiles * most_payload_bytes};
}

memory::Stream on_gpu(int gpu, CUstream_st* stream) {
    memory::use_gpu(gpu);
    return memory::Stream::borrowed(stream);
}

}  // namespace

GpuGradients::GpuGradients(int gpu, std::vector<ElementRange> blocks,
                           std::size_t most_payload_bytes, Dtype dtype,
                           std::optional<GradientGroup> group, std::optional<PayloadGroup> payloads,
                           CUstream_st* stream)
    : blocks_(std::move(blocks)),
      dtype_(dtype),
      compute_(on_gpu(gpu, stream)),
      carried_(kTileElems * sizeof(float)) {
    Sizes sizes = sizes_of(blocks_, most_payload_bytes);
    if (group) {
        sum_.emplace(*group->ranks, std::move(group->blocks), dtype);
        std::size_t most_mine = 0;
        for (std::size_t block = 0; block < blocks_.size(); ++block) {
            most_mine = std::max(most_mine, sum_->mine(block).size());
        }
        sizes.batch_bytes = most_mine * most_payload_bytes;
    }
    std::size_t came_bytes = 0;
    std::size_t host_bytes = sizes.batch_bytes;
    if (payloads) {
        exchange_.emplace(*payloads->ranks, std::move(payloads->blocks));
        host_bytes = 0;
        for (std::size_t block = 0; block < blocks_.size(); ++block) {
            const PayloadRoutes& routes = exchange_->routes(block);
            came_bytes = std::max(came_bytes, routes.came() * most_payload_bytes);
            host_bytes = std::max(host_bytes, (routes.came() + routes.kept()) * most_payload_bytes);
        }
    }
    values_ = memory::GpuBuffer(sizes.values_bytes);
    for (Batch& batch : batches_) {
        batch.on_gpu = memory::GpuBuffer(sizes.batch_bytes);
        batch.came = memory::GpuBuffer(came_bytes);
        batch.on_host = memory::PinnedBuffer(host_bytes);
    }
}

std::size_t GpuGradients::gpu_bytes(std::span<const ElementRange> blocks,
                                    std::size_t most_payload_bytes, const Ranks& ranks,
                                    Dtype dtype) {
    const Sizes sizes = sizes_of(blocks, most_payload_bytes);
    std::size_t bytes = sizes.values_bytes + kTileElems * sizeof(float);
    if (ranks.in_all > 0) {
        const auto all = static_cast<std::size_t>(ranks.in_all);
        const std::size_t taken = round_up(sizes.most_tiles, all) / all;
        bytes += 2 * taken * static_cast<std::size_t>(ranks.payloads - 1) * most_payload_bytes;
    }
    if (ranks.in_group == 1) {
        return bytes + 2 * sizes.batch_bytes;
    }
    const auto members = static_cast<std::size_t>(ranks.in_group);
    const std::size_t slice = round_up(sizes.most_tiles, members) / members;
    const std::size_t tile_bytes = kTileElems * size_bytes(dtype);
    return bytes + 2 * slice * most_payload_bytes + sizes.most_tiles * tile_bytes +
           slice * ((members - 1) * tile_bytes + kTileElems * sizeof(float));
}

void GpuGradients::begin_step(const codec::Codec& codec, std::uint64_t random_key) {
    codec_ = &codec;
    random_key_ = random_key;
    for (Batch& batch : batches_) {  // drops batches of the previous step
        batch.tiles = {};
    }
}

std::span<float> GpuGradients::space(std::size_t block) {
    const ElementRange range = blocks_[block];
    if (block + 1 == blocks_.size()) {  // after the last block: padding of the last tile
        carried_elems_ = round_up(range.end, kTileElems) - range.end;
        fill_with_zeros(carried_.span().first(carried_elems_ * sizeof(float)), compute_);
    }
    return {values_.as<float>() + range.begin % kTileElems, range.size()};
}

// Keeps the elements from `from` on for the block before this one.
void GpuGradients::carry(std::size_t from, std::size_t count) {
    carried_elems_ = count;
    copy_on_gpu(carried_.span().first(count * sizeof(float)),
                values_.span().subspan(from * sizeof(float), count * sizeof(float)), compute_);
}

void GpuGradients::encode(std::size_t block) {
    const ElementRange range = blocks_[block];
    const shard::TileRange tiles = complete_tiles(range);
    const std::size_t base = range.begin / kTileElems * kTileElems;
    copy_on_gpu(
        values_.span().subspan((range.end - base) * sizeof(float), carried_elems_ * sizeof(float)),
        carried_.span().first(carried_elems_ * sizeof(float)), compute_);
    Batch& batch = batches_.at(std::exchange(next_batch_, 1 - next_batch_));
    batch.block = block;
    batch.tiles = tiles;
    if (tiles.size() == 0) {  // block inside one tile: carry all of it
        return carry(range.begin - base, carried_elems_ + range.size());
    }
    const std::size_t first = tiles.begin * kTileElems;
    carry(range.begin - base, first - range.begin);
    const std::size_t bytes =
        encode_tiles(block, values_.as<float>() + (first - base), batch) * codec_->payload_bytes();
    if (exchange_) {
        bring(batch, batch.on_gpu.span().first(bytes));
    } else {
        copies_.wait_for(batch.encoded);
        copy_to_host(batch.on_host.span().first(bytes), batch.on_gpu.span().first(bytes), copies_);
    }
    batch.arrived.record(copies_);
    batch.is_here = false;
}

// Exchanges payloads between GPUs, and copies those that this rank takes to its host.
void GpuGradients::bring(Batch& batch, std::span<const std::byte> made) {
    const std::size_t payload_bytes = codec_->payload_bytes();
    const PayloadRoutes& routes = exchange_->routes(batch.block);
    const std::span<std::byte> came = batch.came.span().first(routes.came() * payload_bytes);
    exchange_->exchange(batch.block, made, came, payload_bytes, batch.encoded);
    batch.exchanged.record(exchange_->stream());
    copies_.wait_for(batch.exchanged);
    const int me = exchange_->rank();
    const std::size_t kept_bytes = routes.kept() * payload_bytes;
    copy_to_host(batch.on_host.span().first(came.size()), came, copies_);
    copy_to_host(batch.on_host.span().subspan(came.size(), kept_bytes),
                 made.subspan(routes.first_for(me) * payload_bytes, kept_bytes), copies_);
}

// Returns the number of payloads.
std::size_t GpuGradients::encode_tiles(std::size_t block, const float* gradient, Batch& batch) {
    codec::GpuEncoding encoding{.tiles = batch.tiles.size(),
                                .gradient = gradient,
                                .rounding = dtype_,
                                .order = exchange_ ? exchange_->order(block) : nullptr,
                                .payloads = batch.on_gpu.as<std::byte>(),
                                .random_key = random_key_,
                                .first_tile = batch.tiles.begin};
    // The batch's old payloads may still be in transfer if the host took none of them.
    const memory::Stream& stream = sum_ ? sum_->stream() : compute_;
    stream.wait_for(batch.arrived);
    if (!sum_) {
        encode_on_gpu(*codec_, encoding, compute_);
        batch.encoded.record(compute_);
        return encoding.tiles;
    }
    const GpuGroupSum::Slice mine = sum_->add_up(block, gradient, compute_);
    encoding.tiles = mine.tiles;
    encoding.gradient = mine.values;
    encoding.rounding = Dtype::fp32;  // a sum is not rounded again
    encoding.places = mine.places;
    encode_on_gpu(*codec_, encoding, sum_->stream());
    batch.encoded.record(sum_->stream());
    return encoding.tiles;
}

// Index of the tile's payload in the batch.
std::size_t GpuGradients::place_of(std::size_t tile, const Batch& batch) const {
    const std::size_t in_block = tile - batch.tiles.begin;
    if (!sum_) {
        return in_block;
    }
    const auto mine = sum_->mine(batch.block);
    const auto found = std::lower_bound(mine.begin(), mine.end(), in_block);
    expects(found != mine.end() && *found == in_block, "the tile is of this rank's slice");
    return static_cast<std::size_t>(found - mine.begin());
}

// Throws if either exchange was aborted, so that its data is not used.
void GpuGradients::wait_for(Batch& batch) {
    if (batch.is_here) {
        return;
    }
    batch.arrived.wait();
    if (sum_) {
        sum_->wait_for(batch.arrived);
    }
    if (exchange_) {
        exchange_->wait_for(batch.arrived);
    }
    batch.is_here = true;
}

GpuGradients::Batch& GpuGradients::batch_of(std::size_t tile) {
    for (Batch& batch : batches_) {
        if (tile >= batch.tiles.begin && tile < batch.tiles.end) {
            return batch;
        }
    }
    throw ContractError("A payload is asked for that was not encoded.");
}

std::span<const std::byte> GpuGradients::payload(std::size_t tile) {
    expects(!exchange_, "payloads come to the host where they are made");
    Batch& batch = batch_of(tile);
    const std::size_t place = place_of(tile, batch);
    wait_for(batch);
    const std::size_t bytes = codec_->payload_bytes();
    return batch.on_host.span().subspan(place * bytes, bytes);
}

std::span<const std::byte> GpuGradients::arrived(std::size_t tile, int group) {
    expects(exchange_.has_value(), "payloads come to the host where they are taken");
    Batch& batch = batch_of(tile);
    const std::size_t place = exchange_->routes(batch.block).place_of(tile, group);
    wait_for(batch);
    const std::size_t bytes = codec_->payload_bytes();
    return batch.on_host.span().subspan(place * bytes, bytes);
}

}  // namespace nearstep::offload
