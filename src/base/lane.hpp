// Where the inline arithmetic that all engines share may run: on the host, and in kernels of a GPU
// where the CUDA compiler reads it. C++14.
#pragma once

#if defined(__CUDACC__)
#define NEARSTEP_LANE __host__ __device__
#else
#define NEARSTEP_LANE
#endif
