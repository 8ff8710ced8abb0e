"""From photos to a finished run folder: poses, Gaussians, metrics, pictures, a video, exports and a report."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from representations.gaussians.evaluation import evaluate_views, protocol
from representations.gaussians.model import gaussians_from_points, random_points
from representations.gaussians.products import (
    Video,
    check_formats,
    export_scene,
    measured,
    write_pictures,
    write_run_report,
    write_video,
)
from representations.gaussians.pruning import ViewPruning
from representations.gaussians.training import LitGaussians
from spatial.errors import SpatialError
from spatial.geometry.camera_path import focus_point
from spatial.io.colmap import write_colmap_model
from spatial.io.gaussian_files import save_gaussians
from spatial.structures import Camera, Capture, Gaussians, PointCloud, View
from spatial.training.checkpoint_files import latest_checkpoint, load_checkpoint
from spatial.training.checkpoints import SaveCheckpoints
from spatial.training.memory import available_bytes
from spatial.training.run_folder import RunFolder
from spatial.training.trainer import make_trainer

logger = logging.getLogger(__name__)

MAY_CHANGE = (
    "exports",
    "video_seconds",
    "checkpoint_every_s",
    "cache_bytes",
)  # on resuming: nothing that training sees

BYTES_A_GAUSSIAN = 3000  # in training at SH degree 3: twice what a step of half a million takes, since tile lists vary


def reconstruct(
    *,
    input: str,
    out: str | None = None,
    load_capture: Callable[..., Capture],
    data: Callable[..., Any],
    model: Callable[..., LitGaussians],
    pruning: Callable[..., ViewPruning] | None = None,
    max_steps: int,
    sh_degree: int = 3,
    initial_opacity: float = 0.3,
    antialiased: bool = False,
    num_random_points: int = 20_000,
    exports: Sequence[str] = (),
    video_seconds: float = 6.0,
    checkpoint_every_s: float = 60.0,
    resume: bool = False,
    seed: int = 42,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Runs everything and returns the run's folder.

    Args:
        input: a folder of photos, a video, a COLMAP project, a transforms.json or a Blender set.
        load_capture: ``load_capture(input, work_dir=…, seed=…)``.
        data: ``data(views, seed=…)``, a Lightning data module of one view a step with ``train_views``,
            ``held_out_views`` and ``hold_out_every``.
        model: ``model(gaussians, max_steps=…, extent=…, view_names=…, …)``.
        pruning: ``pruning(cameras, points)`` of the training photos.
        max_steps: training steps; may grow when a run resumes.
        exports: further file formats by suffix, beside scene.ply.
        config: the resolved configuration, kept in the run.
    """
    check_formats(exports)
    _check_ranges(max_steps=max_steps, sh_degree=sh_degree, initial_opacity=initial_opacity)
    run = RunFolder(out, input=input, config=config, resume=resume, may_change=MAY_CHANGE)
    with run:
        seconds: dict[str, float] = {}
        torch.manual_seed(seed)
        with stage("poses", seconds):
            capture = load_capture(Path(input), work_dir=run.path / "poses", seed=seed)
        if capture.left_out:
            logger.warning("%d photos left out; metrics.json and the report say which and why", len(capture.left_out))
        views = data(capture.views, seed=seed)
        split = Split.of(views)
        module = _build(
            capture, split, model, max_steps, sh_degree, initial_opacity, antialiased, num_random_points, seed,
            pruning=pruning(split.train_cameras(), capture.points) if pruning else None,
        )  # fmt: skip
        _limit_to_memory(module)
        saving = SaveCheckpoints(run.checkpoints, every_s=checkpoint_every_s)
        trainer = make_trainer(run, max_steps=max_steps, checkpoint=saving)
        with stage("training", seconds):
            train(trainer, module, views, run)
        gaussians = module.model.gaussians()
        finish(run, capture, split, gaussians, seconds, exports=exports, video_seconds=video_seconds,
               interrupted=saving.interrupted)  # fmt: skip
        logger.info("done: %s", run.path / "report.html")
    return run.path


def _check_ranges(*, max_steps: int, sh_degree: int, initial_opacity: float) -> None:
    """Refuses impossible settings before minutes of work on poses, and not after them."""
    if max_steps < 1:
        raise SpatialError(f"max_steps must be at least 1, got {max_steps}")
    if not 0 <= sh_degree <= 4:
        raise SpatialError(f"sh_degree must be 0 to 4, got {sh_degree}")
    if not 0 < initial_opacity < 1:
        raise SpatialError(f"initial_opacity must lie between 0 and 1, got {initial_opacity}")


def train(trainer: Any, module: LitGaussians, data: Any, run: RunFolder) -> None:
    """Trains with a Lightning trainer, or goes on from the run's last whole checkpoint."""
    checkpoint = latest_checkpoint(run.checkpoints)
    if checkpoint and trainer.max_steps <= load_checkpoint(checkpoint)["global_step"]:
        state = load_checkpoint(checkpoint)
        module.on_load_checkpoint(state)
        module.load_state_dict(state["state_dict"])
        return
    trainer.fit(module, datamodule=data, ckpt_path=checkpoint)


class Split(NamedTuple):
    """Training and held-out views, and the scale of their photos at which both are used."""

    train: list[View]
    held_out: list[View]
    every: int
    scale: float

    @staticmethod
    def of(data: Any) -> Split:
        """The split that a data module made."""
        return Split(data.train_views.views, data.held_out_views.views, data.hold_out_every, data.train_views.scale)

    def train_cameras(self) -> list[Camera]:
        """Of the training photos at the size at which they are used."""
        cameras = [view.camera for view in self.train]
        return [c.resized(round(c.width * self.scale), round(c.height * self.scale)) for c in cameras]

    def scale_note(self) -> str:
        """How photos came to their size, in a sentence."""
        camera = (self.held_out or self.train)[0].camera
        width, height = round(camera.width * self.scale), round(camera.height * self.scale)
        return f"Photos were undistorted and, where larger, shrunk by area averaging; the first is {width} × {height}."


def finish(
    run: RunFolder, capture: Capture, split: Split, gaussians: Gaussians, seconds: dict[str, float], *,
    exports: Sequence[str], video_seconds: float, interrupted: str | None,
) -> None:  # fmt: skip
    """Everything after training, most precious first."""
    with stage("saving", seconds):
        save_gaussians(gaussians, run.path / "scene.ply")
        shutil.rmtree(run.path / "sparse", ignore_errors=True)
        write_colmap_model(run.path / "sparse" / "0", capture.views, capture.points)
    with stage("evaluation", seconds):
        evaluation = evaluate_views(gaussians, split.held_out, scale=split.scale)
    with stage("pictures", seconds):
        pictures = write_pictures(run.path, gaussians, split.held_out or split.train, evaluation, split.scale)
    problems = [f"Stopped by {interrupted} before its last step; resume=true goes on."] if interrupted else []
    with stage("exports", seconds):
        cameras = [view.camera for view in capture.views]
        exported = [measured(run.path / "scene.ply", "ply", split.held_out, split.scale)]
        for name in dict.fromkeys(exports):
            try:
                exported += export_scene(run.path, gaussians, [name], split.held_out, split.scale, cameras)
            except SpatialError as error:  # an hour of training must not end without a report for it
                problems.append(f"The export {name} failed: {error}")
                logger.warning("%s", problems[-1])
    with stage("video", seconds):
        video = _video(run.path / "orbit.mp4", gaussians, capture, video_seconds)
    words = protocol(
        every=split.every, num_held_out=len(split.held_out), num_views=len(capture.views),
        scale_note=split.scale_note(),
    )  # fmt: skip
    write_run_report(
        run,
        capture,
        split.held_out,
        gaussians,
        evaluation,
        words,
        seconds,
        pictures,
        exported,
        video,
        interrupted,
        problems,
    )
    if evaluation.psnr is not None:
        logger.info("held-out PSNR %.2f dB, SSIM %.3f, %d Gaussians", evaluation.psnr, evaluation.ssim, len(gaussians))


@contextmanager
def stage(name: str, seconds: dict[str, float]) -> Iterator[None]:
    """Adds the wall-clock time of a block to ``seconds[name]``."""
    start = time.perf_counter()
    yield
    seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start
    logger.info("%s: %.1f s", name, seconds[name])


def scene_extent(views: Sequence[View], points: PointCloud) -> float:
    """How far away the scene typically is: learning rates of positions scale with it.

    The median distance of sparse points from the cameras, or without points that of the cameras from what they look
    at; medians, so that one stray camera or point does not matter.
    """
    centres = torch.stack([view.camera.position for view in views]).float()
    target = points.points.float().median(0).values if len(points) else focus_point([v.camera for v in views]).float()
    extent = (centres - target).norm(dim=-1).median().item()
    if not extent > 0:
        raise SpatialError(
            "all cameras stand at one point: there is no parallax to reconstruct from; move while taking photos"
        )
    return extent


def _build(
    capture: Capture, split: Split, model: Callable[..., LitGaussians], max_steps: int, sh_degree: int, opacity: float,
    antialiased: bool, num_random_points: int, seed: int, pruning: ViewPruning | None,
) -> LitGaussians:  # fmt: skip
    points = capture.points
    if not len(points):
        logger.warning(
            "the capture has no points: starting from %d random ones in front of the cameras", num_random_points
        )
        cameras = [view.camera for view in capture.views]
        centres = torch.stack([camera.position for camera in cameras]).float()
        generator = torch.Generator().manual_seed(seed)
        points = random_points(centres, focus_point(cameras).float(), num_random_points, generator=generator)
    gaussians = gaussians_from_points(points, sh_degree=sh_degree, opacity=opacity, antialiased=antialiased)
    return model(
        gaussians, max_steps=max_steps, extent=scene_extent(capture.views, capture.points),
        view_names=[view.name for view in split.train], pruning=pruning, random_background=capture.has_alpha, seed=seed,
    )  # fmt: skip


def _limit_to_memory(module: LitGaussians) -> None:
    """Lowers the densification's cap where the memory at hand would not hold so many."""
    strategy: Any = module.densification
    affordable = available_bytes() // 2 // BYTES_A_GAUSSIAN
    if affordable < strategy.max_gaussians:
        logger.warning(
            "at most %s Gaussians instead of %s: half of the free memory holds no more",
            f"{affordable:,}", f"{strategy.max_gaussians:,}",
        )  # fmt: skip
        strategy.max_gaussians = affordable


def _video(path: Path, gaussians: Gaussians, capture: Capture, seconds: float) -> Video | None:
    return write_video(path, gaussians, [view.camera for view in capture.views], seconds) if seconds > 0 else None
