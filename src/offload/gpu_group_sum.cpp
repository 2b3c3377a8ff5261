// Sums a group's gradients between its GPUs, block by block. Used by GpuGradients.
#include "offload/gpu_group_sum.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <utility>

namespace nearstep::offload {

using shard::kTileElems;

GpuGroupSum::GpuGroupSum(nccl::Group& group, std::vector<exchange::ByRank> blocks, Dtype dtype)
    : group_(group),
      blocks_(std::move(blocks)),
      dtype_(dtype),
      dense_(codec::make_codec({.name = "dense", .dtype = dtype})),
      to_(static_cast<std::size_t>(group.size())),
      from_(to_.size()),
      addends_(to_.size()) {
    expects(to_.size() <= codec::kMostAddends, "a group has at most 64 ranks");
    std::vector<std::uint32_t> order;
    std::size_t most = 0;
    std::size_t most_mine = 0;
    for (const exchange::ByRank& slices : blocks_) {
        starts_.push_back(order.size());
        order.insert(order.end(), slices.order().begin(), slices.order().end());
        most = std::max(most, slices.size());
        most_mine = std::max(most_mine, slices.count(group.rank()));
    }
    const std::size_t tile_bytes = kTileElems * size_bytes(dtype);
    order_ = memory::GpuBuffer(order.size() * sizeof(std::uint32_t));
    copy_to_gpu(order_.span(), std::as_bytes(std::span(order)), stream_);
    stream_.wait();
    out_ = memory::GpuBuffer(most * tile_bytes);
    in_ = memory::GpuBuffer(most_mine * tile_bytes * (to_.size() - 1));
    sums_ = memory::GpuBuffer(most_mine * kTileElems * sizeof(float));
}

GpuGroupSum::Slice GpuGroupSum::add_up(std::size_t block, const float* gradient,
                                       const memory::Stream& compute) {
    const exchange::ByRank& slices = blocks_[block];
    const auto* order = order_.as<const std::uint32_t>() + starts_[block];
    compute.wait_for(added_);  // the previous block's exchange reads out_
    encode_on_gpu(*dense_,
                  {.tiles = slices.size(),
                   .gradient = gradient,
                   .order = order,
                   .payloads = out_.as<std::byte>()},
                  compute);
    narrowed_.record(compute);
    stream_.wait_for(narrowed_);

    const std::size_t tile_bytes = kTileElems * size_bytes(dtype_);
    const int me = group_.rank();
    const std::size_t mine = slices.count(me);
    std::span<std::byte> inbox = in_.span();
    for (int member = 0; member < group_.size(); ++member) {
        const auto place = static_cast<std::size_t>(member);
        const auto part = out_.span().subspan(slices.first(member) * tile_bytes,
                                              slices.count(member) * tile_bytes);
        if (member == me) {
            addends_[place] = part.data();
        } else {
            to_[place] = part;
            from_[place] = inbox.first(mine * tile_bytes);
            inbox = inbox.subspan(mine * tile_bytes);
            addends_[place] = from_[place].data();
        }
    }
    group_.exchange(to_, from_, stream_);
    codec::add_on_gpu(addends_, dtype_, mine * kTileElems, sums_.as<float>(), stream_);
    added_.record(stream_);
    return {.tiles = mine, .values = sums_.as<float>(), .places = order + slices.first(me)};
}

}  // namespace nearstep::offload
