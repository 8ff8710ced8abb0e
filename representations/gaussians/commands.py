"""Verbs on a finished scene, be it a run's folder or any splat file: evaluate, render, view, export, compare."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from representations.gaussians.evaluation import evaluate_views, protocol
from representations.gaussians.products import check_formats, export_scene, write_video
from representations.gaussians.reconstruction import Split
from representations.gaussians.rendering import render as render_camera
from spatial.errors import SpatialError
from spatial.geometry.camera_path import look_at
from spatial.io.atomic import write_json_atomic
from spatial.io.gaussian_files import load_gaussians
from spatial.report import viewer
from spatial.structures import Camera, Capture, Gaussians
from spatial.training.run_folder import read_config

logger = logging.getLogger(__name__)

VIDEO_SUFFIXES = (".mp4", ".mov", ".mkv")


def evaluate(
    *, input: str, load_capture: Callable[..., Capture], data: Callable[..., Any], out: str | None = None
) -> dict:
    """Scores of a run's scene on its held-out photos, printed, and written to ``out`` where given."""
    run, split = Path(input), run_views(input, load_capture, data)
    result = evaluate_views(load_gaussians(scene_file(input)), split.held_out, scale=split.scale)
    if not result.scores:
        raise SpatialError(f"{run} held out no photo (data.hold_out_every=0), so there is nothing to measure by")
    words = protocol(
        every=split.every, num_held_out=len(split.held_out), num_views=len(split.held_out) + len(split.train),
        scale_note=split.scale_note(),
    )  # fmt: skip
    numbers = {
        "psnr": result.psnr, "ssim": result.ssim, "lpips": result.lpips,
        "lpips_missing_because": result.lpips_reason or None, "protocol": words,
        "views": [score.__dict__ for score in result.scores],
    }  # fmt: skip
    for score in result.scores:
        logger.info("%s: %s", score.name, _numbers(score.psnr, score.ssim, score.lpips))
    logger.info("mean of %d: %s", len(result.scores), _numbers(result.psnr, result.ssim, result.lpips))
    if result.lpips is None:
        logger.info("no LPIPS: %s", result.lpips_reason)
    logger.info("%s", words)
    if out is not None:
        write_json_atomic(Path(out), numbers)
    return numbers


def _numbers(psnr: float | None, ssim: float | None, lpips: float | None) -> str:
    values = (("PSNR {:.2f} dB", psnr), ("SSIM {:.3f}", ssim), ("LPIPS {:.3f}", lpips))
    return ", ".join(form.format(value) for form, value in values if value is not None)


def render(*, input: str, out: str | None = None, seconds: float = 6.0, longest_side: int = 720) -> Path:
    """A video along a path near the captured cameras; around the scene where only a splat file is given.

    Args:
        out: a file, or a folder for orbit.mp4. longest_side: of the video in pixels, at most that of the photos.
    """
    gaussians = load_gaussians(scene_file(input))
    path = Path(out) if out is not None else Path(input) / "orbit.mp4" if Path(input).is_dir() else Path("orbit.mp4")
    if path.is_dir():
        path /= "orbit.mp4"
    if path.suffix.lower() not in VIDEO_SUFFIXES:
        raise SpatialError(f"{path} is no video that can be written: name it with one of {', '.join(VIDEO_SUFFIXES)}")
    write_video(path, gaussians, scene_cameras(input, gaussians, longest_side), seconds, longest_side=longest_side)
    logger.info("wrote %s", path)
    return path


def view(*, input: str, load_capture: Callable[..., Capture], host: str = "127.0.0.1", port: int = 8080) -> None:
    """Opens the scene in a browser, with the capture's photos where a run is given."""
    gaussians = load_gaussians(scene_file(input))
    views = _capture_of(input, load_capture).views if Path(input).is_dir() else []
    cameras = [] if views else scene_cameras(input, gaussians, 720)
    viewer.view(
        lambda camera: render_camera(gaussians, camera), views, cameras=cameras, host=host, port=port,
        title=Path(input).stem,
    )  # fmt: skip


def export(
    *, input: str, load_capture: Callable[..., Capture], data: Callable[..., Any], formats: Sequence[str],
    out: str | None = None,
) -> Path:  # fmt: skip
    """Writes ``<name>.<format>`` (``mesh.ply`` for mesh) beside the scene; says sizes, and a run's held-out PSNR of each."""
    check_formats(formats)
    source = scene_file(input)
    folder = Path(out) if out is not None else source.parent
    folder.mkdir(parents=True, exist_ok=True)
    split = run_views(input, load_capture, data) if Path(input).is_dir() else Split([], [], 0, 1.0)
    gaussians = load_gaussians(source)
    cameras = scene_cameras(input, gaussians, 720)
    stem = source.name.removesuffix(".ply").removesuffix(".compressed") if source.suffix == ".ply" else source.stem
    exported = export_scene(
        folder, gaussians, formats, split.held_out, split.scale, cameras, stem=stem, keep=source
    )  # fmt: skip
    for item in exported:
        cost = "" if item.psnr is None else f", {item.psnr:.2f} dB on held-out photos"
        logger.info("%s: %.2f MB%s", folder / item.path, item.num_bytes / 1e6, cost)
    return folder


def compare(
    *, input: str, load_capture: Callable[..., Capture], compare_with_truth: Callable[..., dict[str, Any]]
) -> dict[str, Any]:
    """Errors of a run of a synthetic capture against its truth: poses, depth; written to the run's truth.json."""
    run = Path(input)
    gaussians = load_gaussians(scene_file(input))
    photos = Path(read_config(run)["input"])
    capture = _capture_of(input, load_capture, max_image_size=None)

    def depth(camera: Camera) -> Float[Tensor, "H W"]:
        seen = render_camera(gaussians, camera)
        return torch.where(seen.alphas > 0.5, seen.depths, 0)[..., 0]

    numbers = compare_with_truth(capture.views, photos.parent / "truth", depth)
    metrics = json.loads((run / "metrics.json").read_text("utf-8"))
    write_json_atomic(run / "truth.json", {**numbers, "psnr": metrics["psnr"]})
    quality = "" if metrics["psnr"] is None else f" Held-out PSNR {metrics['psnr']:.2f} dB."
    logger.info("%s%s", numbers["text"], quality)
    return numbers


def scene_file(input: str) -> Path:
    """The splat file that ``input`` names: itself, or the scene.ply of a run."""
    path = Path(input)
    if not path.exists():
        raise SpatialError(f"{path} does not exist: give the folder of a run or a splat file")
    if not path.is_dir():
        return path
    if not (path / "scene.ply").exists():
        raise SpatialError(f"{path} holds no scene.ply: is it the folder of a finished run?")
    return path / "scene.ply"


def run_views(input: str, load_capture: Callable[..., Capture], data: Callable[..., Any]) -> Split:
    """The views that a run was trained and judged on, loaded as its configuration says."""
    config = read_config(input)
    options = {key: value for key, value in config.get("data", {}).items() if not key.startswith("_")}
    return Split.of(data(_capture_of(input, load_capture).views, seed=config["seed"], **options))


def _capture_of(input: str, load_capture: Callable[..., Capture], **overrides: Any) -> Capture:
    config = read_config(input)
    options = {key: value for key, value in config["load_capture"].items() if not key.startswith("_")} | overrides
    return load_capture(Path(config["input"]), work_dir=Path(input) / "poses", seed=config["seed"], **options)


def scene_cameras(input: str, gaussians: Gaussians, longest_side: int) -> list[Camera]:
    """A run's cameras from its COLMAP model, or for a splat file a ring around the middle of the scene."""
    model = Path(input) / "sparse" / "0"
    if model.is_dir():
        from spatial.io.colmap import read_pinhole_cameras

        return read_pinhole_cameras(model)
    centre = gaussians.means.median(0).values.double().numpy()
    radius = 2.5 * np.median(np.linalg.norm(gaussians.means.double().numpy() - centre, axis=-1))
    side = longest_side
    K = torch.tensor([[0.9 * side, 0, side / 2], [0, 0.9 * side, side * 0.375], [0, 0, 1]], dtype=torch.float64)
    angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    up = np.array([0.0, -1.0, 0.0])  # y down, as in most captures
    offsets = [radius * np.array([np.sin(angle), -0.25, np.cos(angle)]) for angle in angles]
    return [look_at(centre + offset, centre, up, K=K, width=side, height=side * 3 // 4) for offset in offsets]
