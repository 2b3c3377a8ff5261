// One training run on all ranks: the step, evaluation, and the state's way to and from checkpoints.
#pragma once

#include "base/fault_point.hpp"
#include "base/team.hpp"
#include "checkpoint/checkpoint.hpp"
#include "config/run.hpp"
#include "data/text.hpp"
#include "data/tokenizer.hpp"
#include "link/clock.hpp"
#include "link/node_links.hpp"
#include "memory/buffer.hpp"
#include "memory/gpu.hpp"
#include "model/network.hpp"
#include "mpi/communicator.hpp"
#include "offload/parameter_window.hpp"
#include "offload/step_pipeline.hpp"
#include "store/manifest.hpp"
#include "store/storage.hpp"
#include "trace/timeline.hpp"
#include "trace/traffic.hpp"
#include "train/checkpoint_folder.hpp"
#include "train/devices.hpp"
#include "train/gpu_share.hpp"
#include "train/gpu_traffic.hpp"
#include "train/gradient_gpu.hpp"
#include "train/other_layout.hpp"
#include "train/parameter_gpu.hpp"
#include "train/restart.hpp"
#include "train/schedule.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <numbers>
#include <optional>
#include <string>
#include <vector>

namespace nearstep::train {

struct PhaseSeconds {
    double forward = 0;   // without waiting for parameters of the update before
    double backward = 0;  // and gradients out
    double update = 0;    // and parameters in: from the first to the last
    double hidden = 0;    // of the update and its flush, under backward and the next forward
};

// The same on all ranks; seconds are the slowest rank's, or of what is hidden the least; traffic is
// the sum over ranks.
struct StepReport {
    std::int64_t step = 0;  // steps done, this one included
    double loss = 0;        // mean over the global batch, nats per token
    double gradient_norm = 0;
    double learning_rate = 0;
    double loss_scale = 1;
    bool is_skipped = false;         // the gradient was not finite: nothing was updated
    bool is_stop_requested = false;  // of any rank, see base/stop_request.hpp
    PhaseSeconds seconds;
    trace::TrafficSnapshot traffic;
    codec::DeltaTally deltas;  // zeros without gather.codec = "delta"
};

// A step from when its gradients were final until its update is over.
struct StepUnderWay {
    StepReport report;
    offload::UpdateTimes times;
    double waited = 0;  // seconds, by this rank for the update
};

// Of the evaluated rows of the held-out text, the same on all ranks. Per byte of the text that the
// rows' targets stand for, so that runs with different tokenizers compare.
struct HeldOutLoss {
    double nats_per_token = 0;
    double nats_per_byte = 0;

    double bits_per_byte() const { return nats_per_byte / std::numbers::ln2; }
};

// What a run goes on from, as manifests or a checkpoint say it.
struct Origin {
    store::Lineage line = {};
    bool begins_line = false;   // the run leaves the line here
    std::uint64_t seed = 0;     // with another one, or other data, it leaves the line, too
    std::string data = {};      // digest; empty: not known
    std::string dtype = {};     // of the parameters; empty: not known
    std::string state = {};     // of the files, if these stay as they are
    std::string replaces = {};  // state to keep in its own files until this one is durable
};

// All calls are collective. Throws ConfigError on all ranks alike if data, sizes or folders do not
// do. A step's update goes on when step() returns, except in the modes that reproduce others'
// (overlaps_steps): the next step's forward takes each block as soon as its parameters are final.
// finish() waits for it; but for step(), position and description, all calls want that first.
class Trainer {
public:
    // Opens and locks the state files and leaves their content; makes devices, network and buffers.
    // start() or restore() or a restore_state() that succeeds must follow. `tokenizer` is the run's
    // and outlives the trainer. `fault_plan`: as FaultPoints takes it. `timeline`: of the steps,
    // outlives the trainer; null: none. `set`: of the state files' names.
    Trainer(const mpi::Communicator& world, const config::Run& run,
            const data::Tokenizer& tokenizer, const std::string& fault_plan = "",
            trace::Timeline* timeline = nullptr, int set = 0);

    // What to do when all manifests name the new run and nothing is emptied yet; may be empty.
    using Claimed = std::function<void()>;

    // Empties the state files and writes the start values of all parameters, generation 0.
    void start(const Claimed& claimed = {});

    // Empties the state files and fills them from a checkpoint, written by any layout of the same
    // model. If that fails and origin.replaces is set, the files are removed again.
    void restore(const std::string& index_path, const Origin& origin);

    // Reads all of a checkpoint that this rank needs and verifies it; changes nothing.
    void verify(const std::string& index_path);

    // Goes on from what the state files hold: `commit`, which every rank lists. Reads and verifies
    // all of it. Returns what is damaged, as a sentence; nothing was changed then.
    std::optional<std::string> restore_state(const Origin& origin, const store::Commit& commit);

    // Fills the state files from those of another layout, which hold `commit`, and returns what of
    // them is damaged, as a sentence. If it throws, these files are removed again.
    std::optional<std::string> restore_from(const Found& found, const Decision& decision,
                                            const Origin& origin, const store::Commit& commit);

    // Those that this trainer was to fill. It is of no use then.
    void remove_state_files();

    // With a csd.durability other than "step": from here on the manifests list no step, since the
    // next one is not to be durable. What was listed must be in a checkpoint, or given up.
    void forget_commits();

    // Whose steps are taken. The same on all ranks.
    const store::Lineage& line() const { return line_; }

    // Takes a step as far as its update, which begins. The report lacks what its update will add:
    // seconds, traffic, deltas. The step before, if it is still under way, ends behind forward:
    // then `ended`, on all ranks, is called with its whole report, and it is committed.
    using StepEnded = std::function<void(const StepReport&)>;
    StepReport step(const StepEnded& ended = {});

    // Ends the step under way, which there must be, and returns its whole report. To be called
    // before the trainer goes.
    StepReport finish();

    // With csd.durability "step": on return the steps done outlive any crash. After finish().
    void commit();

    // Of all commits so far: flushes, which may be hidden, and all that follows them.
    double commit_seconds() const { return commit_seconds_; }

    std::int64_t steps_done() const { return steps_done_; }
    const model::Geometry& geometry() const { return geometry_; }
    int nodes() const { return nodes_.groups(); }
    // Most memory that a rank's parameter vector takes now; one that a node shares counts in full.
    // Collective.
    std::size_t vector_bytes() const;
    bool has_equal_nodes() const;                    // as many ranks on each
    int copies() const { return owners_.copies(); }  // of the optimizer state
    // Of all ranks; in mode base the plain devices that the state is striped over.
    int devices() const;
    // Bytes written to each of devices() by this run so far, in the order of ranks and devices.
    std::vector<std::uint64_t> written_bytes() const;
    // What this rank's model computes with and where.
    std::string describe_model() const;
    // How the state of this rank's first device moves; empty if the rank has none.
    std::string describe_io() const;
    const GradientRoute& route() const { return route_; }

    // Of this rank's GPU; null: the model computes on the CPU, or the program has no CUDA.
    const GpuShare* gpu() const { return gpu_ ? &*gpu_ : nullptr; }
    // Of rank 0's on rank 0, after `steps` steps of this process.
    std::optional<GpuReport> report_gpu(std::size_t steps) const {
        return report_gpus(world_, gpu_, step_traffic_, steps);
    }

    // Whether this rank's gradients stay on its GPU until they are encoded.
    bool encodes_on_gpu() const { return pipeline_->has_gpu(); }
    const GradientGpu& gradient_gpu() const { return *gradient_gpu_; }
    const ParameterGpu& parameter_gpu() const { return *parameter_gpu_; }

    // nullopt if any rank was asked to stop before it was done.
    std::optional<HeldOutLoss> evaluate();

    // Writes and publishes a checkpoint in `folder`; returns its index's path.
    std::string save(const std::string& folder);

    // By a part of the state that is read and written to a file in `folder`, which does not stay.
    CheckpointTime expect_checkpoint(const std::string& folder);

    // XXH3 of the tiles' XXH3 digests (little-endian, in tile order) of the fp32 masters without
    // padding: independent of layout. Throws Error if copies of the state differ.
    std::uint64_t masters_digest();

    // What each rank sent to other nodes in all steps of this process, gradients and parameters.
    std::vector<std::uint64_t> network_sent_bytes() const;

    // Text of `tokens` tokens that continues `prompt`; every rank could, rank 0 does, others return
    // an empty one.
    std::string sample(const std::string& prompt, int tokens);

private:
    void plan_gpu(int machine_ranks);
    void make_buffers();
    std::vector<model::MicroBatch> draw_batches();
    void hold_parameters_of(int block, int next, int end);
    void bring_parameters_of(int block, int next, int end);
    void hold_all_parameters();
    void drop_parameters();
    double forward_pass();
    void begin_gradients();
    offload::GradientFacts finish_gradients();
    void backward_pass();
    bool begins_in_backward() const;
    void begin_update(const StepReport& report);
    void undo_update();
    void restore_clipping(double norm);
    void harm_gradient(std::span<float> gradient);
    offload::UpdateTimes wait_for_update();
    void add_up_losses(StepReport& report) const;
    void add_up_traffic(StepReport& report);
    void finish_step(bool is_finite);
    void prepare_commit();
    void save_residual(checkpoint::RankFileWriter& writer);
    void restore_residual(checkpoint::Reader& reader);
    store::Manifest identity() const;
    store::Commit position() const;
    std::string draw_id() const;
    void choose_line(const Origin& origin, std::int64_t step);
    void empty_state_files(const std::string& replaced, const Claimed& claimed = {});
    void list_what_was_filled();
    void fill_from(checkpoint::Reader& reader);
    std::optional<std::string> fill_from(OtherLayout& old, std::int64_t generation);
    void go_on_at(const store::Commit& position, const Origin& origin);
    checkpoint::Description describe() const;
    bool is_in_first_copy() const { return owners_.copy_of(world_.rank()) == 0; }
    void load_masters_into_vector(shard::TileRange tiles, std::span<const float> masters);

    const mpi::Communicator& world_;
    config::Run run_;
    const data::Tokenizer& tokenizer_;
    model::Geometry geometry_;
    data::Corpus corpus_;
    FaultPoints faults_;
    trace::Timeline* timeline_;
    std::unique_ptr<store::Storage> storage_;  // null: the system itself
    link::Clock clock_;
    std::unique_ptr<link::NodeLinks> links_;  // null: not shaped
    std::optional<GpuTraffic> gpu_traffic_;
    mpi::Topology nodes_;
    shard::Ownership owners_;
    const shard::Copy& copy_;  // this rank's
    GradientRoute route_;
    trace::Traffic traffic_;
    std::uint64_t network_sent_bytes_ = 0;  // by this rank, in steps
    model::ComputeDevice compute_device_;
    std::optional<GpuShare> gpu_;
    model::NetworkTraffic step_traffic_;           // of all steps
    memory::Buffer vector_;                        // the padded parameter vector
    memory::PinnedRange pinned_;                   // the vector, where a GPU reads it
    std::optional<nccl::Watchdog> nccl_watchdog_;  // of all exchanges between GPUs
    std::optional<ParameterGpu> parameter_gpu_;
    std::unique_ptr<model::Network> network_;
    std::optional<GradientGpu> gradient_gpu_;
    std::vector<std::size_t> block_tiles_end_;  // of what each block reads
    csd::StateCommit log_;                      // used by the pipeline's updates
    Team team_{team_threads()};                 // used by the pipeline
    std::unique_ptr<offload::StepPipeline> pipeline_;
    std::optional<offload::ParameterWindow> window_;  // where parameters are spread over all ranks
    std::optional<StepUnderWay> under_way_;
    // What the reports so far hold of the counters; and of parameters that the next step brought
    // before the one under way ended.
    trace::TrafficSnapshot counted_;
    trace::TrafficSnapshot brought_;
    codec::DeltaTally counted_deltas_;
    double commit_seconds_ = 0;
    store::Lineage line_;
    std::string state_;                // see store::Manifest::state
    std::string replaced_;             // see store::Manifest::replaces
    std::string data_;                 // digest of the text that is trained on
    int set_;                          // of the state files' names
    std::vector<std::string> places_;  // see store::Manifest::places
    LossScale loss_scale_;
    // With delayed clipping: of the last step that was not skipped, without loss scale; 0: of none.
    double clipping_norm_ = 0;
    std::int64_t steps_done_ = 0;
    // This rank's rows of the global batch, and the tokens drawn for them.
    std::int64_t first_row_ = 0;
    int rows_ = 0;
    std::vector<std::int32_t> tokens_;
    std::vector<std::int32_t> targets_;
    // fp32 state of one subgroup, for start, save and restore.
    std::vector<float> master_;
    std::vector<float> moment1_;
    std::vector<float> moment2_;
};

// The settings that fix the parameter vector and, unless tokens are bytes, the tokenizer, as one
// line: a checkpoint fits a run if they are equal.
std::string model_line(const config::ModelSettings& settings, const data::Tokenizer& tokenizer);

}  // namespace nearstep::train
