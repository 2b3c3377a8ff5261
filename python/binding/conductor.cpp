// Opens and closes an optimizer's engine for PyTorch, and gives its work to the thread that calls
// MPI. Called by module.cpp for python/nearstep/_session.py.
#include "python/binding/conductor.hpp"

#include "base/error.hpp"
#include "base/packed.hpp"
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
            "be \"replicated\".");
    }
    return run;
}

std::size_t Conductor::elems_of(const engine::Tensor& tensor) {
    std::size_t elems = 1;
    for (const std::int64_t size : tensor.shape) {
        elems *= static_cast<std::size_t>(size);
    }
    return elems;
}

Conductor::Conductor(OptimizerPlan plan)
    : plan_(std::move(plan)),
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

Conductor::~Conductor() { close(); }

// --- Work on the MPI thread ---

std::uint64_t Conductor::post(std::function<void()> work) {
    MpiThread::instance().refuse_fork();
    std::uint64_t mine = 0;
    {
        const std::lock_guard lock(mutex_);
        if (failure_) {
            std::rethrow_exception(failure_);
        }
        mine = ++posted_;
    }
    MpiThread::instance().post([this, work = std::move(work)] {
        std::exception_ptr failure;
        bool is_given_up = false;
        {
            const std::lock_guard lock(mutex_);
            is_given_up = failure_ != nullptr;
        }
        if (!is_given_up) {
            try {
                work();
            } catch (...) {
                failure = std::current_exception();
            }
        }
        const std::lock_guard lock(mutex_);
        if (failure && !failure_) {
            failure_ = failure;
        }
        ++done_;
        changed_.notify_all();
    });
    return mine;
}

void Conductor::wait(const Poll& poll, const std::function<bool()>& is_over) {
    MpiThread::instance().refuse_fork();
    for (;;) {
        {
            std::unique_lock lock(mutex_);
            changed_.wait_for(lock, std::chrono::milliseconds(100),
                              [&] { return failure_ != nullptr || is_over(); });
            if (failure_) {
                std::rethrow_exception(failure_);
            }
            if (is_over()) {
                return;
            }
        }
        poll();
    }
}

// `work` refers to the caller's variables, so this returns only when it is done.
void Conductor::do_and_wait(std::function<void()> work) {
    await_work(post(std::move(work)), [] {});
}

bool Conductor::is_done(std::uint64_t work) const {
    const std::lock_guard lock(mutex_);
    return done_ >= work;
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

// The parent's files and connections stay as they are, and so does the memory.
void Conductor::leave_to_parent() {
    leave(opened_);
    leave(tensors_);
    for (auto* const ranks : {&servers_, &alike_, &world_}) {
        leave(*ranks);
    }
    new (&changed_) std::condition_variable;  // the end of one for which a thread waited would wait
}

void Conductor::let_go() {
    {
        const std::unique_lock alone(reading_);
        opened_.reset();
    }
    servers_.reset();
    alike_.reset();
    world_.reset();
}

void Conductor::close(bool keeps_vector) {
    if (MpiThread::instance().is_of_parent()) {
        leave_to_parent();
        return;
    }
    std::uint64_t mine = 0;
    {
        const std::lock_guard lock(mutex_);
        if (std::exchange(is_closed_, true)) {
            return;
        }
        mine = ++posted_;
    }
    std::exception_ptr unread;
    MpiThread::instance().post([this, keeps_vector, &unread] {
        if (opened_ && !has_failed()) {
            tell(Deed::close);
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
        const std::lock_guard lock(mutex_);
        if (!failure_) {
            failure_ = std::make_exception_ptr(
                ConfigError("This optimizer is closed: make a new one to go on."));
        }
        ++done_;
        changed_.notify_all();
    });
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= mine; });
    if (unread) {  // the destructor keeps no vector
        std::rethrow_exception(unread);
    }
}

void Conductor::read_parameters(shard::ElementRange range, std::span<std::byte> to) const {
    const std::shared_lock with_others(reading_);
    if (!opened_) {
        throw ConfigError("This optimizer is closed, and its parameters were in its storage.");
    }
    opened_->read_parameters(range, to);
}

// --- Start ---

bool Conductor::open(const engine::StartRequest& request) {
    do_and_wait([&] {
        if (!acts_alone()) {
            mpi::start_for_library();
        }
        meet(Purpose::open);
        open_run(request);
    });
    return opened_->begins_anew();
}

std::vector<std::string> Conductor::begin(std::vector<StartValues> values) {
    std::vector<std::string> lines;
    do_and_wait([&] {
        meet(Purpose::begin);
        lines = prepare_state(values);
    });
    start_work_ = post([this, values = std::move(values)] { fill_state(values); });
    return lines;
}

void Conductor::check_parameter_home() const {
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

void Conductor::open_run(const engine::StartRequest& request) {
    number_ = acts_alone() ? 0 : MpiThread::instance().count_engine();
    plan_.checkpoint_folder = config::checkpoint_folder(run_);
    tell(Deed::open, 0, packed(plan_, request));
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

std::vector<std::string> Conductor::prepare_state(std::span<const StartValues> values) {
    tell(Deed::begin, 0, formats_of(values));
    if (opened_->begins_anew() && !serves()) {
        share_start_values(values);
        pass_to_servers(values);
    }
    Stopwatch watch;
    engine::BeginReport begun = opened_->prepare();
    lines_ = {engine().line().run};
    for (const store::Branch& parent : engine().line().parents) {
        lines_.push_back(parent.run);
    }
    const std::span<const std::byte> kept = engine().kept_program();
    program_state_.assign(reinterpret_cast<const char*>(kept.data()), kept.size());  // NOLINT
    const std::lock_guard lock(mutex_);
    start_ = {.state_bytes = static_cast<double>(facts_.copies) *
                             static_cast<double>(
                                 csd::state_bytes(run_.csd.state, shard::tiles_of(layout_.elems))),
              .seconds = watch.lap(),
              .rated_tbw = run_.csd.rated_tbw};
    blocks_here_ = layout_.blocks.size();
    steps_ = engine().steps_done();
    durable_step_ = steps_;
    stats_.step = steps_;
    loss_scale_ = engine().loss_scale();
    return std::move(begun.lines);
}

void Conductor::fill_state(std::span<const StartValues> values) {
    if (!opened_->begins_anew()) {
        return;
    }
    Stopwatch watch;
    const engine::Carried carried = carried_state();
    opened_->fill(
        [&](std::size_t first, std::span<float> masters) { fill(values, first, masters); },
        carried_.empty() ? nullptr : &carried);
    const std::lock_guard lock(mutex_);
    start_.seconds += watch.lap();
    if (!carried_.empty()) {  // no step is posted before
        steps_ = engine().steps_done();
        loss_scale_ = engine().loss_scale();
        carried_.clear();
    }
}

}  // namespace nearstep::python
