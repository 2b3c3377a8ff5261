// Marks inline arithmetic that all engines share. The CUDA compiler builds it for the host and the
// GPU. C++14.
#pragma once

#if defined(__CUDACC__)
#define NEARSTEP_HOST_DEVICE __host__ __device__
#else
#define NEARSTEP_HOST_DEVICE
#endif
