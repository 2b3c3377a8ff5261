// The table of keys: names, limits and targets. Used by load.cpp.
#include "config/keys.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

namespace nearstep::config {

namespace {

// Keys of earlier versions, and what to write instead, as a request.
struct Removed {
    std::string_view key;
    const char* instead;
};

constexpr std::array kRemoved = {
    Removed{"compress.where", "for \"host\", write exchange.transport = \"host\""},
    Removed{"csd.memory_gb", "write csd.tiers.memory"},
    Removed{"csd.run_timeout_s", "write exchange.timeout_s, of which a card has a quarter"},
    Removed{"csd.where", "for \"host\", write csd.device = \"host\""},
    Removed{"exchange.scatter",
            "for \"flat\", write placement.gradients = \"replicated\"; \"hierarchical\" is the "
            "default"},
    Removed{"link.shape", "for false, write link.scale = 0"},
    Removed{"plan.csds_per_node", "write hosts.devices, or leave it to csd.per_rank"},
    Removed{"plan.gpus_per_node", "write hosts.ranks"},
};

std::vector<Key> model_keys(ModelSettings& model) {
    return {
        {.name = "model.architecture",
         .target = &model.architecture,
         .meaning = "network: GPT-2, or Llama and Qwen2"},
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
         .meaning = "format of parameters in memory and of dense gradients"},
        {.name = "model.device",
         .target = &model.device,
         .meaning = "where the model computes; auto: on a GPU if PyTorch finds one",
         .place = KeyPlace::config_or_site},
        {.name = "model.compute", .target = &model.compute, .meaning = "format of matrix products"},
        {.name = "model.gpu_memory_gb",
         .target = &model.gpu_memory_gb,
         .unit = "GB",
         .meaning = "limit of a rank's GPU memory; parameters that do not fit are streamed block "
                    "by block; 0: all free memory",
         .limits = not_negative(),
         .place = KeyPlace::config_or_site},
        {.name = "model.activations",
         .target = &model.activations,
         .meaning = "what is kept for backward; all: what it needs of every layer; gpu, host: only "
                    "block inputs, there, and backward computes forward again; auto: what it needs "
                    "of as many layers as fit, else block inputs where fewer bytes move",
         .place = KeyPlace::config_or_site},
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
         .meaning = "update rule; sgd has momentum"},
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
             "the second beta: decay of the second moment if there is one; unused by sgd and "
             "adagrad",
         .limits = below_one()},
        {.name = "train.epsilon",
         .target = &train.epsilon,
         .meaning = "added to the root of the second moment by adamw, adam and adagrad",
         .limits = above_zero()},
        {.name = "train.weight_decay",
         .target = &train.weight_decay,
         .meaning = "added to the gradient in adam, sgd and adagrad; else decoupled",
         .limits = not_negative()},
        {.name = "train.decay",
         .target = &train.decay,
         .meaning = "parameters with weight decay; matrices: only tensors of two or more "
                    "dimensions, not biases and norms"},
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
                    "early; delayed: clip by the norm of the previous step"},
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

std::vector<Key> codec_keys(CompressSettings& compress, GatherSettings& gather) {
    return {
        {.name = "compress.codec",
         .target = &compress.codec,
         .meaning = "codec of gradients; all except dense need mode su+o+c; auto: q4 in that mode, "
                    "else dense",
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
         .meaning = "rounding of the codes of q8 and q4; stochastic: unbiased"},
        {.name = "compress.warmup_steps",
         .target = &compress.warmup_steps,
         .unit = "steps",
         .meaning = "first steps, with dense gradients",
         .limits = between(0, kMostSteps)},
        {.name = "gather.codec",
         .target = &gather.codec,
         .meaning = "send new parameters whole, or only their changes; the result is the same"},
    };
}

std::vector<Key> placement_keys(Placement& placement) {
    return {
        {.name = "placement.parameters",
         .target = &placement.parameters,
         .meaning = "as many consecutive ranks hold one copy of the 16-bit parameters together: "
                    "replicated (1), node, global (all), or a number",
         .limits = between(1, kMostRanks)},
        {.name = "placement.gradients",
         .target = &placement.gradients,
         .meaning = "dense gradients of as many consecutive ranks are summed before encoding: "
                    "replicated (1), node, global (all), or a number",
         .limits = between(1, kMostRanks)},
        {.name = "placement.optimizer",
         .target = &placement.optimizer,
         .meaning = "the devices of as many consecutive ranks hold one copy of the optimizer "
                    "state together: replicated (1), node, global (all), or a number",
         .limits = between(1, kMostRanks)},
    };
}

std::vector<Key> operation_keys(RunSettings& run) {
    return {
        {.name = "checkpoint.path",
         .target = &run.checkpoint.path,
         .meaning =
             "folder for checkpoints, which runs may share; empty: folder checkpoints in the "
             "first csd.path",
         .may_be_empty = true,
         .place = KeyPlace::config_or_site},
        {.name = "checkpoint.every",
         .target = &run.checkpoint.every,
         .unit = "steps",
         .meaning = "steps between checkpoints; 0: only at the end and where train.stop_at stops",
         .limits = between(0, kMostSteps)},
        {.name = "exchange.densify",
         .target = &run.exchange.densify,
         .meaning = "owners send their devices one dense sum instead of all payloads; auto: if "
                    "that is fewer bytes"},
        {.name = "exchange.transport",
         .target = &run.exchange.transport,
         .meaning = "gradients and parameters between GPUs by NCCL, or through host memory by MPI; "
                    "auto: nccl if every rank has its own GPU"},
        {.name = "exchange.ranks_per_node",
         .target = &run.exchange.ranks_per_node,
         .meaning = "consecutive ranks that count as one node, to try placements on one machine; "
                    "0: ranks that share memory",
         .limits = between(0, kMostRanks)},
        {.name = "exchange.timeout_s",
         .target = &run.exchange.timeout_s,
         .unit = "s",
         .meaning = "longest wait for other ranks; 10 times as long where a rank may have more to "
                    "do than others, as in a checkpoint or an evaluation by one rank; a quarter "
                    "for a card that updates or digests a subgroup",
         .limits = between(1, kMostSeconds)},
        {.name = "site.name",
         .target = &run.site,
         .meaning = "name of the machine or cluster; a site file sets it",
         .place = KeyPlace::site},
    };
}

}  // namespace

std::vector<Key> keys_of(RunSettings& run) {
    std::vector<Key> keys = {
        {.name = "name",
         .target = &run.name,
         .meaning = "name of the run; default: the config's file name",
         .may_be_empty = true},
        {.name = "mode",
         .target = &run.mode,
         .meaning = "where the update runs and what crosses the host link"},
    };
    for (std::vector<Key> section : {model_keys(run.model),
                                     layer_keys(run.model),
                                     compute_keys(run.model),
                                     data_keys(run.data),
                                     length_keys(run.train),
                                     optimizer_keys(run.train),
                                     gradient_scale_keys(run.train),
                                     device_keys(run.csd),
                                     tier_keys(run.csd),
                                     state_keys(run.csd),
                                     card_keys(run.csd),
                                     part_keys(run.csd),
                                     link_keys(run.link),
                                     plan_node_keys(run.plan),
                                     plan_rate_keys(run.plan),
                                     codec_keys(run.compress, run.gather),
                                     placement_keys(run.placement),
                                     hosts_keys(run.hosts),
                                     launcher_keys(run.hosts),
                                     operation_keys(run)}) {
        std::move(section.begin(), section.end(), std::back_inserter(keys));
    }
    return keys;
}

const char* instead_of(std::string_view key) {
    const auto* const found = std::ranges::find(kRemoved, key, &Removed::key);
    return found == kRemoved.end() ? nullptr : found->instead;
}

}  // namespace nearstep::config
