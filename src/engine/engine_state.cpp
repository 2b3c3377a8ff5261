// Fills the state: with start values, or from a checkpoint or another state. Visits, changes and
// verifies it. Called by begin() and clients.
#include "base/error.hpp"
#include "base/stopwatch.hpp"
#include "csd/gpu_tensors.hpp"
#include "engine/engine.hpp"
#include "engine/state/kept_program.hpp"
#include "mpi/gathered_text.hpp"

#include <algorithm>
#include <array>
#include <mutex>

namespace nearstep::engine {

using shard::kTileElems;

namespace {

constexpr const char* kOtherTensors =
    "Its manifest counts the updates of tensors that the model does not have.";

}  // namespace

store::Commit Engine::position() const {
    return {.step = steps_done_,
            .generation = pipeline_->generation(),
            .loss_scale = loss_scale_.value(),
            .good_steps = loss_scale_.good_steps(),
            .norm = last_norm_,
            .missed = scalar_sets_.missed()};
}

// Another seed or other data begins a new line, like going back a step.
void Engine::choose_line(const Decision& decision, const Writer& writer, std::int64_t step) {
    const bool has_other_data = !writer.data.empty() && writer.data != identity_.data;
    const bool leaves = decision.begins_line || writer.seed != identity_.seed || has_other_data;
    line_ = leaves ? store::branch_off(decision.line, step, draw_id()) : decision.line;
}

// A rank computes with its rounded masters. Writes those of its own tiles.
void Engine::load_into_vector(const offload::OwnedSubgroup& of, const csd::StateArrays& state) {
    if (reader_) {
        return;
    }
    convert_from_fp32(state.master.data(), layout_.dtype,
                      vector_.span().data() + of.first_elem() * size_bytes(layout_.dtype),
                      state.master.size());
}

void Engine::go_on_from(std::int64_t generation) {
    pipeline_->set_generation(generation);
    if (reader_) {
        reader_->use(generation);
    }
}

void Engine::drop_parameters(shard::ElementRange range) {
    constexpr std::size_t kPageBytes = 64 * KiB;  // see Buffer::drop()
    const std::size_t begin = round_up(range.begin * size_bytes(layout_.dtype), kPageBytes);
    const std::size_t end = range.end * size_bytes(layout_.dtype) / kPageBytes * kPageBytes;
    if (begin < end) {
        vector_.drop(begin, end - begin);
    }
}

void Engine::visit_states(Executor& pool, const StateWork& work) {
    const std::vector<offload::OwnedSubgroup> owned = pipeline_->subgroups();
    std::vector<csd::StateMemory> memory(static_cast<std::size_t>(pool.members()));
    pool.share(owned.size(), [&](std::size_t i, int member) {
        work(owned[i], memory[static_cast<std::size_t>(member)].of(owned[i].elems()));
    });
}

namespace {

// Adds up the seconds in which at least one thread is between enter() and leave().
class Occupancy {
public:
    void enter() {
        const std::scoped_lock lock(lock_);
        if (inside_++ == 0) {
            watch_.lap();
        }
    }
    void leave() {
        const std::scoped_lock lock(lock_);
        if (--inside_ == 0) {
            seconds_ += watch_.lap();
        }
    }
    double seconds() const { return seconds_; }

private:
    std::mutex lock_;
    int inside_ = 0;
    Stopwatch watch_;
    double seconds_ = 0;
};

}  // namespace

// A program may go on meanwhile, such as the compiler of its model.
void Engine::move_state(const StateWork& before, const StateWork& move) {
    const trace::TrafficSnapshot old = traffic_.snapshot();
    Executor workers{pool_threads() - 1, Executor::Priority::background};
    Occupancy moves;
    visit_states(workers, [&](const auto& of, const csd::StateArrays& state) {
        if (before) {
            before(of, state);
        }
        moves.enter();
        move(of, state);
        moves.leave();
        load_into_vector(of, state);
    });
    const trace::TrafficSnapshot moved = traffic_.snapshot() - old;
    moved_ = {.bytes = static_cast<double>(moved[trace::Counter::checkpoint]),
              .seconds = moves.seconds()};
}

StateTransfer Engine::first_transfer() const {
    StateTransfer all;
    const std::vector<double> of_ranks =
        world_.all_gather(std::array{moved_.bytes, moved_.seconds});
    for (std::size_t i = 0; i < of_ranks.size(); i += 2) {
        all.bytes += of_ranks[i];
        all.seconds = std::max(all.seconds, of_ranks[i + 1]);
    }
    return all;
}

void Engine::start_anew(const Claimed& claimed) {
    line_ = {.run = draw_id()};
    empty_state_files("", claimed);
    if (options_.program != ProgramUse::none) {
        log_.begin_program(0, {});
    }
    // Now, and not after the start: while memory is pinned for a GPU, the model's own calls to the
    // GPU wait. Where state comes from elsewhere and is damaged, storage is reserved once more.
    for (const auto& device : pipeline_->devices()) {
        device->expect_updates();
    }
}

// Opens a checkpoint and checks that it is of this model. The model's name in it is the run's, but
// somebody else may have written the rest.
std::unique_ptr<checkpoint::Reader> Engine::open_checkpoint(const std::string& index_path) const {
    auto reader = checkpoint::Reader::open(index_path);
    const checkpoint::Description& description = reader->description();
    if (description.parameters != layout_.elems || !fits(description.missed)) {
        throw ConfigError(text("The checkpoint ", index_path,
                               " is of other tensors than the model (", description.parameters,
                               " parameters, not ", layout_.elems, "): use another checkpoint."));
    }
    return reader;
}

void Engine::restore(const Decision& decision) {
    std::unique_ptr<checkpoint::Reader> reader;
    store::ProgramState program;
    world_.together([&] {
        reader = open_checkpoint(decision.checkpoint);
        program = program_with(*reader);
    });
    const checkpoint::Description& description = reader->description();
    const Writer writer{.seed = description.seed,
                        .data = description.data,
                        .dtype = description.dtype,
                        .threads = description.threads};
    choose_line(decision, writer, description.step);
    try {
        empty_state_files(decision.replaces);
        world_.together([&] { fill_from(*reader); });
        world_.together([&] { restore_residual(*reader); });
    } catch (const Error&) {
        if (!decision.replaces.empty()) {
            remove_state_files();
        }
        throw;
    }
    go_on_at(description, writer);
    list_what_was_filled(std::move(program));
}

void Engine::fill_from(checkpoint::Reader& reader) {
    visit_states(alone_, [&](const auto& of, const csd::StateArrays& state) {
        reader.read(of.tiles, {state.master, state.moment1, state.moment2});
        of.write(reader.description().generation, state);
        load_into_vector(of, state);
    });
}

namespace {

// A subgroup whose tiles arrive one by one.
struct Incoming : offload::OwnedSubgroup {
    std::size_t missing = 0;       // tiles
    csd::StateMemory memory = {};  // taken while only some tiles have arrived
};

void put(Incoming& of, std::size_t tile, const csd::StateArrays& state) {
    const csd::StateArrays all = of.memory.of(of.elems());
    const std::size_t at = (tile - of.tiles.begin) * kTileElems;
    std::ranges::copy(state.master, all.master.subspan(at).begin());
    std::ranges::copy(state.moment1, all.moment1.subspan(at).begin());
    std::ranges::copy(state.moment2, all.moment2.subspan(at).begin());
    --of.missing;
}

}  // namespace

std::optional<std::string> Engine::fill_from(OtherLayout& old, std::int64_t generation) {
    std::vector<Incoming> incoming;  // in tile order
    for (const offload::OwnedSubgroup& of : pipeline_->subgroups()) {
        incoming.push_back({of, of.tiles.size()});
    }
    return old.read(generation, owners_, [&](std::size_t tile, const csd::StateArrays& state) {
        const auto of = std::ranges::upper_bound(incoming, tile, {},
                                                 [](const Incoming& one) { return one.tiles.end; });
        put(*of, tile, state);
        if (of->missing == 0) {
            const csd::StateArrays all = of->memory.of(of->elems());
            of->write(generation, all);
            load_into_vector(*of, all);
            of->memory = {};
        }
    });
}

std::optional<std::string> Engine::restore_from(const Start& start, std::size_t number) {
    const store::Commit& commit = start.decision.commits[number];
    if (!fits(commit.missed)) {
        return kOtherTensors;
    }
    const Decision& decision = start.decision;
    store::ProgramState program = program_with(start, number);
    choose_line(decision, decision.writer, commit.step);
    try {
        OtherLayout old(world_, layout_.elems, start, storage_.get());
        empty_state_files(decision.replaces);
        if (auto damage = fill_from(old, commit.generation)) {
            return damage;
        }
    } catch (const Error&) {
        remove_state_files();
        throw;
    }
    go_on_at(commit, decision.writer);
    list_what_was_filled(std::move(program));
    return std::nullopt;
}

void Engine::verify(const std::string& index_path) {
    world_.together([&] {
        const auto reader = open_checkpoint(index_path);
        visit_states(alone_, [&](const auto& of, const csd::StateArrays& state) {
            reader->read(of.tiles, {state.master, state.moment1, state.moment2});
        });
    });
}

// Restores what ranks keep besides the state. A residual is scaled like its gradients.
void Engine::go_on_at(const store::Commit& position, const Writer& writer) {
    go_on_from(position.generation);
    steps_done_ = position.step;
    threads_before_ = writer.threads;
    if (writer.dtype.empty() || writer.dtype == name_of(Dtype::fp16)) {
        loss_scale_.restore(position.loss_scale, position.good_steps);
    }
    if (pipeline_->residual() != nullptr && loss_scale_.value() != position.loss_scale) {
        pipeline_->residual()->scale(static_cast<float>(loss_scale_.value() / position.loss_scale));
    }
    keep_norm(position.norm);
    scalar_sets_.restore(position.missed);
    pipeline_->gather();
}

std::optional<std::string> Engine::restore_state(const Start& start, std::size_t number) {
    const Decision& decision = start.decision;
    const store::Commit& commit = decision.commits[number];
    if (!fits(commit.missed)) {
        return kOtherTensors;
    }
    std::string damage;
    name_state(decision.state);
    world_.together([&] {
        try {
            move_state({}, [&](const auto& of, const csd::StateArrays& state) {
                of.read(commit.generation, state);
            });
        } catch (const DamageError& found) {
            damage = found.what();
        }
    });
    for (const std::string& of_rank : gather_text(world_, damage)) {
        if (!of_rank.empty()) {
            return of_rank;
        }
    }
    store::ProgramState program = program_with(start, number);
    choose_line(decision, decision.writer, commit.step);
    go_on_at(commit, decision.writer);
    log_.begin(manifest());
    list_what_was_filled(std::move(program));
    return std::nullopt;
}

// The new generation lies in the places of the one before the last, as an update's does.
void Engine::change_masters(const Change& change) {
    expects(pipeline_->stage() == offload::Stage::idle, "masters change between two steps");
    pipeline_->drop_read_ahead();
    const std::int64_t old = pipeline_->generation();
    world_.together([&] {
        visit_states(pool_, [&](const auto& of, const csd::StateArrays& state) {
            of.read(old, state);
            change(of.first_elem(), state.master);
            of.write(old + 1, state);
            load_into_vector(of, state);
        });
    });
    if (options_.tensors != nullptr) {
        options_.tensors->forget();
    }
    go_on_from(old + 1);
    scalar_sets_.miss_update();
    pipeline_->gather();
    commit();
}

void Engine::see_state(shard::ElementRange range, const See& see) {
    expects(!is_under_way(), "a step is finished before its state is read");
    visit_states(alone_, [&](const auto& of, const csd::StateArrays& state) {
        if (of.first_elem() >= range.end || of.first_elem() + of.elems() <= range.begin) {
            return;
        }
        of.read(pipeline_->generation(), state);
        see(of.first_elem(), state.master, state.moment1, state.moment2);
    });
}

std::vector<std::int64_t> Engine::updates() const {
    std::vector<std::int64_t> updates;
    for (const std::int64_t missed : scalar_sets_.missed_of_tensors()) {
        updates.push_back(pipeline_->generation() - missed);
    }
    return updates;
}

}  // namespace nearstep::engine
