// Reads the state of a checkpoint for exports.
#pragma once

#include "base/dtype.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/tensor_extent.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace nearstep::checkpoint {

// Sorts tensors by offset.
inline std::vector<TensorPlace> in_order(std::vector<TensorPlace> tensors) {
    std::ranges::stable_sort(tensors, {}, &TensorPlace::offset);
    return tensors;
}

enum class StateArray : unsigned char { master, moment1, moment2 };

// Keeps one tile in memory at a time.
class Masters {
public:
    explicit Masters(Reader& reader, StateArray array = StateArray::master)
        : reader_(&reader), array_(array), values_(shard::kTileElems) {}

    // Calls `take(done, bytes)` with the tensor's values in `dtype`, piece by piece: `done`
    // elements came before. The bytes are valid during the call.
    template <typename Take>
    void convert(const TensorPlace& tensor, Dtype dtype, const Take& take) {
        const std::size_t elems = elems_of(tensor.shape);
        for (std::size_t done = 0; done < elems;) {
            const std::span<const float> values = at(tensor.offset + done, tensor.offset + elems);
            converted_.resize(values.size() * size_bytes(dtype));
            convert_from_fp32(values.data(), dtype, converted_.data(), values.size());
            take(done, std::span<const std::byte>(converted_));
            done += values.size();
        }
    }

private:
    // Elements from `begin` to `end` or to the end of the tile, whichever comes first. Valid until
    // the next call.
    std::span<const float> at(std::size_t begin, std::size_t end) {
        const std::size_t tile = begin / shard::kTileElems;
        if (!is_filled_ || tile != tile_) {
            const auto wanted = [&](StateArray array) {
                return array == array_ ? std::span<float>(values_) : std::span<float>();
            };
            reader_->read({.begin = tile, .end = tile + 1},
                          {.master = wanted(StateArray::master),
                           .moment1 = wanted(StateArray::moment1),
                           .moment2 = wanted(StateArray::moment2)});
            tile_ = tile;
            is_filled_ = true;
        }
        const std::size_t first = begin % shard::kTileElems;
        return std::span(values_).subspan(first, std::min(end - begin, shard::kTileElems - first));
    }

    Reader* reader_;
    StateArray array_;
    std::vector<float> values_;
    std::size_t tile_ = 0;
    bool is_filled_ = false;
    std::vector<std::byte> converted_;
};

}  // namespace nearstep::checkpoint
