// Adds gradients for python/nearstep/_gradients, on the host and on the GPU. Called by module.cpp.
#include "base/executor.hpp"
#include "memory/gpu.hpp"
#include "offload/host_sums.hpp"
#include "python/binding/conversions.hpp"
#include "python/binding/mpi_thread.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace nearstep::python {

namespace {

// An address in GPU memory and the format of what is there.
using GpuPiece = std::pair<std::uintptr_t, std::string>;

constexpr int kCoresOfOthers = 2;  // the program's thread, and the engine's that calls MPI

// Sums whose gradients a GPU, if there is one, copies to and from the host in streams. In a fork of
// the process they are the parent's, as its threads are.
class Sums {
public:
    explicit Sums(std::optional<int> gpu)
        : gpu_(gpu), sums_(new offload::HostSums(std::max(1, pool_threads() - kCoresOfOthers))) {}
    Sums(const Sums&) = delete;
    Sums& operator=(const Sums&) = delete;
    ~Sums() {
        if (MpiThread::instance().is_of_parent()) {
            static_cast<void>(sums_.release());
        }
    }

    offload::HostSums* operator->() { return sums_.get(); }

    void close() {
        if (!MpiThread::instance().is_of_parent()) {
            sums_->close();
        }
    }

    // The gradient and the place are written when the stream is here.
    void add(std::size_t place, std::uintptr_t gradient, const std::string& dtype,
             std::uintptr_t stream, bool now) {
        sums_->add(
            place, at<const std::byte>(gradient), dtype_of(dtype),
            [event = recorded(stream), gpu = gpu_] {
                if (event) {
                    memory::use_gpu(*gpu);
                    event->wait();
                }
            },
            now);
    }

    // The GPU has read what waited for the place when the stream is here.
    void set(std::size_t place, const std::string& dtype, std::uintptr_t stream) {
        sums_->set(place, dtype_of(dtype),
                   [event = recorded(stream)] { return !event || event->is_over(); });
    }

private:
    // Returns null without a GPU. The stream is the calling thread's, and so is its GPU, which a
    // thread that has not used it yet chooses here.
    std::shared_ptr<memory::Event> recorded(std::uintptr_t stream) const {
        if (!gpu_) {
            return nullptr;
        }
        memory::use_gpu(*gpu_);
        auto event = std::make_shared<memory::Event>(memory::EventWait::sleeps);
        event->record(memory::Stream::borrowed(at<CUstream_st>(stream)));
        return event;
    }

    std::optional<int> gpu_;
    std::unique_ptr<offload::HostSums> sums_;
};

// sums = one + other, see memory::add_on_gpu().
void add_on_gpu(std::uintptr_t sums, const GpuPiece& one, const GpuPiece& other, std::size_t elems,
                std::uintptr_t stream) {
    memory::add_on_gpu({at<float>(sums), elems}, at<const void>(one.first), dtype_of(one.second),
                       at<const void>(other.first), dtype_of(other.second),
                       memory::Stream::borrowed(at<CUstream_st>(stream)));
}

}  // namespace

void add_sums(nanobind::module_& m) {
    m.def("add_on_gpu", &add_on_gpu);
    nanobind::class_<Sums>(m, "HostSums")
        .def(nanobind::init<std::optional<int>>(), nanobind::arg("gpu").none())
        .def("add_place",
             [](Sums& self, std::uintptr_t memory, const std::string& dtype, std::size_t elems) {
                 return self->add_place(at<void>(memory), dtype_of(dtype), elems);
             })
        .def("give_room",
             [](Sums& self, std::uintptr_t memory, std::size_t bytes) {
                 self->give_room({at<std::byte>(memory), bytes});
             })
        .def("room_for",
             [](Sums& self, std::size_t bytes) {
                 return reinterpret_cast<std::uintptr_t>(self->room_for(bytes));  // NOLINT
             })
        .def("add", &Sums::add)
        .def("claim",
             [](Sums& self, std::size_t place) {
                 return without_python([&] { return self->claim(place); });
             })
        .def("set", &Sums::set)
        .def("close", &Sums::close, nanobind::call_guard<nanobind::gil_scoped_release>());
}

}  // namespace nearstep::python
