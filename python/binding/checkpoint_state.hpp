// A checkpoint's state, tensor by tensor, for a run that divides the parameters in another way.
#pragma once

#include "checkpoint/checkpoint.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace nearstep::python {

class CheckpointState {
public:
    // `path`: the path of an index, as save() returned it. Throws ConfigError.
    explicit CheckpointState(const std::string& path);

    const store::Commit& position() const { return about(); }
    // Returns names and shapes in the order of the parameter vector.
    std::vector<std::pair<std::string, std::vector<std::int64_t>>> tensors() const;
    // The updates that each tensor has had.
    std::vector<std::int64_t> updates() const;
    // Returns what the first rank's program kept. Throws ConfigError.
    std::string program() const;
    // Returns a tensor's master weights and both moments. Throws ConfigError.
    std::array<std::vector<float>, 3> read_state(std::size_t tensor);

private:
    const checkpoint::Description& about() const { return reader_->description(); }

    std::unique_ptr<checkpoint::Reader> reader_;
    std::vector<checkpoint::TensorPlace> tensors_;
};

}  // namespace nearstep::python
