"""Charts: ticks, scales, what the SVG holds."""

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import torch

from spatial.report.plots import Curve, camera_map, line_chart, nice_ticks, si
from spatial.structures import Camera, PointCloud


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (13.2, 27.9), (-3e-4, 7e-4), (11_000, 31_000), (5, 5), (0, 0), (-2, -1)]
)
def test_ticks_are_round_enclosing_and_few(low, high):
    ticks = nice_ticks(low, high)
    steps = np.diff(ticks)
    assert ticks[0] <= low + 1e-12 and ticks[-1] >= high - 1e-12
    assert 2 <= len(ticks) <= 6
    assert np.allclose(steps, steps[0])
    mantissa = steps[0] / 10 ** np.floor(np.log10(steps[0]) + 1e-9)
    assert min(abs(mantissa - m) for m in (1, 2, 2.5, 5)) < 1e-9


@pytest.mark.parametrize(("value", "text"), [(12300, "12.3k"), (0.25, "0.25"), (2e6, "2M"), (0, "0"), (999, "999")])
def test_short_numbers(value, text):
    assert si(value) == text


def curve_pixels(svg: str) -> np.ndarray:
    path = re.search(r'class="curve" d="M([^"]+)"', svg)
    assert path is not None
    return np.array([[float(v) for v in pair.split()] for pair in path[1].split(" L")])


def test_a_line_is_drawn_as_a_line():
    x = np.linspace(0, 100, 20)
    pixels = curve_pixels(line_chart(Curve("Line", x, 3 * x + 5)))
    assert len(pixels) == 20
    assert np.allclose(np.diff(pixels, axis=0), (pixels[-1] - pixels[0]) / 19, atol=0.11)
    assert pixels[-1, 1] < pixels[0, 1]  # upwards


def test_an_exponential_is_straight_on_a_logarithmic_axis():
    x = np.linspace(0, 100, 20)
    pixels = curve_pixels(line_chart(Curve("Decay", x, np.exp(-x / 20), is_log=True)))
    assert np.allclose(np.diff(pixels, axis=0), (pixels[-1] - pixels[0]) / 19, atol=0.11)


def test_long_and_broken_curves():
    x = np.arange(10_000.0)
    y = np.sin(x / 1000)
    y[5] = np.nan
    svg = line_chart(Curve("Long", x, y))
    assert len(curve_pixels(svg)) == 300 and len(svg) < 15_000 and "nan" not in svg
    assert "no data" in line_chart(Curve("Empty", [], []))
    assert "no data" in line_chart(Curve("NaN", [1.0], [float("nan")]))
    assert len(curve_pixels(line_chart(Curve("One", [3.0], [4.0])))) == 1
    ElementTree.fromstring(line_chart(Curve("a < b & c", x, y, x_label="<s>")))


@pytest.mark.parametrize("seen_from", ["above", "side"])
def test_camera_map_draws_every_camera_inside_the_frame(ring: list[Camera], seen_from):
    rng = np.random.default_rng(0)
    points = PointCloud(torch.from_numpy(rng.normal(size=(9000, 3))), torch.from_numpy(rng.random((9000, 3))))
    svg = camera_map(ring, points, is_held_out=[i == 2 for i in range(12)], seen_from=seen_from)
    root = ElementTree.fromstring(svg)
    frusta = [e for e in root if e.get("class", "").startswith("frustum")]
    assert len(frusta) == 12 and sum("held-out" in e.get("class", "") for e in frusta) == 1
    numbers = np.array([float(v) for e in frusta for v in re.findall(r"-?\d+\.\d", e.get("d", ""))]).reshape(-1, 2)
    assert (numbers >= 0).all() and (numbers <= [560, 420]).all()
    assert len(svg) < 150_000


def test_map_from_above_shows_the_ring_as_a_circle(ring: list[Camera]):
    nothing = PointCloud(torch.zeros(0, 3), torch.zeros(0, 3))
    root = ElementTree.fromstring(camera_map(ring, nothing, is_held_out=[False] * 12))
    centers = np.array([[float(v) for v in e.get("d", "")[1:].split(" L")[0].split()] for e in root if e.get("d")])
    radii = np.linalg.norm(centers - centers.mean(0), axis=1)
    assert np.allclose(radii, radii.mean(), atol=0.2) and radii.mean() > 100


def test_map_of_one_camera_and_no_points(ring: list[Camera]):
    nothing = PointCloud(torch.zeros(0, 3), torch.zeros(0, 3))
    for seen_from in ("above", "side"):
        assert "nan" not in camera_map(ring[:1], nothing, is_held_out=[False], seen_from=seen_from)
