#pragma once

#include <cstdint>

namespace spatial {

template <class Real>
struct IntersectionInputs {
    int64_t num_cameras, num_gaussians;
    const Real *means2d, *conics, *opacities, *depths;  // [C, N, 2], [C, N, 3], [C, N], [C, N]
    const int32_t* radii;                               // [C, N, 2]
    int tile_size, tile_columns, tile_rows;
};

// Tiles that each Gaussian touches, and where its slots begin: slot_offsets[i] … slot_offsets[i + 1], in the order of
// (camera, Gaussian). Returns the number of slots.
template <class Real>
int64_t count_intersections(const IntersectionInputs<Real>& in, int32_t* slot_offsets /* [C·N + 1] */);

// Lists by (camera, tile), nearest first (equal depths by index): the Gaussian's index c·N + n, and its slot.
template <class Real>
void fill_intersections(const IntersectionInputs<Real>& in, const int32_t* slot_offsets,
                        int32_t* tile_offsets /* [C·tiles + 1] */, int32_t* flatten_ids, int32_t* slots);

}  // namespace spatial
