#pragma once

#include <cstdint>

namespace spatial {

// distances [N, k]: to the k nearest other points of points [N, 3], ascending; infinite where there are fewer. Points at
// the same place are neighbours at distance 0. Coordinates must be finite.
template <class Real>
void nearest_distances(int64_t num_points, int64_t k, const Real* points, Real* distances);

}  // namespace spatial
