// A network as one autograd graph over one leaf tensor, for comparison with the block by block one.
#pragma once

#include "model/network_steps.hpp"
#include "support/test.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace nearstep::model {

inline double norm_of(const Floats& values) {
    double squares = 0;
    for (const float value : values) {
        squares += static_cast<double>(value) * value;
    }
    return std::sqrt(squares);
}

inline double distance(const Floats& a, const Floats& b) {
    Floats difference(a.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
        difference[i] = a[i] - b[i];
    }
    return norm_of(difference);
}

// Computes the logits with elementary operations.
class Reference {
public:
    Reference(const config::ModelSettings& settings, Floats& values)
        : settings_(settings), geometry_(describe(settings)) {
        vector_ =
            at::from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, at::kFloat)
                .clone()
                .requires_grad_(true);
    }
    Reference(const Reference&) = delete;
    Reference& operator=(const Reference&) = delete;
    virtual ~Reference() = default;

    Step step(const std::vector<Rows>& rows) const {
        at::Tensor sum = at::zeros({}, at::kFloat);
        double tokens = 0;
        for (const Rows& part : rows) {
            const at::Tensor log_share = at::log_softmax(logits(part), -1);
            sum = sum - log_share.gather(-1, tensor(part.targets, part).unsqueeze(-1)).sum();
            tokens += static_cast<double>(part.tokens.size());
        }
        const at::Tensor loss = sum / tokens;
        const at::Tensor gradient = torch::autograd::grad({loss}, {vector_}).front();
        const auto* first = gradient.const_data_ptr<float>();
        return {.loss = loss.item<double>(), .gradient = Floats(first, first + gradient.numel())};
    }

protected:
    virtual at::Tensor logits(const Rows& part) const = 0;

    static at::Tensor tensor(const Tokens& tokens, const Rows& part) {
        return at::tensor(tokens, at::kLong).view({part.rows, part.columns});
    }

    at::Tensor get(const std::string& name) const {
        for (const Parameter& parameter : geometry_.parameters) {
            if (parameter.name == name) {
                return vector_
                    .narrow(0, static_cast<std::int64_t>(parameter.offset),
                            static_cast<std::int64_t>(parameter.elems))
                    .view(parameter.shape);
            }
        }
        throw Error("no parameter " + name);
    }

    const config::ModelSettings& settings() const { return settings_; }

private:
    config::ModelSettings settings_;
    Geometry geometry_;
    at::Tensor vector_;
};

// Compares the loss and the gradient of each parameter with those of `Whole`, a Reference.
template <typename Whole>
void expect_whole_graph(const config::ModelSettings& settings) {
    Floats values = values_for(settings);
    const std::vector<Rows> rows{draw(3, 8, 5, settings.vocabulary),
                                 draw(2, 5, 6, settings.vocabulary)};
    const Step expected = Whole(settings, values).step(rows);
    const Step step = run_step(settings, values, rows);
    EXPECT_NEAR(step.loss, expected.loss, 1e-6 * expected.loss);

    const Geometry geometry = describe(settings);
    for (const Parameter& parameter : geometry.parameters) {
        double largest = 0;
        double error = 0;
        for (std::size_t i = parameter.offset; i < parameter.offset + parameter.elems; ++i) {
            largest = std::max(largest, std::abs(static_cast<double>(expected.gradient[i])));
            error = std::max(
                error, std::abs(static_cast<double>(step.gradient[i]) - expected.gradient[i]));
        }
        EXPECT_GT(largest, 0) << parameter.name;
        EXPECT_LE(error, 1e-5 * largest) << parameter.name;
    }
}

}  // namespace nearstep::model
