#include "bench/update_workload.hpp"

#include "base/random.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

namespace nearstep::bench {

using csd::Engine;
using csd::Optimizer;
using csd::StateFormat;
using shard::kTileElems;

namespace {

constexpr std::size_t kHalfBytes = 2;  // of a bf16 gradient or parameter

}  // namespace

UpdateWorkload::UpdateWorkload(StateFormat format, Optimizer optimizer, std::size_t subgroups)
    : format_(format),
      optimizer_(optimizer),
      payload_bytes_(csd::state_bytes(format, kSubgroupTiles)),
      state_(subgroups * payload_bytes_),
      gradients_(subgroups * kSubgroupElems * kHalfBytes),
      parameters_(gradients_.size()) {
    std::vector<float> master(kSubgroupElems);
    std::vector<float> moment1(kSubgroupElems);
    std::vector<float> moment2(kSubgroupElems);
    std::vector<std::uint16_t> gradient(kSubgroupElems);
    for (std::size_t i = 0; i < kSubgroupElems; ++i) {
        const auto value = [i](std::uint64_t stream) {
            return static_cast<float>(random_uniform(1, stream, i) - 0.5);
        };
        master[i] = 0.1F * value(0);
        moment1[i] = 1e-3F * value(1);
        moment2[i] = 1e-5F * value(2) * value(2);
        gradient[i] = to_bf16(1e-2F * value(3));
    }
    csd::narrow(format, {master, moment1, moment2}, payload(0));
    std::memcpy(gradients_.span().data(), gradient.data(), kSubgroupElems * kHalfBytes);
    for (std::size_t s = 1; s < subgroups; ++s) {
        std::ranges::copy(payload(0), payload(s).begin());
        std::memcpy(gradients_.span().data() + s * kSubgroupElems * kHalfBytes, gradient.data(),
                    kSubgroupElems * kHalfBytes);
    }
}

std::span<std::byte> UpdateWorkload::payload(std::size_t subgroup) {
    return state_.span().subspan(subgroup * payload_bytes_, payload_bytes_);
}
std::span<std::byte> UpdateWorkload::parameters(std::size_t subgroup) {
    return parameters_.span().subspan(subgroup * kSubgroupElems * kHalfBytes,
                                      kSubgroupElems * kHalfBytes);
}

void UpdateWorkload::update(const Engine& engine, const arith::UpdateScalars& scalars,
                            std::size_t subgroup) {
    update(engine, scalars, subgroup, payload(subgroup), parameters(subgroup));
}

bool UpdateWorkload::verify(const Engine& engine, const arith::UpdateScalars& scalars,
                            std::size_t subgroup) {
    std::vector<float> aligned(payload_bytes_ / sizeof(float));
    const std::span<std::byte> expected = std::as_writable_bytes(std::span(aligned));
    std::ranges::copy(payload(subgroup), expected.begin());
    std::vector<std::uint16_t> halves(kSubgroupElems);
    const std::span<std::byte> expected_out = std::as_writable_bytes(std::span(halves));
    update(csd::engines().front(), scalars, subgroup, expected, expected_out);
    update(engine, scalars, subgroup);
    return std::ranges::equal(payload(subgroup), expected) &&
           std::ranges::equal(parameters(subgroup), expected_out);
}

std::size_t UpdateWorkload::touched_bytes() const {
    const std::size_t moments =
        payload_bytes_ - kSubgroupElems * (format_ == StateFormat::compact ? 2 : 4);
    const bool has_both = uses_moment1(optimizer_) && uses_moment2(optimizer_);
    const std::size_t state = payload_bytes_ - (has_both ? 0 : moments / 2);
    return 2 * state + 2 * kSubgroupElems * kHalfBytes;
}
double UpdateWorkload::huge_page_share() const {
    return static_cast<double>(memory::huge_page_bytes(std::array{&state_})) /
           static_cast<double>(state_.size());
}

void UpdateWorkload::update(const Engine& engine, const arith::UpdateScalars& scalars,
                            std::size_t subgroup, std::span<std::byte> state,
                            std::span<std::byte> out) {
    csd::UpdateRun run;
    run.format = format_;
    run.gradient_dtype = Dtype::bf16;
    run.count = kTileElems;
    run.streams = true;  // as in training
    for (std::size_t tile = 0; tile < kSubgroupTiles; ++tile) {
        const std::size_t global = subgroup * kSubgroupTiles + tile;
        run.state = csd::state_of_tile(format_, state, kSubgroupTiles, tile);
        run.gradient = gradients_.span().data() + global * kTileElems * kHalfBytes;
        run.parameters = out.data() + tile * kTileElems * kHalfBytes;
        run.key = arith::tile_key(scalars.random_key, global);
        engine.update(scalars, run);
    }
}

}  // namespace nearstep::bench
