// Plans a GPU's memory from sizes alone. Used by the trainer.
#include "model/gpu_plan.hpp"

#include "base/error.hpp"
#include "base/units.hpp"
#include "feed/block_parts.hpp"
#include "feed/fetch_order.hpp"
#include "model/architecture.hpp"
#include "model/compute_device.hpp"
#include "model/geometry.hpp"
#include "model/lean_products.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

namespace nearstep::model {

namespace {

constexpr int kFewestSlots = 2;
// One slot being filled, one being read, and one for the first block, which the last borrows from.
constexpr int kStreamingSlots = 3;

// Adds the allocator's rounding and fragmentation and the workspace of matrix products.
std::size_t with_margin(std::size_t bytes) { return bytes + bytes / 8 + 128 * MiB; }

// Adds the allocator's rounding of many large tensors.
std::size_t with_slack(std::size_t bytes) { return bytes + bytes / 32; }

class ModelSizes {
public:
    ModelSizes(const config::ModelSettings& settings, const GpuWork& work,
               const ComputeDevice& device)
        : geometry_(describe(settings)),
          functions_(architecture_of(settings.architecture).make_functions(settings)),
          reads_(blocks_read(geometry_, functions_)),
          joint_ranks_(work.joint_ranks),
          parameter_size_(size_bytes(settings.dtype)),
          compute_size_(size_bytes(compute_format(settings, device))),
          width_(static_cast<std::size_t>(settings.width)),
          heads_(static_cast<std::size_t>(settings.heads)),
          vocabulary_(static_cast<std::size_t>(settings.vocabulary)),
          micro_rows_(static_cast<std::size_t>(std::min(work.micro_rows, work.rows))),
          micro_tokens_(micro_rows_ * static_cast<std::size_t>(settings.context)),
          tokens_(static_cast<std::size_t>(work.rows) *
                  static_cast<std::size_t>(settings.context)) {}

    int blocks() const { return static_cast<int>(geometry_.blocks.size()); }

    std::size_t block(int number) const {
        const Block& range = geometry_.blocks[static_cast<std::size_t>(number)];
        return (range.end - range.begin) * parameter_size_;
    }
    std::size_t slot() const {
        std::size_t largest = 0;
        for (int number = 0; number < blocks(); ++number) {
            largest = std::max(largest, block(number));
        }
        return largest;
    }
    std::size_t all_parameters() const { return geometry_.elems * parameter_size_; }
    std::size_t largest_gradient() const { return slot() / parameter_size_ * sizeof(float); }

    // Bytes of one block's inputs for all micro-batches.
    std::size_t inputs() const { return tokens_ * width_ * compute_size_; }

    // Bytes that a block which is kept holds from its forward to its backward, besides its inputs.
    std::size_t kept(int number) const {
        const BlockFunction& function = functions_[static_cast<std::size_t>(number)];
        const std::size_t bytes = tokens_ * function.kept_elems * compute_size_;
        const std::size_t format =
            function.format == BlockFormat::fp32 ? sizeof(float) : compute_size_;
        const std::size_t converted =
            format == parameter_size_ ? 0 : block(number) / parameter_size_ * format;
        return bytes == 0 ? 0 : with_slack(bytes + converted);
    }

    // Bytes of parameters that a step brings over the link.
    std::size_t fetched(int slots) const {
        std::size_t bytes = 0;
        for (const feed::Fetch& fetch :
             feed::order_fetches(feed::visits_of_step(reads_), blocks(), slots)) {
            bytes += feed::part_of_block(block(fetch.block), 0, joint_ranks_).size();
        }
        return bytes;
    }

    // The most that computing a block takes, plus the gradients of borrowed parameters, which are
    // kept until the owner's backward.
    std::size_t workspace() const {
        std::size_t most = 0;
        std::size_t waiting = 0;
        for (int number = 0; number < blocks(); ++number) {
            const BlockFunction& function = functions_[static_cast<std::size_t>(number)];
            std::size_t elems = block(number) / parameter_size_;
            // The last block's gradient is computed in its forward and waits for its backward.
            const std::size_t gradient =
                number + 1 == blocks() ? elems * sizeof(float) : std::size_t{0};
            for (const std::size_t index : function.borrowed) {
                elems += geometry_.parameters[index].elems;
                waiting += geometry_.parameters[index].elems * sizeof(float);
            }
            const std::size_t format =
                function.format == BlockFormat::fp32 ? sizeof(float) : compute_size_;
            const std::size_t converted = format == parameter_size_ ? 0 : elems * format;
            most = std::max(most, gradient + converted + elems * format + activations(number));
        }
        return with_margin(most + waiting);
    }

private:
    // Bytes that one micro-batch's forward and backward of a block hold at once.
    std::size_t activations(int number) const {
        if (number == 0) {  // embeddings in fp32, their sum and its gradient
            return 4 * micro_tokens_ * width_ * sizeof(float);
        }
        if (number + 1 == blocks()) {  // logits, which become their gradient
            const std::size_t logits =
                std::min(micro_tokens_ * vocabulary_,
                         std::max(static_cast<std::size_t>(kMostLogits), vocabulary_));
            const std::size_t columns = round_up(vocabulary_, std::size_t{kLogitColumns});
            // A program without CUDA computes the loss by groups in fp32; one with CUDA takes less.
            const std::size_t groups = 2 * std::min(logits, std::size_t{1} << 27) * sizeof(float);
            // Padding the output weights takes a copy of them with more rows, and of their
            // gradient.
            const std::size_t padded =
                columns == vocabulary_ ? 0 : 2 * columns * width_ * compute_size_;
            return logits / vocabulary_ * columns * compute_size_ +
                   std::max(groups + padded / 2, padded) +
                   4 * micro_tokens_ * width_ * compute_size_;
        }
        // Attention's deterministic backward splits the sum of the queries' gradients into enough
        // parts to fill Hopper's 132 multiprocessors.
        const std::size_t tasks = std::max<std::size_t>(micro_rows_ * heads_, 1);
        const std::size_t parts = (132 + tasks - 1) / tasks;
        const std::size_t elems = functions_[static_cast<std::size_t>(number)].most_elems;
        return micro_tokens_ * (elems * compute_size_ + width_ * parts * sizeof(float));
    }

    Geometry geometry_;
    std::vector<BlockFunction> functions_;
    std::vector<feed::Visit> reads_;
    int joint_ranks_;
    std::size_t parameter_size_;
    std::size_t compute_size_;
    std::size_t width_;
    std::size_t heads_;
    std::size_t vocabulary_;
    std::size_t micro_rows_;
    std::size_t micro_tokens_;
    std::size_t tokens_;
};

// A plan without parameters.
GpuPlan plan_of(const ModelSizes& sizes, const GpuWork& work, std::size_t budget, bool is_on_host) {
    GpuPlan plan{.residence = {.slots = 0, .are_inputs_on_host = is_on_host},
                 .blocks = sizes.blocks(),
                 .budget_bytes = budget};
    // The inputs of all blocks but the first and the last wait. 3 more inputs' worth covers the
    // last block's input and the gradients of one block's output and input.
    const auto waiting = static_cast<std::size_t>(std::max(sizes.blocks() - 2, 0));
    plan.input_bytes = (is_on_host ? 4 : waiting + 3) * sizes.inputs();
    plan.gradient_bytes = work.gradient_bytes > 0 ? work.gradient_bytes : sizes.largest_gradient();
    plan.workspace_bytes = sizes.workspace();
    if (is_on_host) {
        plan.host_bytes = waiting * sizes.inputs();
        plan.link_bytes = 2 * plan.host_bytes;
    }
    return plan;
}

// Adds as many slots of parameters as fit; nullopt if two slots do not fit.
std::optional<GpuPlan> filled(GpuPlan plan, const ModelSizes& sizes, const GpuWork& work) {
    const std::size_t fixed = plan.total_bytes();
    const std::size_t left = plan.budget_bytes > fixed ? plan.budget_bytes - fixed : 0;
    if (!work.is_streamed && sizes.all_parameters() <= left) {
        plan.parameter_bytes = sizes.all_parameters();
        plan.link_bytes += sizes.fetched(sizes.blocks());
        return plan;
    }
    const std::size_t most = work.is_streamed
                                 ? static_cast<std::size_t>(kStreamingSlots)
                                 : static_cast<std::size_t>(std::max(sizes.blocks() - 1, 1));
    const int slots = static_cast<int>(std::min(left / sizes.slot(), most));
    if (slots < std::min(kFewestSlots, sizes.blocks())) {
        return std::nullopt;
    }
    plan.residence.slots = slots;
    plan.parameter_bytes = static_cast<std::size_t>(slots) * sizes.slot();
    plan.link_bytes += sizes.fetched(slots);
    return plan;
}

// Keeps as many of the last blocks as fit in `room` bytes; returns the bytes that they hold.
std::size_t keep_blocks(const ModelSizes& sizes, std::size_t room, Residence& residence) {
    std::size_t bytes = 0;
    for (int number = sizes.blocks() - 2; number >= 0; --number) {
        const std::size_t kept = sizes.kept(number);
        if (kept == 0 || bytes + kept > room) {
            break;
        }
        bytes += kept;
        ++residence.kept_blocks;
    }
    return bytes;
}

// Blocks that can be kept.
int keepable(const ModelSizes& sizes) {
    Residence all;
    keep_blocks(sizes, std::numeric_limits<std::size_t>::max(), all);
    return all.kept_blocks;
}

std::string gigabytes(std::size_t bytes) { return human_bytes(static_cast<double>(bytes)); }

[[noreturn]] void refuse(const GpuPlan& plan, const ModelSizes& sizes, double wanted_gb) {
    const std::size_t least =
        plan.total_bytes() + std::min(kFewestSlots * sizes.slot(), sizes.all_parameters());
    const double least_gb = std::ceil(static_cast<double>(least) / 1e8) / 10;
    const bool is_capped = wanted_gb > 0;
    throw ConfigError(
        text("The model needs about ", gigabytes(least),
             " of a GPU's memory even with two blocks of parameters there at a time, and ",
             is_capped ? "model.gpu_memory_gb allows " : "a rank can have ",
             gigabytes(plan.budget_bytes), ": set ",
             is_capped ? text("model.gpu_memory_gb to ", least_gb, " or more, ") : std::string(),
             "train.micro_batch, model.context or model.width lower, or fewer ranks on the GPU."));
}

}  // namespace

GpuPlan plan_gpu(const config::ModelSettings& settings, const GpuWork& work,
                 std::size_t budget_bytes) {
    const ModelSizes sizes(settings, work, {.gpu = 0});
    const bool keeps_all = settings.activations == config::Activations::all;
    std::optional<GpuPlan> best;
    std::optional<GpuPlan> smallest;  // excludes parameters
    for (const bool is_on_host : {false, true}) {
        if (is_on_host ? settings.activations == config::Activations::gpu || keeps_all
                       : settings.activations == config::Activations::host) {
            continue;
        }
        const GpuPlan plan = plan_of(sizes, work, budget_bytes, is_on_host);
        if (!smallest || plan.total_bytes() < smallest->total_bytes()) {
            smallest = plan;
        }
        const std::optional<GpuPlan> full = filled(plan, sizes, work);
        if (full && (!best || full->link_bytes < best->link_bytes)) {
            best = full;
        }
    }
    if (!best) {
        refuse(*smallest, sizes, settings.gpu_memory_gb);
    }
    const bool may_keep = keeps_all || settings.activations == config::Activations::automatic;
    if (may_keep && best->residence.slots == 0 && !best->residence.are_inputs_on_host) {
        best->kept_bytes = keep_blocks(sizes, budget_bytes - best->total_bytes(), best->residence);
    }
    if (keeps_all && best->residence.kept_blocks < keepable(sizes)) {
        throw ConfigError(text("model.activations is \"all\", and what backward needs of only ",
                               best->residence.kept_blocks, " of ", keepable(sizes),
                               " layers fits in ", gigabytes(budget_bytes),
                               " of GPU memory: set model.activations to \"auto\", or fewer rows "
                               "in a step with train.global_batch."));
    }
    return *best;
}

Residence plan_cpu(const config::ModelSettings& settings, const GpuWork& work,
                   std::size_t budget_bytes) {
    Residence residence;
    if (settings.activations == config::Activations::all ||
        settings.activations == config::Activations::automatic) {
        const bool is_limited = settings.activations == config::Activations::automatic;
        keep_blocks(ModelSizes(settings, work, {}),
                    is_limited ? budget_bytes : std::numeric_limits<std::size_t>::max(), residence);
    }
    return residence;
}

std::string describe(const GpuPlan& plan) {
    const bool is_streamed = plan.residence.slots > 0;
    return text("GPU memory planned: ", gigabytes(plan.total_bytes()), " of ",
                gigabytes(plan.budget_bytes), "; parameters ", gigabytes(plan.parameter_bytes),
                is_streamed ? text(" (", plan.residence.slots, " slots that ", plan.blocks,
                                   " blocks stream through)")
                            : std::string(" (resident)"),
                ", inputs of blocks ", gigabytes(plan.input_bytes),
                plan.residence.are_inputs_on_host
                    ? text(" (", gigabytes(plan.host_bytes), " wait in host memory)")
                    : std::string(),
                plan.residence.kept_blocks > 0
                    ? text(", what backward needs of ", plan.residence.kept_blocks, " blocks ",
                           gigabytes(plan.kept_bytes))
                    : std::string(", no block kept, so backward computes forward again"),
                ", gradients ", gigabytes(plan.gradient_bytes), ", workspace about ",
                gigabytes(plan.workspace_bytes), "; ", gigabytes(plan.link_bytes),
                " a step between host and GPU, but gradients");
}

}  // namespace nearstep::model
