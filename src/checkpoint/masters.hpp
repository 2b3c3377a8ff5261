// Reads the masters of a checkpoint for exports.
#pragma once

#include "base/dtype.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/slab.hpp"

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

// Keeps one tile in memory at a time.
class Masters {
public:
    explicit Masters(Reader& reader) : reader_(&reader), values_(shard::kTileElems) {}

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
            reader_->read({.begin = tile, .end = tile + 1},
                          {.master = values_, .moment1 = {}, .moment2 = {}});
            tile_ = tile;
            is_filled_ = true;
        }
        const std::size_t first = begin % shard::kTileElems;
        return std::span(values_).subspan(first, std::min(end - begin, shard::kTileElems - first));
    }

    Reader* reader_;
    std::vector<float> values_;
    std::size_t tile_ = 0;
    bool is_filled_ = false;
    std::vector<std::byte> converted_;
};

}  // namespace nearstep::checkpoint
