// The calls that all ranks of an optimizer make together, also those that serve: a struct for each,
// whose `told` lists what rank 0 tells the ranks that serve. These leave the rest as it is here.
#pragma once

#include "python/binding/mpi_thread.hpp"
#include "python/binding/optimizer_plan.hpp"

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nearstep::python {

// Which tensors have values, and in which format.
using Formats = std::vector<std::optional<Dtype>>;
Formats formats_of(std::span<const StartValues> values);

// Initialises or resumes the state.
struct PrepareCall {
    static constexpr Command command = Command::prepare;
    Formats formats = {};
    std::span<const StartValues> values = {};

    template <typename Archive>
    void told(Archive& archive) {
        archive(formats);
    }
};

// Gradients of another step will come.
struct ExpectCall {
    static constexpr Command command = Command::expect;

    template <typename Archive>
    void told(Archive& /*archive*/) {}
};

struct BeginStepCall {
    static constexpr Command command = Command::begin_step;
    engine::StepSettings step = {};
    std::vector<std::size_t> absent = {};  // tensors without a gradient on this rank
    bool is_given_up = false;

    template <typename Archive>
    void told(Archive& archive) {
        archive(step.clip_norm, step.groups);
    }
};

struct PutCall {
    static constexpr Command command = Command::put;
    std::size_t block = 0;
    std::span<const TensorMemory> pieces = {};  // of a rank that computes
    float factor = 1;
    CUevent_st* made = nullptr;

    template <typename Archive>
    void told(Archive& archive) {
        archive(block);
    }
};

struct EndStepCall {
    static constexpr Command command = Command::end_step;
    std::vector<std::size_t> absent = {};
    bool is_given_up = false;
    GpuPlaces places = {};

    template <typename Archive>
    void told(Archive& /*archive*/) {}
};

struct ChangeMastersCall {
    static constexpr Command command = Command::change;
    Formats formats = {};
    std::span<const StartValues> values = {};

    template <typename Archive>
    void told(Archive& archive) {
        archive(formats);
    }
};

struct ClaimFolderCall {
    static constexpr Command command = Command::claim;
    std::string folder = {};

    template <typename Archive>
    void told(Archive& archive) {
        archive(folder);
    }
};

struct SaveCall {
    static constexpr Command command = Command::save;
    std::string folder = {};
    std::string program = {};  // what the program of this rank keeps

    template <typename Archive>
    void told(Archive& archive) {
        archive(folder);
    }
};

struct DigestCall {
    static constexpr Command command = Command::digest;

    template <typename Archive>
    void told(Archive& /*archive*/) {}
};

}  // namespace nearstep::python
