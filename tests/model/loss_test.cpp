// Compares the loss and its gradient with double precision, on the CPU and on a GPU if there is
// one.
#include "model/loss.hpp"

#include "support/test.hpp"

#include <ATen/ATen.h>
#include <torch/cuda.h>

namespace nearstep::model {
namespace {

constexpr std::int64_t kTokens = 37;
constexpr std::int64_t kVocabulary = 259;
constexpr std::int64_t kColumns = 320;
constexpr double kWeight = 0.25;

class Loss : public testing::TestWithParam<at::ScalarType> {
protected:
    void SetUp() override {
        at::manual_seed(1);
        logits_ = (10 * at::randn({kTokens, kColumns}, at::kDouble)).to(GetParam());
        targets_ = at::randint(kVocabulary, {kTokens}, at::kLong);
    }

    static std::vector<at::Device> devices() {
        std::vector<at::Device> found = {at::kCPU};
        if (torch::cuda::is_available()) {
            found.emplace_back(at::kCUDA, 0);
        }
        return found;
    }

    // Overwrites the device's copy of the logits; returns it with the loss.
    std::pair<at::Tensor, double> run(const at::Device& device,
                                      std::optional<double> gradient_weight) const {
        const at::Tensor logits = logits_.to(device, /*non_blocking=*/false, /*copy=*/true);
        const double loss =
            cross_entropy(logits, targets_.to(device), kVocabulary, gradient_weight).item<double>();
        return {logits.to(at::kCPU), loss};
    }

    at::Tensor logits_;
    at::Tensor targets_;
};

TEST_P(Loss, AndItsGradientAreThoseOfDoublePrecision) {
    const at::Tensor log_share =
        at::log_softmax(logits_.narrow(1, 0, kVocabulary).to(at::kDouble), 1);
    const at::Tensor index = targets_.view({-1, 1});
    const double loss = -log_share.gather(1, index).sum().item<double>();
    at::Tensor gradient = log_share.exp();
    gradient.scatter_add_(1, index, at::full({kTokens, 1}, -1.0, at::kDouble));
    gradient *= kWeight;
    const double tolerance = GetParam() == at::kFloat ? 1e-6 : 1e-3;
    for (const at::Device& device : devices()) {
        SCOPED_TRACE(device.str());
        const auto [found, found_loss] = run(device, kWeight);
        EXPECT_NEAR(found_loss, loss, 1e-6 * loss);
        const at::Tensor difference = found.narrow(1, 0, kVocabulary).to(at::kDouble) - gradient;
        EXPECT_LT(difference.abs().max().item<double>(), tolerance);
        EXPECT_EQ(found.narrow(1, kVocabulary, kColumns - kVocabulary)
                      .count_nonzero()
                      .item<std::int64_t>(),
                  0);
        const auto [kept, same_loss] = run(device, std::nullopt);
        EXPECT_TRUE(at::equal(kept, logits_)) << "without a weight the logits stay";
        EXPECT_EQ(same_loss, found_loss);
    }
}

TEST_P(Loss, IsNotANumberIfALogitOfTheVocabularyIsNone) {
    for (const double value : {std::nan(""), std::numeric_limits<double>::infinity()}) {
        SetUp();
        logits_[5][7] = value;
        for (const at::Device& device : devices()) {
            SCOPED_TRACE(device.str());
            const auto [found, loss] = run(device, kWeight);
            EXPECT_TRUE(std::isnan(loss));
            const at::Tensor in_vocabulary = found.narrow(1, 0, kVocabulary).isnan();
            EXPECT_EQ(in_vocabulary[5].sum().item<std::int64_t>(), kVocabulary);
            EXPECT_EQ(in_vocabulary.sum().item<std::int64_t>(), kVocabulary)
                << "other tokens are numbers";
        }
    }
}

TEST_P(Loss, IgnoresTheColumnsBehindTheVocabulary) {
    for (const at::Device& device : devices()) {
        SCOPED_TRACE(device.str());
        SetUp();
        const auto [gradient, loss] = run(device, kWeight);
        logits_.narrow(1, kVocabulary, kColumns - kVocabulary).fill_(std::nan(""));
        const auto [again, same_loss] = run(device, kWeight);
        EXPECT_EQ(same_loss, loss);
        EXPECT_TRUE(at::equal(again, gradient));
    }
}

INSTANTIATE_TEST_SUITE_P(InEveryFormat, Loss,
                         testing::Values(at::kFloat, at::kBFloat16, at::kHalf));

}  // namespace
}  // namespace nearstep::model
