// Saves what outlives the process: checkpoints, and what the program keeps beside the state.
// Answers questions about the state. Called by python/nearstep/_session.py and _saving.
#include "base/error.hpp"
#include "python/binding/conductor.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <span>
#include <string_view>

namespace nearstep::python {

void Conductor::keep_to(std::int64_t step) {
    do_and_wait([&] { opened_->keep_to(step); });
}

void Conductor::carry(const store::Commit& position, std::vector<CarriedTensor> tensors,
                      std::string_view program) {
    expects(tensors.size() == layout_.tensors.size(), "all tensors are carried over");
    carried_position_ = position;  // the MPI thread reads it in later work
    carried_position_.missed.clear();
    for (const CarriedTensor& one : tensors) {
        carried_position_.missed.push_back(position.generation - one.updates);
    }
    while (!carried_position_.missed.empty() && carried_position_.missed.back() == 0) {
        carried_position_.missed.pop_back();
    }
    carried_ = std::move(tensors);
    carried_program_ = program;
}

engine::Carried Conductor::carried_state() const {
    const auto as_bytes = std::as_bytes(std::span(carried_program_));
    return {.position = carried_position_,
            .moments =
                [this](std::size_t first, std::span<float> moments1, std::span<float> moments2) {
                    for (std::size_t i = 0; i < carried_.size(); ++i) {
                        const auto [begin, end] = overlap(i, first, moments1.size());
                        if (begin >= end) {
                            continue;
                        }
                        const std::size_t from = begin - layout_.tensors[i].offset;
                        std::copy_n(carried_[i].moments[0] + from, end - begin,
                                    moments1.subspan(begin - first).begin());
                        std::copy_n(carried_[i].moments[1] + from, end - begin,
                                    moments2.subspan(begin - first).begin());
                    }
                },
            .program = {as_bytes.begin(), as_bytes.end()}};
}

std::string Conductor::do_in_folder(const std::function<std::string()>& work) {
    std::string path;
    std::exception_ptr refused;
    do_and_wait([&] {
        meet(Purpose::save);
        try {
            path = work();
            // Both kinds of errors come on all ranks, and nothing has changed: training may go on.
        } catch (const ConfigError&) {
            refused = std::current_exception();
        } catch (const IoError&) {
            refused = std::current_exception();
        }
    });
    if (refused) {
        std::rethrow_exception(refused);
    }
    return path;
}

std::string Conductor::claim_checkpoint_folder(const std::string& folder) {
    return do_in_folder([&] { return claim_on_all(folder); });
}

std::string Conductor::claim_on_all(const std::string& folder) {
    tell(Deed::claim, 0, folder);
    return engine().claim_checkpoint_folder(folder);
}

std::string Conductor::save(const std::string& folder, const std::string& program) {
    return do_in_folder([&] { return save_on_all(folder, program); });
}

std::string Conductor::save_on_all(const std::string& folder, const std::string& program) {
    tell(Deed::save, 0, folder);
    std::string path = engine().save(folder, std::as_bytes(std::span(program)));
    const std::lock_guard lock(mutex_);
    durable_step_ = engine().steps_done();
    return path;
}

std::array<std::vector<float>, 3> Conductor::read_state(std::size_t tensor) {
    expects(is_alone_, "one rank has the whole state");
    const std::size_t begin = layout_.tensors.at(tensor).offset;
    const std::size_t end = begin + elems_of(layout_.tensors[tensor]);
    std::array<std::vector<float>, 3> found;
    for (std::vector<float>& array : found) {
        array.resize(end - begin);
    }
    do_and_wait([&] {
        engine().see_state(
            {begin, end}, [&](std::size_t first, std::span<const float> masters,
                              std::span<const float> moments1, std::span<const float> moments2) {
                const std::size_t from = std::max(begin, first);
                const std::size_t to = std::min(end, first + masters.size());
                if (from < to) {
                    std::size_t i = 0;
                    for (const std::span<const float> array : {masters, moments1, moments2}) {
                        std::ranges::copy(
                            array.subspan(from - first, to - from),
                            found.at(i++).begin() + static_cast<std::ptrdiff_t>(from - begin));
                    }
                }
            });
    });
    return found;
}

store::Commit Conductor::position() {
    store::Commit position;
    do_and_wait([&] { position = engine().position(); });
    return position;
}

std::vector<std::int64_t> Conductor::updates() {
    std::vector<std::int64_t> updates;
    do_and_wait([&] { updates = engine().updates(); });
    return updates;
}

std::uint64_t Conductor::digest_on_all() {
    tell(Deed::digest);
    return engine().masters_digest();
}

std::uint64_t Conductor::masters_digest() {
    std::uint64_t digest = 0;
    do_and_wait([&] {
        meet(Purpose::digest);
        digest = digest_on_all();
    });
    return digest;
}

}  // namespace nearstep::python
