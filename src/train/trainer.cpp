#include "train/trainer.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/stop_request.hpp"
#include "config/load.hpp"
#include "memory/gpu.hpp"
#include "mpi/topology.hpp"
#include "train/corpus.hpp"
#include "train/decay_groups.hpp"
#include "train/gathered_text.hpp"
#include "train/parameter_vector.hpp"
#include "train/site_links.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <utility>

namespace nearstep::train {

using shard::kTileElems;

namespace {

std::vector<offload::ElementRange> block_ranges(const model::Geometry& geometry) {
    std::vector<offload::ElementRange> ranges;
    for (const model::Block& block : geometry.blocks) {
        ranges.push_back({block.begin, block.end});
    }
    return ranges;
}

// Of the GPU that gradients are encoded on, beside the network.
std::size_t gradient_bytes(GradientGpu& gpu, const model::Geometry& geometry,
                           const GradientRoute& route, Dtype dtype) {
    const offload::GpuGradients::Ranks ranks{
        .in_group = gpu.group() != nullptr ? gpu.group()->size() : 1,
        .in_all = gpu.payload_ranks() != nullptr ? gpu.payload_ranks()->size() : 0,
        .payloads = route.groups().groups()};
    return gpu.gpu() ? offload::GpuGradients::gpu_bytes(block_ranges(geometry),
                                                        route.most_sent_bytes(), ranks, dtype)
                     : 0;
}

// Of each block the end of the tiles that it reads, of blocks that it borrows from counted whole.
std::vector<std::size_t> tiles_ends(const model::Network& network) {
    const std::vector<model::Block>& blocks = network.geometry().blocks;
    std::vector<std::size_t> ends;
    for (std::size_t block = 0; block < blocks.size(); ++block) {
        std::size_t end = 0;
        for (const model::Elements elements : network.reads(static_cast<int>(block))) {
            const auto last = std::find_if(blocks.begin(), blocks.end(),
                                           [&](const auto& of) { return of.end >= elements.end; });
            end = std::max(end, shard::tiles_of(last->end));
        }
        ends.push_back(end);
    }
    // An update in backward replaces parameters of blocks behind the one that is computed.
    expects(std::is_sorted(ends.begin(), ends.end()), "blocks borrow from blocks before them");
    return ends;
}

}  // namespace

// NOLINTNEXTLINE(readability-function-size): to be split
Trainer::Trainer(const mpi::Communicator& world, const config::Run& run,
                 const data::Tokenizer& tokenizer, const std::string& fault_plan,
                 trace::Timeline* timeline, int set)
    : world_(world),
      run_(run),
      tokenizer_(tokenizer),
      geometry_(model::describe(run.model)),
      corpus_(load_corpus(world, run, tokenizer)),
      faults_(fault_plan, world.rank()),
      timeline_(timeline),
      storage_(faults_.is_armed() ? std::make_unique<store::FaultyStorage>(faults_) : nullptr),
      links_(make_links(world, run, clock_)),
      nodes_(mpi::discover_nodes(world, run.exchange.ranks_per_node)),
      owners_(make_ownership(run, geometry_.elems, nodes_)),
      copy_(owners_.of_rank(world.rank())),
      route_(run, nodes_),
      log_(manifest_path(run, world.rank(), set), storage_.get()),
      set_(set),
      loss_scale_(run) {
    const int node = nodes_.group_of[static_cast<std::size_t>(world.rank())];
    const auto node_ranks =
        static_cast<int>(nodes_.ranks_of[static_cast<std::size_t>(node)].size());
    gpu_traffic_.emplace(run, geometry_, links_.get(), node_ranks);
    std::vector<std::unique_ptr<csd::Device>> devices;
    // Ranks of what only counts as several nodes share the machine's GPUs.
    const mpi::Topology machines = mpi::discover_nodes(world);
    world.together([&] {
        compute_device_ =
            model::choose_device(run.model.device, machines.rank_in_group(world.rank()));
    });
    gradient_gpu_.emplace(world, run, route_.groups(),
                          PayloadRoad{.copies = owners_.copies(), .is_shaped = links_ != nullptr},
                          compute_device_, nccl_watchdog_);
    parameter_gpu_.emplace(world, run, nodes_, owners_, compute_device_, nccl_watchdog_);
    plan_gpu(static_cast<int>(machines.ranks_beside(world.rank()).size()));
    world.together([&] {
        devices = make_devices(run_, world, owners_, route_,
                               {.storage = storage_.get(),
                                .links = links_.get(),
                                .timeline = timeline_,
                                .set = set_,
                                .groups = decay_groups(run_.train, geometry_)},
                               traffic_);
    });
    const std::size_t tile_bytes = kTileElems * size_bytes(run.model.dtype);
    const bool are_on_gpus = world.agree(compute_device_.is_gpu() && memory::gpus() > 0);
    const offload::VectorKind kind =
        vector_kind(run, are_on_gpus && nodes_.groups() < world.size());
    vector_ = make_parameter_vector(world, nodes_, owners_.tiles() * tile_bytes, kind);
    network_ = model::Network::make(run.model, vector_.span(), compute_device_,
                                    gpu_ ? gpu_->plan().residence : model::Residence{},
                                    parameter_gpu_->joint());
    block_tiles_end_ = tiles_ends(*network_);
    // Pinned pages would stay with the GPU when the window drops them.
    if (compute_device_.is_gpu() && memory::gpus() > 0 && kind != offload::VectorKind::own_tiles) {
        pinned_ = memory::PinnedRange(vector_.span());
    }
    pipeline_ = std::make_unique<offload::StepPipeline>(
        world,
        offload::PipelineSettings{.owners = &owners_,
                                  .codec = route_.of_step(0).sent,
                                  .most_payload_bytes = route_.most_sent_bytes(),
                                  .has_error_feedback = run.compress.error_feedback,
                                  .dtype = run.model.dtype,
                                  .groups = route_.groups(),
                                  .nodes = nodes_,
                                  .vector = kind,
                                  .meets_in_node = parameter_gpu_->is_joint(),
                                  .handler = handler_kind(run.mode),
                                  .delivery = delivery(run),
                                  .blocks = block_ranges(geometry_),
                                  .links = links_.get(),
                                  .team = &team_,
                                  .gpu = gradient_gpu_->gpu(),
                                  .gpu_group = gradient_gpu_->group(),
                                  .payload_ranks = gradient_gpu_->payload_ranks()},
        std::move(devices), traffic_);
    if (kind == offload::VectorKind::own_tiles) {
        window_.emplace(*pipeline_, owners_, world.rank(), vector_, tile_bytes);
    }
    make_buffers();
    data_ = to_hex(xxh3(std::as_bytes(std::span(corpus_.train))));
    places_ = gather_text(world, text(own_host(), " ", manifest_path(run, world.rank(), set)));
}

void Trainer::plan_gpu(int machine_ranks) {
    constexpr double kNone = std::numeric_limits<double>::max();
    world_.together([&] {
        if (compute_device_.is_gpu() && memory::gpus() > 0) {
            gpu_.emplace(run_, compute_device_, world_.size(), machine_ranks,
                         gradient_bytes(*gradient_gpu_, geometry_, route_, run_.model.dtype),
                         parameter_gpu_->joint().ranks);
        }
    });
    // Who brings blocks together has as many slots, so that all fetch in one order.
    if (parameter_gpu_->is_joint()) {
        const std::array mine{gpu_ ? static_cast<double>(gpu_->plan().budget_bytes) : kNone};
        const std::vector<double> of_ranks = world_.all_gather(mine);
        const double least = *std::min_element(of_ranks.begin(), of_ranks.end());
        world_.together([&] {
            if (gpu_) {
                gpu_->plan_within(static_cast<std::size_t>(least));
            }
        });
    }
}

void Trainer::make_buffers() {
    const std::int64_t batch = run_.train.global_batch;
    first_row_ = batch * world_.rank() / world_.size();
    rows_ = static_cast<int>(batch * (world_.rank() + 1) / world_.size() - first_row_);
    const auto tokens =
        static_cast<std::size_t>(rows_) * static_cast<std::size_t>(run_.model.context);
    tokens_.resize(tokens);
    targets_.resize(tokens);
    std::size_t largest = 0;
    for (int device = 0; device < copy_.partition.devices(); ++device) {
        largest = std::max(largest, copy_.partition.largest_subgroup_tiles(device) * kTileElems);
    }
    master_.resize(largest);
    moment1_.resize(largest);
    moment2_.resize(largest);
}

std::size_t Trainer::vector_bytes() const {
    const std::array mine{static_cast<double>(vector_.resident_bytes())};
    const std::vector<double> of_ranks = world_.all_gather(mine);
    return static_cast<std::size_t>(*std::max_element(of_ranks.begin(), of_ranks.end()));
}

bool Trainer::has_equal_nodes() const {
    return std::all_of(nodes_.ranks_of.begin(), nodes_.ranks_of.end(), [this](const auto& ranks) {
        return ranks.size() == nodes_.ranks_of.front().size();
    });
}

int Trainer::devices() const {
    const std::vector<int> counts = config::devices_per_rank(run_, world_.size());
    return std::accumulate(counts.begin(), counts.end(), 0);
}

std::vector<std::uint64_t> Trainer::written_bytes() const {
    const std::vector<int> counts = config::devices_per_rank(run_, world_.size());
    const auto before = counts.begin() + world_.rank();
    auto place = static_cast<std::size_t>(std::accumulate(counts.begin(), before, 0));
    std::vector<std::uint64_t> bytes(static_cast<std::size_t>(devices()), 0);
    for (const auto& device : pipeline_->devices()) {
        for (const std::uint64_t written : device->written_bytes()) {
            bytes.at(place++) = written;
        }
    }
    world_.sum(std::span(bytes));
    return bytes;
}

std::string Trainer::describe_model() const {
    return model::describe_backend(run_.model, compute_device_);
}

std::string Trainer::describe_io() const {
    return pipeline_->devices().empty() ? "" : pipeline_->devices().front()->describe_io();
}

std::vector<std::uint64_t> Trainer::network_sent_bytes() const {
    std::vector<std::uint64_t> sent(static_cast<std::size_t>(world_.size()), 0);
    sent[static_cast<std::size_t>(world_.rank())] = network_sent_bytes_;
    world_.sum(std::span(sent));
    return sent;
}

std::optional<HeldOutLoss> Trainer::evaluate() {
    expects(!under_way_, "a step is finished before it is evaluated");
    const int context = run_.model.context;
    const auto length = static_cast<std::size_t>(context);
    const int micro = run_.train.micro_batch;
    const std::int64_t rows = static_cast<std::int64_t>(run_.train.evaluate_batches) * micro;
    const std::int64_t end = rows * (world_.rank() + 1) / world_.size();
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(micro) * length);
    std::vector<std::int32_t> targets(tokens.size());
    double nats = 0;
    std::uint64_t bytes = 0;
    hold_all_parameters();
    for (std::int64_t row = rows * world_.rank() / world_.size(); row < end && !is_stop_requested();
         row += micro) {
        const int count = static_cast<int>(std::min<std::int64_t>(micro, end - row));
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
            bytes += tokenizer_.bytes_of(target).size();
        }
    }
    drop_parameters();
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
    expects(!under_way_, "a step is finished before its parameters are used");
    hold_all_parameters();
    if (world_.rank() != 0) {
        drop_parameters();
        return "";
    }
    const std::vector<std::uint8_t> bytes(prompt.begin(), prompt.end());
    const std::vector<data::Token> encoded = tokenizer_.encode(bytes, 1);
    const std::vector<std::int32_t> start(encoded.begin(), encoded.end());
    std::string sampled =
        data::decode(tokenizer_, network_->sample(start, tokens, 0.8, run_.train.seed));
    drop_parameters();
    return sampled;
}

std::string model_line(const config::ModelSettings& settings, const data::Tokenizer& tokenizer) {
    const std::string name = tokenizer.name();
    return text(settings.architecture, " layers=", settings.layers, " heads=", settings.heads,
                " width=", settings.width, " context=", settings.context,
                " vocabulary=", settings.vocabulary, name == "bytes" ? "" : " tokenizer=" + name);
}

}  // namespace nearstep::train
