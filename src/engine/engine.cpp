// Makes an engine with its devices and pipeline. Called by the trainer and the Python binding.
#include "engine/engine.hpp"

#include "base/error.hpp"
#include "base/machine.hpp"
#include "csd/state_format.hpp"
#include "engine/placement/site_links.hpp"
#include "engine/placement/tiers.hpp"
#include "mpi/gathered_text.hpp"
#include "plan/link_rates.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

namespace nearstep::engine {

using shard::kTileElems;

namespace {

// The threads of the ranks that compute, as store::Manifest::threads keeps them.
std::string threads_of_ranks(const mpi::Communicator& world, int threads, int computing) {
    std::vector<std::string> all = gather_text(world, std::to_string(threads));
    all.resize(static_cast<std::size_t>(computing));
    if (std::ranges::count(all, all.front()) == std::ssize(all)) {
        return threads == 0 ? "" : all.front();
    }
    return joined(all, ",");
}

// The number of subgroups of the device that has the most, in any copy of the state.
std::size_t most_subgroups(const shard::Ownership& owners) {
    std::size_t most = 0;
    for (int copy = 0; copy < owners.copies(); ++copy) {
        const shard::Partition& partition = owners.copy(copy).partition;
        for (int device = 0; device < partition.devices(); ++device) {
            most = std::max(most, partition.subgroups_of(device).size());
        }
    }
    return most;
}

std::size_t most_scalar_sets(const config::EngineSettings& settings) {
    const bool has_cards =
        settings.csd.device == config::DeviceKind::xrt && settings.mode != config::Mode::base;
    return has_cards ? csd::kMostGroupsOfCard : csd::kMostGroups;
}

}  // namespace

Engine::Engine(const mpi::Communicator& world, const Start& start, const Layout& layout,
               Identity identity, const EngineOptions& options)
    : world_(world),
      settings_(start.settings),
      layout_(layout),
      identity_(std::move(identity)),
      options_(options),
      set_(start.decision.set),
      faults_(options.fault_plan, world.rank()),
      timeline_(options.timeline),
      storage_(faults_.is_armed() ? std::make_unique<store::FaultyStorage>(faults_) : nullptr),
      links_(make_links(world, settings_, clock_)),
      nodes_(discover_nodes(world, settings_)),
      owners_(make_ownership(settings_, layout.elems, nodes_)),
      copy_(owners_.of_rank(world.rank())),
      route_(settings_, layout.dtype, nodes_),
      parameters_(parameter_groups(settings_, nodes_)),
      gpu_traffic_(std::in_place, settings_, layout, computes() ? links_.get() : nullptr,
                   static_cast<int>(nodes_.ranks_beside(world.rank()).size())),
      log_(manifest_path(settings_, world.rank(), set_), storage_.get(),
           program_state_paths(settings_, world.rank(), set_)),
      loss_scale_(layout.dtype, options.loss_scale),
      scalar_sets_(layout, most_scalar_sets(settings_)) {
    threads_ = threads_of_ranks(world, identity_.threads,
                                config::computing_ranks(settings_, world.size()));
    make_groups();
    make_pipeline();
    places_ =
        gather_text(world, text(own_host(), " ", manifest_path(settings_, world.rank(), set_)));
    make_facts();
}

void Engine::make_groups() {
    if (options_.gpu && memory::gpus() > 0) {
        memory::use_gpu(*options_.gpu);
    }
    gpu_transport_.emplace(world_, settings_,
                           GpuConditions{.groups = route_.groups(),
                                         .joint_groups = route_.joint_groups(),
                                         .parameters = parameters_,
                                         .owners = owners_,
                                         .is_shaped = links_ != nullptr,
                                         .has_kernels = route_.has_kernels()},
                           options_.gpu);
}

std::vector<std::unique_ptr<csd::Device>> Engine::own_devices(bool has_gpu, bool is_pinned) {
    std::vector<std::unique_ptr<csd::Device>> devices;
    world_.together([&] {
        devices = make_devices(
            settings_, world_, owners_, route_,
            {.dtype = layout_.dtype,
             .storage = storage_.get(),
             .links = links_.get(),
             .timeline = timeline_,
             .set = set_,
             .executor = &beside_,
             .ranks_beside = options_.processes_beside *
                             static_cast<int>(nodes_.ranks_beside(world_.rank()).size()),
             .gpu = is_pinned && route_.has_kernels() ? options_.gpu : std::nullopt,
             .own_gpu = has_gpu ? options_.gpu : std::nullopt,
             .fills_gpu = options_.fills_gpu,
             .groups = scalar_sets_.elements(),
             .parameters = options_.parameters},
            traffic_);
    });
    return devices;
}

void Engine::make_pipeline() {
    const bool has_gpu = options_.gpu && memory::gpus() > 0;
    const bool are_on_gpus = world_.agree(has_gpu || !computes());
    kind_ = options_.parameters == ParameterHome::state ? offload::VectorKind::none
            : parameters_.spans_nodes                   ? offload::VectorKind::parts
                                                        : offload::VectorKind::whole;
    const mpi::Topology& sharers = are_on_gpus ? parameters_.with_gpus : parameters_.on_host;
    // Pages that are dropped would stay pinned.
    const bool is_pinned = has_gpu && !has_parts() && options_.parameters == ParameterHome::vector;
    std::vector<std::unique_ptr<csd::Device>> devices = own_devices(has_gpu, is_pinned);
    const std::size_t tile_bytes = kTileElems * size_bytes(layout_.dtype);
    vector_ = make_parameter_vector(world_, sharers, owners_.tiles() * tile_bytes, kind_,
                                    settings_.csd.storage_ranks);
    if (is_pinned) {
        pinned_ = memory::PinnedRange(vector_.span());
    }
    pipeline_ = std::make_unique<offload::StepPipeline>(
        world_,
        offload::PipelineSettings{
            .owners = &owners_,
            .codec = route_.of_step(0).sent,
            .most_payload_bytes = route_.most_sent_bytes(),
            .has_error_feedback = settings_.compress.error_feedback,
            .dtype = layout_.dtype,
            .storage_ranks = settings_.csd.storage_ranks,
            .groups = route_.groups(),
            .joint_groups = route_.joint_groups(),
            .nodes = nodes_,
            .vector = &vector_,
            .vector_kind = kind_,
            .holders = parameters_.holders,
            .sharers = sharers,
            .meeting = gpu_transport_->is_joint() ? parameters_.with_gpus : sharers,
            .handler = handler_kind(settings_.mode),
            .delivery = delivery(settings_, options_.parameters),
            .blocks = layout_.blocks,
            .links = links_.get(),
            .pool = &pool_,
            .gpu = gpu_transport_->gradient_gpu(),
            .gradient_stream = options_.gradient_stream,
            .gpu_group = gpu_transport_->group(),
            .payload_ranks = gpu_transport_->payload_ranks()},
        std::move(devices), traffic_);
    held_.emplace(layout_.blocks,
                  pipeline_->has_gpu()
                      ? std::optional(memory::Stream::borrowed(options_.gradient_stream))
                      : std::nullopt);
    make_reader();
}

void Engine::make_reader() {
    if (options_.parameters == ParameterHome::vector) {
        return;
    }
    expects(world_.size() == 1, "parameters that stay in the state are read by one rank");
    reader_.emplace(pipeline_->subgroups(), settings_.csd.state, layout_.dtype);
}

namespace {

// See RunFacts::has_equal_nodes. `drives`: of each rank.
bool are_equal(const Placed& settings, const mpi::Topology& nodes, const std::vector<int>& drives) {
    std::vector<std::size_t> ranks_of;
    std::vector<int> drives_of;
    for (const std::vector<int>& ranks : nodes.ranks_of) {
        ranks_of.push_back(ranks.size());
        drives_of.push_back(0);
        for (const int rank : ranks) {
            drives_of.back() += drives[static_cast<std::size_t>(rank)];
        }
    }
    const auto storage = static_cast<std::size_t>(settings.csd.storage_ranks);
    ranks_of.resize(ranks_of.size() - storage);
    const std::vector<int> of_storage(drives_of.end() - settings.csd.storage_ranks,
                                      drives_of.end());
    drives_of.resize(ranks_of.size());
    const auto all_equal = [](const auto& values) {
        return !values.empty() && std::ranges::count(values, values.front()) == std::ssize(values);
    };
    const bool has_drives_beside = storage > 0 && drives_of.front() > 0;
    return all_equal(ranks_of) && (storage == 0 || all_equal(drives_of)) &&
           (!has_drives_beside || (all_equal(of_storage) && all_equal(settings.csd.speed)));
}

}  // namespace

void Engine::make_facts() {
    std::array<std::uint64_t, 1> kept_bytes = {};
    for (const offload::OwnedSubgroup& of : pipeline_->subgroups()) {
        if (of.index < static_cast<std::size_t>(of.device->kept_slots())) {
            kept_bytes.front() += csd::state_bytes(settings_.csd.state, of.tiles.size());
        }
    }
    world_.sum(std::span(kept_bytes));
    const std::vector<int> devices = config::devices_per_rank(settings_, world_.size());
    const std::vector<int> drives = config::drives_per_rank(settings_, world_.size());
    const auto storage = drives.begin() + config::computing_ranks(settings_, world_.size());
    const config::TierBytes state = state_in_tiers(settings_, owners_).all;
    const double all = std::max(state.gpu + state.memory + state.drive, 1.0);
    facts_ = {.nodes = nodes_.groups() - settings_.csd.storage_ranks,
              .storage_nodes = settings_.csd.storage_ranks,
              .has_equal_nodes = are_equal(settings_, nodes_, drives),
              .parameter_ranks = settings_.placement.parameters.ranks(),
              .gradient_ranks = settings_.placement.gradients.ranks(),
              .optimizer_ranks = settings_.placement.optimizer.ranks(),
              .copies = owners_.copies(),
              .devices = std::accumulate(devices.begin(), devices.end(), 0),
              .drives = std::accumulate(drives.begin(), storage, 0),
              .storage_drives = std::accumulate(storage, drives.end(), 0),
              .most_subgroups = most_subgroups(owners_),
              .kept_bytes = static_cast<double>(kept_bytes.front()),
              .gpu_share = state.gpu / all,
              .memory_share = state.memory / all,
              .payload_bytes_per_parameter = route_.payload_bytes_per_parameter(),
              .handed_bytes_per_parameter = route_.handed_bytes_per_parameter(),
              .has_dense_sums = route_.is_dense_sum(),
              .encodes_on_gpu = pipeline_->has_gpu(),
              .transport = gpu_transport_->transport(),
              .payload_transport = gpu_transport_->payload_transport(),
              .parameter_transport = gpu_transport_->parameter_transport(),
              .io = world_.rank() != 0 || pipeline_->devices().empty()
                        ? ""
                        : pipeline_->devices().front()->describe_io()};
    if (gpu_transport_->gradient_gpu()) {
        const offload::GpuGradients::Ranks ranks{
            .in_group = gpu_transport_->group() != nullptr ? gpu_transport_->group()->size() : 1,
            .in_all = gpu_transport_->payload_ranks() != nullptr
                          ? gpu_transport_->payload_ranks()->size()
                          : 0,
            .payloads = route_.first_payloads()};
        facts_.gradient_bytes = offload::GpuGradients::gpu_bytes(
            layout_.blocks, route_.most_sent_bytes(), ranks, layout_.dtype);
    }
    facts_.lines = {
        plan::describe_links(settings_),
        route_.describe(settings_),
        facts_.encodes_on_gpu ? "gradients of rank 0 are encoded on its GPU" : "",
        options_.gpu && memory::gpus() > 0 && !route_.has_kernels()
            ? text("gradients are encoded and decoded on the host: no GPU has the codec ",
                   config::name_of(settings_.compress.codec))
            : "",
        options_.gpu && memory::gpus() == 0
            ? text("gradients are encoded and decoded on the host. ",
                   memory::why_no_gpu().empty() ? "CUDA's driver does not serve this GPU."
                                                : memory::why_no_gpu())
            : "",
        gpu_transport_->describe_gradients(),
        gpu_transport_->describe_parameters()};
    std::erase(facts_.lines, "");
}

std::size_t Engine::vector_bytes() const {
    const std::array mine{static_cast<double>(vector_.resident_bytes())};
    const std::vector<double> of_ranks = world_.all_gather(mine);
    return static_cast<std::size_t>(std::ranges::max(of_ranks));
}

std::vector<std::uint64_t> Engine::written_bytes() const {
    const std::vector<int> counts = config::devices_per_rank(settings_, world_.size());
    const auto before = counts.begin() + world_.rank();
    auto place = static_cast<std::size_t>(std::accumulate(counts.begin(), before, 0));
    std::vector<std::uint64_t> bytes(static_cast<std::size_t>(facts_.devices), 0);
    for (const auto& device : pipeline_->devices()) {
        for (const std::uint64_t written : device->written_bytes()) {
            bytes.at(place++) = written;
        }
    }
    world_.sum(std::span(bytes));
    return bytes;
}

std::vector<std::uint64_t> Engine::network_sent_bytes() const {
    std::vector<std::uint64_t> sent(static_cast<std::size_t>(world_.size()), 0);
    sent[static_cast<std::size_t>(world_.rank())] = network_sent_bytes_;
    world_.sum(std::span(sent));
    return sent;
}

}  // namespace nearstep::engine
