// Reads parameters from the state of a rank's devices, where no vector keeps them.
#pragma once

#include "base/dtype.hpp"
#include "csd/state_format.hpp"
#include "memory/gpu.hpp"
#include "offload/step_pipeline.hpp"
#include "shard/partition.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace nearstep::engine {

class ParameterReader {
    using Sources = std::vector<offload::OwnedSubgroup>;

public:
    // `sources`: all subgroups of the parameter vector in tile order. Their devices outlive this.
    ParameterReader(Sources sources, csd::StateFormat state, Dtype dtype)
        : sources_(std::move(sources)), stored_(csd::master_dtype(state)), dtype_(dtype) {}

    // Later reads are of this generation.
    void use(std::int64_t generation) { generation_ = generation; }

    // See Run::read_parameters().
    void read(shard::ElementRange range, std::span<std::byte> to) const;
    // See Run::can_copy_parameters() and Run::copy_parameters().
    bool can_copy() const;
    void copy(shard::ElementRange range, std::span<std::byte> to,
              const memory::Stream* stream) const;

private:
    // The subgroup that has the element.
    Sources::const_iterator source_of(std::size_t element) const;

    Sources sources_;
    Dtype stored_;
    Dtype dtype_;
    std::atomic<std::int64_t> generation_ = 0;
};

}  // namespace nearstep::engine
