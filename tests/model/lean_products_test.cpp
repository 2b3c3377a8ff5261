// A product of which backward needs the graph alone gives the gradients of one that is computed.
#include "model/lean_products.hpp"

#include "support/test.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace nearstep::model {
namespace {

using Tensors = std::vector<at::Tensor>;
using Product = std::function<at::Tensor(const Tensors& arguments, OutputUse use)>;

constexpr std::int64_t kIn = 24;
constexpr std::int64_t kOut = 16;

at::Tensor leaf(at::IntArrayRef shape) {
    return at::randn(shape, at::kBFloat16).requires_grad_(true);
}

void expect_gradients_of_graph(const Product& product, const Tensors& arguments) {
    const at::Tensor output = product(arguments, OutputUse::values);
    const at::Tensor graph = product(arguments, OutputUse::graph);
    EXPECT_EQ(graph.sizes(), output.sizes());
    EXPECT_EQ(graph.scalar_type(), output.scalar_type());
    EXPECT_GT(at::count_nonzero(output).item<std::int64_t>(), 0);
    EXPECT_EQ(at::count_nonzero(graph).item<std::int64_t>(), 0) << "nothing was computed";
    const at::Tensor upstream = at::randn_like(output);
    const Tensors expected = torch::autograd::grad({output}, arguments, {upstream});
    const Tensors found = torch::autograd::grad({graph}, arguments, {upstream});
    for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(at::equal(found[i], expected[i])) << "argument " << i;
    }
}

TEST(LeanProducts, GeluAffineNeedsNoValuesInBackward) {
    at::manual_seed(1);
    expect_gradients_of_graph(
        [](const Tensors& of, OutputUse use) { return gelu_affine(of[0], of[1], of[2], use); },
        {leaf({2, 5, kIn}), leaf({kIn, kOut}), leaf({kOut})});
}

TEST(LeanProducts, SiluLinearNeedsNoValuesInBackward) {
    at::manual_seed(1);
    expect_gradients_of_graph(
        [](const Tensors& of, OutputUse use) { return silu_linear(of[0], of[1], of[2], use); },
        {leaf({2, 5, kIn}), leaf({2, 5, kIn}), leaf({kOut, kIn})});
}

}  // namespace
}  // namespace nearstep::model
