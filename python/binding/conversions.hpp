// Converts between Python's types and the engine's. Used by module.cpp.
#pragma once

#include "base/words.hpp"
#include "python/binding/conductor.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace nearstep::python {

template <typename Value>
Value* at(std::uintptr_t address) {
    return reinterpret_cast<Value*>(address);  // NOLINT
}

// Runs `work` while other threads may run Python.
template <typename Work>
auto without_python(const Work& work) {
    const nanobind::gil_scoped_release released;
    return work();
}

using Bytes = nanobind::ndarray<nanobind::pytorch, std::uint8_t, nanobind::ndim<1>>;

// Moves `value` to memory of its own. Returns its place there, and the owner that frees it.
template <typename Value>
std::pair<Value*, nanobind::capsule> kept_by_python(Value value) {
    auto* const kept = new Value(std::move(value));  // NOLINT: the capsule's
    return {kept, nanobind::capsule(kept, [](void* p) noexcept {
                delete static_cast<Value*>(p);  // NOLINT
            })};
}

// Returns a zeroed memory::Buffer as a tensor.
Bytes host_memory(std::size_t bytes);

using Pieces = std::vector<std::tuple<std::uintptr_t, std::string>>;
// Learning rate, the two betas, epsilon, weight decay.
using Hypers = std::vector<std::tuple<double, double, double, double, double>>;

// Throws ConfigError.
inline Dtype dtype_of(const std::string& name) {
    return parse_word<Dtype>("format of parameters", name);
}
// Addresses of both moments, and updates.
using CarriedTensors = std::vector<std::tuple<std::uintptr_t, std::uintptr_t, std::int64_t>>;
std::vector<CarriedTensor> carried_of(const CarriedTensors& tensors);
// Addresses and bytes.
using Memories = std::vector<std::pair<std::uintptr_t, std::size_t>>;
std::vector<std::span<const std::byte>> spans_of(const Memories& memories);
TensorMemory piece_of(std::uintptr_t address, const std::string& dtype);
std::vector<TensorMemory> pieces_of(const Pieces& addresses);
engine::StepSettings step_of(const std::string& optimizer, const Hypers& groups, double clip_norm);

// A tensor's master weights and moments, as tensors.
nanobind::list arrays_of(std::array<std::vector<float>, 3> state);

// Adds the functions that add gradients.
void add_sums(nanobind::module_& m);
// Makes the class of a step's place in the state.
void add_position(nanobind::module_& m);
// Makes the class of a checkpoint that is read.
void add_checkpoint(nanobind::module_& m);

nanobind::dict dict_of(const StepStats& stats);
nanobind::dict dict_of(const trace::RunFacts& facts);

// Tensors that the engine may still read. They belong to C++, so that no collection of Python
// objects frees them earlier.
class HeldTensors {
public:
    void hold(std::uint64_t work, nanobind::object tensors) {
        kept_.emplace_back(work, std::move(tensors));
    }
    // Holds a block's gradients until the work is done that puts the last of it and all later
    // blocks, of which this one is the newest.
    void hold_gradients(std::uint64_t work, std::size_t block, nanobind::object tensors) {
        early_.emplace(block, std::move(tensors));
        for (auto last = early_.end(); !early_.empty() && (--last)->first + 1 == unsent_;
             last = early_.end()) {
            hold(work, std::move(last->second));
            early_.erase(last);
            --unsent_;
        }
    }
    // A step begins.
    void expect_gradients(std::size_t blocks) {
        early_.clear();
        unsent_ = blocks;
    }
    void drop_until(const Conductor& conductor) {
        while (!kept_.empty() && conductor.is_done(kept_.front().first)) {
            kept_.pop_front();
        }
    }

private:
    std::deque<std::pair<std::uint64_t, nanobind::object>> kept_;
    std::map<std::size_t, nanobind::object> early_;  // gradients of blocks that wait for later ones
    std::size_t unsent_ = 0;                         // blocks whose turn has not come
};

// Translates the engine's exceptions to Python types.
void translate(const std::exception_ptr& pointer, void* unused);

}  // namespace nearstep::python
