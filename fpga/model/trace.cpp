// Counts the steps of the kernel's loops for random data. Used by the cycle model.
#include "fpga/model/trace.hpp"

#include "base/error.hpp"
#include "base/random.hpp"
#include "fpga/kernel/decode_gradient.hpp"
#include "fpga/kernel/encode_delta.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>

namespace nearstep::fpga {

namespace {

constexpr std::uint64_t kSeed = 1;

// Adds the steps of the loops in encode_delta.hpp.
class DeltaSteps {
public:
    void add(std::initializer_list<DeltaStep> what) {
        std::bitset<4> step;
        for (const DeltaStep one : what) {
            step.set(static_cast<std::size_t>(one));
            trace_.quads += one == DeltaStep::writes_quad ? 1 : 0;
        }
        trace_.steps.push_back(step);
    }

    void add_quads(std::uint64_t count) {
        for (std::uint64_t i = 0; i < count; ++i) {
            add({DeltaStep::writes_quad});
        }
    }

    // One run of pick_indices() or, with parameters, pick_values(): the loads ahead, then a step
    // per nibble with marks, at least one per word of the tile.
    void add_pick(const std::vector<std::uint64_t>& marks, bool has_parameters) {
        trace_.steps.resize(trace_.steps.size() + MarkReader::kAhead);
        for (std::uint32_t word = 0; word < kTileWordsOfHalves; ++word) {
            const auto bits = static_cast<std::uint32_t>(marks[word / 2] >> (32 * (word % 2)));
            std::bitset<4> step;
            step.set(static_cast<std::size_t>(DeltaStep::reads_parameters), has_parameters);
            for (std::uint32_t rest = bits; rest != 0; rest >>= 4U) {
                if ((rest & 0xFU) != 0) {
                    put(step, static_cast<std::uint32_t>(std::popcount(rest & 0xFU)));
                    step.reset();
                }
            }
            if (bits == 0) {
                trace_.steps.push_back(step);
            }
        }
    }

    // One run of pack_bits().
    void add_packed(const std::vector<std::uint64_t>& marks) {
        int waiting = 0;
        for (const std::uint64_t mask : marks) {
            waiting += std::popcount(mask);
            if (waiting >= 64) {
                add({DeltaStep::writes_quad});
                waiting -= 64;
            } else {
                add({});
            }
        }
        add_quads(waiting > 0 ? 1 : 0);
    }

    DeltaTrace finish(DeltaForm form) {
        add_quads(halves_ > 0 ? 1 : 0);
        trace_.form = form;
        return trace_;
    }

private:
    void put(std::bitset<4> step, std::uint32_t count) {
        halves_ += count;
        if (halves_ >= 4) {
            step.set(static_cast<std::size_t>(DeltaStep::writes_quad));
            ++trace_.quads;
            halves_ -= 4;
        }
        trace_.steps.push_back(step);
    }

    DeltaTrace trace_;
    std::uint32_t halves_ = 0;  // waiting in the packer
};

}  // namespace

std::vector<bool> merge_trace(std::uint32_t kept) {
    // The positions of the `kept` smallest random numbers give random distances.
    std::vector<std::uint32_t> indices(kTileElems);
    for (std::uint32_t i = 0; i < kTileElems; ++i) {
        indices[i] = i;
    }
    std::ranges::sort(indices, {}, [](std::uint32_t i) { return random_bits(kSeed, 0, i); });
    indices.resize(kept);
    std::ranges::sort(indices);
    std::vector<bool> trace;
    auto next = indices.begin();
    for (std::uint32_t group = 0; group < kTileGroups; ++group) {
        for (; next != indices.end() && *next / kDecodeLanes == group; ++next) {
            trace.push_back(false);
        }
        trace.push_back(true);
    }
    return trace;
}

DeltaCensus DeltaMarks::census() const {
    const auto count = [](const std::vector<std::uint64_t>& words) {
        return std::transform_reduce(
            words.begin(), words.end(), 0U, std::plus<>(),
            [](std::uint64_t word) { return static_cast<std::uint32_t>(std::popcount(word)); });
    };
    return {count(changed), count(escaped)};
}

DeltaMarks delta_marks(double changed, double escaped) {
    expects(escaped <= changed, "what changed by more than a unit has changed");
    DeltaMarks marks{.changed = std::vector<std::uint64_t>(kBitmapQuads),
                     .escaped = std::vector<std::uint64_t>(kBitmapQuads)};
    for (std::size_t i = 0; i < kTileElems; ++i) {
        const std::uint64_t bit = 1ULL << (i % 64);
        const double random = random_uniform(kSeed, 1, i);
        marks.changed[i / 64] |= random < changed ? bit : 0;
        marks.escaped[i / 64] |= random < escaped ? bit : 0;
    }
    return marks;
}

DeltaTrace delta_trace(const DeltaMarks& marks) {
    const DeltaForm form = smallest_delta(marks.census()).form;
    DeltaSteps steps;
    for (std::uint32_t i = 0; i < kBitmapQuads; ++i) {
        steps.add({DeltaStep::reads_bitmaps});
    }
    steps.add({DeltaStep::reads_census});
    const bool is_by_unit = form == DeltaForm::units || form == DeltaForm::codes;
    switch (form) {
        case DeltaForm::dense:
            for (std::uint32_t i = 0; i < kTileWordsOfHalves; ++i) {
                steps.add({DeltaStep::reads_parameters, DeltaStep::writes_quad});
                steps.add_quads(kWordQuads - 1);
            }
            return steps.finish(form);
        case DeltaForm::bitmap:
            steps.add_quads(kBitmapQuads);
            break;
        case DeltaForm::units:
            steps.add_quads(2ULL * kBitmapQuads);
            break;
        case DeltaForm::codes:
            steps.add_quads(kBitmapQuads);
            steps.add_packed(marks.changed);
            steps.add_packed(marks.changed);
            break;
        case DeltaForm::list:
            steps.add_pick(marks.changed, false);
            break;
    }
    steps.add_pick(is_by_unit ? marks.escaped : marks.changed, true);
    return steps.finish(form);
}

}  // namespace nearstep::fpga
