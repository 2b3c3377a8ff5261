// Makes engine and network of a run, evaluates and samples. Used by run.cpp and compare.cpp.
#include "train/trainer.hpp"

#include "base/error.hpp"
#include "base/machine.hpp"
#include "base/stop_request.hpp"
#include "config/load.hpp"
#include "csd/optimizer.hpp"
#include "engine/placement/placed_settings.hpp"
#include "feed/block_parts.hpp"
#include "memory/gpu.hpp"
#include "model/torch_library.hpp"
#include "mpi/topology.hpp"
#include "train/pretrained.hpp"
#include "train/schedule.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace nearstep::train {

namespace {

engine::Layout layout_of(const model::Geometry& geometry, const config::RunSettings& run) {
    engine::Layout layout{.elems = geometry.elems, .dtype = run.model.dtype};
    for (const model::Parameter& parameter : geometry.parameters) {
        layout.tensors.push_back({.name = parameter.name,
                                  .shape = parameter.shape,
                                  .offset = parameter.offset,
                                  .group = group_of(run.train, parameter.shape.size())});
    }
    for (const model::Block& block : geometry.blocks) {
        layout.blocks.push_back({block.begin, block.end});
    }
    return layout;
}

}  // namespace

Trainer::Trainer(const mpi::Communicator& world, const config::RunSettings& run,
                 data::Corpus corpus, const Options& options)
    : world_(world),
      run_(run),
      geometry_(model::describe_trained(run.model)),
      corpus_(std::move(corpus)),
      timeline_(options.timeline) {
    const int computing = config::computing_ranks(run, world.size());
    // Ranks of emulated nodes share the machine's GPUs, so this uses real nodes. Storage ranks use
    // none.
    const mpi::Topology machines = mpi::set_apart_from(mpi::discover_nodes(world), computing);
    const bool computes = world.rank() < computing;
    world.together([&] {
        if (computes) {
            compute_device_ =
                model::choose_device(run.model.device, machines.rank_in_group(world.rank()));
        }
    });
    open_run(options);
    const auto machine_ranks = static_cast<int>(machines.ranks_beside(world.rank()).size());
    plan_gpu(machine_ranks);
    if (!computes) {
        return;
    }
    const Rows mine = rows_of(run.train.global_batch);
    first_row_ = mine.begin;
    rows_ = static_cast<int>(mine.end - mine.begin);
    network_ = model::Network::make(run.model, engine().parameters(), compute_device_,
                                    gpu_ ? gpu_->plan().residence : plan_cpu(machine_ranks),
                                    engine().joint_copy());
    const auto tokens =
        static_cast<std::size_t>(rows_) * static_cast<std::size_t>(run.model.context);
    tokens_.resize(tokens);
    targets_.resize(tokens);
}

// The ranks that compute have equal shares; others have none.
Trainer::Rows Trainer::rows_of(std::int64_t all) const {
    const int computing = config::computing_ranks(run_, world_.size());
    const std::int64_t place = std::min(world_.rank(), computing);
    return {all * place / computing,
            all * std::min<std::int64_t>(place + 1, computing) / computing};
}

void Trainer::open_run(const Options& options) {
    const engine::Identity identity{
        .model = world_.broadcast(
            corpus_.tokenizer ? model_line(run_, *corpus_.tokenizer) : std::string(), 0),
        .seed = run_.train.seed,
        .data = corpus_.train_digest,
        .steps = run_.train.steps,
        .config = [printed = config::print(run_)](const auto&) { return printed; },
        .threads = compute_device_.is_gpu() ? 0 : model::threads()};
    opened_ =
        engine::Run::open(world_, run_, layout_of(geometry_, run_), options.request, identity,
                          {.gpu = compute_device_.gpu,
                           .fills_gpu = run_.model.gpu_memory_gb == 0,
                           .gpu_work_bytes = gpu_work_bytes(),
                           .grant = {.positions = options.granted_devices},
                           .needs_shared_folder = run_.csd.durability != config::Durability::none,
                           .steps_of = config::steps_of,
                           .clips_by_last_norm = run_.train.clipping == config::Clipping::delayed,
                           .loss_scale = {.first = run_.train.loss_scale,
                                          .growth_steps = run_.train.scale_growth_steps},
                           .fault_plan = options.fault_plan,
                           .timeline = timeline_});
    run_.placement = opened_->settings().placement;  // resolved
}

// GPU memory that the network takes if it is all on the GPU and keeps nothing that backward can
// compute again.
std::size_t Trainer::gpu_work_bytes() const {
    if (!compute_device_.is_gpu()) {
        return 0;
    }
    constexpr std::size_t kEnough = std::size_t{1} << 50U;
    const Rows mine = rows_of(run_.train.global_batch);
    const model::GpuPlan plan = model::plan_gpu(
        run_.model,
        {.rows = static_cast<int>(mine.end - mine.begin), .micro_rows = run_.train.micro_batch},
        kEnough);
    return plan.total_bytes() - plan.kept_bytes;
}

void Trainer::plan_gpu(int machine_ranks) {
    constexpr double kNone = std::numeric_limits<double>::max();
    world_.together([&] {
        if (compute_device_.is_gpu() && memory::gpus() > 0) {
            gpu_.emplace(run_, compute_device_, config::computing_ranks(run_, world_.size()),
                         machine_ranks, engine().facts().gradient_bytes,
                         engine().joint_copy().ranks);
        }
    });
    // Ranks that copy blocks together need equal slots, so that all fetch in the same order.
    const std::array mine{gpu_ ? static_cast<double>(gpu_->plan().budget_bytes) : kNone};
    const std::vector<double> of_ranks = world_.all_gather(mine);
    const double least = std::ranges::min(of_ranks);
    world_.together([&] {
        if (gpu_ && engine().facts().parameter_transport == "nccl") {
            gpu_->plan_within(static_cast<std::size_t>(least));
        }
    });
}

// The ranks of a machine share a quarter of its free memory; the rest is for the state's cache and
// for other programs.
model::Residence Trainer::plan_cpu(int machine_ranks) const {
    const std::size_t room =
        machine_memory().available_bytes / 4 / static_cast<std::size_t>(machine_ranks);
    return model::plan_cpu(run_.model, {.rows = rows_, .micro_rows = run_.train.micro_batch}, room);
}

engine::Fill Trainer::start_values() {
    if (run_.model.from.empty()) {
        return [this](std::size_t first, std::span<float> masters) {
            model::fill_start_values(geometry_, run_.train.seed, first, masters);
        };
    }
    std::shared_ptr<const Pretrained> pretrained;
    world_.together([&] { pretrained = std::make_shared<Pretrained>(run_.model.from, geometry_); });
    return [pretrained](std::size_t first, std::span<float> masters) {
        pretrained->fill(first, masters);
    };
}

// The original start values may be gone when a run resumes.
engine::BeginReport Trainer::begin() {
    return opened_->begin(opened_->begins_anew() ? start_values() : nullptr);
}

std::string Trainer::describe_model() const {
    return model::describe_backend(run_.model, compute_device_);
}

std::optional<HeldOutLoss> Trainer::evaluate() {
    const int context = run_.model.context;
    const auto length = static_cast<std::size_t>(context);
    const int micro = run_.train.micro_batch;
    const std::int64_t rows = static_cast<std::int64_t>(run_.train.evaluate_batches) * micro;
    const Rows mine = rows_of(rows);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(micro) * length);
    std::vector<std::int32_t> targets(tokens.size());
    double nats = 0;
    std::uint64_t bytes = 0;
    engine().hold_parameters();
    for (std::int64_t row = mine.begin; row < mine.end && !is_stop_requested(); row += micro) {
        const int count = static_cast<int>(std::min<std::int64_t>(micro, mine.end - row));
        const auto elems = static_cast<std::size_t>(count) * length;
        for (int i = 0; i < count; ++i) {
            const std::size_t at = static_cast<std::size_t>(i) * length;
            data::evaluation_row(corpus_.valid, row + i, rows, context,
                                 std::span(tokens).subspan(at, length),
                                 std::span(targets).subspan(at, length));
        }
        nats += network_->evaluate(
            {count, context, std::span(tokens).first(elems), std::span(targets).first(elems)});
        for (const std::int32_t target : std::span(targets).first(elems)) {
            bytes += corpus_.tokenizer->bytes_of(target).size();
        }
    }
    engine().end_pass();
    if (!world_.agree(!is_stop_requested())) {
        return std::nullopt;
    }
    double total = 0;
    for (const double part : world_.all_gather(std::array{nats})) {
        total += part;
    }
    world_.sum(std::span(&bytes, 1));
    return HeldOutLoss{.nats_per_token = total / (static_cast<double>(rows) * context),
                       .nats_per_byte = total / static_cast<double>(bytes)};
}

std::string Trainer::sample(const std::string& prompt, int tokens) {
    engine().hold_parameters();
    if (world_.rank() != 0) {
        engine().end_pass();
        return "";
    }
    std::string sampled = data::decode(
        *corpus_.tokenizer,
        network_->sample(corpus_.tokenizer->encode(prompt), tokens, 0.8, run_.train.seed));
    engine().end_pass();
    return sampled;
}

std::string model_line(const config::RunSettings& run, const data::Tokenizer& tokenizer) {
    const std::string name = tokenizer.name();
    return text(model::describe_model(run.model), name == "bytes" ? "" : " tokenizer=" + name,
                ", moments of ", csd::moments_of(run.train.optimizer));
}

}  // namespace nearstep::train
