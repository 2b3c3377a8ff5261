// The engine that keeps its state on computational storage devices.
#pragma once

#include "base/executor.hpp"
#include "base/fault_point.hpp"
#include "checkpoint/checkpoint.hpp"
#include "csd/state_commit.hpp"
#include "engine/clip_guess.hpp"
#include "engine/engine.hpp"
#include "engine/loss_scale.hpp"
#include "engine/placement/devices.hpp"
#include "engine/restart/start.hpp"
#include "engine/route/gpu_traffic.hpp"
#include "engine/route/gpu_transport.hpp"
#include "engine/route/gradient_route.hpp"
#include "engine/route/held_gradients.hpp"
#include "engine/scalar_sets.hpp"
#include "engine/state/other_layout.hpp"
#include "engine/state/parameter_reader.hpp"
#include "engine/state/parameter_vector.hpp"
#include "engine/state/subgroup_workers.hpp"
#include "link/clock.hpp"
#include "link/node_links.hpp"
#include "memory/buffer.hpp"
#include "memory/gpu.hpp"
#include "mpi/topology.hpp"
#include "offload/step_pipeline.hpp"
#include "store/manifest.hpp"
#include "store/storage.hpp"

#include <set>

namespace nearstep::engine {

class StorageEngine final : public Engine {
public:
    // Opens and locks the state files without changing them.
    StorageEngine(const mpi::Communicator& world, const Start& start, const Layout& layout,
                  Identity identity, const EngineOptions& options);

    // Does what was decided, except that a fresh start has no values yet. If it throws, what was
    // durable before still is.
    BeginReport begin(const Start& start);
    // After the begin() of a fresh start: writes start values of all parameters as generation 0.
    void fill(const Start& start, const Fill& fill);
    StateTransfer first_transfer() const override;
    std::span<const std::byte> parameters() const override { return vector_.span(); }
    void read_parameters(shard::ElementRange range, std::span<std::byte> to) const override {
        reader_->read(range, to);
    }
    void drop_parameters(shard::ElementRange range) override;
    void abandon_step() override;
    memory::Buffer release_parameters() override { return std::move(vector_); }
    feed::JointCopy joint_copy() override { return gpu_transport_->joint(); }
    void begin_forward() override;
    void await_parameters(std::size_t block, std::span<const shard::ElementRange> now,
                          std::span<const shard::ElementRange> later) override;
    std::size_t final_end(std::size_t block) const override;
    void hold_parameters() override;
    void end_pass() override;
    void expect_backward() override;
    void begin_backward(const Step& step) override;
    std::span<float> gradient_space(std::size_t block) override;
    void add_gradient(std::size_t block, std::span<const float> gradient) override;
    void put_gradient(std::size_t block) override;
    using Engine::end_gradients;
    GradientFacts end_gradients(const StepEnd& end) override;
    void update() override;
    bool is_under_way() const override { return pipeline_->stage() == offload::Stage::ending; }
    UpdateReport finish() override;
    void commit() override;
    void change_masters(const Change& change) override;
    void see_state(const See& see) override;
    std::vector<std::int64_t> updates() const override;
    std::int64_t steps_done() const override { return steps_done_; }
    double loss_scale() const override { return loss_scale_.value(); }
    double waited_seconds() const override { return pipeline_->waited_seconds(); }
    double commit_seconds() const override { return commit_seconds_; }
    const trace::RunFacts& facts() const override { return facts_; }
    const store::Lineage& line() const override { return line_; }
    std::string claim_checkpoint_folder(const std::string& folder) override;
    std::string save(const std::string& named) override;
    CheckpointTime expect_checkpoint(const std::string& folder) override;
    std::uint64_t masters_digest() override;
    std::vector<std::uint64_t> written_bytes() const override;
    std::vector<std::uint64_t> network_sent_bytes() const override;
    std::size_t vector_bytes() const override;

    // --- For begin(), in src/engine/restart/storage_engine_begin.cpp ---

    // Runs when all manifests name the new run and nothing is emptied yet; may be empty.
    using Claimed = std::function<void()>;

    // Empties the state files, which have space for all state from here on.
    void start_anew(const Claimed& claimed);
    // Empties the state files and fills them from the decision's checkpoint of the same model,
    // whatever its layout. If that fails while another state is kept, the files are removed again.
    void restore(const Decision& decision);
    // Reads and verifies the part of a checkpoint that this rank needs. Changes nothing.
    void verify(const std::string& index_path);
    // Continues from the state files at `commit`, which every rank lists. Reads and verifies
    // everything. If data is damaged, returns a sentence and changes nothing.
    std::optional<std::string> restore_state(const Decision& decision, const store::Commit& commit);
    // Fills the state files from those of another layout that hold `commit`. Returns a sentence if
    // those are damaged. If it throws, the new files are removed again.
    std::optional<std::string> restore_from(const Start& start, const store::Commit& commit);
    // Removes the files that this engine should have filled. The engine is unusable afterwards.
    void remove_state_files();
    // For a csd.durability other than "step": the manifests list no steps from here on, because the
    // next step will not be durable. Steps listed before must be in a checkpoint or given up.
    void forget_commits();

private:
    void make_groups();
    std::vector<std::unique_ptr<csd::Device>> own_devices(bool has_gpu, bool is_pinned);
    void make_pipeline();
    void make_facts();
    // Parameters of other ranks are here only while they are needed.
    bool computes() const {
        return world_.rank() < config::computing_ranks(settings_, world_.size());
    }
    bool has_parts() const { return kind_ == offload::VectorKind::parts; }
    void make_reader();
    void go_on_from(std::int64_t generation);
    bool must_guess() const;
    std::optional<double> early_factor() const;
    double factor() const;
    void judge_guess();
    bool waits_for_all_gradients() const;
    void put_complete_gradients();
    void send_gradient(std::size_t block);
    void read_ahead();
    void begin_update(double factor);
    void begin_right_update();
    void leave_out(const std::vector<std::size_t>& skipped);
    void use_scalars();
    bool takes_place() const { return gradients_.is_finite && !gradients_.is_given_up; }
    void skip_update();
    void load_last_parameters();
    void count_from_here();
    void finish_step();
    void keep_norm(double norm) { last_norm_ = options_.clips_by_last_norm ? norm : 0; }
    void harm_gradient(std::span<float> gradient);
    void wait_for_update();
    void prepare_commit();
    void save_residual(checkpoint::RankFileWriter& writer);
    // Throws ConfigError if the checkpoint is damaged or not of this parameter vector.
    std::unique_ptr<checkpoint::Reader> open_checkpoint(const std::string& index_path) const;
    // Whether the model has tensors that missed these updates.
    bool fits(const store::MissedUpdates& missed) const {
        return missed.size() <= layout_.tensors.size();
    }
    void restore_residual(checkpoint::Reader& reader);
    store::Manifest manifest() const;
    store::Commit position() const;
    std::string draw_id() const;
    void choose_line(const Decision& decision, const Writer& writer, std::int64_t step);
    void empty_state_files(const std::string& replaced, const Claimed& claimed = {});
    void list_what_was_filled();
    void replace_runs(const Found& found);
    void fill_from(checkpoint::Reader& reader);
    std::optional<std::string> fill_from(OtherLayout& old, std::int64_t generation);
    void move_state(const SubgroupWorkers::Stages& stages);
    void go_on_at(const store::Commit& position, const Writer& writer);
    checkpoint::Description describe() const;
    bool is_in_first_copy() const { return owners_.copy_of(world_.rank()) == 0; }
    void load_masters_into_vector(shard::TileRange tiles, std::span<const float> masters);

    const mpi::Communicator& world_;
    Placed settings_;
    Layout layout_;
    Identity identity_;
    EngineOptions options_;
    int set_;  // of the state files' names: Decision::set
    FaultPoints faults_;
    trace::Timeline* timeline_;
    std::unique_ptr<store::Storage> storage_;  // null: the operating system's
    link::Clock clock_;
    std::unique_ptr<link::NodeLinks> links_;  // null: no rate limits
    mpi::Topology nodes_;
    shard::Ownership owners_;
    const shard::Replica& copy_;  // this rank's
    GradientRoute route_;
    ParameterGroups parameters_;
    std::optional<GpuTraffic> gpu_traffic_;
    trace::Traffic traffic_;
    std::uint64_t network_sent_bytes_ = 0;  // by this rank, in steps
    offload::VectorKind kind_ = {};
    memory::Buffer vector_;       // the padded parameter vector
    memory::PinnedRange pinned_;  // pins the vector for a GPU
    std::optional<GpuTransport> gpu_transport_;
    csd::StateCommit log_;               // used by the pipeline's updates
    Executor pool_{pool_threads() - 1};  // used by the pipeline
    // Used by the devices. It leaves the CPU to the threads that compute or feed a GPU.
    Executor beside_{pool_threads(), Executor::Priority::background};
    std::unique_ptr<offload::StepPipeline> pipeline_;
    std::optional<ParameterReader> reader_;  // with ParameterHome::state
    std::optional<HeldGradients> held_;
    trace::RunFacts facts_;
    // Of the current step.
    Step step_;
    GradientFacts gradients_;
    double begun_factor_ = 1;  // of the update, if it has begun
    ClipGuess guess_;
    // Counters that were already reported, and traffic of parameters that the next step brought
    // before the step under way ended.
    trace::TrafficSnapshot counted_;
    trace::TrafficSnapshot brought_;
    codec::DeltaTally counted_deltas_;
    double commit_seconds_ = 0;
    store::Lineage line_;
    std::string state_;                    // see store::Manifest::state
    std::string replaced_;                 // see store::Manifest::replaces
    std::set<std::string> replaced_runs_;  // whose manifests this start has replaced
    std::vector<std::string> places_;      // see store::Manifest::places
    std::string threads_;                  // see store::Manifest::threads
    std::string threads_before_;           // of the steps that were resumed
    StateTransfer moved_;                  // by this rank, see first_transfer()
    LossScale loss_scale_;
    ScalarSets scalar_sets_;
    // With clips_by_last_norm: norm of the last step that was not skipped, without loss scale; 0:
    // none.
    double last_norm_ = 0;
    std::int64_t steps_done_ = 0;
    // fp32 state of one subgroup, for start, save and restore.
    std::vector<float> master_;
    std::vector<float> moment1_;
    std::vector<float> moment2_;
};

}  // namespace nearstep::engine
