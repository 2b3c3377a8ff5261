// Saves what outlives the process: checkpoints, and what the program keeps beside the state.
// Answers questions about the state. Called by python/nearstep/_session.py and _saving.
#include "base/error.hpp"
#include "base/plain_file.hpp"
#include "engine/placement/devices.hpp"
#include "python/binding/conductor.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <filesystem>

namespace nearstep::python {

namespace {

constexpr const char* kProgram = ".program";

std::string program_path_of(const std::string& index) {
    return index.substr(0, index.rfind('.')) + kProgram;
}

// Removes those whose checkpoint is gone.
void remove_left_program_states(const std::string& folder) {
    namespace fs = std::filesystem;
    std::error_code ignored;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
        const fs::path& path = entry.path();
        if (path.extension() == kProgram && !fs::exists(fs::path(path).replace_extension(".h5")) &&
            is_own_plain(path.string()) && store::read_program_state(path.string())) {
            fs::remove(path, ignored);
        }
    }
}

}  // namespace

// What a rank kept is its own if the run has as many ranks as before, which all must find it.
void Conductor::find_program_state() {
    const std::int64_t step = engine().steps_done();
    const engine::Start& start = opened_->start();
    program_files_.emplace(engine::program_state_paths(start.settings, rank_, start.decision.set),
                           engine().line(), step);
    std::optional<store::ProgramState> mine;
    std::optional<store::ProgramState> first;
    world_->together([&] {
        mine = store::find_program_state(engine::all_program_state_paths(start.settings, rank_),
                                         engine().line(), step);
        std::vector<std::string> paths = engine::all_program_state_paths(start.settings, 0);
        if (rank_ == 0) {
            paths.push_back(program_path_of(start.decision.checkpoint));
        }
        first = store::find_program_state(paths, engine().line(), step);
    });
    const auto as_text = [](const std::optional<store::ProgramState>& state) {
        return state ? std::string(reinterpret_cast<const char*>(state->bytes.data()),  // NOLINT
                                   state->bytes.size())
                     : std::string();
    };
    // The lowest rank that sees the newest of rank 0's tells the others.
    const std::array<double, 1> step_of_first{first ? static_cast<double>(first->step) : -1.0};
    const std::vector<double> steps = world_->all_gather(step_of_first);
    const auto newest = std::ranges::max_element(steps);
    if (*newest < 0) {
        return;
    }
    const std::string of_first =
        world_->broadcast(as_text(first), static_cast<int>(newest - steps.begin()));
    const bool is_mine = mine && static_cast<double>(mine->step) == *newest;
    program_state_ = world_->agree(is_mine || serves()) ? as_text(mine) : of_first;
}

std::string Conductor::do_in_folder(const std::function<std::string()>& work) {
    std::string path;
    std::exception_ptr refused;
    do_and_wait([&] {
        meet(Purpose::save);
        try {
            path = work();
        } catch (const ConfigError&) {  // on all ranks, and nothing changed: training may go on
            refused = std::current_exception();
        } catch (const IoError&) {  // the same
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
    std::string path = engine().save(folder);
    if (rank_ == 0 && !program.empty()) {
        store::write_program_state(program_path_of(path), lines_.front(), engine().steps_done(),
                                   std::as_bytes(std::span(program)));
        remove_left_program_states(std::filesystem::path(path).parent_path().string());
    }
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
        engine().see_state([&](std::size_t first, std::span<const float> masters,
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
