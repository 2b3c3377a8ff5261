// Fills the state: with start values, or from a checkpoint or another state. Visits and changes it.
// Called by Run.
#include "engine/state/state.hpp"

#include "base/error.hpp"
#include "base/stopwatch.hpp"
#include "csd/gpu_tensors.hpp"
#include "engine/state/kept_program.hpp"
#include "engine/state/start_value_check.hpp"
#include "mpi/gathered_text.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <mutex>
#include <utility>

namespace nearstep::engine {

using shard::kTileElems;

namespace {

constexpr const char* kOtherTensors =
    "Its manifest counts the updates of tensors that the model does not have.";

}  // namespace

// Another seed or other data begins a new line, like going back a step.
void State::choose_line(const Writer& writer, std::int64_t step) {
    const Decision& decision = start_.decision;
    const bool has_other_data = !writer.data.empty() && writer.data != resources_.identity.data;
    const bool leaves =
        decision.begins_line || writer.seed != resources_.identity.seed || has_other_data;
    line_ = leaves ? store::branch_off(decision.line, step, draw_id()) : decision.line;
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
void State::move_all(const Resources::StateWork& before, const Resources::StateWork& move) {
    const trace::TrafficSnapshot old = resources_.traffic.snapshot();
    Executor workers{pool_threads() - 1, Executor::Priority::background};
    Occupancy moves;
    visit(workers, [&](const auto& of, const csd::StateArrays& state) {
        if (before) {
            before(of, state);
        }
        moves.enter();
        move(of, state);
        moves.leave();
        resources_.load_into_vector(of, state);
    });
    const trace::TrafficSnapshot moved = resources_.traffic.snapshot() - old;
    moved_ = {.bytes = static_cast<double>(moved[trace::Counter::checkpoint]),
              .seconds = moves.seconds()};
}

StateTransfer State::first_transfer() const {
    StateTransfer all;
    const std::vector<double> of_ranks =
        resources_.world.all_gather(std::array{moved_.bytes, moved_.seconds});
    for (std::size_t i = 0; i < of_ranks.size(); i += 2) {
        all.bytes += of_ranks[i];
        all.seconds = std::max(all.seconds, of_ranks[i + 1]);
    }
    return all;
}

void State::start_anew(const Claimed& claimed) {
    line_ = {.run = draw_id()};
    empty_files("", claimed);
    if (resources_.options.program != ProgramUse::none) {
        resources_.log.begin_program(0, {});
    }
    // Now, and not after the start: while memory is pinned for a GPU, the model's own calls to the
    // GPU wait. Where state comes from elsewhere and is damaged, storage is reserved once more.
    for (const auto& device : resources_.pipeline->devices()) {
        device->expect_updates();
    }
}

// Values beyond the model's are padding.
void State::write(const Fill& fill, const Carried* carried) {
    const Layout& layout = resources_.layout;
    const std::int64_t generation = carried == nullptr ? 0 : carried->position.generation;
    StartValueCheck check(layout);
    resources_.world.together([&] {
        move_all(
            [&](const auto& of, const csd::StateArrays& state) {
                const std::size_t elems =
                    std::min(state.master.size(), layout.elems - of.first_elem());
                fill(of.first_elem(), state.master.first(elems));
                check.look(of.first_elem(), state.master.first(elems));
                std::ranges::fill(state.master.subspan(elems), 0.0F);
                if (carried != nullptr) {
                    std::ranges::fill(state.moment1.subspan(elems), 0.0F);
                    std::ranges::fill(state.moment2.subspan(elems), 0.0F);
                    carried->moments(of.first_elem(), state.moment1.first(elems),
                                     state.moment2.first(elems));
                }
            },
            [&](const auto& of, const csd::StateArrays& state) {
                of.write(generation,
                         carried == nullptr ? csd::StateArrays{state.master, {}, {}} : state);
            });
    });
    check.refuse(resources_.world, resources_.owners.copies());
}

// Opens a checkpoint and checks that it is of this model. The model's name in it is the run's, but
// somebody else may have written the rest.
std::unique_ptr<checkpoint::Reader> State::open_checkpoint() const {
    const std::string& index_path = start_.decision.checkpoint;
    auto reader = checkpoint::Reader::open(index_path);
    const checkpoint::Description& description = reader->description();
    if (description.parameters != resources_.layout.elems || !fits(description.missed)) {
        throw ConfigError(text("The checkpoint ", index_path,
                               " is of other tensors than the model (", description.parameters,
                               " parameters, not ", resources_.layout.elems,
                               "): use another checkpoint."));
    }
    return reader;
}

Origin State::load() {
    std::unique_ptr<checkpoint::Reader> reader;
    store::ProgramState program;
    resources_.world.together([&] {
        reader = open_checkpoint();
        program = program_with(*reader);
    });
    const checkpoint::Description& description = reader->description();
    const Writer writer{.seed = description.seed,
                        .data = description.data,
                        .dtype = description.dtype,
                        .threads = description.threads};
    choose_line(writer, description.step);
    try {
        empty_files(start_.decision.replaces);
        resources_.world.together([&] { fill_from(*reader); });
        resources_.world.together([&] { restore_residual(*reader); });
    } catch (const Error&) {
        if (!start_.decision.replaces.empty()) {
            remove_files();
        }
        throw;
    }
    return {.position = static_cast<const store::Commit&>(description),
            .writer = writer,
            .program = std::move(program)};
}

void State::fill_from(checkpoint::Reader& reader) {
    visit(alone_, [&](const auto& of, const csd::StateArrays& state) {
        reader.read(of.tiles, {state.master, state.moment1, state.moment2});
        of.write(reader.description().generation, state);
        resources_.load_into_vector(of, state);
    });
}

namespace {

// A subgroup whose tiles arrive one by one, on several threads.
struct Incoming : offload::OwnedSubgroup {
    explicit Incoming(const offload::OwnedSubgroup& of)
        : OwnedSubgroup(of), missing(of.tiles.size()) {}

    std::mutex lock;
    std::size_t missing;           // tiles
    std::span<std::byte> payload;  // once a tile has arrived
    memory::Buffer memory;         // for it, unless the device has its own
};

// Memory of subgroups that are complete, for the next ones: new memory has pages that the kernel
// clears, and gives to one thread of a process at a time.
class SpareMemory {
public:
    memory::Buffer take() {
        const std::lock_guard lock(lock_);
        if (spare_.empty()) {
            return {};
        }
        memory::Buffer memory = std::move(spare_.back());
        spare_.pop_back();
        return memory;
    }
    void give_back(memory::Buffer memory) {
        const std::lock_guard lock(lock_);
        spare_.push_back(std::move(memory));
    }

private:
    std::mutex lock_;
    std::vector<memory::Buffer> spare_;
};

}  // namespace

std::optional<std::string> State::fill_from(OtherLayout& old, std::int64_t generation) {
    const csd::StateFormat format = resources_.settings.csd.state;
    std::deque<Incoming> incoming;  // in tile order
    for (const offload::OwnedSubgroup& of : resources_.pipeline->subgroups()) {
        incoming.emplace_back(of);
    }
    SpareMemory spare;
    return old.read(
        generation, resources_.owners, [&](std::size_t tile, const csd::StatePointers& state) {
            Incoming& of = *std::ranges::upper_bound(
                incoming, tile, {}, [](const Incoming& one) { return one.tiles.end; });
            std::unique_lock lock(of.lock);
            if (of.payload.empty()) {
                of.memory = spare.take();
                of.payload = of.room_for(generation, of.memory);
            }
            lock.unlock();
            const csd::StatePointers to =
                csd::state_of_tile(format, of.payload, of.tiles.size(), tile - of.tiles.begin);
            csd::convert_state(old.format(), state, kTileElems, format, to);
            resources_.load_into_vector(tile, to.master);
            lock.lock();
            if (--of.missing == 0) {
                of.write_stored(generation, of.memory);
                spare.give_back(std::move(of.memory));
            }
        });
}

ReadState State::move_in(std::size_t number) {
    const Decision& decision = start_.decision;
    const store::Commit& commit = decision.steps[number].commit;
    if (!fits(commit.missed)) {
        return {.damage = kOtherTensors};
    }
    store::ProgramState program = program_with(number);
    choose_line(decision.writer, commit.step);
    try {
        OtherLayout old(resources_.world, resources_.layout.elems, start_,
                        resources_.storage.get());
        empty_files(decision.replaces);
        if (auto damage = fill_from(old, commit.generation)) {
            return {.damage = *std::move(damage)};
        }
    } catch (const Error&) {
        remove_files();
        throw;
    }
    return {.origin = Origin{commit, decision.writer, std::move(program)}};
}

void State::verify_checkpoint() {
    resources_.world.together([&] {
        const auto reader = open_checkpoint();
        visit(alone_, [&](const auto& of, const csd::StateArrays& state) {
            reader->read(of.tiles, {state.master, state.moment1, state.moment2});
        });
    });
}

ReadState State::resume(std::size_t number) {
    const Decision& decision = start_.decision;
    const store::Commit& commit = decision.steps[number].commit;
    if (!fits(commit.missed)) {
        return {.damage = kOtherTensors};
    }
    std::string damage;
    Stopwatch watch;
    name(decision.state);
    resources_.world.together([&] {
        try {
            move_all({}, [&](const auto& of, const csd::StateArrays& state) {
                of.read(commit.generation, state);
            });
        } catch (const DamageError& found) {
            damage = found.what();
        }
    });
    for (const std::string& of_rank : gather_text(resources_.world, damage)) {
        if (!of_rank.empty()) {
            return {.damage = of_rank};
        }
    }
    store::ProgramState program = program_with(number);
    choose_line(decision.writer, commit.step);
    double repeated = 0;
    for (const auto& device : resources_.pipeline->devices()) {
        repeated = std::max(repeated, static_cast<double>(device->most_repeated()));
    }
    resources_.world.together([&] {
        Ticket stored;
        for (const auto& device : resources_.pipeline->devices()) {
            stored.add(device->store_repeated(commit.generation));
        }
        stored.wait();
    });
    resources_.log.begin(manifest());
    const std::vector<double> of_all =
        resources_.world.all_gather(std::array{repeated, watch.lap()});
    ReadState read{.origin = Origin{commit, decision.writer, std::move(program)}};
    for (std::size_t i = 0; i < of_all.size(); i += 2) {
        read.repeated = std::max(read.repeated, static_cast<std::int64_t>(of_all[i]));
        read.seconds = std::max(read.seconds, of_all[i + 1]);
    }
    return read;
}

// The old generation stays until the manifests name the new one and the caller accepts it.
void State::change_masters(const MasterChange& change) {
    expects(resources_.pipeline->stage() == offload::Stage::idle,
            "masters change between two steps");
    resources_.pipeline->drop_read_ahead();
    const std::int64_t old = generation();
    resources_.world.together([&] {
        visit(resources_.pool, [&](const auto& of, const csd::StateArrays& state) {
            of.read(old, state);
            change(of.first_elem(), state.master);
            of.write(old + 1, state);
            resources_.load_into_vector(of, state);
        });
    });
    if (resources_.options.tensors != nullptr) {
        resources_.options.tensors->forget();
    }
    resources_.pipeline->set_generation(old + 1);
    if (resources_.reader) {
        resources_.reader->use(old + 1);
    }
    resources_.pipeline->gather();
}

void State::see(shard::ElementRange range, const StateSight& see) {
    visit(alone_, [&](const auto& of, const csd::StateArrays& state) {
        if (of.first_elem() >= range.end || of.first_elem() + of.elems() <= range.begin) {
            return;
        }
        of.read(generation(), state);
        see(of.first_elem(), state.master, state.moment1, state.moment2);
    });
}

}  // namespace nearstep::engine
