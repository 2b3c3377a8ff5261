// Makes the devices of a rank, its links, memory and pipeline, and says what they are. Called by
// Run.
#include "engine/resources/resources.hpp"

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/machine.hpp"
#include "base/number_list.hpp"
#include "base/units.hpp"
#include "csd/state_layout.hpp"
#include "engine/placement/devices.hpp"
#include "engine/placement/rank_binding.hpp"
#include "engine/placement/site_links.hpp"
#include "engine/placement/tier_shares.hpp"
#include "engine/route/scalar_sets.hpp"
#include "mpi/gathered_text.hpp"
#include "plan/kept_state.hpp"
#include "plan/link_rates.hpp"
#include "store/manifest.hpp"
#include "store/storage_folder.hpp"

#include <algorithm>
#include <array>
#include <cstring>
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
    return brief_list(joined(all, ","));
}

}  // namespace

Resources::Resources(const mpi::Communicator& ranks, const Start& start, const Layout& tensors,
                     Identity training, const EngineOptions& client)
    : world(ranks),
      settings(start.settings),
      layout(tensors),
      identity(std::move(training)),
      options(client),
      set(start.decision.set),
      faults(client.fault_plan, ranks.rank()),
      timeline(client.timeline),
      storage(faults.is_armed() ? std::make_unique<store::FaultyStorage>(faults) : nullptr),
      links(make_links(ranks, settings, clock)),
      nodes(discover_nodes(ranks, settings)),
      owners(make_ownership(settings, tensors.elems, nodes)),
      copy(owners.of_rank(ranks.rank())),
      route(settings, tensors.dtype, nodes),
      parameters(parameter_groups(settings, nodes)),
      log(manifest_path(settings, ranks.rank(), set), storage.get(),
          program_state_paths(settings, ranks.rank(), set)) {
    // Memory that is taken from here on lies near the cores of this rank.
    binding = bind_near_devices(world, state_files(settings, world.rank(), world.size(), set),
                                memory::gpus() > 0 ? options.gpu : std::nullopt);
    threads =
        threads_of_ranks(world, identity.threads, config::computing_ranks(settings, world.size()));
    make_groups();
    make_pipeline();
    place_others();
    make_facts();
}

void Resources::place_others() {
    const std::vector<int> others = store::ranks_placed_by(world.rank(), world.size());
    const std::vector<int> distances = store::ranks_placed_by(0, world.size());
    const std::string folder = store::folder_of(manifest_path(settings, world.rank(), set));
    const std::vector<std::string> texts =
        mpi::texts_at(world, distances, text(own_host(), " ", folder));
    for (std::size_t i = 0; i < others.size(); ++i) {
        places.emplace(others[i], texts[i]);
    }
}

void Resources::make_groups() {
    if (options.gpu && memory::gpus() > 0) {
        memory::use_gpu(*options.gpu);
    }
    gpu_transport.emplace(world, settings,
                          GpuConditions{.groups = route.groups(),
                                        .joint_groups = route.joint_groups(),
                                        .parameters = parameters,
                                        .owners = owners,
                                        .is_shaped = links != nullptr,
                                        .has_kernels = route.has_kernels()},
                          options.gpu);
}

std::vector<std::unique_ptr<csd::Device>> Resources::own_devices(bool has_gpu,
                                                                 bool updates_on_gpu) {
    std::vector<std::unique_ptr<csd::Device>> devices;
    world.together([&] {
        devices =
            make_devices(settings, world, owners, route,
                         {.dtype = layout.dtype,
                          .storage = storage.get(),
                          .links = links.get(),
                          .timeline = timeline,
                          .set = set,
                          .executor = &beside,
                          .ranks_beside = options.processes_beside *
                                          static_cast<int>(nodes.ranks_beside(world.rank()).size()),
                          .gpu = updates_on_gpu ? options.gpu : std::nullopt,
                          .own_gpu = has_gpu ? options.gpu : std::nullopt,
                          .fills_gpu = options.fills_gpu,
                          .groups = ScalarSets(layout, most_scalar_sets(settings)).elements(),
                          .parameters = options.parameters},
                         traffic);
    });
    return devices;
}

void Resources::make_pipeline() {
    const bool has_gpu = options.gpu && memory::gpus() > 0;
    const bool are_on_gpus = world.agree(has_gpu || !computes());
    kind = options.parameters == ParameterHome::state ? offload::VectorKind::none
           : parameters.spans_nodes                   ? offload::VectorKind::parts
                                                      : offload::VectorKind::whole;
    const mpi::Topology& sharers = are_on_gpus ? parameters.with_gpus : parameters.on_host;
    const bool updates_on_gpu = has_gpu && !has_parts() && route.has_kernels();
    std::vector<std::unique_ptr<csd::Device>> devices = own_devices(has_gpu, updates_on_gpu);
    const std::size_t tile_bytes = kTileElems * size_bytes(layout.dtype);
    vector = make_parameter_vector(world, sharers, owners.tiles() * tile_bytes, kind,
                                   settings.csd.storage_ranks);
    // Pages that are dropped would stay pinned.
    if (has_gpu && !has_parts() && options.parameters == ParameterHome::vector) {
        pinned = memory::PinnedRange(vector.span());
    }
    pipeline = std::make_unique<offload::StepPipeline>(
        world,
        offload::PipelineSettings{
            .owners = &owners,
            .codec = route.of_step(0).sent,
            .most_payload_bytes = route.most_sent_bytes(),
            .has_error_feedback = settings.compress.error_feedback,
            .dtype = layout.dtype,
            .storage_ranks = settings.csd.storage_ranks,
            .groups = route.groups(),
            .joint_groups = route.joint_groups(),
            .nodes = nodes,
            .vector = &vector,
            .vector_kind = kind,
            .holders = parameters.holders,
            .sharers = sharers,
            .synchronised = gpu_transport->is_joint() ? parameters.with_gpus : sharers,
            .handler = handler_kind(settings.mode),
            .delivery = delivery(settings, options.parameters),
            .blocks = layout.blocks,
            .links = links.get(),
            .pool = &pool,
            .gpu = gpu_transport->gradient_gpu(),
            .gradient_stream = options.gradient_stream,
            .gpu_group = gpu_transport->group(),
            .payload_ranks = gpu_transport->payload_ranks()},
        std::move(devices), traffic);
    make_reader();
}

void Resources::make_reader() {
    if (options.parameters == ParameterHome::vector) {
        return;
    }
    expects(world.size() == 1, "parameters that stay in the state are read by one rank");
    reader.emplace(pipeline->subgroups(), settings.csd.state, layout.dtype);
}

namespace {

// See RunFacts::has_equal_nodes. `drives`: of each rank.
bool are_equal(const PlacedSettings& settings, const mpi::Topology& nodes,
               const std::vector<int>& drives) {
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

std::vector<std::string> lines_of(const Resources& of) {
    return {plan::describe_links(of.settings),
            of.route.describe(of.settings),
            of.facts.encodes_on_gpu ? "gradients of rank 0 are encoded on its GPU" : "",
            of.options.gpu && memory::gpus() > 0 && !of.route.has_kernels()
                ? text("gradients are encoded and decoded on the host: no GPU has the codec ",
                       config::name_of(of.settings.compress.codec))
                : "",
            of.options.gpu && memory::gpus() == 0
                ? text("gradients are encoded and decoded on the host. ",
                       memory::why_no_gpu().empty()
                           ? "NVIDIA's driver serves no GPU here: with a GPU of "
                             "another maker, as under ROCm, this is so."
                           : memory::why_no_gpu())
                : "",
            of.gpu_transport->describe_gradients(),
            of.gpu_transport->describe_parameters()};
}

// See RunFacts, of this rank alone.
struct OwnStateBytes {
    std::array<std::uint64_t, 1> kept = {};
    std::array<double, 1> unwritten = {};
    double memory = 0;
};

OwnStateBytes bytes_of_state(const offload::StepPipeline& pipeline,
                             const PlacedSettings& settings) {
    OwnStateBytes found;
    const bool is_in_memory = settings.spare_places > 0 && plan::is_in_memory(settings);
    for (const auto& device : pipeline.devices()) {
        const csd::StateLayout places(device->subgroups(), settings.csd.state, false,
                                      settings.logs == 1 ? settings.spare_places : 0);
        found.memory +=
            is_in_memory ? static_cast<double>(places.spare() * places.most_extent_bytes()) : 0;
    }
    for (const offload::OwnedSubgroup& of : pipeline.subgroups()) {
        const std::size_t bytes = csd::state_bytes(settings.csd.state, of.tiles.size());
        const std::size_t log_bytes = of.tiles.size() * settings.log_tile_bytes;
        if (of.index < static_cast<std::size_t>(of.device->kept_slots()) || settings.logs > 1) {
            found.kept.front() += bytes;
        }
        if (is_in_memory) {
            found.memory += static_cast<double>(bytes + log_bytes);
        }
        if (settings.logs > 1) {
            found.unwritten.front() +=
                static_cast<double>(bytes) * (1 - 1 / static_cast<double>(settings.logs)) -
                static_cast<double>(log_bytes);
        }
    }
    return found;
}

}  // namespace

void Resources::make_facts() {
    OwnStateBytes bytes = bytes_of_state(*pipeline, settings);
    world.sum(std::span(bytes.kept));
    world.sum(std::span(bytes.unwritten));
    const std::vector<int> devices = config::devices_per_rank(settings, world.size());
    const std::vector<int> drives = config::drives_per_rank(settings, world.size());
    const auto first_storage = drives.begin() + config::computing_ranks(settings, world.size());
    const config::TierBytes state = state_in_tiers(settings, owners).all;
    const double all = std::max(state.gpu + state.memory + state.drive, 1.0);
    facts = {.nodes = nodes.groups() - settings.csd.storage_ranks,
             .storage_nodes = settings.csd.storage_ranks,
             .has_equal_nodes = are_equal(settings, nodes, drives),
             .parameter_ranks = settings.placement.parameters.ranks(),
             .gradient_ranks = settings.placement.gradients.ranks(),
             .optimizer_ranks = settings.placement.optimizer.ranks(),
             .copies = owners.copies(),
             .devices = std::accumulate(devices.begin(), devices.end(), 0),
             .drives = std::accumulate(drives.begin(), first_storage, 0),
             .storage_drives = std::accumulate(first_storage, drives.end(), 0),
             .most_subgroups = largest_device(owners).size(),
             .kept_bytes = static_cast<double>(bytes.kept.front()),
             .unwritten_bytes = bytes.unwritten.front(),
             .memory_bytes = static_cast<std::size_t>(bytes.memory * (1 - state.gpu / all)),
             .gpu_share = state.gpu / all,
             .memory_share = state.memory / all,
             .payload_bytes_per_parameter = route.payload_bytes_per_parameter(),
             .handover_bytes_per_parameter = route.handover_bytes_per_parameter(),
             .has_dense_sums = route.is_dense_sum(),
             .encodes_on_gpu = pipeline->has_gpu(),
             .transport = gpu_transport->transport(),
             .payload_transport = gpu_transport->payload_transport(),
             .parameter_transport = gpu_transport->parameter_transport(),
             .io = world.rank() != 0 || pipeline->devices().empty()
                       ? ""
                       : pipeline->devices().front()->describe_io()};
    if (gpu_transport->gradient_gpu()) {
        const offload::GpuGradients::Ranks ranks{
            .in_group = gpu_transport->group() != nullptr ? gpu_transport->group()->size() : 1,
            .in_all = gpu_transport->payload_ranks() != nullptr
                          ? gpu_transport->payload_ranks()->size()
                          : 0,
            .payloads = route.first_payloads()};
        facts.gradient_bytes = offload::GpuGradients::gpu_bytes(
            layout.blocks, route.most_sent_bytes(), ranks, layout.dtype);
    }
    facts.lines = lines_of(*this);
    facts.lines.insert(facts.lines.end(), binding.begin(), binding.end());
    std::erase(facts.lines, "");
}

std::size_t Resources::vector_bytes() const {
    const std::array mine{static_cast<double>(vector.resident_bytes())};
    const std::vector<double> of_ranks = world.all_gather(mine);
    return static_cast<std::size_t>(std::ranges::max(of_ranks));
}

std::vector<std::uint64_t> Resources::written_bytes() const {
    const std::vector<int> counts = config::devices_per_rank(settings, world.size());
    const auto before = counts.begin() + world.rank();
    auto place = static_cast<std::size_t>(std::accumulate(counts.begin(), before, 0));
    std::vector<std::uint64_t> bytes(static_cast<std::size_t>(facts.devices), 0);
    for (const auto& device : pipeline->devices()) {
        for (const std::uint64_t written : device->written_bytes()) {
            bytes.at(place++) = written;
        }
    }
    world.sum(std::span(bytes));
    return bytes;
}

void Resources::visit_states(Executor& workers, const StateWork& work) const {
    const std::vector<offload::OwnedSubgroup> owned = pipeline->subgroups();
    std::vector<csd::StateMemory> memory(static_cast<std::size_t>(workers.members()));
    workers.share(owned.size(), [&](std::size_t i, int member) {
        work(owned[i], memory[static_cast<std::size_t>(member)].of(owned[i].elems()));
    });
}

void Resources::load_into_vector(const offload::OwnedSubgroup& of, const csd::StateArrays& state) {
    if (reader) {
        return;
    }
    convert_from_fp32(state.master.data(), layout.dtype,
                      vector.span().data() + of.first_elem() * size_bytes(layout.dtype),
                      state.master.size());
}

void Resources::load_into_vector(std::size_t tile, const void* masters) {
    if (reader) {
        return;
    }
    const Dtype stored = csd::master_dtype(settings.csd.state);
    const auto* from = static_cast<const std::byte*>(masters);
    std::byte* to = vector.span().data() + tile * shard::kTileElems * size_bytes(layout.dtype);
    if (stored == layout.dtype) {
        std::memcpy(to, from, shard::kTileElems * size_bytes(stored));
        return;
    }
    std::array<float, arith::kBlockElems> wide{};
    for (std::size_t first = 0; first < shard::kTileElems; first += wide.size()) {
        convert_to_fp32(stored, from + first * size_bytes(stored), wide.data(), wide.size());
        convert_from_fp32(wide.data(), layout.dtype, to + first * size_bytes(layout.dtype),
                          wide.size());
    }
}

void Resources::go_on_from(std::int64_t generation) {
    pipeline->set_generation(generation);
    world.together([this] { pipeline->accept(); });
    if (reader) {
        reader->use(generation);
    }
}

void Resources::drop_parameters(shard::ElementRange range) {
    constexpr std::size_t kPageBytes = 64 * KiB;  // see Buffer::drop()
    const std::size_t begin = round_up(range.begin * size_bytes(layout.dtype), kPageBytes);
    const std::size_t end = range.end * size_bytes(layout.dtype) / kPageBytes * kPageBytes;
    if (begin < end) {
        vector.drop(begin, end - begin);
    }
}

void Resources::prepare_commit() {
    faults.pass(FaultPhase::before_commit);
    log.prepare(pipeline->devices());
}

}  // namespace nearstep::engine
