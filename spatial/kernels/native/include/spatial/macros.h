// One set of headers for the host and for CUDA: nothing here includes torch or CUDA.
#pragma once

#if defined(__CUDACC__)
#define SPATIAL_HD __host__ __device__ __forceinline__
#else
#define SPATIAL_HD inline __attribute__((always_inline))
#endif
