"""Charts as inline SVG that take their colours from the page, so that they follow its light or dark theme.

Colours are CSS classes and variables that ``templates/report.html`` defines. SVG is written by hand because a chart of
three hundred points is then 5 kB and sharp on any screen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from spatial.geometry.camera_path import focus_point, up_direction
from spatial.structures import Camera, PointCloud

CHART_WIDTH, CHART_HEIGHT = 420, 240
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 14, 34
MAP_WIDTH, MAP_HEIGHT = 560, 420
MAX_CURVE_POINTS = 300
MAX_MAP_POINTS = 4000


@dataclass(frozen=True)
class Curve:
    """One training curve.

    Args:
        title: what is drawn, with its unit ("Held-out PSNR, dB").
        x, y: same length; points whose y is not finite are left out.
        x_label: "wall time, s".
        is_log: draw y on a logarithmic axis (all y above 0).
    """

    title: str
    x: Sequence[float] | ndarray
    y: Sequence[float] | ndarray
    x_label: str = "wall time, s"
    is_log: bool = False


def line_chart(curve: Curve) -> str:
    """SVG of one curve with its axes; thinned to 300 points by averaging, so that noise does not hide the trend."""
    points = [(x, y) for x, y in zip(curve.x, curve.y, strict=True) if math.isfinite(y) and (y > 0 or not curve.is_log)]
    if not points:
        return f'<svg viewBox="0 0 {CHART_WIDTH} {CHART_HEIGHT}" role="img"><text x="20" y="40">no data</text></svg>'
    xs, ys = _thinned(np.array(points, dtype=float))
    transform: Callable[[float], float] = math.log10 if curve.is_log else float
    x_ticks = nice_ticks(0.0, float(xs.max()))
    y_ticks = _log_ticks(ys.min(), ys.max()) if curve.is_log else nice_ticks(float(ys.min()), float(ys.max()))
    x_range = (0.0, max(float(xs.max()), x_ticks[-1] if len(xs) == 1 else 0.0))
    y_range = (
        transform(min(float(ys.min()), y_ticks[0])),
        transform(max(float(ys.max()), y_ticks[-1])),
    )

    def at(x: float, y: float) -> tuple[float, float]:
        along = (x - x_range[0]) / ((x_range[1] - x_range[0]) or 1)
        up = (transform(y) - y_range[0]) / ((y_range[1] - y_range[0]) or 1)
        return LEFT + along * (CHART_WIDTH - LEFT - RIGHT), CHART_HEIGHT - BOTTOM - up * (CHART_HEIGHT - TOP - BOTTOM)

    parts = [f'<svg class="chart" viewBox="0 0 {CHART_WIDTH} {CHART_HEIGHT}" role="img">']
    parts.append(f"<title>{escape(curve.title)}: from {si(ys[0])} to {si(ys[-1])}</title>")
    for tick in y_ticks:
        y = at(0.0, tick)[1]
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{CHART_WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{si(tick)}</text>')
    for tick in (t for t in x_ticks if t <= x_range[1]):
        x = at(tick, y_ticks[0])[0]
        parts.append(f'<text class="tick" x="{x:.1f}" y="{CHART_HEIGHT - 18}" text-anchor="middle">{si(tick)}</text>')
    parts.append(
        f'<text class="tick" x="{CHART_WIDTH - RIGHT}" y="{CHART_HEIGHT - 3}" text-anchor="end">'
        f"{escape(curve.x_label)}</text>"
    )
    pixels = [at(float(x), float(y)) for x, y in zip(xs, ys, strict=True)]
    path = " L".join(f"{x:.1f} {y:.1f}" for x, y in pixels)
    floor = CHART_HEIGHT - BOTTOM
    parts.append(f'<path class="area" d="M{pixels[0][0]:.1f} {floor} L{path} L{pixels[-1][0]:.1f} {floor} Z"/>')
    parts.append(f'<path class="curve" d="M{path}"/>')
    last_x, last_y = pixels[-1]
    parts.append(f'<circle class="dot" cx="{last_x:.1f}" cy="{last_y:.1f}" r="3.5"/></svg>')
    return "".join(parts)


def camera_map(
    cameras: Sequence[Camera], points: PointCloud, *, is_held_out: Sequence[bool], seen_from: str = "above"
) -> str:
    """SVG of the capture seen orthographically from "above" or from the "side": sparse points and camera frusta.

    Held-out cameras have the class ``held-out``. The frame holds all cameras and nine tenths of the points.
    """
    axes = _map_axes(cameras, seen_from)  # [2, 3]: right and up on the paper
    focus = focus_point(cameras).numpy()
    centers = np.stack([c.position.double().numpy() for c in cameras])
    reach = 0.13 * float(np.median(np.linalg.norm(centers - focus, axis=1)))
    frusta = [_frustum_corners(c, reach) @ axes.T for c in cameras]  # [5, 2] each: centre, then four corners
    dots, colors = _sample(points)
    dots = dots @ axes.T
    scale, offset = _fit(np.concatenate(frusta), dots)
    parts = [f'<svg class="map" viewBox="0 0 {MAP_WIDTH} {MAP_HEIGHT}" role="img">']
    parts.append(f"<title>{len(cameras)} cameras and the sparse points, seen from {escape(seen_from)}</title>")
    parts.append(_dots_by_color(_to_paper(dots, scale, offset), colors))
    for frustum, held_out in zip(frusta, is_held_out, strict=True):
        parts.append(_frustum_svg(_to_paper(frustum, scale, offset), held_out))
    return "".join([*parts, "</svg>"])


def nice_ticks(low: float, high: float, *, at_most: int = 5) -> list[float]:
    """Round numbers (1, 2, 2.5 or 5 times a power of ten) that enclose [low, high], at most ``at_most`` + 1 of them."""
    if high <= low:
        high = low + (abs(low) or 1.0)
    rough = (high - low) / (at_most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9))
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


def si(value: float) -> str:
    """A short number for a label: 12300 → "12.3k", 0.25 → "0.25", 2000000 → "2M"."""
    for factor, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g}{suffix}"
    return f"{value:.3g}"


def _thinned(points: Float[ndarray, "P 2"]) -> tuple[ndarray, ndarray]:
    if len(points) <= MAX_CURVE_POINTS:
        return points[:, 0], points[:, 1]
    groups = np.array_split(points, MAX_CURVE_POINTS)
    means = np.stack([group.mean(0) for group in groups])
    return means[:, 0], means[:, 1]


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [m * 10.0**p for p in powers for m in (1, 2, 5)]
    first = max([i for i, t in enumerate(every) if t <= low], default=0)
    last = min([i for i, t in enumerate(every) if t >= high], default=len(every) - 1)
    ticks = every[first : last + 1]
    return ticks if len(ticks) <= 6 else ticks[:: math.ceil(len(ticks) / 5)]


def _map_axes(cameras: Sequence[Camera], seen_from: str) -> Float[ndarray, "2 3"]:
    up = up_direction(cameras).numpy()
    centers = np.stack([c.position.double().numpy() for c in cameras])
    forward = np.mean([c.forward.double().numpy() for c in cameras], axis=0)
    if np.linalg.norm(forward - (forward @ up) * up) < 0.3:  # all around: take the direction of greatest spread
        forward = np.linalg.svd(centers - centers.mean(0))[2][-1] if len(cameras) > 2 else np.roll(up, 1)
    forward = forward - (forward @ up) * up
    if np.linalg.norm(forward) < 1e-9:
        forward = np.roll(up, 1) - (np.roll(up, 1) @ up) * up
    forward = forward / np.linalg.norm(forward)
    right = np.cross(forward, up)
    return np.stack([right, forward]) if seen_from == "above" else np.stack([forward, up])


def _frustum_corners(camera: Camera, depth: float) -> Float[ndarray, "5 3"]:
    pixels = np.array(
        [[0, 0, 1], [camera.width, 0, 1], [camera.width, camera.height, 1], [0, camera.height, 1]], dtype=float
    )
    rays = pixels @ np.linalg.inv(camera.K.double().numpy()).T * depth
    center, rotation = camera.position.double().numpy(), camera.camera_from_world[:3, :3].double().numpy()
    return np.concatenate([center[None], rays @ rotation + center])


def _sample(points: PointCloud) -> tuple[ndarray, ndarray]:
    chosen = np.random.default_rng(0).permutation(len(points))[:MAX_MAP_POINTS]
    return points.points.double().numpy()[chosen], points.colors.double().numpy()[chosen]


def _fit(frusta: Float[ndarray, "A 2"], dots: Float[ndarray, "B 2"]) -> tuple[float, ndarray]:
    """Scale and offset that put all frusta and the middle nine tenths of the dots on the paper."""
    corners = [frusta.min(0), frusta.max(0)]
    if len(dots):
        corners += [np.quantile(dots, 0.05, axis=0), np.quantile(dots, 0.95, axis=0)]
    low, high = np.min(corners, axis=0), np.max(corners, axis=0)
    size = np.maximum(high - low, 1e-9)
    scale = float(min((MAP_WIDTH - 40) / size[0], (MAP_HEIGHT - 40) / size[1]))
    return scale, np.array([MAP_WIDTH, MAP_HEIGHT]) / 2 - scale * np.array([1, -1]) * (low + high) / 2


def _to_paper(xy: Float[ndarray, "P 2"], scale: float, offset: ndarray) -> Float[ndarray, "P 2"]:
    return scale * xy * np.array([1, -1]) + offset


def _dots_by_color(xy: Float[ndarray, "P 2"], colors: Float[ndarray, "P 3"]) -> str:
    """One path of round dots for each of at most 125 colours: far smaller than a circle a point."""
    inside = ((xy > 2) & (xy < [MAP_WIDTH - 2, MAP_HEIGHT - 2])).all(1)
    xy, levels = xy[inside], np.clip((colors[inside] * 5).astype(int), 0, 4)
    parts = []
    for level in np.unique(levels, axis=0):
        color = "#" + "".join(f"{int((v + 0.5) * 51):02x}" for v in level)
        dots = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in xy[(levels == level).all(1)])
        parts.append(f'<path class="points" stroke="{color}" d="{dots}"/>')
    return "".join(parts)


def _frustum_svg(corners: Float[ndarray, "5 2"], is_held_out: bool) -> str:
    texts = [f"{x:.1f} {y:.1f}" for x, y in corners]
    rays = "".join(f"M{texts[0]} L{text}" for text in texts[1:])
    kind = "frustum held-out" if is_held_out else "frustum"
    return f'<path class="{kind}" d="{rays} M{" L".join(texts[1:])} Z"/>'
