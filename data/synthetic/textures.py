"""Solid textures: colours as functions of the position in space, hence the same from every side.

All noise comes from two small periodic volumes, built once from a seed and read by trilinear interpolation: a Gaussian
random field whose spectrum falls like 1/f (five octaves in one look-up), and a cell pattern (a Voronoi diagram). Looked
up along generic directions at several sizes they do not visibly repeat.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation
from torch import Tensor
from torch.nn import functional

FRACTAL_TEXELS = 128
CELL_TEXELS = 72
NUM_CELLS = 216
# A generic rotation: no surface of the scene lies along the volumes' axes, so that no plane shows their period.
GENERIC = Rotation.from_euler("xyz", [0.61, 1.07, 0.35]).as_matrix()


@dataclass(frozen=True)
class Noise:
    """The two periodic volumes, one texel wider than the period so that interpolation wraps.

    Args:
        fractal: [2, n+1, n+1, n+1], two independent fields, mean 0 and standard deviation 1.
        cells: [2, m+1, m+1, m+1]: distance to the cell's border in cell sizes, and a number in [0, 1) for each cell.
    """

    fractal: Float[Tensor, "2 n n n"]
    cells: Float[Tensor, "2 m m m"]

    def cloud(self, points: Float[Tensor, "3 N"], period: float) -> Float[Tensor, "N"]:
        """Fractal noise with features from ``period`` / 3 down to ``period`` / 40, mean 0, standard deviation 1."""
        return lookup(self.fractal[:1], points, period)[0]

    def clouds(self, points: Float[Tensor, "3 N"], period: float) -> Float[Tensor, "2 N"]:
        """Two independent clouds, for the price of little more than one."""
        return lookup(self.fractal, points, period)

    def chips(self, points: Float[Tensor, "3 N"], period: float) -> Float[Tensor, "2 N"]:
        """Cells of about ``period`` / 6: distance to the border (in cell sizes), and each cell's number in [0, 1)."""
        return lookup(self.cells, points, period)


def make_noise(seed: int) -> Noise:
    """The volumes for this seed; the same seed gives the same bits on one machine."""
    generator = np.random.default_rng(seed)
    fractal = np.stack([_fractal_volume(generator) for _ in range(2)])
    return Noise(_wrapped(fractal), _wrapped(_cell_volume(generator)))


def lookup(volume: Float[Tensor, "D n n n"], points: Float[Tensor, "3 N"], period: float) -> Float[Tensor, "D N"]:
    """Trilinear look-up in a periodic volume."""
    rotation = torch.as_tensor(GENERIC / period, dtype=points.dtype)
    inside = (rotation @ points).remainder_(1.0).mul_(2.0).sub_(1.0)
    return interpolated(volume, inside)


def interpolated(volume: Float[Tensor, "D X Y Z"], inside: Float[Tensor, "3 N"]) -> Float[Tensor, "D N"]:
    """Trilinear look-up at coordinates in [-1, 1] between the centres of the outermost texels."""
    # grid_sample shares work between threads by batch entry only: two halves, each its own entry.
    count = inside.shape[1]
    half = -(-count // 2)
    grid = functional.pad(inside.T.flip(1), (0, 0, 0, 2 * half - count)).reshape(2, 1, 1, half, 3)
    values = functional.grid_sample(
        volume[None].expand(2, -1, -1, -1, -1), grid, padding_mode="border", align_corners=True
    )
    return values.permute(1, 0, 2, 3, 4).reshape(volume.shape[0], 2 * half)[:, :count]


def mix(first: Tensor, second: Tensor, weight: Tensor) -> Tensor:
    """``first`` where the weight is 0, ``second`` where it is 1."""
    return first + (second - first) * weight


def smoothstep(low: float, high: float, x: Tensor) -> Tensor:
    """0 below ``low``, 1 above ``high``, smooth between (``low`` > ``high`` falls instead of rising)."""
    t = ((x - low) / (high - low)).clamp(0, 1)
    return t * t * (3 - 2 * t)


def rgb(hex_color: str) -> Float[Tensor, "3 1"]:
    """Linear RGB of a display colour such as "c8a070"."""
    display = torch.tensor([int(hex_color[i : i + 2], 16) / 255 for i in (0, 2, 4)])
    return linear_from_srgb(display)[:, None]


def linear_from_srgb(display: Tensor) -> Tensor:
    """IEC 61966-2-1."""
    return torch.where(display <= 0.04045, display / 12.92, ((display + 0.055) / 1.055) ** 2.4)


def srgb_from_linear(linear: Tensor) -> Tensor:
    """IEC 61966-2-1."""
    return torch.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear.clamp_min(1e-6) ** (1 / 2.4) - 0.055)


def _fractal_volume(generator: np.random.Generator) -> np.ndarray:
    """A Gaussian random field with a 1/f amplitude spectrum per octave, from 3 to 40 cycles a period."""
    n = FRACTAL_TEXELS
    spectrum = np.fft.rfftn(generator.standard_normal((n, n, n)))
    frequency = np.sqrt(
        np.fft.fftfreq(n, 1 / n)[:, None, None] ** 2
        + np.fft.fftfreq(n, 1 / n)[None, :, None] ** 2
        + np.fft.rfftfreq(n, 1 / n)[None, None, :] ** 2
    )
    # In 3D a density of f^-2.3 gives octaves whose amplitude falls by about 0.6 each.
    weight = np.where((frequency >= 3) & (frequency <= 40), np.maximum(frequency, 1.0) ** -2.3, 0.0)
    field = np.fft.irfftn(spectrum * weight, s=(n, n, n), axes=(0, 1, 2))
    return field / field.std()


def _cell_volume(generator: np.random.Generator) -> np.ndarray:
    """Distance to the nearest cell border in units of the mean cell size, and the cell's own number."""
    seeds = generator.random((NUM_CELLS, 3))
    number = generator.random(NUM_CELLS)
    ticks = np.arange(CELL_TEXELS) / CELL_TEXELS
    texels = np.stack(np.meshgrid(ticks, ticks, ticks, indexing="ij"), -1).reshape(-1, 3)
    distance, nearest = cKDTree(seeds, boxsize=1.0).query(texels, k=2, workers=2)
    border = (distance[:, 1] - distance[:, 0]) / 2 * NUM_CELLS ** (1 / 3)
    return np.stack([border, number[nearest[:, 0]]]).reshape(2, CELL_TEXELS, CELL_TEXELS, CELL_TEXELS)


def _wrapped(volume: np.ndarray) -> Tensor:
    padded = np.pad(volume, ((0, 0), (0, 1), (0, 1), (0, 1)), mode="wrap")
    return torch.from_numpy(padded.astype(np.float32)).contiguous()
