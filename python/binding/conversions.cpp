// Translates between what Python and the engine call things. Called by module.cpp.
#include "python/binding/conversions.hpp"

#include "base/error.hpp"
#include "csd/optimizer.hpp"
#include "memory/buffer.hpp"
#include "python/binding/checkpoint_state.hpp"

#include <nanobind/stl/pair.h>

#include <array>

namespace nb = nanobind;

namespace nearstep::python {

namespace {

constexpr std::array kCounterNames = {
    "host_state_read",   "host_state_write",   "host_gradients_read", "host_gradients_write",
    "host_parameters",   "host_masters_read",  "internal_read",       "internal_write",
    "network_gradients", "network_parameters", "node_gradients",      "node_parameters",
    "gpu_state_read",    "gpu_state_write",    "gpu_parameters",      "checkpoint"};
static_assert(kCounterNames.size() == trace::kCounters);

}  // namespace

Bytes host_memory(std::size_t bytes) {
    const auto [memory, owner] =
        kept_by_python(without_python([&] { return memory::Buffer(bytes); }));
    return Bytes(memory->span().data(), {bytes}, owner);
}

std::vector<CarriedTensor> carried_of(const CarriedTensors& tensors) {
    std::vector<CarriedTensor> carried;
    carried.reserve(tensors.size());
    for (const auto& [moments1, moments2, updates] : tensors) {
        carried.push_back({.moments = {reinterpret_cast<const float*>(moments1),   // NOLINT
                                       reinterpret_cast<const float*>(moments2)},  // NOLINT
                           .updates = updates});
    }
    return carried;
}

nb::list arrays_of(std::array<std::vector<float>, 3> state) {
    nb::list arrays;
    for (std::vector<float>& array : state) {
        const auto [kept, owner] = kept_by_python(std::move(array));
        arrays.append(
            nb::ndarray<nb::pytorch, float, nb::ndim<1>>(kept->data(), {kept->size()}, owner));
    }
    return arrays;
}

void add_checkpoint(nb::module_& m) {
    nb::class_<CheckpointState>(m, "CheckpointState")
        .def(nb::init<const std::string&>(), nb::arg("path"),
             nb::call_guard<nb::gil_scoped_release>())
        .def_prop_ro("position", &CheckpointState::position)
        .def_prop_ro("tensors", &CheckpointState::tensors)
        .def("updates", &CheckpointState::updates)
        .def_prop_ro("program_state",
                     [](const CheckpointState& self) {
                         const std::string kept = self.program();
                         return nb::bytes(kept.data(), kept.size());
                     })
        .def(
            "read_state",
            [](CheckpointState& self, std::size_t tensor) {
                return arrays_of(without_python([&] { return self.read_state(tensor); }));
            },
            nb::arg("tensor"));
}

void add_position(nb::module_& m) {
    nb::class_<store::Commit>(m, "Position")
        .def(nb::new_([](std::int64_t step, std::int64_t generation, double loss_scale,
                         std::int64_t good_steps) {
                 return store::Commit{.step = step,
                                      .generation = generation,
                                      .loss_scale = loss_scale,
                                      .good_steps = good_steps};
             }),
             nb::arg("step"), nb::arg("generation"), nb::arg("loss_scale"), nb::arg("good_steps"))
        .def_ro("step", &store::Commit::step)
        .def_ro("generation", &store::Commit::generation)
        .def_ro("loss_scale", &store::Commit::loss_scale)
        .def_ro("good_steps", &store::Commit::good_steps);
}

std::vector<std::span<const std::byte>> spans_of(const Memories& memories) {
    std::vector<std::span<const std::byte>> spans;
    for (const auto& [address, bytes] : memories) {
        spans.emplace_back(reinterpret_cast<const std::byte*>(address), bytes);  // NOLINT
    }
    return spans;
}

TensorMemory piece_of(std::uintptr_t address, const std::string& dtype) {
    return {reinterpret_cast<void*>(address), dtype_of(dtype)};  // NOLINT
}

std::vector<TensorMemory> pieces_of(const Pieces& addresses) {
    std::vector<TensorMemory> pieces;
    for (const auto& [address, dtype] : addresses) {
        pieces.push_back(piece_of(address, dtype));
    }
    return pieces;
}

nb::dict dict_of(const StepStats& stats) {
    nb::dict bytes;
    for (std::size_t i = 0; i < kCounterNames.size(); ++i) {
        bytes[kCounterNames.at(i)] = stats.update.traffic.bytes.at(i);
    }
    nb::dict out;
    out["step"] = stats.step;
    out["is_of_step"] = stats.is_of_step;
    out["norm"] = stats.gradients.norm;
    out["is_skipped"] = !stats.gradients.is_finite;
    out["skipped"] = stats.skipped;
    out["guesses"] = stats.guesses;
    out["misses"] = stats.misses;
    out["loss_scale"] = stats.loss_scale;
    out["gradients_s"] = stats.gradients_s;
    out["update_s"] = stats.update.update_s;
    out["waited_s"] = stats.waited_s;
    out["commit_s"] = stats.commit_s;
    out["bytes"] = bytes;
    return out;
}

nb::dict dict_of(const trace::RunFacts& facts) {
    nb::dict out;
    out["devices"] = facts.devices;
    out["gradient_bytes_per_parameter"] = facts.payload_bytes_per_parameter;
    out["encodes_on_gpu"] = facts.encodes_on_gpu;
    out["gradient_bytes"] = facts.gradient_bytes;
    out["memory_bytes"] = facts.memory_bytes;
    return out;
}

void translate(const std::exception_ptr& pointer, void* /*unused*/) {
    try {
        std::rethrow_exception(pointer);
    } catch (const PathError& error) {  // Python chooses the subclass of OSError by the errno
        const nb::tuple about = nb::make_tuple(error.code(), std::string(error.what()));
        PyErr_SetObject(PyExc_OSError, about.ptr());
    } catch (const ConfigError& error) {
        PyErr_SetString(PyExc_ValueError, error.what());
    } catch (const IoError& error) {
        PyErr_SetString(PyExc_OSError, error.what());
    } catch (const Error& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
}

engine::StepSettings step_of(const std::string& optimizer, const Hypers& groups, double clip_norm) {
    engine::StepSettings step{.clip_norm = clip_norm};
    for (const auto& [rate, beta1, beta2, epsilon, decay] : groups) {
        step.groups.push_back({.optimizer = parse_word<csd::Optimizer>("optimizer", optimizer),
                               .rate = rate,
                               .beta1 = beta1,
                               .beta2 = beta2,
                               .epsilon = epsilon,
                               .decay = decay});
    }
    return step;
}

}  // namespace nearstep::python
