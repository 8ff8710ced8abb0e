"""``report.html``: everything a reconstruction has to say for itself, in one file that opens without a network.

The page holds finished data (``ReportContent``): it reads no config, renders nothing, and knows no model. All pictures
are inside as JPEG; only the orbit video is a file beside it.
"""

from __future__ import annotations

import base64
import io
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray
from PIL import Image

from spatial.errors import SpatialError
from spatial.report.contact_sheet import ERROR_AT_WHITE, error_map
from spatial.report.plots import Curve, camera_map, line_chart
from spatial.structures import Camera, LeftOut, PointCloud

MAX_BYTES = 8_000_000
# (longest side in pixels, JPEG quality): the first that keeps the page below MAX_BYTES is taken.
PICTURE_SIZES = ((840, 85), (640, 80), (480, 72), (320, 65))
MAX_LEFT_OUT_SHOWN = 40


@dataclass(frozen=True)
class ViewScore:
    """Metrics of one held-out view; LPIPS is None where it could not be measured."""

    name: str
    psnr: float
    ssim: float
    lpips: float | None = None


@dataclass(frozen=True)
class Comparison:
    """A held-out photo and its render, both [H, W, 3] uint8, with the score that stands beside them."""

    score: ViewScore
    truth: UInt8[ndarray, "H W 3"]
    render: UInt8[ndarray, "H W 3"]


@dataclass(frozen=True)
class Exported:
    """A file that the run wrote.

    Args:
        path: relative to the report's folder.
        num_bytes: its size.
        psnr: held-out PSNR after reading the file back, where it was measured.
        note: what the file is for, in a few words.
    """

    path: str
    num_bytes: int
    psnr: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Picture:
    """A picture with a caption ("Depth of IMG_0012.jpg, near bright"), [H, W, 3] uint8."""

    caption: str
    image: UInt8[ndarray, "H W 3"]


@dataclass(frozen=True)
class ReportContent:
    """Everything on the page, finished.

    Args:
        title: the capture's name.
        scores: one per held-out view, in the capture's order; may be empty.
        comparisons: pictures for some of them; ``representative`` chooses which. Shown worst first.
        num_gaussians: number of Gaussians in the scene.
        protocol: how the scores were measured, in whole sentences: split, resolution, resampling, SSIM padding.
        source: where the poses come from, one sentence with figures.
        num_photos: photos used, held-out ones included.
        left_out: photos not used, and why.
        cameras, is_held_out: all posed cameras, and which were held out, for the map.
        points: the sparse points, for the map.
        seconds: by stage, in the order in which they ran.
        peak_memory_bytes: highest resident memory of the process.
        curves: training curves.
        pictures: further pictures, such as depth.
        exports: files written.
        warnings: sentences for the user.
        lpips_reason: why there is no LPIPS.
        video: path of the orbit video relative to the report, or None.
        poster: a frame of it.
        facts: further lines for the table of facts ("Machine": "2 cores, …").
    """

    title: str
    scores: Sequence[ViewScore]
    comparisons: Sequence[Comparison]
    num_gaussians: int
    protocol: str
    source: str
    num_photos: int
    left_out: Sequence[LeftOut]
    cameras: Sequence[Camera]
    is_held_out: Sequence[bool]
    points: PointCloud
    seconds: dict[str, float]
    peak_memory_bytes: int | None = None
    curves: Sequence[Curve] = ()
    pictures: Sequence[Picture] = ()
    exports: Sequence[Exported] = ()
    warnings: Sequence[str] = ()
    lpips_reason: str = ""
    video: str | None = None
    poster: UInt8[ndarray, "H W 3"] | None = None
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def psnr(self) -> float | None:
        return _mean([s.psnr for s in self.scores])

    @property
    def ssim(self) -> float | None:
        return _mean([s.ssim for s in self.scores])

    @property
    def lpips(self) -> float | None:
        return _mean([s.lpips for s in self.scores if s.lpips is not None])


class Stage(NamedTuple):
    """A segment of the time bar."""

    name: str
    duration: str
    percent: float


def write_report(folder: Path, content: ReportContent) -> Path:
    """Writes ``folder/report.html`` (replacing an older one in one step) and returns its path.

    Raises:
        SpatialError: the folder cannot be written.
    """
    page = render_report(content)
    path, unfinished = folder / "report.html", folder / f".report.html.{os.getpid()}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(page, encoding="utf-8")
        os.replace(unfinished, path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise SpatialError(
            f"cannot write {path}: {error.strerror}; make the folder writable or choose another"
        ) from error
    return path


def render_report(content: ReportContent) -> str:
    """The page as text, below 8 MB: pictures shrink until it is."""
    for longest_side, quality in PICTURE_SIZES:
        page = _render(content, longest_side, quality)
        if len(page) < MAX_BYTES:
            break
    return page


def representative(scores: Sequence[ViewScore], count: int = 9) -> list[ViewScore]:
    """At most ``count`` scores that show the range honestly, worst first: evenly spaced by rank, both ends included."""
    ranked = sorted(scores, key=lambda score: (score.psnr, score.name))
    if len(ranked) <= count:
        return ranked
    return [ranked[round(i)] for i in np.linspace(0, len(ranked) - 1, count)]


def data_uri(image: UInt8[ndarray, "H W 3"], *, longest_side: int, quality: int) -> str:
    """The image as a JPEG inside a URI, scaled down to ``longest_side`` where it is larger."""
    picture = Image.fromarray(image)
    picture.thumbnail((longest_side, longest_side), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=quality, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def format_duration(seconds: float) -> str:
    """ "0.8 s", "42 s", "3 min 05 s", "2 h 10 min"."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def format_bytes(count: float) -> str:
    """ "812 B", "3.4 MB": powers of 1000, as file managers count."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if count >= 100 or unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def _render(content: ReportContent, longest_side: int, quality: int) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(duration=format_duration, bytes=format_bytes, number=_format_number)

    def picture(image: ndarray) -> str:
        return data_uri(image, longest_side=longest_side, quality=quality)

    ordered = sorted(content.comparisons, key=lambda c: (c.score.psnr, c.score.name))
    return environment.get_template("report.html").render(
        content=content,
        stages=_stages(content.seconds),
        total_time=_headline_time(sum(content.seconds.values())),
        ranks=_ranks(ordered),
        comparisons=[
            (c.score, picture(c.truth), picture(c.render), picture(error_map(c.truth, c.render))) for c in ordered
        ],
        portrait=bool(ordered) and ordered[0].truth.shape[0] > ordered[0].truth.shape[1],
        error_at_white=f"{ERROR_AT_WHITE:.0%}",
        charts=[(curve.title, line_chart(curve)) for curve in content.curves],
        maps=[(name, _map(content, name)) for name in ("above", "side")] if content.cameras else [],
        pictures=[(p.caption, picture(p.image)) for p in content.pictures],
        poster=None if content.poster is None else picture(content.poster),
        exports=[(e, _psnr_cost(e, content.psnr)) for e in content.exports],
        left_out=content.left_out[:MAX_LEFT_OUT_SHOWN],
    )


def _map(content: ReportContent, seen_from: str) -> str:
    return camera_map(content.cameras, content.points, is_held_out=content.is_held_out, seen_from=seen_from)


def _headline_time(seconds: float) -> tuple[str, str]:
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f}" if seconds < 9.95 else f"{whole}", "s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d}", "min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d}", "h"


def _stages(seconds: dict[str, float]) -> list[Stage]:
    total = sum(seconds.values()) or 1.0
    return [Stage(name, format_duration(spent), 100 * spent / total) for name, spent in seconds.items()]


def _ranks(ordered: Sequence[Comparison]) -> list[str]:
    """ "worst", "median" and "best" where they belong in a list that begins with the worst."""
    ranks = ["" for _ in ordered]
    if len(ordered) > 1:
        ranks[len(ordered) // 2] = "median" if len(ordered) > 2 else ""
        ranks[0], ranks[-1] = "worst", "best"
    return ranks


def _psnr_cost(exported: Exported, psnr: float | None) -> str:
    if exported.psnr is None or psnr is None:
        return "–"
    cost = psnr - exported.psnr
    if abs(cost) < 0.005:
        return "none"
    return f"{cost:.2f} dB" if cost > 0 else f"gains {-cost:.2f} dB"


def _format_number(value: float | None, digits: int) -> str:
    if value is None or math.isnan(value):
        return "–"
    return "∞" if math.isinf(value) else f"{value:.{digits}f}"


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
