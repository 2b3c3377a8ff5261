// The extension module nearstep._engine. It gets tensors' addresses and formats, not PyTorch.
// Called by the Python package.
#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/machine.hpp"
#include "base/version.hpp"
#include "base/wording.hpp"
#include "checkpoint/export.hpp"
#include "checkpoint/safetensors.hpp"
#include "csd/device.hpp"
#include "csd/optimizer.hpp"
#include "memory/gpu.hpp"
#include "python/binding/conductor.hpp"
#include "python/binding/conversions.hpp"
#include "python/binding/mpi_thread.hpp"
#include "python/binding/server.hpp"
#include "store/storage_folder.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace nb = nanobind;

namespace nearstep::python {

namespace {

using checkpoint::Safetensors;
using Values = std::vector<std::tuple<std::string, std::string>>;  // with their names
using Tensors = std::vector<std::tuple<std::string, std::vector<std::int64_t>, std::size_t>>;
// Addresses of tensors, each with the tensor's number.
using Addresses = std::vector<std::pair<std::size_t, std::uintptr_t>>;

// A tensor of `weights` if its name is not empty, else the memory.
std::vector<StartValues> start_values(const Pieces& addresses, const Safetensors* weights,
                                      const std::vector<std::string>& names) {
    std::vector<StartValues> values;
    for (const TensorMemory& piece : pieces_of(addresses)) {
        const std::string& name = names.at(values.size());
        values.push_back({piece, name.empty() ? nullptr : weights->find(name)});
    }
    return values;
}

// Returns the shape and the name of the format; the name is empty if the format cannot be read.
// nullopt: there is no such tensor.
std::optional<std::tuple<std::vector<std::int64_t>, std::string>> describe(
    const Safetensors& weights, const std::string& name) {
    const checkpoint::StoredTensor* stored = weights.find(name);
    if (stored == nullptr) {
        return std::nullopt;
    }
    return std::tuple(stored->shape, std::string(stored->dtype ? name_of(*stored->dtype) : ""));
}

// Lets Ctrl-C interrupt a wait.
void check_signals() {
    const nb::gil_scoped_acquire with_python;
    if (PyErr_CheckSignals() != 0) {
        throw nb::python_error();
    }
}

// The conductor ends before what it reads.
struct Driver : HeldTensors, Conductor {
    using Conductor::Conductor;
};

std::unique_ptr<Driver> make_driver(std::vector<std::string> settings, const Tensors& tensors,
                                    std::vector<std::size_t> tensors_of_blocks,
                                    const std::string& dtype, std::string model,
                                    std::string granted_devices, std::optional<int> gpu,
                                    std::uintptr_t stream, bool fills_gpu, bool puts_at_once,
                                    int threads, bool keeps_parameters, bool needs_program,
                                    int processes_beside, const Values& of_program) {
    OptimizerPlan plan{
        .settings = std::move(settings),
        .granted_devices = std::move(granted_devices),
        .tensors = {},
        .tensors_of_blocks = std::move(tensors_of_blocks),
        .dtype = dtype_of(dtype),
        .model = std::move(model),
        .gpu = gpu,
        .gradient_stream = at<CUstream_st>(stream),
        .fills_gpu = fills_gpu,
        .puts_at_once = puts_at_once,
        .threads = threads,
        .processes_beside = processes_beside,
        .parameters =
            keeps_parameters ? engine::ParameterHome::vector : engine::ParameterHome::state,
        .program = needs_program ? engine::ProgramUse::needed : engine::ProgramUse::optional};
    for (const auto& [name, value] : of_program) {
        plan.of_program.push_back({name, value});
    }
    for (const auto& [name, shape, group] : tensors) {
        plan.tensors.push_back({.name = name, .shape = shape, .group = group});
    }
    return std::make_unique<Driver>(std::move(plan));
}

// Name, format, shape, bytes, and a function that returns the bytes as a tensor.
using OtherTensor =
    std::tuple<std::string, std::string, std::vector<std::int64_t>, std::size_t, nb::callable>;

// `others` outlive the result. `last` holds the tensor that was read last.
std::vector<checkpoint::OtherTensor> others_of(const std::vector<OtherTensor>& others,
                                               Bytes& last) {
    std::vector<checkpoint::OtherTensor> tensors;
    tensors.reserve(others.size());
    for (const auto& [name, dtype, shape, bytes, read] : others) {
        tensors.push_back(
            {.name = name,
             .dtype = dtype,
             .shape = shape,
             .bytes = bytes,
             .content = [&last, &read = read]() -> std::span<const std::byte> {
                 const nb::gil_scoped_acquire with_python;
                 last = nb::cast<Bytes>(read());
                 return {reinterpret_cast<const std::byte*>(last.data()), last.size()};
             }});
    }
    return tensors;
}

}  // namespace

// NOLINTNEXTLINE
NB_MODULE(_engine, m) {
    nb::set_leak_warnings(false);
    write_messages_for(Client::python);
    nb::register_exception_translator(translate);
    m.def("version", [] { return std::string(version()); });
    m.attr("READ_ELEMS") = csd::Device::kReadElems;  // a page of what storage reads
    m.def("has_gpu_kernels", [] { return memory::gpus() > 0; });
    m.def("digest_on_gpu",
          [](const std::vector<std::tuple<std::uintptr_t, std::size_t, std::uintptr_t>>& pieces,
             std::uintptr_t stream) {
              for (const auto& [address, bytes, digest] : pieces) {
                  memory::digest_on_gpu(at<const void>(address), bytes, at<std::uint64_t>(digest),
                                        memory::Stream::borrowed(at<CUstream_st>(stream)));
              }
          });
    m.def("digest", [](std::uintptr_t address, std::size_t bytes) {
        return xxh3({at<const std::byte>(address), bytes});
    });
    m.def("host_memory", &host_memory);
    m.def("free_host_memory", [] { return machine_memory().available_bytes; });
    m.def("lies_in_memory",
          [](const std::string& folder) { return store::lies_in_memory(folder); });
    m.def("moments_of", [](const std::string& optimizer) {
        return std::string(csd::moments_of(parse_word<csd::Optimizer>("optimizer", optimizer)));
    });
    m.def("check_settings", [](const std::string& dtype, const std::vector<std::string>& settings) {
        run_of(dtype_of(dtype), settings);
    });
    m.def(
        "end",
        [](bool has_failed, bool others_wait) {
            MpiThread::instance().end(has_failed, others_wait);
        },
        nb::call_guard<nb::gil_scoped_release>(), nb::arg("has_failed"), nb::arg("others_wait"));

    m.def(
        "serve",
        [](std::vector<std::string> settings, std::string granted_devices) {
            Server(std::move(settings), std::move(granted_devices)).run(check_signals);
        },
        nb::call_guard<nb::gil_scoped_release>());

    m.def("is_forked", [] { return MpiThread::instance().is_of_parent(); });

    nb::class_<Safetensors>(m, "Weights")
        .def(nb::init<const std::string&>(), nb::arg("path"))
        .def("names",
             [](const Safetensors& self) {
                 std::vector<std::string> names;
                 for (const auto& [name, tensor] : self.tensors()) {
                     names.push_back(name);
                 }
                 return names;
             })
        .def("describe", &describe)
        .def(
            "read",
            [](const Safetensors& self, const std::string& name, std::size_t first,
               std::uintptr_t fp32, std::size_t elems) {
                Safetensors::read(*self.find(name), first, {at<float>(fp32), elems});
            },
            nb::call_guard<nb::gil_scoped_release>());

    using engine::StartRequest;
    nb::class_<StartRequest> request(m, "StartRequest");
    nb::enum_<StartRequest::Kind>(request, "Kind")
        .value("NONE", StartRequest::Kind::none)
        .value("RESUME_IF_ANY", StartRequest::Kind::resume_if_any)
        .value("FROM", StartRequest::Kind::from)
        .value("FRESH", StartRequest::Kind::fresh);
    request.def(nb::init<StartRequest::Kind, std::string>(), nb::arg("kind"), nb::arg("path") = "")
        .def_ro("path", &StartRequest::path);
    add_sums(m);
    add_position(m);
    add_checkpoint(m);
    nb::class_<Driver>(m, "Conductor")
        .def(nb::new_(&make_driver), nb::arg("settings"), nb::arg("tensors"),
             nb::arg("tensors_of_blocks"), nb::arg("dtype"), nb::arg("model"),
             nb::arg("granted_devices"), nb::arg("gpu").none(), nb::arg("gradient_stream"),
             nb::arg("fills_gpu"), nb::arg("puts_at_once") = false, nb::arg("threads") = 0,
             nb::arg("keeps_parameters") = true, nb::arg("needs_program") = false,
             nb::arg("processes_beside") = 0, nb::arg("of_program") = Values())
        .def("open", &Driver::open, nb::call_guard<nb::gil_scoped_release>())
        .def_prop_ro("newest_step", &Conductor::newest_step)
        .def("keep_to", &Conductor::keep_to, nb::call_guard<nb::gil_scoped_release>())
        .def("carry",
             [](Driver& self, const store::Commit& position, const CarriedTensors& tensors,
                const nb::bytes& program) {
                 self.carry(position, carried_of(tensors), {program.c_str(), program.size()});
             })
        .def("position", &Conductor::position, nb::call_guard<nb::gil_scoped_release>())
        .def(
            "begin",
            [](Driver& self, const Pieces& values, const Safetensors* weights,
               const std::vector<std::string>& names, nb::object owners) {
                std::vector<std::string> lines = without_python(
                    [&] { return self.begin(start_values(values, weights, names)); });
                self.hold(self.start_work(), std::move(owners));
                return lines;
            },
            nb::arg("values"), nb::arg("weights").none(), nb::arg("names"),
            nb::arg("owners").none())
        .def("await_start",
             [](Driver& self) {
                 without_python([&] { self.await_work(self.start_work(), check_signals); });
                 self.drop_until(self);
             })
        .def_prop_ro("start_share", &Conductor::start_share)
        .def("holds", [](const Driver& self,
                         const std::string& dtype) { return self.holds(dtype_of(dtype)); })
        .def("begin_step",
             [](Driver& self, const std::string& optimizer, const Hypers& groups, double clip_norm,
                const std::vector<std::size_t>& absent, bool is_given_up) {
                 self.expect_gradients(self.blocks());
                 self.begin_step(step_of(optimizer, groups, clip_norm), absent, is_given_up);
             })
        .def("put",
             [](Driver& self, std::size_t block, const Pieces& pieces, float factor,
                std::uintptr_t made, nb::object tensors) {
                 self.drop_until(self);
                 const std::uint64_t work =
                     self.put(block, pieces_of(pieces), factor, at<CUevent_st>(made));
                 self.hold_gradients(work, block, std::move(tensors));
                 return work;
             })
        .def("keep",
             [](Driver& self, const nb::bytes& about, const Memories& pieces, std::uintptr_t made,
                nb::object tensors) {
                 self.hold(self.keep({about.c_str(), about.size()}, spans_of(pieces),
                                     at<CUevent_st>(made)),
                           std::move(tensors));
             })
        .def("end_step",
             [](Driver& self, const std::vector<std::size_t>& absent, bool is_given_up,
                const Addresses& places, std::uintptr_t unused, std::uintptr_t are_written) {
                 GpuPlaces on_gpu{.unused = at<CUevent_st>(unused),
                                  .are_written = at<const bool>(are_written)};
                 for (const auto& [tensor, address] : places) {
                     on_gpu.tensors.emplace_back(tensor, at<std::byte>(address));
                 }
                 self.end_step(absent, is_given_up, on_gpu);
             })
        .def("elements_on_host", &Conductor::elements_on_host)
        .def("change_masters",
             [](Driver& self,
                const std::vector<std::tuple<std::size_t, std::uintptr_t, std::string>>& values,
                nb::object tensors, bool is_last) {
                 std::vector<std::pair<std::size_t, TensorMemory>> pieces;
                 pieces.reserve(values.size());
                 for (const auto& [tensor, address, dtype] : values) {
                     pieces.emplace_back(tensor, piece_of(address, dtype));
                 }
                 self.hold(self.change_masters(std::move(pieces), is_last), std::move(tensors));
             })
        .def("expect_step", &Conductor::expect_step)
        .def("await_block",
             [](Driver& self, std::size_t block) {
                 without_python([&] { self.await_block(block, check_signals); });
                 self.drop_until(self);
             })
        .def("await_work",
             [](Driver& self, std::uint64_t work) {
                 without_python([&] { self.await_work(work, check_signals); });
                 self.drop_until(self);
             })
        .def("has_block", &Conductor::has_block)
        .def(
            "finish", [](Driver& self) { self.finish(check_signals); },
            nb::call_guard<nb::gil_scoped_release>())
        .def("is_done", &Conductor::is_done)
        .def("claim_checkpoint_folder", &Conductor::claim_checkpoint_folder,
             nb::call_guard<nb::gil_scoped_release>())
        .def("save",
             [](Driver& self, const std::string& folder, const nb::bytes& program) {
                 const std::string kept(program.c_str(), program.size());
                 return without_python([&] { return self.save(folder, kept); });
             })
        .def_prop_ro("durable_step", &Conductor::durable_step)
        .def_prop_ro("program_state",
                     [](const Driver& self) {
                         const std::string& kept = self.program_state();
                         return nb::bytes(kept.data(), kept.size());
                     })
        .def("masters_digest", &Conductor::masters_digest, nb::call_guard<nb::gil_scoped_release>())
        .def("updates", &Conductor::updates, nb::call_guard<nb::gil_scoped_release>())
        .def("read_state",
             [](Driver& self, std::size_t tensor) {
                 return arrays_of(without_python([&] { return self.read_state(tensor); }));
             })
        .def("close", &Conductor::close, nb::call_guard<nb::gil_scoped_release>(),
             nb::arg("keeps_vector") = false)
        .def(
            "loss_scale", [](Driver& self) { return self.loss_scale(check_signals); },
            nb::call_guard<nb::gil_scoped_release>())
        .def("stats", [](const Driver& self) { return dict_of(self.stats()); })
        .def("facts",
             [](const Driver& self) {
                 nb::dict facts = dict_of(self.facts());
                 facts["state_bytes"] = self.start().state_bytes;
                 facts["start_s"] = self.start().seconds;
                 facts["rated_tbw"] = self.start().rated_tbw;
                 return facts;
             })
        .def(
            "read_parameters",
            [](const Driver& self, std::size_t begin, std::size_t end, std::uintptr_t address,
               std::size_t bytes) {
                self.read_parameters({begin, end}, {at<std::byte>(address), bytes});
            },
            nb::call_guard<nb::gil_scoped_release>())
        .def("can_copy_parameters", &Driver::can_copy_parameters)
        .def(
            "copy_parameters",
            [](const Driver& self, std::size_t begin, std::size_t end, std::uintptr_t address,
               std::size_t bytes, std::optional<std::uintptr_t> stream) {
                const auto order = memory::Stream::borrowed(at<CUstream_st>(stream.value_or(0)));
                self.copy_parameters({begin, end}, {at<std::byte>(address), bytes},
                                     stream ? &order : nullptr);
            },
            nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(),
            nb::call_guard<nb::gil_scoped_release>())
        .def("drop_parameters",
             [](Driver& self, std::size_t begin, std::size_t end) {
                 self.drop_parameters({begin, end});
             })
        .def("vector",
             [](const Driver& self) {
                 // PyTorch has no read-only tensors.
                 auto* bytes = const_cast<std::byte*>(self.vector().data());  // NOLINT
                 return Bytes(bytes, {self.vector().size()}, nb::find(self));
             })
        .def("lent_ends", &Conductor::lent_ends)
        .def("lent_memory",
             [](Driver& self) {
                 std::vector<Bytes> lent;
                 for (const std::span<std::byte> memory : self.lent_memory()) {
                     lent.push_back(Bytes(memory.data(), {memory.size()}, nb::find(self)));
                 }
                 return lent;
             })
        .def_prop_ro("rank", &Conductor::rank)
        .def_prop_ro("ranks", &Conductor::ranks)
        .def_prop_ro("is_alone", &Conductor::is_alone)
        .def_prop_ro("steps", &Conductor::steps)
        .def_prop_ro("line", &Conductor::line)
        .def_prop_ro("lines", &Conductor::lines)
        .def_prop_ro("paths", [](const Driver& self) { return self.run().csd.path; })
        .def_prop_ro("found_checkpoint", &Conductor::found_checkpoint)
        .def_prop_ro("checkpoint_folder",
                     [](const Driver& self) { return config::checkpoint_folder(self.run()); });
    // Writes a folder of safetensors if `shard_bytes` is given, else one HDF5 file. `ties`: other
    // names of a tensor.
    m.def(
        "export_weights",
        [](const std::string& checkpoint, const std::string& path, const std::string& dtype,
           std::optional<std::size_t> shard_bytes, const std::string& config,
           const std::string& generation_config, const std::vector<OtherTensor>& others,
           const std::map<std::string, std::vector<std::string>>& ties) {
            Bytes last;  // read; dropped with the GIL
            const std::vector<checkpoint::OtherTensor> tensors = others_of(others, last);
            const nb::gil_scoped_release without_python;
            const mpi::Communicator alone = mpi::Communicator::alone(std::chrono::seconds(1));
            const auto texts = [&](const auto& /*about*/) {
                checkpoint::ModelTexts out{config, generation_config, {}};
                for (const auto& [name, names] : ties) {
                    out.notes[name].ties = names;
                }
                return out;
            };
            if (shard_bytes) {
                checkpoint::export_safetensors(alone, checkpoint, path, dtype_of(dtype),
                                               *shard_bytes, texts, tensors);
            } else {
                checkpoint::export_checkpoint(alone, checkpoint, path, {.dtype = dtype_of(dtype)},
                                              texts, tensors);
            }
        },
        nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(),
        nb::arg());
}

}  // namespace nearstep::python
