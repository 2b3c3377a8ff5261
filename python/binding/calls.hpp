// The calls that all ranks of an optimizer make together, also those that serve: a struct for each,
// whose `told` lists the members that rank 0 sends to the ranks that serve. On these ranks the
// other members have their defaults. Used by the session and by server.cpp.
#pragma once

#include "python/binding/mpi_thread.hpp"
#include "python/binding/optimizer_plan.hpp"

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nearstep::python {

// The format of each tensor's values; null for a tensor without values.
using Formats = std::vector<std::optional<Dtype>>;
Formats formats_of(std::span<const StartValues> values);

// Initialises or resumes the state.
struct PrepareCall {
    static constexpr Command kCommand = Command::prepare;
    Formats formats = {};
    std::span<const StartValues> values = {};

    template <typename Archive>
    void told(Archive& archive) {
        archive(formats);
    }
};

// Gradients of another step will come.
struct ExpectCall {
    static constexpr Command kCommand = Command::expect;

    template <typename Archive>
    void told(Archive& /*archive*/) {}
};

struct BeginStepCall {
    static constexpr Command kCommand = Command::begin_step;
    engine::StepSettings step = {};
    std::vector<std::size_t> absent = {};  // tensors without a gradient on this rank
    bool is_given_up = false;

    template <typename Archive>
    void told(Archive& archive) {
        archive(step.clip_norm, step.groups);
    }
};

struct PutCall {
    static constexpr Command kCommand = Command::put;
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
    static constexpr Command kCommand = Command::end_step;
    std::vector<std::size_t> absent = {};
    bool is_given_up = false;
    GpuPlaces places = {};

    template <typename Archive>
    void told(Archive& /*archive*/) {}
};

struct ChangeMastersCall {
    static constexpr Command kCommand = Command::change;
    Formats formats = {};
    std::span<const StartValues> values = {};

    template <typename Archive>
    void told(Archive& archive) {
        archive(formats);
    }
};

struct ClaimFolderCall {
    static constexpr Command kCommand = Command::claim;
    std::string folder = {};

    template <typename Archive>
    void told(Archive& archive) {
        archive(folder);
    }
};

struct SaveCall {
    static constexpr Command kCommand = Command::save;
    std::string folder = {};
    std::string program = {};  // what the program of this rank keeps

    template <typename Archive>
    void told(Archive& archive) {
        archive(folder);
    }
};

struct DigestCall {
    static constexpr Command kCommand = Command::digest;

    template <typename Archive>
    void told(Archive& /*archive*/) {}
};

}  // namespace nearstep::python
