// Opens a run and passes a client's calls on to its parts. Called by the trainer, the Python
// binding and programs that embed the engine.
#include "nearstep/run.hpp"

#include "base/error.hpp"
#include "base/wording.hpp"
#include "engine/restart/programs.hpp"
#include "engine/run_parts.hpp"
#include "engine/state/checkpoint_folder.hpp"

#include <utility>
#include <vector>

namespace nearstep::engine {

// --- Begin ---

Run Run::open(const mpi::Communicator& world, const config::EngineSettings& settings,
              const Layout& layout, const StartRequest& request, const Identity& identity,
              const EngineOptions& options) {
    Start start = find_start(world, settings, layout, request, identity.model, options);
    if (options.needs_shared_folder) {
        check_shared_folder(world, config::checkpoint_folder(settings));
    }
    return open(world, std::move(start), layout, identity, options);
}

Run Run::open(const mpi::Communicator& world, Start start, const Layout& layout,
              const Identity& identity, const EngineOptions& options) {
    return Run(std::make_unique<Parts>(world, std::move(start), layout, identity, options));
}

Run::Run(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Run::Run(Run&&) noexcept = default;
Run& Run::operator=(Run&&) noexcept = default;
Run::~Run() = default;

bool Run::begins_anew() const { return parts_->start.decision.action == Action::start_anew; }

std::int64_t Run::newest_step() const {
    const Decision& decision = parts_->start.decision;
    switch (decision.action) {
        case Action::resume_state:
        case Action::read_state:
            return decision.steps.front().commit.step;
        case Action::load_checkpoint:
            return decision.checkpoint_step;
        default:
            return -1;
    }
}

void Run::keep_to(std::int64_t step) {
    Start& start = parts_->start;
    const std::int64_t newest = newest_step();
    if (step != newest && !go_back_to(step, start.found, start.decision)) {
        throw ConfigError(text("The state in ", start.settings.csd.path.front(), " is of step ",
                               newest, ", and other ranks have step ", step,
                               " alone: go on from a checkpoint with ", Term::from, "."));
    }
}

BeginReport Run::prepare() {
    try {
        return parts_->begin();
    } catch (const ConfigError&) {  // on all ranks alike
        parts_->state.withdraw();
        throw;
    }
}

void Run::fill(const Fill& fill, const Carried* carried) {
    try {
        parts_->fill(fill, carried);
    } catch (const ConfigError&) {  // on all ranks alike
        parts_->state.withdraw();
        throw;
    }
}

BeginReport Run::begin(const Fill& fill) {
    BeginReport begun = prepare();
    if (begins_anew()) {
        this->fill(fill);
    }
    return begun;
}

const std::string& Run::found_checkpoint() const { return parts_->start.decision.checkpoint; }
std::span<const std::byte> Run::kept_program() const { return parts_->state.kept_program(); }
StateTransfer Run::first_transfer() const { return parts_->state.first_transfer(); }

// --- The parameter vector ---

std::span<const std::byte> Run::parameters() const { return parts_->resources.vector.span(); }

void Run::read_parameters(shard::ElementRange range, std::span<std::byte> to) const {
    parts_->resources.reader->read(range, to);
}

bool Run::can_copy_parameters() const {
    return parts_->resources.reader && parts_->resources.reader->can_copy();
}

void Run::copy_parameters(shard::ElementRange range, std::span<std::byte> to,
                          const memory::Stream* stream) const {
    parts_->resources.reader->copy(range, to, stream);
}

void Run::drop_parameters(shard::ElementRange range) { parts_->resources.drop_parameters(range); }
memory::Buffer Run::release_parameters() { return std::move(parts_->resources.vector); }
feed::JointCopy Run::joint_copy() { return parts_->resources.gpu_transport->joint(); }

// --- A step ---

void Run::begin_forward() { parts_->step.begin_forward(); }

void Run::await_parameters(std::size_t block, std::span<const shard::ElementRange> now,
                           std::span<const shard::ElementRange> later) {
    parts_->step.await_parameters(block, now, later);
}

std::size_t Run::final_end(std::size_t block) const { return parts_->step.final_end(block); }
void Run::hold_parameters() { parts_->step.hold_parameters(); }
void Run::end_pass() { parts_->step.end_pass(); }
void Run::expect_backward() { parts_->step.expect_backward(); }
void Run::begin_backward(const StepSettings& step) { parts_->step.begin_backward(step); }

std::span<float> Run::gradient_space(std::size_t block) {
    return parts_->step.gradient_space(block);
}

void Run::put_gradient(std::size_t block) { parts_->step.put_gradient(block); }

void Run::put_gradient(std::size_t block, const shard::Gradient& gradient) {
    parts_->step.put_gradient(block, gradient);
}
GradientFacts Run::end_gradients(const StepEnd& end) { return parts_->step.end_gradients(end); }
void Run::update() {
    parts_->step.update([this](const store::Commit& position) { parts_->state.commit(position); });
}

bool Run::is_under_way() const { return parts_->step.is_under_way(); }
UpdateReport Run::finish() { return parts_->step.finish(); }

void Run::keep_program(std::int64_t step, std::span<const std::byte> bytes) {
    parts_->state.keep_program(step, bytes);
}

std::vector<std::span<std::byte>> Run::lent_memory() {
    std::vector<std::span<std::byte>> lent;
    for (const auto& device : parts_->resources.pipeline->devices()) {
        if (device->lent_bytes() > 0) {
            lent.push_back(device->lent_memory());
        }
    }
    return lent;
}

std::vector<std::vector<std::size_t>> Run::lent_ends() const {
    return parts_->resources.pipeline->lent_ends();
}

bool Run::commits_early() const { return parts_->resources.commits_early(); }

void Run::commit() { parts_->state.commit(position()); }
void Run::abandon_step() { parts_->step.abandon(); }

// --- Between two steps ---

void Run::change_masters(const MasterChange& change) {
    parts_->state.change_masters(change);
    parts_->step.miss_update();
    commit();
    parts_->resources.world.barrier();  // no rank gives up the masters that another one still names
    parts_->resources.pipeline->accept();
}

void Run::see_state(shard::ElementRange range, const StateSight& see) {
    expects(!is_under_way(), "a step is finished before its state is read");
    parts_->state.see(range, see);
}

std::uint64_t Run::masters_digest() {
    expects(!is_under_way(), "a step is finished before its masters are read");
    return parts_->state.masters_digest();
}

std::string Run::claim_checkpoint_folder(const std::string& folder) {
    return parts_->state.claim_checkpoint_folder(folder);
}

std::string Run::save(const std::string& folder, std::span<const std::byte> program) {
    expects(!is_under_way(), "a step is finished before it is saved");
    return parts_->state.save(folder, position(), program);
}

CheckpointTime Run::expect_checkpoint(const std::string& folder) {
    return parts_->state.expect_checkpoint(folder);
}

// --- Facts ---

std::int64_t Run::steps_done() const { return parts_->step.done(); }
store::Commit Run::position() const { return parts_->step.position(); }
double Run::loss_scale() const { return parts_->step.loss_scale(); }
std::vector<std::int64_t> Run::updates() const { return parts_->step.updates(); }
double Run::waited_seconds() const { return parts_->resources.pipeline->waited_seconds(); }

double Run::commit_seconds() const {
    return parts_->step.flush_seconds() + parts_->state.commit_seconds();
}

const trace::RunFacts& Run::facts() const { return parts_->resources.facts; }
const store::Lineage& Run::line() const { return parts_->state.line(); }
const PlacedSettings& Run::settings() const { return parts_->start.settings; }

std::string Run::host_of(int rank) const {
    const Findings& found = parts_->start.found;
    const int node = found.ranks[static_cast<std::size_t>(rank)].node;
    return found.hosts[static_cast<std::size_t>(node)];
}

double Run::search_seconds() const { return parts_->start.search_s; }

std::uint64_t Run::transferred_bytes() const {
    return parts_->resources.traffic.snapshot()[trace::Counter::checkpoint];
}

std::vector<std::uint64_t> Run::written_bytes() const { return parts_->resources.written_bytes(); }

std::vector<std::uint64_t> Run::network_sent_bytes() const {
    return parts_->step.network_sent_bytes();
}

std::size_t Run::vector_bytes() const { return parts_->resources.vector_bytes(); }

}  // namespace nearstep::engine
