// Reads parameters from the state of a rank's devices, where no vector keeps them.
#pragma once

#include "base/dtype.hpp"
#include "csd/device.hpp"
#include "csd/state_format.hpp"
#include "shard/partition.hpp"
#include "shard/tile.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace nearstep::engine {

class ParameterReader {
public:
    // A subgroup of one of the devices, which outlive the reader.
    struct Source {
        csd::Device* device = nullptr;
        std::size_t subgroup = 0;
        shard::TileRange tiles;
    };

    // `sources`: all subgroups of the parameter vector in tile order.
    ParameterReader(std::vector<Source> sources, csd::StateFormat state, Dtype dtype)
        : sources_(std::move(sources)), stored_(csd::master_dtype(state)), dtype_(dtype) {}

    // Later reads are of this generation.
    void use(std::int64_t generation) { generation_ = generation; }

    // See Engine::read_parameters().
    void read(shard::ElementRange range, std::span<std::byte> to) const;

private:
    std::vector<Source> sources_;
    Dtype stored_;
    Dtype dtype_;
    std::atomic<std::int64_t> generation_ = 0;
};

}  // namespace nearstep::engine
