#include "csd/gpu_engine.hpp"

#include "csd/state_format.hpp"
#include "shard/partition.hpp"

#include <algorithm>

namespace nearstep::csd {

namespace {

// One that computes and one that follows: the link stays busy, and the host gets the others.
constexpr std::ptrdiff_t kMostAtOnce = 2;

// None: several groups share the tile, or its group is skipped.
std::optional<std::size_t> only_group(std::size_t tile, const GroupMap& groups,
                                      const StepScalars& scalars) {
    const std::size_t element = tile * shard::kTileElems;
    const auto runs = groups.runs_in(element, element + shard::kTileElems);
    const std::size_t group = runs.front().group;
    return runs.size() == 1 && !scalars.is_skipped.at(group) ? std::optional(group) : std::nullopt;
}

GpuTiles part_of(const GpuTiles& all, std::size_t tile, std::size_t tiles) {
    const std::size_t element = tile * shard::kTileElems;
    GpuTiles part = all;
    part.old = state_from(all.format, all.old, element);
    part.updated = state_from(all.format, all.updated, element);
    part.payloads = all.payloads + tile * all.sources * all.payload_stride;
    part.parameters = all.parameters + element * size_bytes(all.parameter_dtype);
    part.first_tile = all.first_tile + tile;
    part.tiles = tiles;
    return part;
}

}  // namespace

GpuEngine::GpuEngine(int gpu, int lanes) : gpu_(gpu) {
    memory::use_gpu(gpu);
    for (int lane = 0; lane < lanes; ++lane) {
        lanes_.emplace_back();
    }
}

void GpuEngine::pin(std::span<const std::byte> state, std::span<const std::byte> payloads) {
    if (pinning_) {
        return;
    }
    pinning_ = pinner_.submit([this, state, payloads] {
        memory::use_gpu(gpu_);
        state_.emplace(state);
        payloads_.emplace(payloads);
        is_ready_ = memory::is_pinned(state) && memory::is_pinned(payloads);
    });
}

bool GpuEngine::is_free(std::span<const std::byte> parameters) {
    memory::use_gpu(gpu_);  // without it CUDA does not say where the GPU sees the memory
    if (!is_ready_ || !memory::is_pinned(parameters)) {
        return false;
    }
    return std::ranges::count_if(lanes_, [](const Lane& lane) { return !lane.is_over.is_over(); }) <
           kMostAtOnce;
}

std::vector<std::size_t> GpuEngine::begin(std::size_t lane, const GpuTiles& subgroup,
                                          const GroupMap& groups, const StepScalars& scalars) {
    memory::use_gpu(gpu_);
    Lane& to = lanes_.at(lane);
    std::vector<std::size_t> others;
    std::size_t begin = 0;
    for (std::size_t end = 1; end <= subgroup.tiles; ++end) {
        const auto group = only_group(subgroup.first_tile + begin, groups, scalars);
        const bool goes_on = group && end < subgroup.tiles &&
                             only_group(subgroup.first_tile + end, groups, scalars) == group;
        if (goes_on) {
            continue;
        }
        if (group) {
            GpuTiles run = part_of(subgroup, begin, end - begin);
            run.random_key = scalars.random_key;
            run.scalars = scalars.of_group.at(*group);
            update_on_gpu(run, to.stream.handle());
        } else {
            others.push_back(begin);
        }
        begin = end;
    }
    to.is_over.record(to.stream);
    return others;
}

void GpuEngine::wait(std::size_t lane) const {
    memory::use_gpu(gpu_);
    lanes_.at(lane).is_over.wait();
}

}  // namespace nearstep::csd
