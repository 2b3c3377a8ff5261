// The table of keys: names, limits and targets. Used by load.cpp.
#include "config/keys.hpp"

#include "config/card_keys.hpp"
#include "config/site_keys.hpp"

#include <iterator>
#include <utility>

namespace nearstep::config {

namespace {

std::vector<Key> model_keys(ModelSettings& model) {
    return {
        {.name = "model.architecture",
         .target = &model.architecture,
         .meaning = "network: GPT-2, or Llama and Qwen2",
         .words = {"gpt", "llama"}},
        {.name = "model.layers",
         .target = &model.layers,
         .unit = "blocks",
         .meaning = "transformer blocks",
         .limits = between(1, kMostLayers)},
        {.name = "model.heads",
         .target = &model.heads,
         .unit = "heads",
         .meaning = "attention heads; must divide the width",
         .limits = between(1, kMostWidth)},
        {.name = "model.kv_heads",
         .target = &model.kv_heads,
         .unit = "heads",
         .meaning =
             "heads of keys and values, each for several attention heads (llama); 0: as many "
             "as model.heads",
         .limits = between(0, kMostWidth)},
        {.name = "model.width",
         .target = &model.width,
         .unit = "elements",
         .meaning = "elements of a token's vector",
         .limits = between(1, kMostWidth)},
        {.name = "model.hidden",
         .target = &model.hidden,
         .unit = "elements",
         .meaning = "elements of a layer's hidden vectors; 0: 4 times the width, or 8/3 of it "
                    "rounded up to a multiple of 256 (llama)",
         .limits = between(0, kMostHidden)},
        {.name = "model.context",
         .target = &model.context,
         .unit = "tokens",
         .meaning = "tokens of a sequence; if model.positions is set, that is the default",
         .limits = between(1, kMostContext)},
        {.name = "model.positions",
         .target = &model.positions,
         .unit = "tokens",
         .meaning =
             "positions that the model is made for, which may be more than model.context; 0: "
             "model.context",
         .limits = between(0, kMostContext)},
        {.name = "model.vocabulary",
         .target = &model.vocabulary,
         .unit = "tokens",
         .meaning = "size of the vocabulary; at least that of data.train",
         .limits = between(256, kMostWords)},
        {.name = "model.from",
         .target = &model.from,
         .meaning = "folder of a published model, with config.json and safetensors: start values, "
                    "and the architecture and sizes that the config does not set; or one file of "
                    "safetensors; empty: random start values",
         .may_be_empty = true},
    };
}

std::vector<Key> layer_keys(ModelSettings& model) {
    return {
        {.name = "model.tied",
         .target = &model.tied,
         .meaning = "the output layer shares the embedding's weights"},
        {.name = "model.qkv_bias",
         .target = &model.qkv_bias,
         .meaning = "queries, keys and values have biases, as in Qwen2 (llama)"},
        {.name = "model.norm_epsilon",
         .target = &model.norm_epsilon,
         .meaning = "added to the variance in norms",
         .limits = above_zero()},
        {.name = "model.rope_theta",
         .target = &model.rope_theta,
         .meaning = "base of the wavelengths of rotary positions (llama)",
         .limits = {.lowest = 1, .excludes_lowest = true}},
        {.name = "model.rope_scaling",
         .target = &model.rope_scaling,
         .meaning = "scaling of rotary positions for long contexts (llama): rope_scaling of a "
                    "config.json, in JSON; rope_type linear, dynamic, llama3 or yarn; empty: none",
         .may_be_empty = true,
         .may_have_lines = true},
        {.name = "model.token_ids",
         .target = &model.token_ids,
         .meaning = "bos_token_id, eos_token_id and the like of an exported config.json, in JSON, "
                    "by default those of model.from; empty: none",
         .may_be_empty = true,
         .may_have_lines = true},
        {.name = "model.generation_config",
         .target = &model.generation_config,
         .meaning =
             "an exported generation_config.json, by default that of model.from; empty: none",
         .may_be_empty = true,
         .may_have_lines = true},
    };
}

// Where the model computes, and in which formats.
std::vector<Key> compute_keys(ModelSettings& model) {
    return {
        {.name = "model.dtype",
         .target = &model.dtype,
         .meaning = "format of parameters in memory and of dense gradients",
         .words = {"fp32", "bf16", "fp16"}},
        {.name = "model.device",
         .target = &model.device,
         .meaning = "where the model computes; auto: on a GPU if PyTorch finds one",
         .words = {"auto", "cpu", "cuda"},
         .is_for_sites = true},
        {.name = "model.compute",
         .target = &model.compute,
         .meaning = "format of matrix products",
         .words = {"auto", "bf16", "fp32"}},
        {.name = "model.gpu_memory_gb",
         .target = &model.gpu_memory_gb,
         .unit = "GB",
         .meaning = "limit of a rank's GPU memory; parameters that do not fit are streamed block "
                    "by block; 0: all free memory",
         .limits = not_negative(),
         .is_for_sites = true},
        {.name = "model.activations",
         .target = &model.activations,
         .meaning = "what is kept for backward; all: what it needs of every layer; gpu, host: only "
                    "block inputs, there, and backward computes forward again; auto: what it needs "
                    "of as many layers as fit, else block inputs where fewer bytes move",
         .words = {"auto", "all", "gpu", "host"},
         .is_for_sites = true},
    };
}

std::vector<Key> data_keys(DataSettings& data) {
    return {
        {.name = "data.train",
         .target = &data.train,
         .meaning = "files or folders of text, read as bytes, or one token file of "
                    "nearstep-tokenize; required",
         .may_be_empty = true},
        {.name = "data.valid",
         .target = &data.valid,
         .meaning = "held-out text or token file; empty: the end of data.train",
         .may_be_empty = true},
        {.name = "data.valid_share",
         .target = &data.valid_share,
         .unit = "share",
         .meaning = "share of data.train that is held out if data.valid is empty",
         .limits = below_one()},
    };
}

std::vector<Key> length_keys(TrainSettings& train) {
    return {
        {.name = "train.steps",
         .target = &train.steps,
         .unit = "steps",
         .meaning = "optimizer steps of the schedule",
         .limits = between(1, kMostSteps)},
        {.name = "train.stop_at",
         .target = &train.stop_at,
         .unit = "steps",
         .meaning =
             "stop after this step as if interrupted, without a change of the schedule; 0: never",
         .limits = between(0, kMostSteps)},
        {.name = "train.seed",
         .target = &train.seed,
         .meaning = "seed of start values, data order and stochastic rounding",
         .limits = not_negative()},
        {.name = "train.global_batch",
         .target = &train.global_batch,
         .unit = "sequences",
         .meaning = "sequences of a step, over all ranks",
         .limits = between(1, kMostRows)},
        {.name = "train.micro_batch",
         .target = &train.micro_batch,
         .unit = "sequences",
         .meaning = "sequences that a rank computes at once",
         .limits = between(1, kMostRows)},
        {.name = "train.evaluate_every",
         .target = &train.evaluate_every,
         .unit = "steps",
         .meaning = "steps between evaluations; 0: only at the end",
         .limits = between(0, kMostSteps)},
        {.name = "train.evaluate_batches",
         .target = &train.evaluate_batches,
         .unit = "batches",
         .meaning = "micro-batches of held-out text per evaluation, over all ranks",
         .limits = between(1, kMostRows)},
    };
}

std::vector<Key> optimizer_keys(TrainSettings& train) {
    return {
        {.name = "train.optimizer",
         .target = &train.optimizer,
         .meaning = "update rule; sgd has momentum",
         .words = {"adamw", "adam", "sgd", "adagrad", "lion"}},
        {.name = "train.learning_rate",
         .target = &train.learning_rate,
         .meaning = "highest learning rate, after the warm-up",
         .limits = above_zero()},
        {.name = "train.final_rate_share",
         .target = &train.final_rate_share,
         .meaning = "learning rate at the end of the cosine, as a share of train.learning_rate",
         .limits = zero_to_one()},
        {.name = "train.warmup_steps",
         .target = &train.warmup_steps,
         .unit = "steps",
         .meaning = "steps in which the learning rate rises",
         .limits = between(0, kMostSteps)},
        {.name = "train.beta1",
         .target = &train.beta1,
         .meaning = "decay of the first moment; momentum of sgd; unused by adagrad",
         .limits = below_one()},
        {.name = "train.beta2",
         .target = &train.beta2,
         .meaning =
             "decay of the second moment, or of lion's only moment; unused by sgd and adagrad",
         .limits = below_one()},
        {.name = "train.epsilon",
         .target = &train.epsilon,
         .meaning = "added to the root of the second moment by adamw, adam and adagrad",
         .limits = above_zero()},
        {.name = "train.weight_decay",
         .target = &train.weight_decay,
         .meaning = "decoupled in adamw and lion; added to the gradient in adam, sgd and adagrad",
         .limits = not_negative()},
        {.name = "train.decay",
         .target = &train.decay,
         .meaning = "parameters with weight decay; matrices: only tensors of two or more "
                    "dimensions, not biases and norms",
         .words = {"all", "matrices"}},
    };
}

std::vector<Key> gradient_scale_keys(TrainSettings& train) {
    return {
        {.name = "train.clip_norm",
         .target = &train.clip_norm,
         .meaning = "largest norm of the gradient; 0: no clipping",
         .limits = not_negative()},
        {.name = "train.clipping",
         .target = &train.clipping,
         .meaning = "exact: clip by the step's own norm, which backward guesses to begin updates "
                    "early; delayed: clip by the norm of the previous step",
         .words = {"exact", "delayed"}},
        {.name = "train.loss_scale",
         .target = &train.loss_scale,
         .meaning = "first loss scale; only with model.dtype fp16",
         .limits = between(1, kMostScale)},
        {.name = "train.scale_growth_steps",
         .target = &train.scale_growth_steps,
         .unit = "steps",
         .meaning = "finite steps before the loss scale doubles; only with model.dtype fp16",
         .limits = between(1, kMostSteps)},
    };
}

std::vector<Key> device_keys(CsdSettings& csd) {
    return {
        {.name = "csd.device",
         .target = &csd.device,
         .meaning = "kind of computational storage device",
         .words = {"emulated", "xrt"},
         .is_for_sites = true},
        {.name = "csd.per_rank",
         .target = &csd.per_rank,
         .unit = "devices",
         .meaning = "devices of every rank, or a list with one entry per rank",
         .limits = between(0, kMostDevices),
         .is_for_sites = true},
        {.name = "csd.path",
         .target = &csd.path,
         .meaning = "folders for state files; device i of a rank uses the i-th, starting over at "
                    "the end of the list",
         .is_for_sites = true},
        {.name = "csd.speed",
         .target = &csd.speed,
         .unit = "relative",
         .meaning = "relative speed of every device, or a list with one entry per device of all "
                    "ranks; a device has so large a part of the state; "
                    "auto: measured at start, so that all devices end a step together",
         .limits = above_zero(),
         .words = {"auto"},
         .is_for_sites = true},
        {.name = "csd.memory_gb",
         .target = &csd.memory_gb,
         .unit = "GB",
         .meaning = "part of each rank's state files that lies in /dev/shm; it survives a killed "
                    "process, but no reboot; not in mode base",
         .limits = not_negative(),
         .is_for_sites = true},
    };
}

std::vector<Key> state_keys(CsdSettings& csd) {
    return {
        {.name = "csd.subgroup_tiles",
         .target = &csd.subgroup_tiles,
         .unit = "tiles",
         .meaning = "tiles of 65536 parameters that are read, updated and written together",
         .limits = between(1, kMostTiles)},
        {.name = "csd.slots",
         .target = &csd.slots,
         .unit = "slots",
         .meaning =
             "staging buffers of a device, at least 3; each holds one subgroup, and all but "
             "one are filled during backward. 0: as many as fit an eighth of the node's free "
             "memory, but at least 4; of these all but 8, or from 32 on all but a quarter, keep "
             "their state from step to step, and all do if the whole state fits; state in "
             "/dev/shm needs none. "
             "For state that a GPU updates: an eighth of the GPU's free memory",
         .limits = between(0, kMostSlots),
         .is_for_sites = true},
        {.name = "csd.state",
         .target = &csd.state,
         .meaning =
             "format of masters and moments in storage: 12, 8, 6.03 or 4.03 bytes per parameter",
         .words = {"fp32", "bf16", "q8", "compact"}},
        {.name = "csd.durability",
         .target = &csd.durability,
         .meaning = "what survives a crash: every step, checkpoints only, or nothing",
         .words = {"step", "checkpoint", "none"}},
        {.name = "csd.io",
         .target = &csd.io,
         .meaning = "how state moves; auto: mapped if it lies in memory (/dev/shm), else by "
                    "io_uring, or by threads if io_uring is refused",
         .words = {"auto", "io_uring", "threads"},
         .is_for_sites = true},
        {.name = "csd.where",
         .target = &csd.where,
         .meaning = "where state that lies in memory is updated; auto: by the host and by the "
                    "rank's GPU, if it has one; host: by the host alone; the bits are the same",
         .words = {"auto", "host"}},
    };
}

// Speed and endurance of a device's parts.
std::vector<Key> part_keys(CsdSettings& csd) {
    return {
        {.name = "csd.update_mparam_s",
         .target = &csd.update_mparam_s,
         .unit = "Mparam/s",
         .meaning =
             "highest update rate of a device, before link.scale; not in mode base; 0: no limit",
         .limits = not_negative(),
         .is_for_sites = true},
        {.name = "csd.rated_tbw",
         .target = &csd.rated_tbw,
         .unit = "TB",
         .meaning = "rated lifetime writes of a device's drive; 0: unknown",
         .limits = not_negative(),
         .is_for_sites = true},
    };
}

std::vector<Key> codec_keys(CompressSettings& compress, GatherSettings& gather) {
    return {
        {.name = "compress.codec",
         .target = &compress.codec,
         .meaning = "codec of gradients; all except dense need mode su+o+c; auto: q4 in that mode, "
                    "else dense",
         .words = {"auto", "dense", "topk", "q8", "q4"},
         .removed_words = {{"ternary", "q4"}, {"sign", "q4"}}},
        {.name = "compress.keep",
         .target = &compress.keep,
         .unit = "share",
         .meaning = "share of a gradient's elements that topk keeps",
         .limits = above_zero_to_one()},
        {.name = "compress.error_feedback",
         .target = &compress.error_feedback,
         .meaning = "add the error of encoding to the next gradient; not with csd.durability step"},
        {.name = "compress.rounding",
         .target = &compress.rounding,
         .meaning = "rounding of the codes of q8 and q4; stochastic: unbiased",
         .words = {"nearest", "stochastic"}},
        {.name = "compress.where",
         .target = &compress.where,
         .meaning = "where gradients are encoded; auto: on the GPU if gradients are there, if "
                    "other ranks' gradients arrive there by NCCL and if there is no error feedback",
         .words = {"auto", "host"}},
        {.name = "compress.warmup_steps",
         .target = &compress.warmup_steps,
         .unit = "steps",
         .meaning = "first steps, with dense gradients",
         .limits = between(0, kMostSteps)},
        {.name = "gather.codec",
         .target = &gather.codec,
         .meaning = "send new parameters whole, or only their changes; the result is the same",
         .words = {"dense", "delta"}},
    };
}

// parse() replaces "auto" by one of the other words.
std::vector<Key> placement_keys(PlacementSettings& placement) {
    const auto key = [](const char* name, std::string* target, const char* meaning) {
        return Key{.name = name,
                   .target = target,
                   .meaning = meaning,
                   .words = {"replicated", "node", "global", "auto"}};
    };
    return {
        key("placement.parameters", &placement.parameters,
            "one copy of the 16-bit parameters per rank, per node or over all ranks"),
        key("placement.gradients", &placement.gradients,
            "dense gradients are summed before encoding: not at all, over each node or over all "
            "ranks"),
        key("placement.optimizer", &placement.optimizer,
            "one copy of the optimizer state on the devices of each rank, of each node or of all "
            "ranks"),
    };
}

std::vector<Key> operation_keys(Run& run) {
    return {
        {.name = "checkpoint.path",
         .target = &run.checkpoint.path,
         .meaning =
             "folder for checkpoints, which runs may share; empty: folder checkpoints in the "
             "first csd.path",
         .may_be_empty = true,
         .is_for_sites = true},
        {.name = "checkpoint.every",
         .target = &run.checkpoint.every,
         .unit = "steps",
         .meaning = "steps between checkpoints; 0: only at the end and where train.stop_at stops",
         .limits = between(0, kMostSteps)},
        {.name = "exchange.scatter",
         .target = &run.exchange.scatter,
         .meaning = "hierarchical: sum gradients over each node first, then between nodes; flat: "
                    "all at once, as with placement.gradients = \"replicated\"",
         .words = {"hierarchical", "flat"}},
        {.name = "exchange.densify",
         .target = &run.exchange.densify,
         .meaning = "owners send their devices one dense sum instead of all payloads; auto: if "
                    "that is fewer bytes",
         .words = {"auto", "always", "never"}},
        {.name = "exchange.transport",
         .target = &run.exchange.transport,
         .meaning = "gradients and parameters between GPUs by NCCL, or through host memory by MPI; "
                    "auto: nccl if every rank has its own GPU",
         .words = {"auto", "mpi", "nccl"}},
        {.name = "exchange.ranks_per_node",
         .target = &run.exchange.ranks_per_node,
         .meaning = "consecutive ranks that count as one node, to try placements on one machine; "
                    "0: ranks that share memory",
         .limits = between(0, kMostRanks)},
        {.name = "exchange.timeout_s",
         .target = &run.exchange.timeout_s,
         .unit = "s",
         .meaning = "longest wait for other ranks; 10 times as long where a rank may have more to "
                    "do than others, as in a checkpoint or an evaluation by one rank",
         .limits = between(1, kMostSeconds)},
        {.name = "site.name",
         .target = &run.site,
         .meaning = "name of the machine or cluster; a site file sets it",
         .is_for_sites = true},
    };
}

}  // namespace

std::vector<Key> keys_of(Run& run) {
    std::vector<Key> keys = {
        {.name = "name",
         .target = &run.name,
         .meaning = "name of the run; default: the config's file name",
         .may_be_empty = true},
        {.name = "mode",
         .target = &run.mode,
         .meaning = "where the update runs and what crosses the host link",
         .words = {"base", "su", "su+o", "su+o+c"}},
    };
    for (std::vector<Key> section :
         {model_keys(run.model), layer_keys(run.model), compute_keys(run.model),
          data_keys(run.data), length_keys(run.train), optimizer_keys(run.train),
          gradient_scale_keys(run.train), device_keys(run.csd), state_keys(run.csd),
          card_keys(run.csd), part_keys(run.csd), link_keys(run.link), plan_node_keys(run.plan),
          plan_rate_keys(run.plan), codec_keys(run.compress, run.gather),
          placement_keys(run.placement), hosts_keys(run.hosts), operation_keys(run)}) {
        std::move(section.begin(), section.end(), std::back_inserter(keys));
    }
    return keys;
}

}  // namespace nearstep::config
