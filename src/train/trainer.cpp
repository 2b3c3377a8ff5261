#include "train/trainer.hpp"

#include "base/error.hpp"
#include "base/random.hpp"
#include "base/stop_request.hpp"
#include "config/load.hpp"
#include "memory/gpu.hpp"
#include "mpi/topology.hpp"
#include "train/corpus.hpp"
#include "train/parameter_vector.hpp"
#include "train/site_links.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>
#include <utility>

namespace nearstep::train {

using shard::kTileElems;

namespace {

using trace::Lane;

trace::Subject of_block(int block) {
    return {.kind = "block", .number = static_cast<std::size_t>(block)};
}

// Of random numbers: what the rounding of gradients draws from.
constexpr std::uint64_t kGradientStream = 0x6772616469656E74U;

class Stopwatch {
public:
    // Seconds since construction or the last call.
    double lap() {
        const auto now = std::chrono::steady_clock::now();
        return std::chrono::duration<double>(now - std::exchange(last_, now)).count();
    }

private:
    std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

std::vector<offload::ElementRange> block_ranges(const model::Geometry& geometry) {
    std::vector<offload::ElementRange> ranges;
    for (const model::Block& block : geometry.blocks) {
        ranges.push_back({block.begin, block.end});
    }
    return ranges;
}

}  // namespace

Trainer::Trainer(const mpi::Communicator& world, const config::Run& run,
                 const data::Tokenizer& tokenizer, const std::string& fault_plan,
                 trace::Timeline* timeline)
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
      log_(manifest_path(run, world.rank()), storage_.get()),
      loss_scale_(run) {
    const int node = nodes_.group_of[static_cast<std::size_t>(world.rank())];
    gpu_traffic_.emplace(run, geometry_, links_.get(),
                         static_cast<int>(nodes_.ranks_of[static_cast<std::size_t>(node)].size()));
    std::vector<std::unique_ptr<csd::Device>> devices;
    world.together([&] {
        compute_device_ =
            model::choose_device(run.model.device, nodes_.rank_in_group(world.rank()));
        devices = make_devices(
            run_, world, owners_, route_,
            {.storage = storage_.get(), .links = links_.get(), .timeline = timeline_}, traffic_);
    });
    const std::size_t tile_bytes = kTileElems * size_bytes(run.model.dtype);
    vector_ = make_parameter_vector(world, nodes_, owners_.tiles() * tile_bytes, vector_kind(run));
    network_ = model::Network::make(run.model, vector_.span(), compute_device_);
    // Pinned pages would stay with the GPU when the window drops them.
    if (compute_device_.is_gpu() && memory::gpus() > 0 &&
        vector_kind(run) != offload::VectorKind::own_tiles) {
        pinned_ = memory::PinnedRange(vector_.span());
    }
    gradient_gpu_.emplace(world, run, route_.groups(), compute_device_);
    pipeline_ = std::make_unique<offload::StepPipeline>(
        world,
        offload::PipelineSettings{.owners = &owners_,
                                  .codec = route_.of_step(0).sent,
                                  .most_payload_bytes = route_.most_sent_bytes(),
                                  .has_error_feedback = run.compress.error_feedback,
                                  .dtype = run.model.dtype,
                                  .groups = route_.groups(),
                                  .nodes = nodes_,
                                  .vector = vector_kind(run),
                                  .handler = handler_kind(run.mode),
                                  .delivery = delivery(run),
                                  .blocks = block_ranges(geometry_),
                                  .links = links_.get(),
                                  .gpu = gradient_gpu_->gpu(),
                                  .gpu_group = gradient_gpu_->group()},
        std::move(devices), traffic_);
    if (vector_kind(run) == offload::VectorKind::own_tiles) {
        window_.emplace(*pipeline_, owners_, world.rank(), vector_, tile_bytes);
    }
    const std::int64_t batch = run.train.global_batch;
    first_row_ = batch * world.rank() / world.size();
    rows_ = static_cast<int>(batch * (world.rank() + 1) / world.size() - first_row_);
    const auto tokens =
        static_cast<std::size_t>(rows_) * static_cast<std::size_t>(run.model.context);
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

void Trainer::begin_gradients() {
    const bool is_warmup = steps_done_ < run_.compress.warmup_steps;
    const RouteCodecs codecs = route_.of_step(steps_done_);
    pipeline_->begin_step({.codec = codecs.sent,
                           .random_key = random_bits(run_.train.seed, kGradientStream,
                                                     static_cast<std::uint64_t>(steps_done_)),
                           .feeds_back = run_.compress.error_feedback && !is_warmup},
                          codecs.handed);
}

void Trainer::finish_step(bool is_finite) {
    const double before = loss_scale_.value();
    loss_scale_.after_step(is_finite);
    if (pipeline_->residual() != nullptr && loss_scale_.value() != before) {
        pipeline_->residual()->scale(static_cast<float>(loss_scale_.value() / before));
    }
    ++steps_done_;
}

std::vector<model::MicroBatch> Trainer::draw_batches() {
    const int context = run_.model.context;
    data::draw_rows(corpus_.train, run_.train.seed, steps_done_, first_row_, rows_, context,
                    tokens_, targets_);
    std::vector<model::MicroBatch> batches;
    for (int row = 0; row < rows_; row += run_.train.micro_batch) {
        const int rows = std::min(run_.train.micro_batch, rows_ - row);
        const auto begin = static_cast<std::size_t>(row) * static_cast<std::size_t>(context);
        const auto count = static_cast<std::size_t>(rows) * static_cast<std::size_t>(context);
        batches.push_back({rows, context, std::span(tokens_).subspan(begin, count),
                           std::span(targets_).subspan(begin, count)});
    }
    return batches;
}

// Where parameters are spread over all ranks. The blocks from `next` to `end` follow in the pass:
// what they read, too, stays if it is here.
void Trainer::hold_parameters_of(int block, int next, int end) {
    if (!window_) {
        return;
    }
    const trace::Span span(timeline_, Lane::exchange, "parameters", of_block(block));
    const auto reads = [this](int first, int last) {
        std::vector<offload::ElementRange> ranges;
        for (int of = first; of < last; ++of) {
            for (const model::Elements elements : network_->reads(of)) {
                ranges.push_back({elements.begin, elements.end});
            }
        }
        return ranges;
    };
    window_->hold(reads(block, block + 1), reads(next, end));
}

// Outside of steps, where ranks pass the blocks unequally often.
void Trainer::hold_all_parameters() {
    if (window_) {
        const offload::ElementRange all{0, geometry_.elems};
        window_->hold({&all, 1}, {});
    }
}

void Trainer::drop_parameters() {
    if (window_) {
        window_->drop_all();
    }
}

void Trainer::backward_pass() {
    const int blocks = static_cast<int>(geometry_.blocks.size());
    for (int block = blocks - 1; block >= 0; --block) {
        gpu_traffic_->bring_parameters(block);
        if (block < blocks - 1) {  // the last one's backward was part of its forward
            hold_parameters_of(block, 0, block);
        }
        {
            const trace::Span span(timeline_, Lane::compute, "backward", of_block(block));
            network_->backward(
                block, pipeline_->gradient_space(static_cast<std::size_t>(block)),
                pipeline_->has_gpu() ? model::GradientPlace::gpu : model::GradientPlace::host);
        }
        gpu_traffic_->take_gradients(block);
        {
            const trace::Span span(timeline_, Lane::exchange, "gradient", of_block(block));
            pipeline_->put_gradient(static_cast<std::size_t>(block));
        }
        faults_.pass(FaultPhase::after_scatter);
    }
    drop_parameters();
    gpu_traffic_->finish_pass();
}

offload::GradientFacts Trainer::finish_gradients() {
    const trace::Span span(timeline_, Lane::exchange, "norm");
    return pipeline_->finish_gradients();
}

// From this rank's loss and seconds, and what was counted before the step, to what holds for all.
void Trainer::add_up_ranks(StepReport& report, const trace::TrafficSnapshot& traffic_before,
                           const codec::DeltaTally& deltas_before) {
    const std::array mine{report.loss, report.seconds.forward, report.seconds.backward,
                          report.seconds.update, is_stop_requested() ? 1.0 : 0.0};
    const std::vector<double> of_ranks = world_.all_gather(mine);
    report.loss = 0;
    for (std::size_t i = 0; i < of_ranks.size(); i += mine.size()) {
        report.loss += of_ranks[i];
        report.seconds.forward = std::max(report.seconds.forward, of_ranks[i + 1]);
        report.seconds.backward = std::max(report.seconds.backward, of_ranks[i + 2]);
        report.seconds.update = std::max(report.seconds.update, of_ranks[i + 3]);
        report.is_stop_requested = report.is_stop_requested || of_ranks[i + 4] > 0;
    }
    report.traffic = traffic_.snapshot() - traffic_before;
    network_sent_bytes_ += report.traffic[trace::Counter::network_gradients] +
                           report.traffic[trace::Counter::network_parameters];
    world_.sum(std::span(report.traffic.bytes));
    if (delivery(run_) == csd::Delivery::deltas) {
        report.deltas = pipeline_->delta_tally() - deltas_before;
        world_.sum(std::span(report.deltas.tiles));
        world_.sum(std::span(report.deltas.bytes));
    }
}

StepReport Trainer::step() {
    StepReport report;
    report.step = steps_done_ + 1;
    report.learning_rate = learning_rate(run_.train, steps_done_);
    report.loss_scale = loss_scale_.value();
    const trace::TrafficSnapshot before = traffic_.snapshot();
    const codec::DeltaTally deltas_before = pipeline_->delta_tally();
    const int blocks = static_cast<int>(geometry_.blocks.size());
    const double batch_tokens = static_cast<double>(run_.train.global_batch) * run_.model.context;

    if (timeline_ != nullptr) {
        timeline_->begin_step(report.step);
    }
    Stopwatch watch;
    network_->begin(draw_batches(), 1.0 / batch_tokens, loss_scale_.value());
    for (int block = 0; block < blocks; ++block) {
        gpu_traffic_->bring_parameters(block);
        hold_parameters_of(block, block + 1, blocks);
        const trace::Span span(timeline_, Lane::compute, "forward", of_block(block));
        network_->forward(block);
    }
    drop_parameters();
    gpu_traffic_->finish_pass();
    const double loss = network_->loss();
    const double forward = watch.lap();

    begin_gradients();
    backward_pass();
    const offload::GradientFacts facts = finish_gradients();
    faults_.pass(FaultPhase::after_gradients);
    const double backward = watch.lap();

    report.gradient_norm = facts.norm / loss_scale_.value();
    report.is_skipped = !facts.is_finite;
    if (facts.is_finite) {
        const double scale =
            clip_factor(report.gradient_norm, run_.train.clip_norm) / loss_scale_.value();
        const trace::Span span(timeline_, Lane::exchange, "parameters");
        pipeline_->update(
            update_scalars(run_.train, report.learning_rate, pipeline_->generation() + 1, scale),
            vector_.span());
    }
    finish_step(facts.is_finite);
    const double update = watch.lap();

    report.loss = loss;
    report.seconds = {forward, backward, update};
    add_up_ranks(report, before, deltas_before);
    return report;
}

std::vector<std::uint64_t> Trainer::network_sent_bytes() const {
    std::vector<std::uint64_t> sent(static_cast<std::size_t>(world_.size()), 0);
    sent[static_cast<std::size_t>(world_.rank())] = network_sent_bytes_;
    world_.sum(std::span(sent));
    return sent;
}

double Trainer::commit() {
    if (run_.csd.durability != "step") {
        return 0;
    }
    Stopwatch watch;
    faults_.pass(FaultPhase::before_commit);
    pipeline_->commit(log_, position());
    faults_.pass(FaultPhase::after_commit);
    return watch.lap();
}

HeldOutLoss Trainer::evaluate() {
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
    for (std::int64_t row = rows * world_.rank() / world_.size(); row < end; row += micro) {
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
    double total = 0;
    for (const double part : world_.all_gather(std::array{nats})) {
        total += part;
    }
    world_.sum(std::span(&bytes, 1));
    return {.nats_per_token = total / (static_cast<double>(rows) * context),
            .nats_per_byte = total / static_cast<double>(bytes)};
}

std::string Trainer::sample(const std::string& prompt, int tokens) {
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
