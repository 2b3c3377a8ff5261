// Compares the kernel with the CPU's engines: each updates a copy of one subgroup, bit for bit.
#pragma once

#include "csd/update_engine.hpp"
#include "fpga/subgroup.hpp"
#include "support/differences.hpp"
#include "support/test.hpp"

namespace nearstep::fpga {

// The slowest and the fastest engine of this CPU.
inline std::vector<csd::UpdateEngine> compared_engines() {
    return {csd::engines().front(), csd::best_engine()};
}

// Compares the state and the parameters. Words after the parameters must be untouched.
inline void expect_same(Subgroup& kernel, Subgroup& engine, std::size_t parameter_bytes) {
    EXPECT_TRUE(std::ranges::equal(kernel.extent(), engine.extent()));
    EXPECT_TRUE(std::ranges::equal(kernel.parameters().first(parameter_bytes),
                                   engine.parameters().first(parameter_bytes)));
    EXPECT_EQ(kernel.totals().status, static_cast<std::uint32_t>(UpdaterStatus::done));
    EXPECT_EQ(kernel.totals().parameter_bytes, parameter_bytes);
    // Only whole words are written, and nothing after them.
    const std::size_t end = (parameter_bytes + kWordBytes - 1) / kWordBytes * kWordBytes;
    EXPECT_TRUE(
        std::ranges::all_of(kernel.parameters().subspan(std::min(end, kernel.parameters().size())),
                            [](std::byte b) { return b == std::byte{0xEE}; }));
}

// Updates copies with the kernel and with each engine, `steps` times.
inline void expect_bits_of_engines(const Subgroup& start, const csd::StepScalars& scalars,
                                   int steps = 1, const csd::GroupMap& groups = {}) {
    const std::vector<csd::UpdateEngine> engines = compared_engines();
    std::vector<Subgroup> expected(engines.size(), start);
    Subgroup before = start;
    Subgroup seen = start;
    csd::StepScalars of_step = scalars;
    for (int step = 0; step < steps; ++step) {
        ++of_step.random_key;
        seen.run_kernel(of_step, groups);
        for (std::size_t i = 0; i < engines.size(); ++i) {
            SCOPED_TRACE(engines[i].name);
            const std::size_t bytes = expected[i].run_engine(engines[i], of_step, groups);
            expect_same(seen, expected[i], bytes);
        }
    }
    EXPECT_FALSE(std::ranges::equal(seen.extent(), before.extent()));
}

// State and parameters as numbers.
inline std::vector<std::vector<float>> values_of(Subgroup& subgroup) {
    std::vector<std::vector<float>> values = subgroup.widened();
    convert_to_fp32(subgroup.settings().parameter_dtype, subgroup.parameters().data(),
                    values.emplace_back(subgroup.elems()).data(), subgroup.elems());
    return values;
}

// The subgroup that the kernel updated once. A copy that the engine updates must have equal values,
// all NaNs being equal.
inline Subgroup expect_values_of_engine(const Subgroup& start, const csd::UpdateEngine& engine,
                                        const csd::StepScalars& scalars) {
    Subgroup expected = start;
    Subgroup seen = start;
    expected.run_engine(engine, scalars);
    seen.run_kernel(scalars);
    const auto left = values_of(expected);
    const auto right = values_of(seen);
    for (std::size_t array = 0; array < left.size(); ++array) {
        EXPECT_EQ(differences(left[array], right[array]), 0U) << engine.name << " " << array;
    }
    return seen;
}

}  // namespace nearstep::fpga
