#include "fpga/model/trace.hpp"

#include "base/error.hpp"
#include "base/random.hpp"
#include "fpga/kernel/decode_gradient.hpp"
#include "fpga/kernel/encode_delta.hpp"

#include <algorithm>

namespace nearstep::fpga {

namespace {

constexpr std::uint64_t kSeed = 1;

// Bit i is set with probability `share`. Bits for a smaller share are a subset of those for a
// larger one.
std::vector<bool> random_marks(double share) {
    std::vector<bool> marks(kTileElems);
    for (std::size_t i = 0; i < marks.size(); ++i) {
        marks[i] = random_uniform(kSeed, 1, i) < share;
    }
    return marks;
}

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

    // One run of pick_indices() or, with parameters, pick_values().
    void add_pick(const std::vector<bool>& marks, bool has_parameters) {
        for (std::size_t word = 0; word < kTileWordsOfHalves; ++word) {
            std::bitset<4> step;
            step.set(static_cast<std::size_t>(DeltaStep::reads_parameters), has_parameters);
            bool is_first = true;
            for (std::size_t nibble = 0; nibble < kWordHalves / 4; ++nibble) {
                const auto begin =
                    marks.begin() + static_cast<std::ptrdiff_t>(word * kWordHalves + nibble * 4);
                const auto count = static_cast<std::uint32_t>(std::count(begin, begin + 4, true));
                if (count > 0) {
                    put(step, count);
                    step.reset();
                    is_first = false;
                }
            }
            if (is_first) {
                trace_.steps.push_back(step);
            }
        }
    }

    // One run of pack_bits().
    void add_packed(const std::vector<bool>& marks) {
        std::uint64_t waiting = 0;
        for (std::size_t i = 0; i < kBitmapQuads; ++i) {
            const auto begin = marks.begin() + static_cast<std::ptrdiff_t>(i * 64);
            waiting += static_cast<std::uint64_t>(std::count(begin, begin + 64, true));
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
        trace_.form = static_cast<std::uint32_t>(form);
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

DeltaMarks delta_marks(double changed, double escaped) {
    expects(escaped <= changed, "what changed by more than a unit has changed");
    const std::vector<bool> escapes = random_marks(escaped);
    const std::vector<bool> changes = random_marks(changed);
    DeltaMarks marks{.plus = std::vector<std::uint64_t>(kBitmapQuads),
                     .minus = std::vector<std::uint64_t>(kBitmapQuads)};
    for (std::size_t i = 0; i < kTileElems; ++i) {
        const std::uint64_t bit = 1ULL << (i % 64);
        marks.plus[i / 64] |= changes[i] ? bit : 0;
        marks.minus[i / 64] |= escapes[i] ? bit : 0;
    }
    return marks;
}

DeltaTrace delta_trace(double changed, double escaped) {
    expects(escaped <= changed, "what changed by more than a unit has changed");
    const std::vector<bool> escapes = random_marks(escaped);
    const std::vector<bool> changes = random_marks(changed);
    const auto count = [](const std::vector<bool>& marks) {
        return static_cast<std::uint32_t>(std::ranges::count(marks, true));
    };
    const TileDelta delta = smallest_delta({count(changes), count(escapes)});
    DeltaSteps steps;
    for (std::uint32_t i = 0; i < kBitmapQuads; ++i) {
        steps.add({DeltaStep::reads_bitmaps});
    }
    steps.add({DeltaStep::reads_census});
    const bool is_by_unit = delta.form == DeltaForm::units || delta.form == DeltaForm::codes;
    switch (delta.form) {
        case DeltaForm::dense:
            for (std::uint32_t i = 0; i < kTileWordsOfHalves; ++i) {
                steps.add({DeltaStep::reads_parameters, DeltaStep::writes_quad});
                steps.add_quads(kWordQuads - 1);
            }
            return steps.finish(delta.form);
        case DeltaForm::bitmap:
            steps.add_quads(kBitmapQuads);
            break;
        case DeltaForm::units:
            steps.add_quads(2ULL * kBitmapQuads);
            break;
        case DeltaForm::codes:
            steps.add_quads(kBitmapQuads);
            steps.add_packed(changes);
            steps.add_packed(changes);
            break;
        case DeltaForm::list:
            steps.add_pick(changes, false);
            break;
    }
    steps.add_pick(is_by_unit ? escapes : changes, true);
    return steps.finish(delta.form);
}

}  // namespace nearstep::fpga
