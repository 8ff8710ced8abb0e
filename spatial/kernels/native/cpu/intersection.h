#pragma once

#include <cstdint>
#include <vector>

namespace spatial {

template <class Real>
struct IntersectionInputs {
    int64_t num_cameras, num_gaussians;
    const Real *means2d, *conics, *opacities, *depths;  // [C, N, 2], [C, N, 3], [C, N], [C, N]
    const int32_t* radii;                               // [C, N, 2]
    int tile_columns, tile_rows;
};

// The tiles of every Gaussian, found once; `fill` then sorts them into lists that the caller has made room for.
template <class Real>
class Intersections {
  public:
    explicit Intersections(const IntersectionInputs<Real>& in);

    int64_t size() const { return int64_t(tiles_.size()); }

    // Lists by (camera, tile), nearest first (equal depths by index), of Gaussians' indices c·N + n; and of each Gaussian's
    // intersections the places in those lists: Gaussian i's begin at gaussian_offsets[i].
    void fill(int32_t* gaussian_offsets /* [C·N + 1] */, int32_t* tile_offsets /* [C·tiles + 1] */, int32_t* flatten_ids,
              int32_t* places) const;

  private:
    IntersectionInputs<Real> in_;
    std::vector<int32_t> gaussian_offsets_, tiles_;  // tiles of each Gaussian, joined
};

}  // namespace spatial
