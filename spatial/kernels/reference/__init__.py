"""What each operation means, in plain PyTorch: the specification, any dtype, differentiated by autograd."""

from spatial.kernels.reference import (
    adam,
    image_loss,
    intersection,
    nearest,
    projection,
    rasterization,
    relocation,
    spherical_harmonics,
)

__all__ = [
    "adam",
    "image_loss",
    "intersection",
    "nearest",
    "projection",
    "rasterization",
    "relocation",
    "spherical_harmonics",
]
