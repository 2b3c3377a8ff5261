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

// A key's row: its name, target, meaning, unit, limits, place if a config alone may not set it, and
// scope if a rank may have a value of its own.
std::vector<Key> model_keys(ModelSettings& model) {
    return {
        {"model.architecture", &model.architecture, "network: GPT-2, or Llama and Qwen2"},
        {"model.layers", &model.layers, "transformer blocks", "blocks", between(1, kMostLayers)},
        {"model.heads", &model.heads, "attention heads; must divide the width", "heads",
         between(1, kMostWidth)},
        {"model.kv_heads", &model.kv_heads,
         "heads of keys and values, each for several attention heads (llama); 0: as many as "
         "model.heads",
         "heads", between(0, kMostWidth)},
        {"model.width", &model.width, "elements of a token's vector", "elements",
         between(1, kMostWidth)},
        {"model.hidden", &model.hidden,
         "elements of a layer's hidden vectors; 0: 4 times the width, or 8/3 of it rounded up to a "
         "multiple of 256 (llama)",
         "elements", between(0, kMostHidden)},
        {"model.context", &model.context,
         "tokens of a sequence; if model.positions is set, that is the default", "tokens",
         between(1, kMostContext)},
        {"model.positions", &model.positions,
         "positions that the model is made for, which may be more than model.context; 0: "
         "model.context",
         "tokens", between(0, kMostContext)},
        {"model.vocabulary", &model.vocabulary,
         "size of the vocabulary; at least that of data.train", "tokens", between(256, kMostWords)},
        {"model.from", &model.from,
         "folder of a published model, with config.json and safetensors: start values, and the "
         "architecture and sizes that the config does not set; or one file of safetensors; empty: "
         "random start values",
         "", may_be_empty()},
    };
}

std::vector<Key> layer_keys(ModelSettings& model) {
    return {
        {"model.tied", &model.tied, "the output layer shares the embedding's weights"},
        {"model.qkv_bias", &model.qkv_bias,
         "queries, keys and values have biases, as in Qwen2 (llama)"},
        {"model.norm_epsilon", &model.norm_epsilon, "added to the variance in norms", "",
         above_zero()},
        {"model.rope_theta", &model.rope_theta,
         "base of the wavelengths of rotary positions (llama)", "", above(1)},
        {"model.rope_scaling", &model.rope_scaling,
         "scaling of rotary positions for long contexts (llama): rope_scaling of a config.json, in "
         "JSON; rope_type linear, dynamic, llama3 or yarn; empty: none",
         "", json_or_nothing()},
        {"model.token_ids", &model.token_ids,
         "bos_token_id, eos_token_id and the like of an exported config.json, in JSON, by default "
         "those of model.from; empty: none",
         "", json_or_nothing()},
        {"model.generation_config", &model.generation_config,
         "an exported generation_config.json, by default that of model.from; empty: none", "",
         json_or_nothing()},
        {"model.dtype", &model.dtype, "format of parameters in memory and of dense gradients"},
        {"model.device", &model.device,
         "where the model computes; auto: on a GPU if PyTorch finds one", "", anything(),
         KeyPlace::config_or_site, KeyScope::rank},
        {"model.compute", &model.compute, "format of matrix products"},
        {"model.gpu_memory_gb", &model.gpu_memory_gb,
         "limit of a rank's GPU memory; parameters that do not fit are streamed block by block; 0: "
         "all free memory",
         "GB", not_negative(), KeyPlace::config_or_site, KeyScope::rank},
        {"model.activations", &model.activations,
         "what is kept for backward; all: what it needs of every layer; gpu, host: only block "
         "inputs, there, and backward computes forward again; auto: what it needs of as many "
         "layers as fit, else block inputs where fewer bytes move",
         "", anything(), KeyPlace::config_or_site},
    };
}

std::vector<Key> data_keys(DataSettings& data) {
    return {
        {"data.train", &data.train,
         "files or folders of text, read as bytes, or one token file of nearstep-tokenize; "
         "required",
         "", may_be_empty(), KeyPlace::config, KeyScope::rank},
        {"data.valid", &data.valid, "held-out text or token file; empty: the end of data.train", "",
         may_be_empty(), KeyPlace::config, KeyScope::rank},
        {"data.valid_share", &data.valid_share,
         "share of data.train that is held out if data.valid is empty", "share", below_one()},
    };
}

std::vector<Key> length_keys(TrainSettings& train) {
    return {
        {"train.steps", &train.steps, "optimizer steps of the schedule", "steps",
         between(1, kMostSteps)},
        {"train.stop_at", &train.stop_at,
         "stop after this step as if interrupted, without a change of the schedule; 0: never",
         "steps", between(0, kMostSteps)},
        {"train.seed", &train.seed, "seed of start values, data order and stochastic rounding", "",
         not_negative()},
        {"train.global_batch", &train.global_batch, "sequences of a step, over all ranks",
         "sequences", between(1, kMostRows)},
        {"train.micro_batch", &train.micro_batch, "sequences that a rank computes at once",
         "sequences", between(1, kMostRows)},
        {"train.evaluate_every", &train.evaluate_every,
         "steps between evaluations; 0: only at the end", "steps", between(0, kMostSteps)},
        {"train.evaluate_batches", &train.evaluate_batches,
         "micro-batches of held-out text per evaluation, over all ranks", "batches",
         between(1, kMostRows)},
    };
}

std::vector<Key> optimizer_keys(TrainSettings& train) {
    return {
        {"train.optimizer", &train.optimizer, "update rule; sgd has momentum"},
        {"train.learning_rate", &train.learning_rate, "highest learning rate, after the warm-up",
         "", above_zero()},
        {"train.final_rate_share", &train.final_rate_share,
         "learning rate at the end of the cosine, as a share of train.learning_rate", "",
         zero_to_one()},
        {"train.warmup_steps", &train.warmup_steps, "steps in which the learning rate rises",
         "steps", between(0, kMostSteps)},
        {"train.beta1", &train.beta1,
         "decay of the first moment; momentum of sgd; unused by adagrad", "", below_one()},
        {"train.beta2", &train.beta2,
         "the second beta: decay of the second moment if there is one; unused by sgd and adagrad",
         "", below_one()},
        {"train.epsilon", &train.epsilon,
         "added to the root of the second moment by adamw, adam and adagrad", "", above_zero()},
        {"train.weight_decay", &train.weight_decay,
         "added to the gradient in adam, sgd and adagrad; else decoupled", "", not_negative()},
        {"train.decay", &train.decay,
         "parameters with weight decay; matrices: only tensors of two or more dimensions, not "
         "biases and norms"},
        {"train.clip_norm", &train.clip_norm, "largest norm of the gradient; 0: no clipping", "",
         not_negative()},
        {"train.clipping", &train.clipping,
         "exact: clip by the step's own norm, which backward guesses to begin updates early; "
         "delayed: clip by the norm of the previous step"},
        {"train.loss_scale", &train.loss_scale, "first loss scale; only with model.dtype fp16", "",
         between(1, kMostScale)},
        {"train.scale_growth_steps", &train.scale_growth_steps,
         "finite steps before the loss scale doubles; only with model.dtype fp16", "steps",
         between(1, kMostSteps)},
    };
}

std::vector<Key> device_keys(CsdSettings& csd) {
    return {
        {"csd.device", &csd.device,
         "kind of computational storage device; emulated: by the host's cores and, for state in "
         "memory, by the rank's GPU, if it has one; host: by the host's cores alone; xrt: a card; "
         "the bits are the same",
         "", anything(), KeyPlace::site},
        {"csd.per_rank", &csd.per_rank,
         "devices of every rank, or of every storage rank if there are some; or a list with one "
         "entry per rank",
         "devices", between(0, kMostDevices), KeyPlace::config_or_site},
        {"csd.storage_ranks", &csd.storage_ranks,
         "the last ranks, which hold devices and compute nothing; by default one for each of "
         "hosts.storage",
         "ranks", between(0, kMostDevices), KeyPlace::config_or_site},
        {"csd.path", &csd.path,
         "folders for state files; device i of a rank uses the i-th, starting over at the end of "
         "the list",
         "", anything(), KeyPlace::config_or_site, KeyScope::rank},
        {"csd.speed", &csd.speed,
         "relative speed of every device, or a list with one entry per device of all ranks; a "
         "device has so large a part of the state; auto: measured at start, so that all devices "
         "end a step together",
         "relative", or_auto(above_zero()), KeyPlace::config_or_site},
        {"csd.tiers.gpu", &csd.tiers.gpu,
         "part of the state of each rank that computes which lies in the memory of its GPU; it "
         "survives nothing, so csd.durability is not \"step\"; not in mode base; auto: half of "
         "what the network leaves free, or less if the planner takes less",
         "GB", or_auto(not_negative()), KeyPlace::config_or_site},
        {"csd.tiers.memory", &csd.tiers.memory,
         "part of the state files of each rank with drives that lies in /dev/shm; it survives a "
         "killed process, but no reboot; not in mode base; auto: half of what is free, or less if "
         "the planner takes less",
         "GB", or_auto(not_negative()), KeyPlace::config_or_site},
        {"csd.subgroup_tiles", &csd.subgroup_tiles,
         "tiles of 65536 parameters that are read, updated and written together", "tiles",
         between(1, kMostTiles)},
        {"csd.slots", &csd.slots,
         "staging buffers of a device, at least 3; each holds one subgroup, and all but one are "
         "filled during backward. 0: as many as fit an eighth of the node's free memory, but at "
         "least 4; of these all but 8, or from 32 on all but a quarter, keep their state from step "
         "to step, and all do if the whole state fits; state in /dev/shm needs none. For state "
         "that a GPU updates: an eighth of the GPU's free memory",
         "slots", between(0, kMostSlots), KeyPlace::config_or_site, KeyScope::rank},
        {"csd.state", &csd.state,
         "format of masters and moments in storage: 12, 8, 6.03 or 4.03 bytes per parameter"},
        {"csd.durability", &csd.durability,
         "what survives a crash: every step, checkpoints only, or nothing"},
        {"csd.io", &csd.io,
         "how state moves; auto: mapped if it lies in memory (/dev/shm), else by io_uring, or by "
         "threads if io_uring is refused",
         "", anything(), KeyPlace::config_or_site, KeyScope::rank},
    };
}

std::vector<Key> log_keys(CsdSettings& csd) {
    return {
        {"csd.log", &csd.log,
         "folders on drives for logs of gradients; device i of a rank uses the i-th, starting over "
         "at the end of the list. Then all state is also in memory, a step writes the log and a "
         "part of the state, and a restart repeats the steps since each part was written; empty: "
         "each step writes all state",
         "", may_be_empty(), KeyPlace::config_or_site, KeyScope::rank},
        {"csd.log_gb", &csd.log_gb,
         "most room of a rank's logs, which has the steps that a restart repeats, at most 64; 0: "
         "16 steps",
         "GB", not_negative(), KeyPlace::config_or_site},
    };
}

std::vector<Key> card_keys(CsdSettings& csd) {
    return {
        {"csd.cards", &csd.cards,
         "PCI address or index of the card for each folder of csd.path; empty: the card behind the "
         "same PCIe switch as the folder's drive",
         "", may_be_empty(), KeyPlace::site, KeyScope::rank},
        {"csd.xclbin", &csd.xclbin, "file with the cards' kernels", "", may_be_empty(),
         KeyPlace::site, KeyScope::rank},
        {"csd.host_engine", &csd.host_engine,
         "devices, numbered over all ranks, whose state the host updates instead of their card, "
         "for example when a card is too hot; the bits are the same",
         "devices", may_be_empty(between(0, kMostDevices))},
        {"csd.update_mparam_s", &csd.update_mparam_s,
         "highest update rate of a device, before link.scale; not in mode base; 0: no limit",
         "Mparam/s", not_negative()},
        {"csd.rated_tbw", &csd.rated_tbw, "rated lifetime writes of a device's drive; 0: unknown",
         "TB", not_negative(), KeyPlace::site, KeyScope::rank},
    };
}

std::vector<Key> exchange_keys(CompressSettings& compress, GatherSettings& gather,
                               Placement& placement) {
    return {
        {"compress.codec",
         &compress.codec,
         "codec of gradients; all except dense need mode su+o+c; auto: q4 in that mode, else dense",
         "",
         anything(),
         KeyPlace::config,
         KeyScope::run,
         {{"ternary", "q4"}, {"sign", "q4"}}},
        {"compress.keep", &compress.keep, "share of a gradient's elements that topk keeps", "share",
         above_zero_to_one()},
        {"compress.error_feedback", &compress.error_feedback,
         "add the error of encoding to the next gradient; not with csd.durability step"},
        {"compress.rounding", &compress.rounding,
         "rounding of the codes of q8 and q4; stochastic: unbiased"},
        {"compress.warmup_steps", &compress.warmup_steps, "first steps, with dense gradients",
         "steps", between(0, kMostSteps)},
        {"gather.codec", &gather.codec,
         "send new parameters whole, or only their changes; the result is the same"},
        {"placement.parameters", &placement.parameters,
         "as many consecutive ranks hold one copy of the 16-bit parameters together: replicated "
         "(1), node, global (all), or a number",
         "", between(1, kMostRanks)},
        {"placement.gradients", &placement.gradients,
         "dense gradients of as many consecutive ranks are summed before encoding: replicated (1), "
         "node, global (all), or a number",
         "", between(1, kMostRanks)},
        {"placement.optimizer", &placement.optimizer,
         "the devices of as many consecutive ranks hold one copy of the optimizer state together: "
         "replicated (1), node, global (all), or a number",
         "", between(1, kMostRanks)},
    };
}

std::vector<Key> operation_keys(RunSettings& run) {
    return {
        {"checkpoint.path", &run.checkpoint.path,
         "folder for checkpoints, which runs may share; empty: folder checkpoints in the first "
         "csd.path",
         "", may_be_empty(), KeyPlace::config_or_site, KeyScope::rank},
        {"checkpoint.every", &run.checkpoint.every,
         "steps between checkpoints; 0: only at the end and where train.stop_at stops", "steps",
         between(0, kMostSteps)},
        {"exchange.densify", &run.exchange.densify,
         "owners send their devices one dense sum instead of all payloads; auto: if that is fewer "
         "bytes"},
        {"exchange.transport", &run.exchange.transport,
         "gradients and parameters between GPUs by NCCL, or through host memory by MPI; auto: nccl "
         "if every rank has its own GPU"},
        {"exchange.ranks_per_node", &run.exchange.ranks_per_node,
         "consecutive ranks that count as one node, to try placements on one machine; 0: ranks "
         "that share memory",
         "", between(0, kMostRanks)},
        {"exchange.timeout_s", &run.exchange.timeout_s,
         "longest wait for other ranks; 10 times as long where a rank may have more to do than "
         "others, as in a checkpoint or an evaluation by one rank; a quarter for a card that "
         "updates or digests a subgroup",
         "s", between(1, kMostSeconds), KeyPlace::config, KeyScope::rank},
        {"site.name", &run.site, "name of the machine or cluster; a site file sets it", "",
         anything(), KeyPlace::site},
    };
}

}  // namespace

std::vector<Key> keys_of(RunSettings& run) {
    std::vector<Key> keys = {
        {"name", &run.name, "name of the run; default: the config's file name", "", may_be_empty()},
        {"mode", &run.mode, "where the update runs and what crosses the host link"},
    };
    const auto add = [&keys](std::vector<Key> section) {
        std::ranges::move(section, std::back_inserter(keys));
    };
    const auto add_of_site = [&add](std::vector<Key> section) {
        std::ranges::for_each(section, [](Key& key) { key.place = KeyPlace::site; });
        add(std::move(section));
    };
    add(model_keys(run.model));
    add(layer_keys(run.model));
    add(data_keys(run.data));
    add(length_keys(run.train));
    add(optimizer_keys(run.train));
    add(device_keys(run.csd));
    add(log_keys(run.csd));
    add_of_site(card_keys(run.csd));
    add_of_site(link_keys(run.link));
    add_of_site(plan_keys(run.plan));
    add(exchange_keys(run.compress, run.gather, run.placement));
    add_of_site(hosts_keys(run.hosts));
    add(operation_keys(run));
    return keys;
}

const char* instead_of(std::string_view key) {
    const auto* const found = std::ranges::find(kRemoved, key, &Removed::key);
    return found == kRemoved.end() ? nullptr : found->instead;
}

}  // namespace nearstep::config
