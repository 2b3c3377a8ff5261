// Causal attention.
#pragma once

namespace at {
class Tensor;
}

namespace nearstep::model {

// `queries` [rows, heads, columns, elems]; `keys` and `values` have the same shape, or fewer heads
// that divide those of the queries, each for that many neighbouring ones. Returns
// [rows, columns, heads * elems].
at::Tensor attend(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values);

}  // namespace nearstep::model
