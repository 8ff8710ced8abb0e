"""Pictures that compare: error maps, depth in colours, truth | render | error strips, sheets of many photos."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, UInt8
from numpy import ndarray
from PIL import Image, ImageDraw, ImageFont

ERROR_AT_WHITE = 0.25  # mean absolute error over channels at which the error map saturates
GAP = 4
PAPER, INK = (18, 20, 24), (225, 228, 232)


def error_map(truth: UInt8[ndarray, "H W 3"], render: UInt8[ndarray, "H W 3"]) -> UInt8[ndarray, "H W 3"]:
    """Absolute error, mean over channels: black at none, white at a quarter of full scale and more."""
    error = np.abs(truth.astype(np.float32) - render.astype(np.float32)).mean(-1) / 255
    return colorize(np.clip(error / ERROR_AT_WHITE, 0, 1), "inferno")


def depth_picture(
    depths: Float[ndarray, "H W"], alphas: Float[ndarray, "H W"] | None = None
) -> UInt8[ndarray, "H W 3"]:
    """Depth in colours, near bright and far dark, by inverse depth between its 2nd and 98th percentile.

    Pixels without depth (0, or alpha below one half) are dark grey.
    """
    is_hit = depths > 0 if alphas is None else (depths > 0) & (alphas > 0.5)
    picture = np.full((*depths.shape, 3), 32, dtype=np.uint8)
    if is_hit.any():
        nearness = 1 / depths[is_hit].astype(np.float64)
        low, high = np.quantile(nearness, [0.02, 0.98])
        picture[is_hit] = colorize(np.clip((nearness - low) / max(high - low, 1e-12), 0, 1), "turbo")
    return picture


def colorize(values: Float[ndarray, "*shape"], colormap: str) -> UInt8[ndarray, "*shape 3"]:
    """Values in [0, 1] in a matplotlib colour map."""
    from matplotlib import colormaps  # half a second to import: only when a picture is made

    table = (colormaps[colormap](np.arange(256))[:, :3] * 255).round().astype(np.uint8)
    return table[(values * 255).round().astype(np.uint8)]


def to_uint8(image: Float[ndarray, "*shape"]) -> UInt8[ndarray, "*shape"]:
    """Float image in [0, 1] rounded to 8 bits (clamped)."""
    return (np.clip(image, 0, 1) * 255).round().astype(np.uint8)


def comparison_strip(
    truth: UInt8[ndarray, "H W 3"], render: UInt8[ndarray, "H W 3"], *, label: str = ""
) -> UInt8[ndarray, "H2 W2 3"]:
    """Photo, render and error map side by side under their labels."""
    names = [f"photo   {label}".rstrip(), "render", f"error (white: {ERROR_AT_WHITE:.0%} and more)"]
    return contact_sheet([truth, render, error_map(truth, render)], names, columns=3, cell_width=truth.shape[1])


def contact_sheet(
    images: Sequence[UInt8[ndarray, "_ _ 3"]],
    labels: Sequence[str],
    *,
    columns: int | None = None,
    cell_width: int = 240,
) -> UInt8[ndarray, "H2 W2 3"]:
    """Images of any sizes in a grid, each scaled to ``cell_width`` with its label above; square-ish by default.

    Raises:
        ValueError: no images, or not one label an image.
    """
    if not images or len(images) != len(labels):
        raise ValueError(f"contact_sheet needs one label per image, got {len(images)} images and {len(labels)} labels")
    columns = columns or math.ceil(math.sqrt(len(images)))
    heights = [max(1, round(cell_width * image.shape[0] / image.shape[1])) for image in images]
    bar = max(16, cell_width // 22)
    font = ImageFont.load_default(size=bar * 0.7)
    rows = [range(start, min(start + columns, len(images))) for start in range(0, len(images), columns)]
    row_heights = [max(heights[i] for i in row) + bar + GAP for row in rows]
    sheet = Image.new("RGB", (columns * (cell_width + GAP) - GAP, sum(row_heights) - GAP), PAPER)
    draw, top = ImageDraw.Draw(sheet), 0
    for row, row_height in zip(rows, row_heights, strict=True):
        for column, i in enumerate(row):
            left = column * (cell_width + GAP)
            draw.text((left + 4, top + bar * 0.1), _shortened(labels[i], font, cell_width - 8), fill=INK, font=font)
            cell = Image.fromarray(images[i]).resize((cell_width, heights[i]), Image.Resampling.LANCZOS)
            sheet.paste(cell, (left, top + bar))
        top += row_height
    return np.asarray(sheet)


def masked_out(
    image: UInt8[ndarray, "H W 3"], mask: Bool[ndarray, "H W"] | None, background: int = 32
) -> UInt8[ndarray, "H W 3"]:
    """The image with what does not belong to the scene painted grey."""
    return image if mask is None else np.where(mask[..., None], image, np.uint8(background))


def _shortened(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> str:
    """The text, its beginning cut where it is too wide: the end of a path tells files apart."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength("…" + text) > width:
        text = text[1:]
    return "…" + text
