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
         .meaning = "the network",
         .words = {"gpt"}},
        {.name = "model.layers",
         .target = &model.layers,
         .unit = "blocks",
         .meaning = "transformer blocks",
         .limits = between(1, kMostLayers)},
        {.name = "model.heads",
         .target = &model.heads,
         .unit = "heads",
         .meaning = "attention heads; they divide the width",
         .limits = between(1, kMostWidth)},
        {.name = "model.width",
         .target = &model.width,
         .unit = "elements",
         .meaning = "elements of a token's vector",
         .limits = between(1, kMostWidth)},
        {.name = "model.context",
         .target = &model.context,
         .unit = "tokens",
         .meaning = "tokens of a sequence",
         .limits = between(1, kMostContext)},
        {.name = "model.vocabulary",
         .target = &model.vocabulary,
         .unit = "tokens",
         .meaning = "kinds of tokens; no fewer than the tokens of data.train are of",
         .limits = between(256, kMostWords)},
        {.name = "model.from",
         .target = &model.from,
         .meaning = "folder or file of safetensors with the start values, as Hugging Face "
                    "publishes them; none: they are drawn",
         .may_be_empty = true},
    };
}

// Where the model computes, and in which formats.
std::vector<Key> compute_keys(ModelSettings& model) {
    return {
        {.name = "model.dtype",
         .target = &model.dtype,
         .meaning = "format of the parameters in memory and of dense gradients",
         .words = {"fp32", "bf16", "fp16"}},
        {.name = "model.device",
         .target = &model.device,
         .meaning = "where the model computes; auto: a GPU where PyTorch finds one",
         .words = {"auto", "cpu", "cuda"},
         .is_for_sites = true},
        {.name = "model.compute",
         .target = &model.compute,
         .meaning = "format of matrix products",
         .words = {"auto", "bf16", "fp32"}},
        {.name = "model.gpu_memory_gb",
         .target = &model.gpu_memory_gb,
         .unit = "GB",
         .meaning = "most that a rank may take of its GPU: parameters that do not fit stream in "
                    "block by block; 0: what is free there",
         .limits = not_negative(),
         .is_for_sites = true},
        {.name = "model.activations",
         .target = &model.activations,
         .meaning = "where inputs of blocks wait for their backward; auto: on the GPU, or on the "
                    "host if that moves fewer bytes than streaming parameters",
         .words = {"auto", "gpu", "host"},
         .is_for_sites = true},
    };
}

std::vector<Key> data_keys(DataSettings& data) {
    return {
        {.name = "data.train",
         .target = &data.train,
         .meaning = "files or folders of text to train on, by bytes, or a token file of "
                    "nearstep-tokenize; must be set",
         .may_be_empty = true},
        {.name = "data.valid",
         .target = &data.valid,
         .meaning = "held-out text, or a token file; none: the end of data.train",
         .may_be_empty = true},
        {.name = "data.valid_share",
         .target = &data.valid_share,
         .unit = "share",
         .meaning = "share of data.train that is held out without data.valid",
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
         .meaning = "stop after this step as if interrupted, schedule unchanged; 0: do not",
         .limits = between(0, kMostSteps)},
        {.name = "train.seed",
         .target = &train.seed,
         .meaning = "of the start values and of the order of the data",
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
         .meaning = "between evaluations; 0: at the end only",
         .limits = between(0, kMostSteps)},
        {.name = "train.evaluate_batches",
         .target = &train.evaluate_batches,
         .unit = "batches",
         .meaning = "micro-batches of held-out text in an evaluation, over all ranks",
         .limits = between(1, kMostRows)},
    };
}

std::vector<Key> optimizer_keys(TrainSettings& train) {
    return {
        {.name = "train.optimizer",
         .target = &train.optimizer,
         .meaning = "the update of a parameter; sgd has momentum",
         .words = {"adamw", "adam", "sgd", "adagrad", "lion"}},
        {.name = "train.learning_rate",
         .target = &train.learning_rate,
         .meaning = "the highest, after the warm-up",
         .limits = above_zero()},
        {.name = "train.final_rate_share",
         .target = &train.final_rate_share,
         .meaning = "share of train.learning_rate at the end of the cosine",
         .limits = zero_to_one()},
        {.name = "train.warmup_steps",
         .target = &train.warmup_steps,
         .unit = "steps",
         .meaning = "steps over which the learning rate rises",
         .limits = between(0, kMostSteps)},
        {.name = "train.beta1",
         .target = &train.beta1,
         .meaning = "decay of the first moment; of sgd the momentum; adagrad has none",
         .limits = below_one()},
        {.name = "train.beta2",
         .target = &train.beta2,
         .meaning =
             "decay of the second moment; of lion that of the only one; sgd, adagrad: unused",
         .limits = below_one()},
        {.name = "train.epsilon",
         .target = &train.epsilon,
         .meaning = "added to the root of the second moment of adamw, adam and adagrad",
         .limits = above_zero()},
        {.name = "train.weight_decay",
         .target = &train.weight_decay,
         .meaning =
             "decoupled with adamw and lion; added to the gradient with adam, sgd and adagrad",
         .limits = not_negative()},
        {.name = "train.decay",
         .target = &train.decay,
         .meaning = "all: every parameter; matrices: tensors of two and more dimensions, so that "
                    "biases and norms do not decay",
         .words = {"all", "matrices"}},
    };
}

std::vector<Key> gradient_scale_keys(TrainSettings& train) {
    return {
        {.name = "train.clip_norm",
         .target = &train.clip_norm,
         .meaning = "largest norm of the gradient; 0: no clipping, and updates begin in backward",
         .limits = not_negative()},
        {.name = "train.clipping",
         .target = &train.clipping,
         .meaning = "exact: by the step's own norm, which is guessed in backward; delayed: by that "
                    "of the step before, so that "
                    "updates begin in backward",
         .words = {"exact", "delayed"}},
        {.name = "train.loss_scale",
         .target = &train.loss_scale,
         .meaning = "the first one, with model.dtype fp16 only",
         .limits = between(1, kMostScale)},
        {.name = "train.scale_growth_steps",
         .target = &train.scale_growth_steps,
         .unit = "steps",
         .meaning = "good steps before the loss scale doubles, with fp16 only",
         .limits = between(1, kMostSteps)},
    };
}

std::vector<Key> csd_keys(CsdSettings& csd) {
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
         .meaning = "folders of the state files; device i of a rank uses the i-th, in turn",
         .is_for_sites = true},
        {.name = "csd.speed",
         .target = &csd.speed,
         .unit = "relative",
         .meaning = "speed of every device, or a list with one entry per device of all ranks",
         .limits = above_zero(),
         .is_for_sites = true},
        {.name = "csd.subgroup_tiles",
         .target = &csd.subgroup_tiles,
         .unit = "tiles",
         .meaning = "tiles of 65536 parameters that are read, updated and written as one",
         .limits = between(1, kMostTiles)},
        {.name = "csd.slots",
         .target = &csd.slots,
         .unit = "slots",
         .meaning = "staging buffers of a device, one subgroup each",
         .limits = between(3, kMostSlots),
         .is_for_sites = true},
        {.name = "csd.state",
         .target = &csd.state,
         .meaning = "format of masters and moments in storage: 12, 8, 6.03 or 4.03 bytes each",
         .words = {"fp32", "bf16", "q8", "compact"}},
        {.name = "csd.durability",
         .target = &csd.durability,
         .meaning = "what outlives a crash: every step, checkpoints, or nothing even at the end",
         .words = {"step", "checkpoint", "none"}},
        {.name = "csd.io",
         .target = &csd.io,
         .meaning = "how state moves; auto: in place where it lies in memory (/dev/shm), else by "
                    "io_uring, or by threads where that is refused",
         .words = {"auto", "io_uring", "threads"},
         .is_for_sites = true},
    };
}

// Speed and endurance of a device's parts.
std::vector<Key> part_keys(CsdSettings& csd) {
    return {
        {.name = "csd.update_mparam_s",
         .target = &csd.update_mparam_s,
         .unit = "Mparam/s",
         .meaning =
             "highest rate of a device's engine, times link.scale, not in mode base; 0: none",
         .limits = not_negative(),
         .is_for_sites = true},
        {.name = "csd.rated_tbw",
         .target = &csd.rated_tbw,
         .unit = "TB",
         .meaning = "what a device's drive is rated to be written in its life; 0: not known",
         .limits = not_negative(),
         .is_for_sites = true},
    };
}

std::vector<Key> codec_keys(CompressSettings& compress, GatherSettings& gather) {
    return {
        {.name = "compress.codec",
         .target = &compress.codec,
         .meaning =
             "codec of the gradients; all but dense with mode su+o+c only; auto: q4 with that "
             "mode, else dense",
         .words = {"auto", "dense", "topk", "q8", "q4", "ternary", "sign"}},
        {.name = "compress.keep",
         .target = &compress.keep,
         .unit = "share",
         .meaning = "share of the gradient's elements that topk keeps",
         .limits = above_zero_to_one()},
        {.name = "compress.error_feedback",
         .target = &compress.error_feedback,
         .meaning = "add what encoding lost to the next gradient; not with csd.durability step"},
        {.name = "compress.rounding",
         .target = &compress.rounding,
         .meaning = "of the codes of q8, q4, ternary and sign; stochastic: unbiased",
         .words = {"nearest", "stochastic"}},
        {.name = "compress.where",
         .target = &compress.where,
         .meaning = "where gradients are encoded; auto: on the GPU if they are there, what other "
                    "ranks' are added first comes there by NCCL and nothing is fed back",
         .words = {"auto", "host"}},
        {.name = "compress.warmup_steps",
         .target = &compress.warmup_steps,
         .unit = "steps",
         .meaning = "first steps, whose gradients are dense",
         .limits = between(0, kMostSteps)},
        {.name = "gather.codec",
         .target = &gather.codec,
         .meaning = "new parameters as they are, or what changed of them, with the same result",
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
            "a copy of the 16-bit parameters in each rank, in each node, or one over all ranks"),
        key("placement.gradients", &placement.gradients,
            "dense gradients are added up to nothing, over the node, or over all, then encoded"),
        key("placement.optimizer", &placement.optimizer,
            "a copy of the optimizer state on the devices of each rank, of each node, or of all"),
    };
}

std::vector<Key> operation_keys(Run& run) {
    return {
        {.name = "checkpoint.path",
         .target = &run.checkpoint.path,
         .meaning = "folder of the checkpoints; empty: checkpoints in the first csd.path",
         .may_be_empty = true,
         .is_for_sites = true},
        {.name = "checkpoint.every",
         .target = &run.checkpoint.every,
         .unit = "steps",
         .meaning = "between checkpoints; 0: at the end, and where train.stop_at stops",
         .limits = between(0, kMostSteps)},
        {.name = "exchange.scatter",
         .target = &run.exchange.scatter,
         .meaning = "gradients: first over the node and then between nodes, or at once",
         .words = {"hierarchical", "flat"}},
        {.name = "exchange.densify",
         .target = &run.exchange.densify,
         .meaning = "owners hand their devices one dense sum instead of the payloads; auto: where "
                    "that is less",
         .words = {"auto", "always", "never"}},
        {.name = "exchange.transport",
         .target = &run.exchange.transport,
         .meaning = "gradients and parameters: between GPUs by NCCL, or through host memory by "
                    "MPI; auto: nccl where every rank has a GPU of its own",
         .words = {"auto", "mpi", "nccl"}},
        {.name = "exchange.ranks_per_node",
         .target = &run.exchange.ranks_per_node,
         .meaning = "consecutive ranks that count as a node, to try placements on one machine; 0: "
                    "those that share memory",
         .limits = between(0, kMostRanks)},
        {.name = "exchange.timeout_s",
         .target = &run.exchange.timeout_s,
         .unit = "s",
         .meaning = "longest wait for other ranks",
         .limits = between(1, kMostSeconds)},
        {.name = "site.name",
         .target = &run.site,
         .meaning = "where the run takes place; a site file sets it",
         .is_for_sites = true},
    };
}

}  // namespace

std::vector<Key> keys_of(Run& run) {
    std::vector<Key> keys = {
        {.name = "name",
         .target = &run.name,
         .meaning = "of the run; without it the config's file name",
         .may_be_empty = true},
        {.name = "mode",
         .target = &run.mode,
         .meaning = "where the update happens and what crosses the host link",
         .words = {"base", "su", "su+o", "su+o+c"}},
    };
    for (std::vector<Key> section :
         {model_keys(run.model), compute_keys(run.model), data_keys(run.data),
          length_keys(run.train), optimizer_keys(run.train), gradient_scale_keys(run.train),
          csd_keys(run.csd), card_keys(run.csd), part_keys(run.csd), link_keys(run.link),
          plan_node_keys(run.plan), plan_rate_keys(run.plan), codec_keys(run.compress, run.gather),
          placement_keys(run.placement), hosts_keys(run.hosts), operation_keys(run)}) {
        std::move(section.begin(), section.end(), std::back_inserter(keys));
    }
    return keys;
}

}  // namespace nearstep::config
