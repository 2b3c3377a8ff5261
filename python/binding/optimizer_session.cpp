// Opens, begins and closes one optimizer's run on the MPI thread, and saves its checkpoints. Called
// by Conductor and, on ranks that serve, by Server.
#include "python/binding/optimizer_session.hpp"

#include "base/error.hpp"
#include "config/load.hpp"
#include "csd/state_format.hpp"
#include "mpi/session.hpp"
#include "shard/partition.hpp"

#include <algorithm>
#include <chrono>
#include <limits>

namespace nearstep::python {

config::RunSettings run_of(Dtype dtype, const std::vector<std::string>& settings) {
    std::vector<std::string> overrides = {text("model.dtype=\"", name_of(dtype), "\"")};
    overrides.insert(overrides.end(), settings.begin(), settings.end());
    config::RunSettings run =
        config::parse({.overrides = std::move(overrides), .needs_data = false});
    const config::GroupSize& parameters = run.placement.parameters;
    if (!parameters.is_automatic() && parameters != config::GroupWord::replicated &&
        parameters != 1) {
        throw ConfigError(
            "placement.parameters: every rank has all parameters of a PyTorch model, so this must "
            "be \"replicated\": to divide them among ranks, call fully_shard() (FSDP2) on the "
            "model and start the ranks with torchrun.");
    }
    return run;
}

std::size_t OptimizerSession::elems_of(const engine::Tensor& tensor) {
    std::size_t elems = 1;
    for (const std::int64_t size : tensor.shape) {
        elems *= static_cast<std::size_t>(size);
    }
    return elems;
}

OptimizerSession::OptimizerSession(OptimizerPlan plan, WorkQueue& queue)
    : plan_(std::move(plan)),
      queue_(queue),
      run_(run_of(plan_.dtype, plan_.settings)),
      grant_{.positions = plan_.granted_devices,
             .divides_folders = std::ranges::none_of(
                 plan_.settings, [](const auto& one) { return one.starts_with("csd.per_rank="); })},
      gradient_stream_(memory::Stream::borrowed(plan_.gradient_stream)) {
    if (!plan_.checkpoint_folder.empty()) {
        run_.checkpoint.path = plan_.checkpoint_folder;
    }
    for (std::string& path : run_.csd.path) {
        path += plan_.below_path;
    }
    layout_.dtype = plan_.dtype;
    for (const engine::Tensor& tensor : plan_.tensors) {
        layout_.tensors.push_back(tensor);
        layout_.tensors.back().offset = layout_.elems;
        layout_.elems += elems_of(tensor);
    }
    first_tensors_ = {0};
    std::size_t begin = 0;
    for (const std::size_t count : plan_.tensors_of_blocks) {
        const std::size_t last = first_tensors_.back() + count;
        const std::size_t end =
            last < layout_.tensors.size() ? layout_.tensors[last].offset : layout_.elems;
        layout_.blocks.push_back({begin, end});
        first_tensors_.push_back(last);
        begin = end;
    }
    expects(first_tensors_.back() == layout_.tensors.size(), "every tensor is in a block");
}

void OptimizerSession::send(Command command, std::string content) const {
    if (!acts_alone()) {
        MpiThread::instance().command(
            {.command = command, .number = number_, .content = std::move(content)});
    }
}

// One rank alone may evaluate before, for long.
void OptimizerSession::match_calls(CollectiveCall call) const {
    match_calls(call, false, kPatience * std::chrono::seconds(run_.exchange.timeout_s));
}

bool OptimizerSession::match_calls(CollectiveCall call, bool raises,
                                   std::chrono::seconds limit) const {
    return acts_alone() ? raises : MpiThread::instance().match_calls(call, raises, limit);
}

// --- Begin ---

void OptimizerSession::check_parameter_home() const {
    if (plan_.parameters == engine::ParameterHome::vector) {
        return;
    }
    if (!is_alone_) {
        throw ConfigError(text("host_memory_gb keeps parameters in storage for one process, and ",
                               world_->size(), " ranks run: start one, or leave it out."));
    }
    if (run_.csd.device == config::DeviceKind::xrt ||
        run_.gather.codec == config::ParameterCodec::delta) {
        throw ConfigError(
            "host_memory_gb reads new parameters from the state, and cards and gather.codec = "
            "\"delta\" bring them to host memory: leave one of them out.");
    }
}

void OptimizerSession::open_with_others(const engine::StartRequest& request) {
    if (!acts_alone()) {
        mpi::start_for_library();
    }
    match_calls(CollectiveCall::open);
    open(request);
}

void OptimizerSession::open(const engine::StartRequest& request) {
    number_ = acts_alone() ? 0 : MpiThread::instance().count_engine();
    plan_.checkpoint_folder = config::checkpoint_folder(run_);
    send(Command::open, packed(plan_, request));
    const std::chrono::seconds limit(run_.exchange.timeout_s);
    world_.emplace(acts_alone() ? mpi::Communicator::alone(limit)
                                : mpi::Communicator::world(limit));
    const mpi::Communicator& world = *world_;
    mpi::require_equal(world, values_of_all(request));
    run_.csd.storage_ranks = acts_alone() ? 0 : MpiThread::instance().serving();
    alike_.emplace(world.split(serves() ? 1 : 0));
    servers_.emplace(world.split(serves() || world.rank() == 0 ? 0 : 1));
    rank_ = world.rank();
    ranks_ = config::computing_ranks(run_, world.size());
    is_alone_ = world.size() == 1;
    check_parameter_home();
    constexpr std::int64_t kNoEnd = std::numeric_limits<std::int64_t>::max();
    // The program decides how long a run is. For the state, it never ends.
    const engine::Identity identity{.model = plan_.model,
                                    .seed = run_.train.seed,
                                    .steps = kNoEnd,
                                    .config =
                                        [this](const config::EngineSettings& placed) {
                                            config::RunSettings run = run_;
                                            static_cast<config::EngineSettings&>(run) = placed;
                                            return config::print(run);
                                        },
                                    .threads = plan_.threads};
    if (plan_.gpu && memory::gpus() > 0 && is_alone_ &&
        plan_.parameters == engine::ParameterHome::vector) {
        tensors_.emplace(*plan_.gpu, layout_.elems, layout_.tensors.size());
    }
    opened_ = engine::Run::open(
        world, run_, layout_, request, identity,
        {.processes_beside = std::max(plan_.processes_beside, 1),
         .gpu = plan_.gpu,
         .gradient_stream = gradient_stream_.handle(),
         .fills_gpu = plan_.fills_gpu,
         .grant = grant_,
         .parameters = plan_.parameters,
         .may_go_back = acts_alone(),
         .tensors = tensors_ ? &*tensors_ : nullptr,
         .program = plan_.program,
         .steps_of = [](const std::string&, const std::string&) { return kNoEnd; },
         .clips_by_last_norm = run_.train.clipping == config::Clipping::delayed,
         .puts_at_once = plan_.puts_at_once,
         .loss_scale = {.first = run_.train.loss_scale,
                        .growth_steps = run_.train.scale_growth_steps}});
    vector_ = engine().parameters();
    facts_ = engine().facts();
}

double OptimizerSession::state_bytes() const {
    return static_cast<double>(facts_.copies) *
           static_cast<double>(csd::state_bytes(run_.csd.state, shard::tiles_of(layout_.elems)));
}

// A rank that serves has only what rank 0 passes on, so that it fills its state at once.
std::vector<std::string> OptimizerSession::run(const PrepareCall& call) {
    std::vector<StartValues> served;
    if (opened_->begins_anew() && serves()) {
        served = take_from_rank_0(call.formats);
    } else if (opened_->begins_anew()) {
        share_start_values(call.values);
        pass_to_servers(call.values);
    }
    Stopwatch watch;
    engine::BeginReport begun = opened_->prepare();
    lines_ = {engine().line().run};
    for (const store::Branch& parent : engine().line().parents) {
        lines_.push_back(parent.run);
    }
    const std::span<const std::byte> kept = engine().kept_program();
    program_state_.assign(reinterpret_cast<const char*>(kept.data()), kept.size());  // NOLINT
    queue_.locked([&] {
        progress_.start = {
            .state_bytes = state_bytes(), .seconds = watch.lap(), .rated_tbw = run_.csd.rated_tbw};
        progress_.blocks_here = layout_.blocks.size();
        progress_.steps = engine().steps_done();
        progress_.durable_step = progress_.steps;
        progress_.stats.step = progress_.steps;
        progress_.loss_scale = engine().loss_scale();
    });
    if (serves()) {
        fill_state(served);
        served_ = {};  // what came from rank 0 is in the state
    }
    return std::move(begun.lines);
}

void OptimizerSession::fill_state(std::span<const StartValues> values) {
    if (!opened_->begins_anew()) {
        return;
    }
    Stopwatch watch;
    const engine::Carried carried = carried_state();
    opened_->fill(
        [&](std::size_t first, std::span<float> masters) { fill(values, first, masters); },
        carried_.empty() ? nullptr : &carried);
    queue_.locked([&] {
        progress_.start.seconds += watch.lap();
        if (!carried_.empty()) {  // no step is posted before
            progress_.steps = engine().steps_done();
            progress_.loss_scale = engine().loss_scale();
            carried_.clear();
        }
    });
}

void OptimizerSession::carry(const store::Commit& position, std::vector<CarriedTensor> tensors,
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

// --- Saving, and what a program asks ---

std::string OptimizerSession::run(const ClaimFolderCall& call) {
    return engine().claim_checkpoint_folder(call.folder);
}

std::string OptimizerSession::run(const SaveCall& call) {
    std::string path = engine().save(call.folder, std::as_bytes(std::span(call.program)));
    queue_.locked([&] { progress_.durable_step = engine().steps_done(); });
    return path;
}

std::uint64_t OptimizerSession::run(const DigestCall& /*call*/) {
    return engine().masters_digest();
}

std::array<std::vector<float>, 3> OptimizerSession::read_state(std::size_t tensor) {
    const std::size_t begin = layout_.tensors.at(tensor).offset;
    const std::size_t end = begin + elems_of(layout_.tensors[tensor]);
    std::array<std::vector<float>, 3> found;
    for (std::vector<float>& array : found) {
        array.resize(end - begin);
    }
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
    return found;
}

void OptimizerSession::read_parameters(shard::ElementRange range, std::span<std::byte> to) const {
    const std::shared_lock with_others(reading_);
    if (!opened_) {
        throw ConfigError("This optimizer is closed, and its parameters were in its storage.");
    }
    opened_->read_parameters(range, to);
}

void OptimizerSession::copy_parameters(shard::ElementRange range, std::span<std::byte> to,
                                       const memory::Stream* stream) const {
    const std::shared_lock with_others(reading_);
    if (!opened_) {
        throw ConfigError("This optimizer is closed, and its parameters were in its storage.");
    }
    opened_->copy_parameters(range, to, stream);
}

// --- End ---

std::exception_ptr OptimizerSession::close(bool keeps_vector, bool has_failed) {
    std::exception_ptr unread;
    if (opened_ && !has_failed) {
        send(Command::close);
    }
    if (keeps_vector && opened_) {
        try {
            engine().abandon_step();
        } catch (...) {
            unread = std::current_exception();
        }
        kept_ = engine().release_parameters();
    }
    let_go();
    return unread;
}

void OptimizerSession::let_go() {
    {
        const std::unique_lock alone(reading_);
        opened_.reset();
    }
    servers_.reset();
    alike_.reset();
    world_.reset();
}

namespace {

// Moves the value to memory that is never freed, so that its destructor does not run.
template <typename Value>
void leave(std::optional<Value>& value) {
    if (value) {
        static_cast<void>(new Value(std::move(*value)));  // NOLINT
    }
}

}  // namespace

void OptimizerSession::leave_to_parent() {
    leave(opened_);
    leave(tensors_);
    for (auto* const ranks : {&servers_, &alike_, &world_}) {
        leave(*ranks);
    }
}

}  // namespace nearstep::python
