// First calls of torch's CPU libraries, made on one thread so that results are reproducible.
#pragma once

namespace nearstep::model {

// Calls each library once on this thread; a second call does nothing. Must return before torch
// computes with several threads in this process: a library that initialises itself in its first
// call may give different, less accurate bits if several threads make that call together.
//   MKL's vector functions (exp, erf, tanh, ...) do so: without this, about one process in 400 on a
//     loaded machine computed part of the loss's first exp with another kernel.
//   MKL's and oneDNN's products are called from several threads by attention. They are not known
//     to differ; oneDNN creates kernels under a lock.
// GPU libraries do not need this: torch creates each thread's cuBLAS handle under a lock, with a
// workspace for each stream, and we take no random numbers from cuRAND (base/random.hpp).
void make_first_calls();

}  // namespace nearstep::model
