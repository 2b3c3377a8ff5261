// Trains a vision transformer of PyTorch on generated images, on 2 ranks with state on 3 devices,
// and compares it with torch::optim::AdamW in memory: vision_transformer FOLDER [STEP]; rank 1
// kills itself in that step.
#include "mpi/session.hpp"
#include "nearstep/run.hpp"

#include <torch/torch.h>

#include <csignal>
#include <cstdio>

using namespace nearstep;
constexpr int kSteps = 50, kBatch = 16, kClasses = 4, kPatches = 16, kPatch = 48, kWidth = 96;

struct VisionTransformer : torch::nn::Module {
    torch::Tensor places = register_parameter("places", 0.02 * torch::randn({1, kPatches, kWidth}));
    torch::nn::Linear patches = register_module("patches", torch::nn::Linear(kPatch, kWidth));
    torch::nn::TransformerEncoderLayer layer{
        torch::nn::TransformerEncoderLayerOptions(kWidth, 4).dim_feedforward(256).dropout(0)};
    torch::nn::TransformerEncoder body = register_module("body", torch::nn::TransformerEncoder(layer, 2));
    torch::nn::Linear head = register_module("head", torch::nn::Linear(kWidth, kClasses));

    // The loss of a part of a batch's images. The parts' losses add up to the batch's mean.
    torch::Tensor loss(const torch::Tensor& images, const torch::Tensor& classes) {
        const auto seen = body((patches(images) + places).transpose(0, 1)).mean(0);
        return torch::log_softmax(head(seen), 1).gather(1, classes.unsqueeze(1)).sum() / -kBatch;
    }
};

// Images as patches. In class c, every fourth value of a patch, starting at c, is brighter.
std::pair<torch::Tensor, torch::Tensor> images_of(int step) {
    torch::manual_seed(static_cast<std::uint64_t>(1000 + step));
    const auto noise = torch::randn({kBatch, kPatches, kPatch});
    const auto classes = torch::randint(kClasses, {kBatch});
    return {noise + torch::arange(kPatch).remainder(kClasses).eq(classes.unsqueeze(1)).unsqueeze(1) * 0.5, classes};
}

engine::Layout layout_of(const torch::nn::Module& model) {
    engine::Layout layout{.dtype = Dtype::fp32};
    for (const auto& one : model.named_parameters()) {
        const std::size_t begin = layout.elems;
        layout.tensors.push_back({.name = one.key(), .shape = one.value().sizes().vec(), .offset = begin});
        layout.blocks.push_back({begin, layout.elems += static_cast<std::size_t>(one.value().numel())});
    }
    return layout;
}

int main(int, char** argv) {
    const mpi::Session session;
    const auto world = mpi::Communicator::world(std::chrono::seconds(60));
    const int killed_at = argv[2] != nullptr ? std::atoi(argv[2]) : 0, rows = kBatch / world.size();
    const auto make_model = [] { return torch::manual_seed(1), VisionTransformer(); };
    VisionTransformer model = make_model(), in_memory = make_model();
    const std::vector<torch::Tensor> tensors = model.parameters();
    torch::optim::AdamW adamw(in_memory.parameters(), torch::optim::AdamWOptions(1e-3).weight_decay(0.1));
    const engine::Layout layout = layout_of(model);
    const engine::Identity identity{.model = "vision transformer", .steps = kSteps};
    config::EngineSettings settings;
    settings.compress.codec = config::PayloadCodec::dense;
    settings.csd = {.per_rank = {2, 1}, .path = {argv[1]}, .subgroup_tiles = 1};
    auto run = engine::Run::open(world, settings, layout, {engine::StartRequest::Kind::resume_if_any}, identity, {});
    run.begin([&](std::size_t first, std::span<float> masters) {
        const auto values = torch::nn::utils::parameters_to_vector(tensors).detach();
        std::copy_n(values.data_ptr<float>() + first, masters.size(), masters.begin());
    });
    const auto values = torch::from_blob(const_cast<std::byte*>(run.parameters().data()), {int64_t(layout.elems)});
    for (int step = 1, first = static_cast<int>(run.steps_done()) + 1; step <= kSteps; ++step) {
        const auto [images, classes] = images_of(step);
        adamw.zero_grad();
        const torch::Tensor expected = in_memory.loss(images, classes);
        expected.backward(), adamw.step();
        if (step < first) continue;
        run.begin_forward();
        for (std::size_t i = 0; i < tensors.size(); ++i) run.await_parameters(i, {&layout.blocks[i], 1}, {});
        run.end_pass();
        torch::nn::utils::vector_to_parameters(values.clone(), tensors);
        if (run.is_under_way()) run.finish(), run.commit();
        model.zero_grad();
        const auto mine = torch::indexing::Slice(world.rank() * rows, (world.rank() + 1) * rows);
        const torch::Tensor loss = model.loss(images.index({mine}), classes.index({mine}));
        loss.backward();
        run.begin_backward({.groups = {{.rate = 1e-3, .decay = 0.1}}});
        std::vector<torch::Tensor> gradients;
        for (std::size_t i = 0; i < tensors.size(); ++i) {  // in any order
            if (step == killed_at && world.rank() == 1 && i == tensors.size() / 2) std::raise(SIGKILL);
            gradients.push_back(tensors[i].grad().contiguous());
            const shard::GradientPart part{gradients[i].data_ptr(), Dtype::fp32, layout.blocks[i].size()};
            run.put_gradient(i, {.parts = {&part, 1}});
        }
        run.end_gradients();
        run.update();
        const auto losses = world.all_gather(std::array{loss.item<double>()});
        const double sum = std::accumulate(losses.begin(), losses.end(), 0.0);
        if (world.rank() == 0) std::printf("step %d loss %.9f in memory %.9f\n", step, sum, expected.item<double>());
    }
    if (run.is_under_way()) run.finish(), run.commit();
    if (const auto digest = run.masters_digest(); world.rank() == 0) std::printf("masters %016lx\n", digest);
}
