// A run's reports: the table of bytes on each link, and the machine-readable summary.
#pragma once

#include "config/run.hpp"
#include "plan/calibration.hpp"
#include "trace/traffic.hpp"
#include "train/endurance.hpp"
#include "train/gpu_share.hpp"
#include "train/speed_of_light.hpp"
#include "train/timeline_file.hpp"
#include "train/trainer.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace nearstep::train {

// Bytes per parameter and step.
double bytes_per_parameter(const trace::TrafficSnapshot& traffic, trace::Counter counter,
                           std::size_t parameters, std::size_t steps);

trace::TrafficSnapshot total_traffic(const std::vector<StepReport>& steps);

// Before the first step: time to find what to resume from, and to read or write the state.
struct StartSeconds {
    double search = 0;
    double begin = 0;
};

// All measurements of a run, for the steps of this process only.
struct RunRecord {
    config::Run run;
    int ranks = 0;
    engine::EngineFacts facts = {};  // rank 0's
    std::size_t vector_bytes = 0;    // a rank's parameter vector, between steps
    std::size_t parameters = 0;
    std::vector<StepReport> steps = {};
    StartSeconds start = {};
    double seconds = 0;         // of all steps, commits included
    double commit_seconds = 0;  // of all commits
    std::optional<HeldOutLoss> heldout_loss = {};
    Endurance endurance = {};
    std::optional<std::uint64_t> masters_digest = {};
    std::string checkpoint = {};  // path of the last index; empty: none was written
    // Bytes that each rank sent to other nodes in all steps; empty: not measured.
    std::vector<std::uint64_t> network_sent_bytes = {};
    std::optional<LaneShares> lanes = {};       // of a run with a timeline
    std::optional<GpuReport> gpu = {};          // none: the model ran on the CPU
    std::optional<PhaseSeconds> expected = {};  // modelled from the links alone, see prediction.hpp
    plan::Calibration calibration = {};         // measured rates behind `expected`
    std::optional<SpeedOfLight> light = {};     // of train(); compare() has none
};

// The keys of --json:
// - commit, config, site, ranks, nodes, devices, parameters, steps, first_step, start_s {search,
// begin}, seconds, tokens_per_s, train_loss (last step), heldout_loss (nats per token),
// heldout_nats_per_byte, heldout_bits_per_byte, losses, skipped_steps, clip_guesses, clip_misses
// (wrong guesses, see engine::Guess), masters_xxh3, checkpoint, mode;
// - endurance {written_bytes, written_bytes_per_step (per device), rated_tbw, days_to_rated_tbw},
// network_sent_bytes (per rank, all steps);
// - compress {codec, where (rank 0: gpu or host), rounding, error_feedback, warmup_steps,
// kept_share_of_elements, payload_bytes_per_parameter, volume_share_of_dense};
// - transport (of dense gradients inside nodes) and payload_transport (between nodes): nccl, mpi or
// null; parameter_transport (inside nodes, to GPUs): nccl, host or null;
// - per step: phases_s {forward, backward, update, hidden, commit} (means), modelled_s {gradients,
// update, calibration (lines)} if the site gives rates, bytes_per_parameter {host_link,
// device_internal, network, node}, shared_links (see shared_links.hpp);
// - placement {parameters, gradients, optimizer, copies, dense_sums, vector_bytes},
// formula_bytes_per_parameter (see link_formulas.hpp);
// - with --trace: lanes {compute, copy, exchange, device read, engine, device write, together}, in
// seconds of work per second and rank;
// - speed_of_light {share (of the mean step; null: unknown), bound (compute, storage or null),
// compute_s, storage_s (least per step), operations_per_s, state_bytes_per_s (of all ranks; 0:
// unknown)}, of `train` only: see speed_of_light.hpp;
// - model_operations_per_token (see model/gpu_peak.hpp); on GPUs gpu {name, ranks_per_gpu,
// peak_tflops, most_bytes, most_tensor_bytes (rank that used most), step_bytes {parameters,
// inputs} (rank 0's link), plan {...} (rank 0)}; with a peak (plan.gpu_tflops or a table)
// model_flop_utilisation;
// - with shaped links: links {device_read_gb_s, device_write_gb_s, host_gb_s, host_total_gb_s,
// network_gb_s, scale};
// - with gather.codec = "delta": deltas {dense, bitmap, units, codes, list}, each with tile_share
// and bytes_per_parameter.
nlohmann::json to_json(const RunRecord& record);

// "gradients: topk, keeps 1 % of the elements in a volume of 0.04004 bytes per parameter, ...".
std::string describe_gradients(const config::Run& run, double payload_bytes_per_parameter);

// Of all steps; 0 without one.
double tokens_per_second(const RunRecord& record);

// One step as a line of --metrics.
nlohmann::json to_json(const StepReport& report, std::size_t parameters);

// One line per record: bytes per step on the host link in units of M = 2 bytes per parameter,
// beside the paper's Table I; bytes per parameter on other links; shared links beside the paper's
// methods.
std::string traffic_table(const std::vector<RunRecord>& records);

// A sentence on how many updates began on a guess; empty if none did.
std::string describe_guesses(const RunRecord& record);

// "parameters by deltas: 0.301 bytes each; dense 0 % of the tiles with 0 bytes per parameter, ...":
// of all steps; empty if the run has no deltas.
std::string describe_deltas(const RunRecord& record);

// "GPU NVIDIA H200: ...": memory used, bytes moved, utilisation; empty on the CPU.
std::string describe_gpu(const RunRecord& record);

// A step's means beside the expected times; empty if nothing is expected.
std::string describe_expected(const RunRecord& record);

}  // namespace nearstep::train
