#pragma once

#include <cstdint>

namespace spatial {

template <class Real>
struct ImageLossInputs {
    int64_t num_images;
    int height, width, channels;
    const Real *image, *target;  // [B, H, W, D]
    const uint8_t* mask;         // [B, H, W] or null; outside it the image counts as equal to the target
    Real ssim_weight;
};

// (1 - w)·mean |image - target| + w·(1 - mean SSIM), SSIM over windows inside the image ("valid"), means over the mask.
// `moments` [3, B, H - 10, W - 10, D] or null receives SSIM's derivatives for the backward pass.
template <class Real>
double l1_ssim(const ImageLossInputs<Real>& in, Real* moments);

template <class Real>
void l1_ssim_vjp(const ImageLossInputs<Real>& in, const Real* moments, Real v_loss, Real* v_image);

}  // namespace spatial
