// The validated settings of one run. One struct per section of the TOML file.
#pragma once

#include "base/dtype.hpp"
#include "config/engine_settings.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace nearstep::config {

struct ModelSettings {
    ModelFamily architecture = ModelFamily::gpt;
    int layers = 4;
    int heads = 4;
    int kv_heads = 0;  // of keys and values; 0: as many as heads
    int width = 256;
    int hidden = 0;  // width of a layer's hidden vectors; 0: see hidden_width()
    int context = 256;
    int positions = 0;  // most positions that the model is made for; 0: context
    int vocabulary = 256;
    bool tied = true;  // the output layer uses the embedding's weights
    bool qkv_bias = false;
    double norm_epsilon = 1e-5;
    double rope_theta = 10000;
    std::string rope_scaling = {};  // JSON as in a published config.json; empty: none
    // The token ids and generation settings of a published model's files, for exports. Both are
    // JSON and may be empty.
    std::string token_ids = {};          // the ..._token_id of its config.json
    std::string generation_config = {};  // its generation_config.json
    std::string from = {};  // safetensors with start values; empty: random start values
    Dtype dtype =
        Dtype::bf16;  // of the parameters that the model computes with, and of dense gradients
    Processor device = Processor::automatic;  // where the model computes
    ProductFormat compute = ProductFormat::automatic;
    double gpu_memory_gb = 0;  // most that a rank takes of its GPU; 0: all that is free
    Activations activations = Activations::automatic;

    bool is_llama() const { return architecture == ModelFamily::llama; }
    int key_heads() const { return kv_heads > 0 ? kv_heads : heads; }
    int key_width() const { return width / heads * key_heads(); }
    int most_positions() const { return positions > 0 ? positions : context; }
    // Returns the hidden width: by default 4 times the width for gpt; for llama two thirds of that,
    // up to a multiple of 256.
    int hidden_width() const {
        const int of_llama = (8 * width / 3 + 255) / 256 * 256;
        return hidden > 0 ? hidden : is_llama() ? of_llama : 4 * width;
    }
    // Parameters that are only looked up, never multiplied.
    std::size_t looked_up() const {
        return tied ? 0 : static_cast<std::size_t>(vocabulary) * static_cast<std::size_t>(width);
    }
};

struct DataSettings {
    std::vector<std::string> train;  // files or folders, or a token file
    std::vector<std::string> valid;  // empty: the last valid_share of train
    double valid_share = 0.05;
};

struct TrainSettings {
    std::int64_t steps = 100;
    std::int64_t stop_at = 0;  // 0: do not stop early
    std::uint64_t seed = 1;
    int global_batch = 16;  // sequences per step, over all ranks
    int micro_batch = 4;    // sequences that one rank computes at once
    arith::Optimizer optimizer = arith::Optimizer::adamw;
    double learning_rate = 1e-3;
    double final_rate_share = 0.1;  // of learning_rate, at the end of the cosine schedule
    std::int64_t warmup_steps = 10;
    double beta1 = 0.9;
    double beta2 = 0.95;
    double epsilon = 1e-8;
    double weight_decay = 0.1;
    Decay decay = Decay::all;
    double clip_norm = 1.0;  // 0: no clipping
    Clipping clipping = Clipping::exact;
    double loss_scale = 65536;               // fp16: the initial scale; other formats use 1
    std::int64_t scale_growth_steps = 1000;  // fp16: good steps before the scale doubles
    std::int64_t evaluate_every = 0;         // steps; 0: only at the end
    int evaluate_batches = 8;  // held-out micro-batches over all ranks, at least one per rank
};

// Where the ranks run; read by the launchers.
struct HostsSettings {
    std::vector<std::string> names;    // empty: only this machine
    std::vector<std::string> storage;  // hosts of one storage rank each
    int ranks = 0;                     // most per host; 0: one, or any number on this machine
    int devices = 0;                   // computational storage devices per host; 0: by csd.per_rank
    int cores_per_rank = 0;            // 0: not bound, ranks share the cores
    std::string interface;             // empty: the system's choice
    std::string remote = "ssh";        // program that runs a command line on a host
    std::string head;                  // host that starts the ranks; empty: where the launcher runs
    std::vector<std::string> mpirun_options;
    std::vector<std::string> sbatch_options;
    std::vector<std::string> storage_sbatch_options;  // of the storage hosts
};

// Facts about a site that `nearstep plan` must know besides its links; 0 means unknown or no limit.
struct PlanSettings {
    double gpu_tflops = 0;
    double gpu_efficiency = 0.4;
    double gpu_memory_gb = 0;
    double gpu_memory_gb_s = 0;
    double gpu_link_gb_s = 0;
    double gpu_to_gpu_gb_s = 0;
    double host_memory_gb = 0;
    double host_memory_gb_s = 0;
    double device_memory_gb = 0;
    double device_memory_gb_s = 0;
    double device_link_gb_s = 0;
    double device_capacity_gb = 0;
    double network_latency_us = 5;
    double bulk_loss = 0;
    double layer_loss = 0;
    double delta_bytes = 0.35;
    double node_price = 0;
    double storage_node_price = 0;  // 0: as node_price
    double gpu_price = 0;
    double csd_price = 0;
    double ssd_price = 0;
    std::string calibration;  // file with measured rates; empty: none
};

struct RunSettings : EngineSettings {
    ModelSettings model;
    DataSettings data;
    TrainSettings train;
    PlanSettings plan;
    HostsSettings hosts;
    std::string name;  // file name of the config without .toml
};

}  // namespace nearstep::config
