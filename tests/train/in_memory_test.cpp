// Training with state on devices equals in-memory training with PyTorch's AdamW.
#include "data/text.hpp"
#include "support/places.hpp"
#include "support/test.hpp"
#include "train/corpus.hpp"
#include "train/schedule.hpp"
#include "train/trainer.hpp"

#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

namespace nearstep::train {
namespace {

constexpr int kSteps = 50;

config::RunSettings tiny_run(const std::string& folder) {
    config::RunSettings run;
    run.model = {.layers = 2, .heads = 2, .width = 64, .context = 32, .dtype = Dtype::fp32};
    run.data.train = {folder + "/text"};
    run.train.steps = kSteps;
    run.train.global_batch = 8;
    run.train.micro_batch = 2;
    run.train.learning_rate = 3e-3;
    run.compress.codec = config::PayloadCodec::dense;
    run.csd.path = {folder + "/state"};
    run.csd.per_rank = {2};
    run.csd.subgroup_tiles = 1;
    return run;
}

std::string make_folder(const mpi::Communicator& world) {
    const std::string folder =
        std::string(test::kBuildFolder) + "/in-memory-test-" + std::to_string(world.size());
    if (world.rank() == 0) {
        std::filesystem::remove_all(folder);
        std::filesystem::create_directories(folder);
        std::ofstream text(folder + "/text");
        for (int i = 0; i < 4000; ++i) {
            text << "line " << i * i % 1013 << " of a text with a pattern; ";
        }
    }
    world.barrier();
    return folder;
}

// Losses of the same run in memory: the network's gradient, with PyTorch's AdamW and clipping on
// one flat parameter.
std::vector<double> losses_in_memory(const config::RunSettings& run, const data::Corpus& corpus) {
    const model::Geometry geometry = model::describe(run.model);
    std::vector<float> vector(geometry.elems);
    std::vector<float> gradient(geometry.elems);
    model::fill_start_values(geometry, run.train.seed, 0, vector);
    const auto network = model::Network::make(run.model, std::as_bytes(std::span(vector)));
    const auto elems = static_cast<std::int64_t>(geometry.elems);
    const at::Tensor parameter = at::from_blob(vector.data(), {elems}).requires_grad_();
    parameter.mutable_grad() = at::from_blob(gradient.data(), {elems});
    torch::optim::AdamWOptions options(run.train.learning_rate);
    options.betas({run.train.beta1, run.train.beta2}).eps(run.train.epsilon);
    options.weight_decay(run.train.weight_decay);
    torch::optim::AdamW optimizer({parameter}, options);

    const int rows = run.train.global_batch;
    const auto tokens = static_cast<std::size_t>(rows * run.model.context);
    std::vector<std::int32_t> inputs(tokens);
    std::vector<std::int32_t> targets(tokens);
    std::vector<double> losses;
    for (int step = 0; step < kSteps; ++step) {
        data::draw_rows(corpus.train, run.train.seed, step, 0, rows, run.model.context, inputs,
                        targets);
        const model::MicroBatch batch{rows, run.model.context, inputs, targets};
        network->begin(std::span(&batch, 1), 1.0 / static_cast<double>(tokens), 1);
        const auto blocks = static_cast<int>(geometry.blocks.size());
        for (int block = 0; block < blocks; ++block) {
            network->forward(block);
        }
        losses.push_back(network->loss());
        for (int block = blocks - 1; block >= 0; --block) {
            const model::Block& range = geometry.blocks[static_cast<std::size_t>(block)];
            network->backward(block,
                              std::span(gradient).subspan(range.begin, range.end - range.begin));
        }
        torch::nn::utils::clip_grad_norm_(parameter, run.train.clip_norm);
        auto& group =
            static_cast<torch::optim::AdamWOptions&>(optimizer.param_groups()[0].options());
        group.lr(learning_rate(run.train, step));
        optimizer.step();
    }
    return losses;
}

TEST(Offloaded, TrainsAsPyTorchsAdamWDoesInMemory) {
    const auto world = mpi::Communicator::world(std::chrono::seconds(100));
    const config::RunSettings run = tiny_run(make_folder(world));
    const data::Corpus corpus = load_corpus(world, run);
    const std::vector<double> wanted = losses_in_memory(run, corpus);
    ASSERT_LT(wanted.back(), 0.7 * wanted.front()) << "the comparison needs a run that learns";

    Trainer trainer(world, run, corpus, {.request = {.kind = engine::StartRequest::Kind::fresh}});
    trainer.begin();
    for (const double loss : wanted) {
        const StepReport report = trainer.step();
        EXPECT_NEAR(report.loss, loss, 1e-5 * std::abs(loss)) << "step " << report.step;
    }
    trainer.finish();
}

}  // namespace
}  // namespace nearstep::train
