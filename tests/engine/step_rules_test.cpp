// Compares what a step does to the masters and to the disk with the rules written out here:
// clipping, residuals under a changing loss scale, and flushes that fail.
#include "codec/codec.hpp"
#include "engine/run_fixture.hpp"
#include "support/test.hpp"

namespace nearstep::engine {
namespace {

constexpr std::size_t kBlockElems = shard::kTileElems;
constexpr double kDescentRate = 0.5;

using Values = std::vector<float>;

// Normally distributed, in sixteenths, which every format of gradients holds exactly.
Values normal_gradient(std::uint64_t step) {
    Values gradient(kBlockElems);
    for (std::size_t i = 0; i < kBlockElems; ++i) {
        gradient[i] = static_cast<float>(std::round(16 * random_normal(3, step, i)) / 16);
    }
    return gradient;
}

double norm_of(const Values& values) {
    double sum = 0;
    for (const float value : values) {
        sum += static_cast<double>(value) * value;
    }
    return std::sqrt(sum);
}

Values with_norm(Values values, double norm) {
    const double factor = norm / norm_of(values);
    for (float& value : values) {
        value = static_cast<float>(value * factor);
    }
    return values;
}

config::EngineSettings settings_for_rules(const std::string& name) {
    const auto world = mpi::Communicator::world(std::chrono::seconds(100));
    return settings_in(new_folder(world, "rules-" + name));
}

// One block on one rank. Masters start at zero, and plain gradient descent moves them by the rate
// times the gradient that was used.
class OneBlock {
public:
    OneBlock(const config::EngineSettings& settings, Dtype dtype, const EngineOptions& options)
        : world_(mpi::Communicator::world(std::chrono::seconds(100))),
          layout_(layout_of_blocks({kBlockElems}, dtype)),
          run_(Run::open(world_, settings, layout_, {.kind = StartRequest::Kind::fresh},
                         {.model = "one block", .steps = 100}, options)) {
        run_.begin(each_by([](std::size_t) { return 0.0F; }));
    }

    engine::Run& engine() { return run_; }

    void step(const Values& gradient, double clip_norm = 0) {
        engine().begin_backward(
            {.groups = {{.optimizer = arith::Optimizer::sgd, .rate = kDescentRate, .beta1 = 0}},
             .clip_norm = clip_norm});
        const auto scale = static_cast<float>(engine().loss_scale());
        std::ranges::transform(gradient, engine().gradient_space(0).begin(),
                               [&](float value) { return scale * value; });
        engine().put_gradient(0);
        engine().end_pass();
        engine().end_gradients();
        engine().update();
        engine().finish();
        engine().commit();
    }

    Values parameters() {
        Values values(kBlockElems);
        convert_to_fp32(layout_.dtype, engine().parameters().data(), values.data(), kBlockElems);
        return values;
    }

private:
    mpi::Communicator world_;
    Layout layout_;
    Run run_;
};

// The norms of the gradients that two steps used, whose own norms are given.
std::vector<double> used_norms(config::Mode mode, bool clips_by_last_norm,
                               const std::vector<double>& norms) {
    config::EngineSettings settings = settings_for_rules("clip");
    settings.mode = mode;
    OneBlock block(settings, Dtype::fp32, {.clips_by_last_norm = clips_by_last_norm});
    std::vector<double> used;
    Values before = block.parameters();
    for (const double norm : norms) {
        block.step(with_norm(normal_gradient(used.size()), norm), 1);
        const Values after = block.parameters();
        Values moved(kBlockElems);
        std::ranges::transform(after, before, moved.begin(), std::minus<>());
        used.push_back(norm_of(moved) / kDescentRate);
        before = after;
    }
    return used;
}

TEST(ClippingTest, BringsANormThatIsJustAboveTheLimitDownToIt) {
    for (const config::Mode mode : {config::Mode::su, config::Mode::su_o}) {
        const std::vector<double> norms = {1.02, 0.98, 1.04, 5};
        const std::vector<double> used = used_norms(mode, false, norms);
        for (std::size_t i = 0; i < norms.size(); ++i) {
            EXPECT_NEAR(used[i], std::min(norms[i], 1.0), 1e-4) << config::name_of(mode) << i;
        }
    }
}

TEST(ClippingTest, ByTheNormOfTheLastStepDividesByThatOne) {
    const std::vector<double> used = used_norms(config::Mode::su_o, true, {1.02, 0.5, 3});
    EXPECT_NEAR(used[0], 1, 1e-4) << "the first step has no other norm";
    EXPECT_NEAR(used[1], 0.5 / 1.02, 1e-4);
    EXPECT_NEAR(used[2], 3, 3e-4) << "not clipped, since 0.5 is below the limit";
}

// The loss of encoding is added to the next gradient, in units of the gradient without its scale:
// so a scale that doubles, or that a skipped step halves, changes nothing but roundings.
TEST(ResidualTest, KeepsItsMeaningWhenTheLossScaleChanges) {
    config::EngineSettings settings = settings_for_rules("residual");
    settings.mode = config::Mode::su_o_c;
    settings.compress.codec = config::PayloadCodec::q4;
    settings.compress.error_feedback = true;
    settings.csd.durability = config::Durability::none;
    OneBlock block(settings, Dtype::fp16, {.loss_scale = {.first = 4, .growth_steps = 2}});
    const auto codec = codec::make_codec({.name = "q4", .dtype = Dtype::fp16});
    std::vector<std::byte> payload(codec->payload_bytes());
    Values residual(kBlockElems, 0.0F);
    Values masters(kBlockElems, 0.0F);
    std::vector<double> scales;
    for (const char kind : std::string("...x...")) {
        Values gradient = normal_gradient(scales.size());
        const auto scale = static_cast<float>(block.engine().loss_scale());
        scales.push_back(scale);
        if (kind == 'x') {
            gradient[7] = std::numeric_limits<float>::infinity();
        } else {
            Values sent(kBlockElems);
            for (std::size_t i = 0; i < kBlockElems; ++i) {
                sent[i] = scale * (gradient[i] + residual[i]);
            }
            codec->encode(sent, payload);
            Values decoded(kBlockElems, 0.0F);
            codec->decode_add(payload, 0, decoded);
            for (std::size_t i = 0; i < kBlockElems; ++i) {
                residual[i] = (sent[i] - decoded[i]) / scale;
                masters[i] -= static_cast<float>(kDescentRate) * decoded[i] / scale;
            }
        }
        block.step(gradient);
        const Values parameters = block.parameters();
        double worst = 0;
        for (std::size_t i = 0; i < kBlockElems; ++i) {
            worst = std::max(worst, std::abs(static_cast<double>(parameters[i]) - masters[i]));
        }
        // fp16 keeps 11 bits, and parameters are below 16.
        EXPECT_LE(worst, 8 * std::ldexp(1.0, -11)) << "after step " << scales.size();
    }
    EXPECT_EQ(scales, (std::vector<double>{4, 4, 8, 8, 4, 4, 8}));
}

// Each flush of a run fails once, and each time the run must end: 2 devices and a manifest at the
// start and in each step.
TEST(DurabilityTest, NoFlushThatFailsIsIgnored) {
    constexpr int kSteps = 3;
    for (const config::Mode mode : {config::Mode::su, config::Mode::su_o}) {
        const auto ends = [&](int flush) {
            config::EngineSettings settings = settings_for_rules("flush");
            settings.mode = mode;
            try {
                OneBlock block(
                    settings, Dtype::fp32,
                    {.fault_plan = text("phase=before_flush action=fail count=", flush)});
                for (std::uint64_t step = 0; step < kSteps; ++step) {
                    block.step(normal_gradient(step));
                }
            } catch (const IoError&) {
                return true;
            }
            return false;
        };
        int failed = 0;
        while (ends(failed + 1)) {
            ++failed;
        }
        EXPECT_GE(failed, 3 * (1 + kSteps)) << config::name_of(mode);
    }
}

}  // namespace
}  // namespace nearstep::engine
