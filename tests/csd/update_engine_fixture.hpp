// A tile of state and gradients for tests of engines.
#pragma once

#include "csd/optimizer.hpp"
#include "csd/sample_updates.hpp"
#include "csd/state_format.hpp"
#include "csd/update_engine.hpp"
#include "support/differences.hpp"
#include "support/test.hpp"
#include "support/update_values.hpp"

#include <ostream>

namespace nearstep::csd {

using shard::kTileElems;

inline std::ostream& operator<<(std::ostream& out, const UpdateEngine& engine) {
    return out << engine.name;
}

// The engines that are compared with the scalar one, which is the first.
inline std::vector<UpdateEngine> fast_engines() { return {engines().begin() + 1, engines().end()}; }

inline constexpr std::array kOptimizers = {Optimizer::adamw, Optimizer::adam, Optimizer::sgd,
                                           Optimizer::adagrad, Optimizer::lion};

// One stored tile, its gradient and its new parameters.
class Tile {
public:
    static constexpr std::size_t kNumber = 5;  // in the parameter vector

    Tile(StateFormat format, Samples arrays, Dtype gradient_dtype, Dtype parameter_dtype)
        : format_(format),
          gradient_dtype_(gradient_dtype),
          parameter_dtype_(parameter_dtype),
          words_(state_bytes(format, 1) / sizeof(float)),
          gradient_(kTileElems * size_bytes(gradient_dtype)),
          parameters_(kTileElems * size_bytes(parameter_dtype)) {
        narrow(format, arrays.state(), payload());
        convert_from_fp32(arrays.gradient.data(), gradient_dtype, gradient_.data(), kTileElems);
    }

    void update(const UpdateEngine& engine, const UpdateScalars& scalars, std::size_t begin,
                std::size_t count) {
        engine.update(scalars, run_of(scalars.random_key, begin, count));
    }
    void update(const UpdateEngine& engine, const StepScalars& scalars, const GroupMap& groups,
                std::size_t begin, std::size_t count) {
        csd::update(engine, scalars, groups, kNumber * kTileElems + begin,
                    run_of(scalars.random_key, begin, count));
    }

    // The parameters that the engine rounds from the current masters.
    std::vector<std::byte> rounded(const UpdateEngine& engine, std::size_t count) {
        std::vector<std::byte> parameters(parameters_.size(), std::byte{0xEE});
        UpdateRun run = run_of(0, 0, count);
        run.parameters = parameters.data();
        engine.round(run);
        return parameters;
    }

    UpdateRun run_of(std::uint64_t random_key, std::size_t begin, std::size_t count) {
        UpdateRun run;
        run.format = format_;
        run.state = state_from(format_, state_of_tile(format_, payload(), 1, 0), begin);
        run.gradient = &gradient_[begin * size_bytes(gradient_dtype_)];
        run.gradient_dtype = gradient_dtype_;
        run.parameters = &parameters_[begin * size_bytes(parameter_dtype_)];
        run.parameter_dtype = parameter_dtype_;
        run.key = arith::tile_key(random_key, kNumber);
        run.first = static_cast<std::uint32_t>(begin);
        run.count = count;
        return run;
    }

    Samples widened() {
        Samples arrays;
        widen(format_, payload(), arrays.state());
        return arrays;
    }
    std::span<std::byte> payload() { return std::as_writable_bytes(std::span(words_)); }
    const std::vector<std::byte>& parameters() const { return parameters_; }
    std::vector<float> widened_parameters() const {
        std::vector<float> values(kTileElems);
        convert_to_fp32(parameter_dtype_, parameters_.data(), values.data(), kTileElems);
        return values;
    }

private:
    StateFormat format_;
    Dtype gradient_dtype_;
    Dtype parameter_dtype_;
    std::vector<float> words_;
    std::vector<std::byte> gradient_;
    std::vector<std::byte> parameters_;
};

inline void expect_equal(Tile& left, Tile& right) {
    const Samples one = left.widened();
    const Samples other = right.widened();
    EXPECT_EQ(differences(one.master, other.master), 0U);
    EXPECT_EQ(differences(one.moment1, other.moment1), 0U);
    EXPECT_EQ(differences(one.moment2, other.moment2), 0U);
    EXPECT_EQ(differences(left.widened_parameters(), right.widened_parameters()), 0U);
}

inline bool has_same_bytes(Tile& left, Tile& right) {
    return std::ranges::equal(left.payload(), right.payload()) &&
           left.parameters() == right.parameters();
}

}  // namespace nearstep::csd
