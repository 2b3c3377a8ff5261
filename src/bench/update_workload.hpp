// The data of `nearstep bench update`: state, gradients and parameters in memory.
#pragma once

#include "csd/engine.hpp"
#include "csd/optimizer.hpp"
#include "csd/state_format.hpp"
#include "memory/buffer.hpp"
#include "shard/partition.hpp"

#include <cstddef>
#include <span>

namespace nearstep::bench {

constexpr std::size_t kSubgroupTiles = 16;
constexpr std::size_t kSubgroupElems = kSubgroupTiles * shard::kTileElems;

// `subgroups` subgroups of 16 tiles, stored as on a device, with bf16 gradients and parameters.
// Threads may update different subgroups at the same time.
class UpdateWorkload {
public:
    UpdateWorkload(csd::StateFormat format, csd::Optimizer optimizer, std::size_t subgroups);

    void update(const csd::Engine& engine, const arith::UpdateScalars& scalars,
                std::size_t subgroup);

    // Updates the subgroup once; true if the result equals the scalar engine's.
    bool verify(const csd::Engine& engine, const arith::UpdateScalars& scalars,
                std::size_t subgroup);

    // Bytes moved by the update of one subgroup: state both ways without moments that the optimizer
    // does not use, gradients in, parameters out.
    std::size_t touched_bytes() const;

    double huge_page_share() const;

private:
    std::span<std::byte> payload(std::size_t subgroup);
    std::span<std::byte> parameters(std::size_t subgroup);
    void update(const csd::Engine& engine, const arith::UpdateScalars& scalars,
                std::size_t subgroup, std::span<std::byte> state, std::span<std::byte> out);

    csd::StateFormat format_;
    csd::Optimizer optimizer_;
    std::size_t payload_bytes_;
    memory::Buffer state_;
    memory::Buffer gradients_;
    memory::Buffer parameters_;
};

}  // namespace nearstep::bench
