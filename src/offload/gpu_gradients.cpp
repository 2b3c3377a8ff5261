// Cuts and encodes gradients on the GPU and brings the payloads to the host. Used by StepPipeline.
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

// Sizes for the largest block, plus the first tile's head before it and the last tile's rest after
// it. The payloads have room for the block with the most tiles.
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

GpuGradients::GpuGradients(GpuGradientSettings settings)
    : settings_(std::move(settings)),
      compute_(on_gpu(settings_.gpu, settings_.stream)),
      values_(sizes_of(settings_.blocks, 0).values_bytes),
      carried_(kTileElems * sizeof(float)) {
    if (settings_.group != nullptr) {
        std::vector<exchange::ByRank> slices;
        for (const exchange::Route& route : settings_.routes) {
            slices.push_back(route.slices);
        }
        sum_.emplace(*settings_.group, std::move(slices), settings_.dtype);
    }
    if (are_brought()) {
        exchanges_.emplace(memory::StreamPriority::high);
        std::vector<std::uint32_t> order;
        for (const exchange::Route& route : settings_.routes) {
            starts_.push_back(order.size());
            order.insert(order.end(), route.sent.order().begin(), route.sent.order().end());
        }
        order_ = memory::GpuBuffer(order.size() * sizeof(std::uint32_t));
        copy_to_gpu(order_.span(), std::as_bytes(std::span(order)), *exchanges_);
        exchanges_->wait();
    }
    std::size_t made = 0;
    std::size_t taken = 0;
    std::size_t received = 0;  // from other ranks
    for (const exchange::Route& route : settings_.routes) {
        made = std::max(made, route.sliced.size());
        if (are_brought()) {
            const int me = settings_.payload_ranks->rank();
            taken = std::max(taken, route.received.size());
            received = std::max(received, route.received.size() - route.received.count(me));
        }
    }
    for (Batch& batch : batches_) {
        batch.on_gpu = memory::GpuBuffer(made * settings_.most_payload_bytes);
        batch.received = memory::GpuBuffer(received * settings_.most_payload_bytes);
        batch.on_host =
            memory::PinnedBuffer((are_brought() ? taken : made) * settings_.most_payload_bytes);
        const std::size_t squares = settings_.squares ? made * sizeof(double) : 0;
        batch.squares = memory::GpuBuffer(squares);
        batch.squares_on_host = memory::PinnedBuffer(squares);
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
    for (Batch& batch : batches_) {
        batch.block = std::nullopt;
    }
}

std::span<float> GpuGradients::space(std::size_t block) {
    const ElementRange range = settings_.blocks[block];
    if (block + 1 == settings_.blocks.size()) {  // after the last block: padding of the last tile
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
    const ElementRange range = settings_.blocks[block];
    const shard::TileRange tiles = complete_tiles(range);
    const std::size_t base = range.begin / kTileElems * kTileElems;
    copy_on_gpu(
        values_.span().subspan((range.end - base) * sizeof(float), carried_elems_ * sizeof(float)),
        carried_.span().first(carried_elems_ * sizeof(float)), compute_);
    Batch& batch = batches_.at(std::exchange(next_batch_, 1 - next_batch_));
    batch.block = block;
    if (tiles.size() == 0) {  // block inside one tile: carry all of it
        return carry(range.begin - base, carried_elems_ + range.size());
    }
    const std::size_t first = tiles.begin * kTileElems;
    carry(range.begin - base, first - range.begin);
    encode_tiles(block, values_.as<float>() + (first - base), batch);
    if (are_brought()) {
        bring(block, batch);
    } else {
        const std::size_t bytes = route(block).sliced.size() * codec_->payload_bytes();
        copies_.wait_for(batch.encoded);
        copy_to_host(batch.on_host.span().first(bytes), batch.on_gpu.span().first(bytes), copies_);
        const std::size_t squares = settings_.squares ? tiles.size() * sizeof(double) : 0;
        copy_to_host(batch.squares_on_host.span().first(squares),
                     batch.squares.span().first(squares), copies_);
    }
    batch.arrived.record(copies_);
}

// Exchanges payloads between GPUs, and copies those that this rank takes to its host: those of the
// ranks before it, its own, and those of the ranks behind it.
void GpuGradients::bring(std::size_t block, Batch& batch) {
    nccl::Group& ranks = *settings_.payload_ranks;
    const exchange::Route& of = route(block);
    const std::size_t payload_bytes = codec_->payload_bytes();
    std::vector<std::span<const std::byte>> to(static_cast<std::size_t>(ranks.size()));
    std::vector<std::span<std::byte>> from(to.size());
    std::span<std::byte> room = batch.received.span();
    for (int rank = 0; rank < ranks.size(); ++rank) {
        if (rank != ranks.rank()) {
            const auto place = static_cast<std::size_t>(rank);
            to[place] = batch.on_gpu.span().subspan(of.sent.first(rank) * payload_bytes,
                                                    of.sent.count(rank) * payload_bytes);
            from[place] = room.first(of.received.count(rank) * payload_bytes);
            room = room.subspan(from[place].size());
        }
    }
    exchanges_->wait_for(batch.encoded);
    ranks.exchange(to, from, *exchanges_);
    batch.exchanged.record(*exchanges_);
    copies_.wait_for(batch.exchanged);
    const std::size_t before = of.received.first(ranks.rank()) * payload_bytes;
    const std::size_t own = of.received.count(ranks.rank()) * payload_bytes;
    const std::size_t behind = of.received.size() * payload_bytes - before - own;
    const std::span<std::byte> on_host = batch.on_host.span();
    copy_to_host(on_host.first(before), batch.received.span().first(before), copies_);
    copy_to_host(on_host.subspan(before, own),
                 batch.on_gpu.span().subspan(of.sent.first(ranks.rank()) * payload_bytes, own),
                 copies_);
    copy_to_host(on_host.subspan(before + own, behind),
                 batch.received.span().subspan(before, behind), copies_);
}

void GpuGradients::encode_tiles(std::size_t block, const float* gradient, Batch& batch) {
    codec::GpuEncoding encoding{
        .tiles = route(block).tiles.size(),
        .gradient = gradient,
        .rounding = settings_.dtype,
        .order = are_brought() ? order_.as<const std::uint32_t>() + starts_[block] : nullptr,
        .payloads = batch.on_gpu.as<std::byte>(),
        .random_key = random_key_,
        .first_tile = route(block).tiles.begin};
    // The batch's old payloads may still be in transfer if the host took none of them.
    const memory::Stream& stream = sum_ ? sum_->stream() : compute_;
    stream.wait_for(batch.arrived);
    if (sum_) {
        const GpuGroupSum::Slice mine = sum_->add_up(block, gradient, compute_);
        encoding.tiles = mine.tiles;
        encoding.gradient = mine.values;
        encoding.rounding = Dtype::fp32;  // a sum is not rounded again
        encoding.places = mine.places;
    }
    encode_on_gpu(*codec_, encoding, stream);
    if (settings_.squares) {
        square_on_gpu(*codec_, encoding.payloads, encoding.tiles, batch.squares.as<double>(),
                      stream);
    }
    batch.encoded.record(stream);
}

const GpuGradients::Batch& GpuGradients::batch_of(std::size_t block) const {
    const auto batch = std::ranges::find(batches_, std::optional(block), &Batch::block);
    expects(batch != batches_.end(), "the block was encoded, and at most one after it");
    return *batch;
}

// Throws if either exchange was aborted, so that its data is not used.
std::span<const std::byte> GpuGradients::payloads(std::size_t block) {
    const Batch& batch = batch_of(block);
    batch.arrived.wait();
    if (sum_) {
        sum_->wait_for(batch.arrived);
    }
    if (are_brought()) {
        settings_.payload_ranks->wait_for(batch.arrived);
    }
    const exchange::Route& of = route(block);
    return batch.on_host.span().first((are_brought() ? of.received.size() : of.sliced.size()) *
                                      codec_->payload_bytes());
}

std::span<const double> GpuGradients::squares(std::size_t block) const {
    const std::size_t tiles = settings_.squares ? route(block).tiles.size() : 0;
    const std::span<const std::byte> squares = batch_of(block).squares_on_host.span();
    return {reinterpret_cast<const double*>(squares.data()), tiles};
}

}  // namespace nearstep::offload
