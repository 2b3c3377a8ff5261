// Reads a checkpoint tile by tile. Used by conversions.cpp, for _local/whole.py.
#include "python/binding/checkpoint_state.hpp"

#include <algorithm>
#include <numeric>
#include <span>

namespace nearstep::python {

using checkpoint::TensorPlace;
using shard::kTileElems;

namespace {

std::size_t elems_of(const TensorPlace& tensor) {
    return std::accumulate(tensor.shape.begin(), tensor.shape.end(), std::size_t{1},
                           [](std::size_t elems, std::int64_t side) {
                               return elems * static_cast<std::size_t>(side);
                           });
}

}  // namespace

CheckpointState::CheckpointState(const std::string& path)
    : reader_(checkpoint::Reader::open(path)), tensors_(about().tensors) {
    std::ranges::stable_sort(tensors_, {}, &TensorPlace::offset);
}

std::vector<std::pair<std::string, std::vector<std::int64_t>>> CheckpointState::tensors() const {
    std::vector<std::pair<std::string, std::vector<std::int64_t>>> found;
    for (const TensorPlace& tensor : tensors_) {
        found.emplace_back(tensor.name, tensor.shape);
    }
    return found;
}

std::vector<std::int64_t> CheckpointState::updates() const {
    const store::Commit& position = about();
    std::vector<std::int64_t> found(tensors_.size(), position.generation);
    for (std::size_t i = 0; i < std::min(found.size(), position.missed.size()); ++i) {
        found[i] -= position.missed[i];
    }
    return found;
}

std::string CheckpointState::program() const {
    const store::ProgramState kept = reader_->program(0);
    return {reinterpret_cast<const char*>(kept.bytes.data()), kept.bytes.size()};  // NOLINT
}

std::array<std::vector<float>, 3> CheckpointState::read_state(std::size_t tensor) {
    const std::size_t begin = tensors_.at(tensor).offset;
    const std::size_t end = begin + elems_of(tensors_[tensor]);
    std::array<std::vector<float>, 3> found;
    for (std::vector<float>& array : found) {
        array.resize(end - begin);
    }
    std::array<std::vector<float>, 3> tile;
    tile.fill(std::vector<float>(kTileElems));
    for (std::size_t at = begin; at < end;) {
        const std::size_t number = at / kTileElems;
        const std::size_t until = std::min(end, (number + 1) * kTileElems);
        reader_->read({.begin = number, .end = number + 1},
                      {.master = tile[0], .moment1 = tile[1], .moment2 = tile[2]});
        for (std::size_t i = 0; i < tile.size(); ++i) {
            std::ranges::copy(std::span(tile.at(i)).subspan(at - number * kTileElems, until - at),
                              found.at(i).begin() + static_cast<std::ptrdiff_t>(at - begin));
        }
        at = until;
    }
    return found;
}

}  // namespace nearstep::python
