// Python's tensors that the engine still reads.
#pragma once

#include "python/binding/conductor.hpp"

#include <nanobind/nanobind.h>

#include <cstdint>
#include <deque>
#include <utility>

namespace nearstep::python {

// Tensors that the engine may still read. They belong to C++, so that no collection of Python
// objects frees them earlier.
class Keepers {
public:
    void hold(std::uint64_t work, nanobind::object tensors) {
        kept_.emplace_back(work, std::move(tensors));
    }
    void drop_until(const Conductor& conductor) {
        while (!kept_.empty() && conductor.is_done(kept_.front().first)) {
            kept_.pop_front();
        }
    }

private:
    std::deque<std::pair<std::uint64_t, nanobind::object>> kept_;
};

}  // namespace nearstep::python
