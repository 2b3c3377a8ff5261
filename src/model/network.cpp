// Runs a network block by block with torch. Used by the trainer through Network::make().
#include "model/network.hpp"

#include "base/error.hpp"
#include "base/random.hpp"
#include "feed/fetch_order.hpp"
#include "memory/gpu.hpp"
#include "model/architecture.hpp"
#include "model/block_inputs.hpp"
#include "model/loss.hpp"
#include "model/parameter_store.hpp"
#include "model/torch_types.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/version.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

namespace nearstep::model {

namespace {

using Tensors = std::vector<at::Tensor>;

// The random stream of sampling, separate from other uses of the run's seed.
constexpr std::uint64_t kSampleStream = 0x73616d706c65;

class BlockwiseNetwork final : public Network {
public:
    BlockwiseNetwork(const config::ModelSettings& settings, std::span<const std::byte> parameters,
                     const ComputeDevice& device, const Residence& residence,
                     const feed::JointCopy& joint)
        : settings_(settings),
          geometry_(describe(settings)),
          functions_(architecture_of(settings.architecture).make_functions(settings)),
          most_tokens_(std::max<std::int64_t>(1, residence.most_logits / settings.vocabulary)),
          device_(torch_device(device)),
          compute_(scalar_type(compute_format(settings, device))) {
        repeat_bit_for_bit(device);
        if (device.is_gpu()) {
            // Sets this thread's GPU for PyTorch and for our own allocations.
            c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(device_);
            if (memory::gpus() > 0) {
                memory::use_gpu(*device.gpu);
            }
        }
        expects(functions_.size() == geometry_.blocks.size(), "every block has its function");
        expects(parameters.size() >= geometry_.elems * size_bytes(settings.dtype),
                "the parameter vector holds all elements of the geometry");
        expects(
            residence.kept_blocks == 0 || (residence.slots == 0 && !residence.are_inputs_on_host),
            "blocks are kept only beside resident parameters and inputs");
        first_kept_ = last_block() - residence.kept_blocks;
        kept_.resize(functions_.size());
        store_.emplace(geometry_, parameters, settings.dtype, device, residence.slots, joint);
        inputs_.emplace(
            last_block() + 1, compute_format(settings, device), device,
            residence.are_inputs_on_host ? InputPlace::on_host : InputPlace::with_network);
        reads_ = blocks_read(geometry_, functions_);
    }

    const Geometry& geometry() const override { return geometry_; }

    std::vector<Elements> reads(int block) const override {
        const Block& range = geometry_.blocks[index_of(block)];
        std::vector<Elements> elements = {{range.begin, range.end}};
        for (const std::size_t index : functions_[index_of(block)].borrowed) {
            const Parameter& parameter = geometry_.parameters[index];
            const Block& owner = geometry_.blocks[index_of(block_of(geometry_, index))];
            elements.push_back(store_->is_in_place()
                                   ? Elements{parameter.offset, parameter.offset + parameter.elems}
                                   : Elements{owner.begin, owner.end});  // slots hold whole blocks
        }
        return elements;
    }

    void begin(std::span<const MicroBatch> batches, double token_weight,
               double loss_scale) override {
        token_weight_ = token_weight;
        loss_scale_ = loss_scale;
        loss_sum_ = at::zeros({}, at::TensorOptions(at::kDouble).device(device_));
        next_forward_ = 0;
        next_backward_ = -1;
        borrowed_gradients_.clear();
        micros_.clear();
        kept_.assign(functions_.size(), {});
        std::vector<std::size_t> input_bytes;
        for (const MicroBatch& batch : batches) {
            check_batch(batch, settings_);
            input_bytes.push_back(batch.tokens.size() * static_cast<std::size_t>(settings_.width) *
                                  at::elementSize(compute_));
        }
        inputs_->begin(input_bytes);
        store_->begin(feed::visits_of_step(reads_), Bringing::together);
        for (const MicroBatch& batch : batches) {
            inputs_->put(0, micros_.size(),
                         token_tensor(batch.tokens, batch.rows, batch.columns, device_));
            micros_.push_back(
                {.targets = token_tensor(batch.targets, batch.rows, batch.columns, device_)});
        }
    }

    void fetch(int block) override { store_->allow(block); }

    // The last block computes its gradient here, because its logits exist now; keeping or
    // recomputing them would cost more.
    void forward(int block) override {
        expects(block == next_forward_ && block <= last_block(),
                "forward takes the blocks ascending");
        ++next_forward_;
        store_->enter();
        if (block == last_block()) {
            next_backward_ = block;
            last_gradient_ = zeros_of(block);
            add_gradients(block, gradient_sums(block, last_gradient_));
        } else {
            pass_on(block);
            inputs_->end_forward(block);
        }
        store_->leave();
    }

    double loss() const override {
        expects(next_forward_ > last_block(), "the loss comes after forward of the last block");
        return token_weight_ * loss_sum_.item<double>();
    }

    void backward(int block, std::span<float> gradient, GradientPlace place) override {
        expects(place == GradientPlace::host || device_.is_cuda(),
                "a network on the CPU has no gradients on a GPU");
        expects(block == next_backward_ && block >= 0,
                "backward takes the blocks descending, after forward of the last");
        const Block& range = geometry_.blocks[index_of(block)];
        expects(gradient.size() == range.end - range.begin,
                "the gradient has the block's elements");
        --next_backward_;
        const bool is_in_place = device_.is_cpu() || place == GradientPlace::gpu;
        at::Tensor target = at::from_blob(
            gradient.data(), {static_cast<std::int64_t>(gradient.size())},
            at::TensorOptions(at::kFloat).device(is_in_place ? device_ : at::Device(at::kCPU)));
        if (block == last_block()) {
            target.copy_(last_gradient_);
            last_gradient_ = at::Tensor();
            return;
        }
        const at::Tensor sums = is_in_place ? target.zero_() : zeros_of(block);
        store_->enter();
        inputs_->begin_backward(block);
        add_gradients(block, gradient_sums(block, sums));
        inputs_->end_backward(block);
        store_->leave();
        if (!is_in_place) {
            target.copy_(sums);
        }
    }

    double evaluate(const MicroBatch& batch) override {
        check_batch(batch, settings_);
        begin_passes(1);
        const c10::NoGradGuard no_grad;
        at::Tensor state = token_tensor(batch.tokens, batch.rows, batch.columns, device_);
        for (int block = 0; block < last_block(); ++block) {
            state = visit(block, state);
        }
        store_->enter();
        const Tensors parameters = parameters_of(last_block());
        at::Tensor sum = at::zeros({}, at::TensorOptions(at::kDouble).device(device_));
        for_pieces(state, token_tensor(batch.targets, batch.rows, batch.columns, device_),
                   most_tokens_, [&](const at::Tensor& input, const at::Tensor& targets) {
                       sum += cross_entropy(run(last_block(), parameters, input, OutputUse::values),
                                            targets, settings_.vocabulary, {});
                   });
        store_->leave();
        return sum.item<double>();
    }

    std::vector<std::int32_t> sample(std::span<const std::int32_t> prompt, int count,
                                     double temperature, std::uint64_t seed) override {
        if (prompt.empty()) {
            throw ConfigError("The prompt is empty: give at least one token to continue.");
        }
        expects(temperature > 0, "the temperature is above 0");
        check_tokens(prompt, settings_);
        begin_passes(count);
        std::vector<std::int32_t> tokens(prompt.begin(), prompt.end());
        for (std::uint64_t i = 0; std::cmp_less(i, count); ++i) {
            const double place = random_uniform(seed, kSampleStream, i);
            tokens.push_back(draw(next_shares(tokens, temperature), place));
        }
        return {tokens.begin() + static_cast<std::ptrdiff_t>(prompt.size()), tokens.end()};
    }

    NetworkTraffic traffic() const override {
        return {.parameter_bytes = store_->brought_bytes(), .input_bytes = inputs_->moved_bytes()};
    }

private:
    // Values that a micro-batch keeps during a step besides its inputs. `upstream` is the gradient
    // of the loss with respect to the output of the block that backward visits next.
    struct Micro {
        at::Tensor targets;
        at::Tensor upstream = {};
    };

    // A block's forward of one micro-batch with its graph.
    struct Pass {
        at::Tensor input;
        at::Tensor output;
    };
    // A block's forward of all micro-batches; without passes, backward computes it again.
    struct KeptForward {
        Tensors leaves;
        std::vector<Pass> passes;
    };

    static std::size_t index_of(int block) { return static_cast<std::size_t>(block); }

    int last_block() const { return static_cast<int>(functions_.size()) - 1; }

    at::Tensor zeros_of(int block) const {
        const Block& range = geometry_.blocks[index_of(block)];
        return at::zeros({static_cast<std::int64_t>(range.end - range.begin)},
                         at::TensorOptions(at::kFloat).device(device_));
    }

    // Prepares `count` forward passes of all blocks outside a step.
    void begin_passes(int count) {
        std::vector<feed::Visit> visits;
        for (int pass = 0; pass < count; ++pass) {
            visits.insert(visits.end(), reads_.begin(), reads_.end());
        }
        store_->begin(std::move(visits), Bringing::alone);
        store_->allow_all();
    }

    at::Tensor visit(int block, const at::Tensor& input) {
        store_->enter();
        at::Tensor output = run(block, parameters_of(block), input, OutputUse::values);
        store_->leave();
        return output;
    }

    // The parameter's part of `block`, all elements of the block that owns it.
    at::Tensor part_of(const at::Tensor& block, std::size_t index) const {
        const Parameter& parameter = geometry_.parameters[index];
        const Block& owner = geometry_.blocks[index_of(block_of(geometry_, index))];
        return block
            .narrow(0, static_cast<std::int64_t>(parameter.offset - owner.begin),
                    static_cast<std::int64_t>(parameter.elems))
            .view(parameter.shape);
    }

    // Indices of the block's own parameters, then of the borrowed ones.
    std::vector<std::size_t> parameter_indices(int block) const {
        const Block& range = geometry_.blocks[index_of(block)];
        std::vector<std::size_t> indices;
        for (std::size_t i = range.first_parameter; i < range.last_parameter; ++i) {
            indices.push_back(i);
        }
        const std::vector<std::size_t>& borrowed = functions_[index_of(block)].borrowed;
        indices.insert(indices.end(), borrowed.begin(), borrowed.end());
        return indices;
    }

    // The block's parameters on its device, as views or, once per visit, converted to its format.
    Tensors parameters_of(int block) const {
        const bool is_fp32 = functions_[index_of(block)].format == BlockFormat::fp32;
        Tensors parameters;
        for (const std::size_t index : parameter_indices(block)) {
            const at::Tensor part = part_of(store_->elems(block_of(geometry_, index)), index);
            parameters.push_back(part.to(is_fp32 ? at::kFloat : compute_));
        }
        return parameters;
    }

    at::Tensor run(int block, const Tensors& parameters, const at::Tensor& input,
                   OutputUse use) const {
        return functions_[index_of(block)].run(parameters, input, use).to(compute_);
    }

    // The tensors in which the block's parameter gradients are summed. For its own parameters they
    // are views of `gradient`, initialised with what borrowers left. For borrowed parameters they
    // are kept until the owner's backward.
    Tensors gradient_sums(int block, const at::Tensor& gradient) {
        const Block& range = geometry_.blocks[index_of(block)];
        Tensors sums;
        for (const std::size_t index : parameter_indices(block)) {
            const Parameter& parameter = geometry_.parameters[index];
            if (parameter.offset >= range.begin && parameter.offset < range.end) {
                const at::Tensor sum = part_of(gradient, index);
                if (const auto waiting = borrowed_gradients_.extract(index)) {
                    sum.copy_(waiting.mapped());
                }
                sums.push_back(sum);
            } else {
                at::Tensor& sum = borrowed_gradients_[index];
                if (!sum.defined()) {
                    sum = at::zeros(parameter.shape, gradient.options());
                }
                sums.push_back(sum);
            }
        }
        return sums;
    }

    // Computes the block's forward and passes its outputs to the next block.
    void pass_on(int block) {
        const bool is_kept = block >= first_kept_ && functions_[index_of(block)].kept_elems > 0;
        const c10::AutoGradMode with_grad(is_kept);
        KeptForward& kept = kept_[index_of(block)];
        const Tensors parameters = is_kept ? leaves_of(block) : parameters_of(block);
        kept.leaves = is_kept ? parameters : Tensors();
        for (std::size_t i = 0; i < micros_.size(); ++i) {
            const at::Tensor input = inputs_->get(block, i);
            if (is_kept) {
                kept.passes.push_back(compute(block, parameters, input, OutputUse::values));
            }
            const at::Tensor output = is_kept ? kept.passes.back().output.detach()
                                              : run(block, parameters, input, OutputUse::values);
            inputs_->put(block + 1, i, output.contiguous());
        }
    }

    Tensors leaves_of(int block) const {
        Tensors leaves;
        for (const at::Tensor& parameter : parameters_of(block)) {
            leaves.push_back(parameter.detach().requires_grad_(true));
        }
        return leaves;
    }

    Pass compute(int block, const Tensors& leaves, const at::Tensor& given, OutputUse use) const {
        at::Tensor input = given.detach();
        if (input.is_floating_point()) {  // tokens have no gradient
            input.requires_grad_(true);
        }
        return {.input = input, .output = run(block, leaves, input, use)};
    }

    // Adds the gradients of a block's parameters to `sums`. Returns that of its input; undefined
    // for tokens.
    static at::Tensor add_pass_gradients(const Pass& pass, const Tensors& leaves,
                                         const at::Tensor& upstream, const Tensors& sums) {
        Tensors wanted = leaves;
        wanted.insert(wanted.end(), pass.input.requires_grad() ? 1 : 0, pass.input);
        const Tensors gradients = torch::autograd::grad({pass.output}, wanted, {upstream});
        const c10::NoGradGuard no_grad;
        for (std::size_t k = 0; k < sums.size(); ++k) {
            add_to(sums[k], gradients[k]);
        }
        return gradients.size() > sums.size() ? gradients.back() : at::Tensor();
    }

    // The last block: computes the loss of a micro-batch and begins its backward.
    at::Tensor add_last_gradients(const Tensors& leaves, const at::Tensor& input,
                                  const Tensors& sums, const at::Tensor& all_targets) {
        Tensors gradients;
        for_pieces(input, all_targets, most_tokens_,
                   [&](const at::Tensor& part, const at::Tensor& targets) {
                       const Pass pass = compute(last_block(), leaves, part, OutputUse::values);
                       const at::Tensor logits = pass.output.detach();
                       {
                           const c10::NoGradGuard no_grad;
                           loss_sum_ += cross_entropy(logits, targets, settings_.vocabulary,
                                                      token_weight_ * loss_scale_);
                       }
                       gradients.push_back(add_pass_gradients(pass, leaves, logits, sums));
                   });
        return gradients.size() == 1 ? gradients.front() : at::cat(gradients, 1).view_as(input);
    }

    // Adds the block's gradients of all micro-batches to `sums`.
    void add_gradients(int block, const Tensors& sums) {
        const c10::AutoGradMode with_grad(true);
        KeptForward kept = std::exchange(kept_[index_of(block)], {});
        const bool is_kept = !kept.passes.empty();
        const Tensors leaves = is_kept ? std::move(kept.leaves) : leaves_of(block);
        for (std::size_t i = 0; i < micros_.size(); ++i) {
            Micro& micro = micros_[i];
            const at::Tensor given = inputs_->take(block, i);
            if (block == last_block()) {
                micro.upstream = add_last_gradients(leaves, given, sums, micro.targets);
                continue;
            }
            const Pass pass = is_kept ? std::exchange(kept.passes[i], {})
                                      : compute(block, leaves, given, OutputUse::graph);
            micro.upstream = add_pass_gradients(pass, leaves, micro.upstream, sums);
        }
    }

    // Probabilities of the token after `tokens`. The model sees only the last `context` tokens.
    at::Tensor next_shares(std::span<const std::int32_t> tokens, double temperature) {
        const c10::NoGradGuard no_grad;
        const std::size_t columns =
            std::min(tokens.size(), static_cast<std::size_t>(settings_.context));
        at::Tensor state =
            token_tensor(tokens.last(columns), 1, static_cast<int>(columns), device_);
        for (int block = 0; block <= last_block(); ++block) {
            if (block == last_block()) {
                state = state.narrow(1, state.size(1) - 1, 1);
            }
            state = visit(block, state);
        }
        const at::Tensor logits = state.view({-1}).narrow(0, 0, settings_.vocabulary);
        return at::softmax(logits.to(at::kDouble) / temperature, 0).cpu();
    }

    config::ModelSettings settings_;
    Geometry geometry_;
    std::vector<BlockFunction> functions_;
    std::int64_t most_tokens_;  // that the last block computes at once
    at::Device device_;
    at::ScalarType compute_;
    std::vector<feed::Visit> reads_;
    std::optional<ParameterStore> store_;
    std::optional<BlockInputs> inputs_;

    std::vector<Micro> micros_;
    int first_kept_ = 0;
    std::vector<KeptForward> kept_;  // of each block
    at::Tensor last_gradient_;
    std::map<std::size_t, at::Tensor> borrowed_gradients_;  // by parameter index
    double token_weight_ = 0;
    double loss_scale_ = 1;
    at::Tensor loss_sum_;
    int next_forward_ = 0;
    int next_backward_ = -1;
};

}  // namespace

std::unique_ptr<Network> Network::make(const config::ModelSettings& settings,
                                       std::span<const std::byte> parameters,
                                       const ComputeDevice& device, const Residence& residence,
                                       const feed::JointCopy& joint) {
    return std::make_unique<BlockwiseNetwork>(settings, parameters, device, residence, joint);
}

std::string describe_backend(const config::ModelSettings& settings, const ComputeDevice& device) {
    return text("torch ", TORCH_VERSION, ", ", name_of(compute_format(settings, device)),
                " products on ", device.is_gpu() ? text("GPU ", *device.gpu) : "the CPU");
}

}  // namespace nearstep::model
