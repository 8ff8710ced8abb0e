// A small pool of threads. PyTorch brings its own OpenMP; a second OpenMP runtime in the process would make both spin.
#pragma once

#include <cstdint>
#include <functional>

namespace spatial {

// Threads that parallel_for may use, the caller's included. At least 1.
void set_num_threads(int num_threads);
int num_threads();

// Calls task(i) for every i in [0, count), in any order and on any thread; returns when all are done. Results must not
// depend on which thread ran what: that is what makes every operation bit-identical for any number of threads.
void parallel_for(int64_t count, const std::function<void(int64_t)>& task);

// The same over [0, count) cut into ranges of `grain`: task(begin, end).
void parallel_ranges(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& task);

}  // namespace spatial
