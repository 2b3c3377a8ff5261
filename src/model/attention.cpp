// Computes causal attention with torch. Called by the architectures in families/.
#include "model/architecture.hpp"

#include <ATen/ATen.h>

namespace nearstep::model {

namespace {

// Repeats each head, because torch 2.4 cannot attend to fewer.
at::Tensor repeated(const at::Tensor& x, std::int64_t heads) {
    const std::int64_t times = heads / x.size(1);
    return times == 1 ? x
                      : x.unsqueeze(2)
                            .expand({x.size(0), x.size(1), times, x.size(2), x.size(3)})
                            .reshape({x.size(0), heads, x.size(2), x.size(3)});
}

}  // namespace

at::Tensor attend(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values) {
    constexpr double kDropout = 0.0;
    const std::int64_t heads = queries.size(1);
    return at::scaled_dot_product_attention(queries, repeated(keys, heads), repeated(values, heads),
                                            {}, kDropout, /*is_causal=*/true)
        .transpose(1, 2)
        .reshape({queries.size(0), queries.size(2), heads * queries.size(3)});
}

}  // namespace nearstep::model
