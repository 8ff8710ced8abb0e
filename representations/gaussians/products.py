"""What a finished scene leaves in its run folder: pictures, video, exports with their cost, metrics and the report."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
from jaxtyping import UInt8

from representations.gaussians.evaluation import Evaluation, evaluate_views, photo_and_render
from representations.gaussians.mesh import fuse_mesh, require_open3d, write_mesh
from representations.gaussians.rendering import render
from spatial.errors import SpatialError
from spatial.geometry.camera_path import video_path
from spatial.io.gaussian_files import load_gaussians, save_gaussians
from spatial.io.images import write_image
from spatial.io.video import write_video as write_frames
from spatial.kernels import native
from spatial.report.contact_sheet import comparison_strip, depth_picture
from spatial.report.html import Comparison, Exported, Picture, ReportContent, ViewScore, representative, write_report
from spatial.report.plots import Curve
from spatial.structures import Camera, Capture, Gaussians, View
from spatial.training.loggers import read_rows
from spatial.training.run_folder import RunFolder

logger = logging.getLogger(__name__)

FRAMES_PER_SECOND = 24
VIDEO_LONGEST_SIDE = 720


class Pictures(NamedTuple):
    comparisons: list[Comparison]
    depth: Picture | None


class Video(NamedTuple):
    """File name of the orbit video in the run, and a frame from a third of the way, where a swing is not at its end."""

    name: str
    poster: UInt8[np.ndarray, "H W 3"]


def write_pictures(
    folder: Path, gaussians: Gaussians, views: Sequence[View], evaluation: Evaluation, scale: float
) -> Pictures:
    """Photo, render and error side by side for representative views, and one depth picture, into ``pictures/``."""
    by_name = {view.name: view for view in views}
    scores = evaluation.scores or [ViewScore(view.name, float("nan"), float("nan")) for view in views[:1]]
    comparisons = []
    (folder / "pictures").mkdir(exist_ok=True)
    for score in representative(scores):
        truth, mask, picture = photo_and_render(gaussians, by_name[score.name], scale)
        if mask is not None:
            truth, picture = (np.where(mask[..., None], pixels, 0).astype(np.uint8) for pixels in (truth, picture))
        comparisons.append(Comparison(score, truth, picture))
        strip = comparison_strip(truth, picture, label=f"{score.name}  {score.psnr:.2f} dB")
        write_image(folder / "pictures" / f"{_file_stem(score.name)}.jpg", strip)
    view = by_name[comparisons[0].score.name]
    height, width = comparisons[0].truth.shape[:2]
    seen = render(gaussians, view.camera.resized(width, height))
    depth = depth_picture(seen.depths[..., 0].numpy(), seen.alphas[..., 0].numpy())
    write_image(folder / "pictures" / "depth.jpg", depth)
    return Pictures(comparisons, Picture(f"Depth of {view.name}, near bright", depth))


def export_scene(
    folder: Path, gaussians: Gaussians, formats: Sequence[str], views: Sequence[View], scale: float,
    cameras: Sequence[Camera] = (), *, stem: str = "scene", keep: Path | None = None,
) -> list[Exported]:  # fmt: skip
    """Writes ``<stem>.<format>`` for each format, reads each file back, and measures what its rounding costs in PSNR.

    The format "mesh" is ``mesh.ply``, triangles fused from depth as seen by ``cameras``.

    Raises:
        SpatialError: where a file would replace ``keep``, which is what the scene was read from; before any is written.
    """
    if keep is not None and any((folder / f"{stem}.{suffix}").resolve() == keep.resolve() for suffix in formats):
        raise SpatialError(f"{keep} is what is exported and would be replaced; choose another folder with --out")
    exported = []
    for suffix in dict.fromkeys(formats):
        if suffix == MESH:
            path = folder / "mesh.ply"
            write_mesh(fuse_mesh(gaussians, cameras), path)
            exported.append(Exported(path.name, path.stat().st_size, None, "triangles, fused from rendered depth"))
        else:
            path = folder / f"{stem}.{suffix}"
            save_gaussians(gaussians, path)
            exported.append(measured(path, suffix, views, scale))
    return exported


def measured(path: Path, suffix: str, views: Sequence[View], scale: float) -> Exported:
    """A splat file's size, and the PSNR of what is read back from it where there are views to judge by."""
    psnr = evaluate_views(load_gaussians(path), views, scale=scale, with_lpips=False).psnr if views else None
    return Exported(path.name, path.stat().st_size, psnr, NOTES.get(suffix, ""))


def check_formats(formats: Sequence[str]) -> None:
    """Refuses a format that cannot be written before an hour of training and not after it.

    Raises:
        SpatialError: an unknown format, or a mesh without Open3D.
    """
    for name in formats:
        if name not in NOTES and name != MESH:
            raise SpatialError(f"{name} is no format that can be written; there are {', '.join([*NOTES, MESH])}")
    if MESH in formats:
        require_open3d()


MESH = "mesh"
NOTES = {
    "ply": "full precision, INRIA layout: opens everywhere",
    "splat": "no view-dependent colour",
    "spz": "Niantic's compressed format",
    "sog": "PlayCanvas' compressed format",
    "glb": "binary glTF with KHR_gaussian_splatting",
    "compressed.ply": "SuperSplat's compressed PLY",
}


def write_video(
    path: Path, gaussians: Gaussians, cameras: Sequence[Camera], seconds: float, *, longest_side: int = VIDEO_LONGEST_SIDE
) -> Video:  # fmt: skip
    """A path near the captured cameras as an MP4, no larger than their photos.

    Raises:
        SpatialError: where not even one frame is asked for.
    """
    if round(seconds * FRAMES_PER_SECOND) < 1 or longest_side < 16:
        raise SpatialError(
            f"a video of {seconds} s and {longest_side} pixels has nothing to show: give seconds=6 longest_side=720"
        )
    first = cameras[0]
    shrink = min(1.0, longest_side / max(first.width, first.height))
    width, height = (2 * round(side * shrink / 2) for side in (first.width, first.height))  # H.264 wants even sides
    path_cameras = video_path(cameras, num_frames=round(seconds * FRAMES_PER_SECOND), width=width, height=height)
    poster = picture_of(gaussians, path_cameras[len(path_cameras) // 3])  # a swing begins at its far end
    write_frames(path, (picture_of(gaussians, camera) for camera in path_cameras), fps=FRAMES_PER_SECOND)
    return Video(path.name, poster)


def write_run_report(
    run: RunFolder, capture: Capture, held_out_views: Sequence[View], gaussians: Gaussians, evaluation: Evaluation, protocol: str,
    seconds: dict[str, float], pictures: Pictures, exported: list[Exported], video: Video | None, interrupted: str | None,
    problems: list[str],
) -> None:  # fmt: skip
    """metrics.json and report.html: the same numbers, for programs and for people."""
    peak = peak_memory_bytes()
    stages = {**capture.seconds, **seconds}
    if capture.seconds:
        stages.pop("poses", None)
    run.write_metrics(
        {
            "psnr": evaluation.psnr, "ssim": evaluation.ssim, "lpips": evaluation.lpips,
            "lpips_missing_because": evaluation.lpips_reason or None,
            "protocol": protocol,
            "views": [score.__dict__ for score in evaluation.scores],
            "num_gaussians": len(gaussians), "num_photos": len(capture.views),
            "left_out": [item.__dict__ for item in capture.left_out],
            "poses": capture.source,
            "seconds": stages, "peak_memory_bytes": peak,
            "exports": [item.__dict__ for item in exported],
            "interrupted": interrupted, "problems": problems,
        }
    )  # fmt: skip
    held_out = {view.name for view in held_out_views}
    content = ReportContent(
        title=capture.name, scores=evaluation.scores, comparisons=pictures.comparisons, num_gaussians=len(gaussians),
        protocol=protocol, source=capture.source, num_photos=len(capture.views), left_out=capture.left_out,
        cameras=[view.camera for view in capture.views], is_held_out=[view.name in held_out for view in capture.views],
        points=capture.points, seconds=stages, peak_memory_bytes=peak, curves=training_curves(run),
        pictures=[pictures.depth] if pictures.depth else [], exports=exported, warnings=problems,
        lpips_reason=evaluation.lpips_reason, video=video.name if video else None, poster=video.poster if video else None,
        facts={"Machine": machine()},
    )  # fmt: skip
    write_report(run.path, content)


def training_curves(run: RunFolder) -> list[Curve]:
    """Loss, PSNR and number of Gaussians over steps, as logged."""
    path = run.path / "metrics.csv"
    rows = read_rows(path) if path.exists() else []
    titles = {
        "train/loss": "Training loss",
        "train/psnr": "PSNR of training photos, dB",
        "train/num_gaussians": "Gaussians",
    }
    curves = []
    for column, title in titles.items():
        kept = [row for row in rows if row.get(column)]
        if kept:
            steps, values = [float(row["step"]) for row in kept], [float(row[column]) for row in kept]
            curves.append(Curve(title, steps, values, "step", column == "train/loss"))
    return curves


def machine() -> str:
    """The machine in a line, for numbers that depend on it."""
    sets = native.available()
    gigabytes = psutil.virtual_memory().total / 1e9
    return f"{os.cpu_count()} cores, {gigabytes:.0f} GB, {platform.machine()}, kernels: {sets[0] if sets else 'PyTorch reference'}"


def peak_memory_bytes() -> int:
    """Highest resident memory of this process so far."""
    import resource

    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes if platform.system() == "Darwin" else kilobytes * 1024


def picture_of(gaussians: Gaussians, camera: Camera) -> UInt8[np.ndarray, "H W 3"]:
    return (render(gaussians, camera).colors * 255).round().byte().numpy()


def _file_stem(name: str) -> str:
    return Path(name).with_suffix("").as_posix().replace("/", "__")
