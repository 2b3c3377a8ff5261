// Counts start values that are not finite, by tensor, and refuses them. Used by State::write().
#include "engine/state/start_value_check.hpp"

#include "base/error.hpp"

#include <algorithm>

namespace nearstep::engine {

namespace {

// See to_bf16() and to_fp16().
std::uint32_t first_infinite(Dtype dtype) {
    switch (dtype) {
        case Dtype::bf16:
            return 0x7F7F8000U;
        case Dtype::fp16:
            return 0x477FF000U;
        case Dtype::fp32:
            break;
    }
    return 0x7F800000U;
}

}  // namespace

StartValueCheck::StartValueCheck(const Layout& layout)
    : layout_(layout), limit_(first_infinite(layout.dtype)), counts_(layout.tensors.size()) {}

void StartValueCheck::look(std::size_t first, std::span<const float> masters) {
    std::uint32_t largest = 0;
    for (const float value : masters) {  // without a branch, so that the compiler can vectorise it
        largest = std::max(largest, bits_of(value) & 0x7FFFFFFFU);
    }
    if (largest < limit_) {
        return;
    }
    const std::scoped_lock lock(mutex_);
    auto tensor = std::ranges::upper_bound(layout_.tensors, first, {}, &Tensor::offset) - 1;
    for (std::size_t i = 0; i < masters.size(); ++i) {
        while (tensor + 1 != layout_.tensors.end() && (tensor + 1)->offset <= first + i) {
            ++tensor;
        }
        if (!is_finite(masters[i])) {
            ++counts_[static_cast<std::size_t>(tensor - layout_.tensors.begin())];
        }
    }
}

void StartValueCheck::refuse(const mpi::Communicator& world, int copies) {
    world.sum(counts_);
    const auto has_any = [](std::uint64_t count) { return count > 0; };
    const auto found = std::ranges::find_if(counts_, has_any);
    if (found == counts_.end()) {
        return;
    }
    const auto others = std::count_if(found + 1, counts_.end(), has_any);
    const std::uint64_t count = *found / static_cast<std::uint64_t>(copies);
    throw ConfigError(
        text("The start values of ",
             layout_.tensors[static_cast<std::size_t>(found - counts_.begin())].name, " have ",
             count, count == 1 ? " number that is" : " numbers that are", " infinite or NaN in ",
             name_of(layout_.dtype),
             others > 0
                 ? text(", and ", others, others == 1 ? " other tensor has" : " other tensors have",
                        " such numbers")
                 : "",
             ", so that every step would be skipped: begin with other weights."));
}

}  // namespace nearstep::engine
