// The machine-readable reports of a run: its summary, and a line per step.
#pragma once

#include "report/record.hpp"

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace nearstep::report {

// The keys of --json:
// - commit, config, site, ranks, nodes (that compute), storage_nodes, devices, parameters, steps,
// first_step, start_s {search, begin}, seconds, tokens_per_s, train_loss (last step), heldout_loss
// (nats per token), heldout_nats_per_byte, heldout_bits_per_byte, losses, skipped_steps,
// clip_guesses, clip_misses (wrong guesses, see trace::Guess), masters_xxh3, checkpoint, mode;
// - endurance {written_bytes, written_bytes_per_step (per device), rated_tbw, days_to_rated_tbw},
// network_sent_bytes (per rank, all steps); hosts [{host, ranks, network_sent_bytes, and in how
// many steps one of its ranks took 1.5 times the median (drives: of the first steps):
// slow_computed, slow_devices, slow_drives, slow_nccl, slow_sender}];
// - compress {codec, where (rank 0: gpu or host), rounding, error_feedback, warmup_steps,
// kept_share_of_elements, payload_bytes_per_parameter, volume_share_of_dense};
// - transport (of dense gradients inside nodes) and payload_transport (between nodes): nccl, mpi or
// null; parameter_transport (inside nodes, to GPUs): nccl, host or null;
// - per step: phases_s {forward, backward, update, hidden, commit} (means), modelled_s {gradients,
// update, calibration (lines)} if the site gives rates, bytes_per_parameter {host_link,
// device_internal, network, node}, shared_links (see traffic_report.hpp);
// - placement {parameters, gradients, optimizer, copies, dense_sums, vector_bytes},
// formula_bytes_per_parameter (see traffic_report.hpp);
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

// One step as a line of --metrics.
nlohmann::json to_json(const StepReport& report, std::size_t parameters);

// The text of a result. A byte that is not UTF-8, as in the name of an older folder, is replaced.
std::string text_of(const nlohmann::json& result, int indent = 2);

// The mean seconds of a step that both reports show: forward, backward, update, hidden.
PhaseSeconds mean_seconds(const std::vector<StepReport>& steps);

// Number of steps whose update began on a guess that was so.
std::int64_t guesses_in(const std::vector<StepReport>& steps, trace::Guess which);

// Share of the elements that the run's codec keeps, and of the bytes of dense gradients it takes.
double kept_share(const config::RunSettings& run);
double share_of_dense(const RunRecord& record);

// Share of the peak of all ranks' GPUs that the model's operations use; none if that is unknown.
std::optional<double> flop_utilisation(const RunRecord& record);

}  // namespace nearstep::report
