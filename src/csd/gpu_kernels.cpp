// Starts the update's kernel for a format of state. Used by GpuEngine and GpuDevice.
#include "csd/gpu_kernels.hpp"

#include "memory/gpu_launch.hpp"
#include "shard/tile.hpp"

#include <algorithm>

namespace nearstep::csd {

namespace {

constexpr unsigned kWarp = 32;  // threads, which update a block of elements together

const char* kernel_of(StateFormat format) {
    switch (format) {
        case StateFormat::fp32:
            return "csd::update<arith::StateFormat::fp32>";
        case StateFormat::bf16:
            return "csd::update<arith::StateFormat::bf16>";
        case StateFormat::q8:
            return "csd::update<arith::StateFormat::q8>";
        case StateFormat::compact:
            break;
    }
    return "csd::update<arith::StateFormat::compact>";
}

}  // namespace

void update_on_gpu(const GpuTiles& tiles, CUstream_st* stream, unsigned most) {
    const std::size_t blocks = tiles.tiles * (shard::kTileElems / arith::kBlockElems);
    constexpr std::size_t kEach = kUpdateThreads / kWarp;
    const auto grid =
        static_cast<unsigned>(std::min<std::size_t>(most, (blocks + kEach - 1) / kEach));
    memory::start_kernel({.file = "csd/gpu_update.cu",
                          .kernel = kernel_of(tiles.format),
                          .blocks = grid,
                          .threads = kUpdateThreads},
                         memory::Stream::borrowed(stream), tiles);
}

}  // namespace nearstep::csd
