// The first calls of the libraries that torch computes with on the CPU.
#pragma once

namespace nearstep::model {

// Calls each of them once, on this thread alone; a second time it does nothing. Must return before
// torch computes with several threads in this process: a library that sets itself up in the first
// call may give other bits, less accurate ones, to threads that come first together.
//   MKL's vector mathematics (exp, erf, tanh, ...) does: without this one process in some 400 that
//     started on a loaded machine took its first exp of the loss in part with another kernel.
//   MKL's and oneDNN's products: attention calls them from several threads. They are not known to
//     differ; oneDNN makes kernels under a lock.
// A GPU's libraries need none of it: torch gives each thread a cuBLAS handle of its own under a
// lock, with a workspace for each stream, and no random numbers come from cuRAND (base/random.hpp).
void make_first_calls();

}  // namespace nearstep::model
