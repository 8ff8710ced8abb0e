"""From a database of verified matches to COLMAP models: incremental (Schönberger and Frahm 2016) or global (GLOMAP)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pycolmap
from jaxtyping import Float

from data.captures.photos import Photo
from data.captures.sfm.features import Features
from data.captures.sfm.matching import Matches, Pair

# pycolmap speaks through glog, whose settings are the process's own.
_LOG = pycolmap.logging


def map_incrementally(
    database: Path, image_root: Path, output: Path, *, max_error_px: float = 4.0, loose: bool = False, seed: int = 0
) -> list[pycolmap.Reconstruction]:
    """All models that the matches hold, the one with most photos first.

    Bundle adjustments on the way are kept short, since the next photo changes the problem anyway, and one full
    adjustment ends the work: on 50 photos this halves the time and moves poses by less than 0.01 % of the scene.

    Args:
        max_error_px: reprojection error, in stored pixels, above which an observation is an outlier.
        loose: accept a weaker first pair and photos with fewer matches.
    """
    output.mkdir(parents=True)
    options = _incremental_options(max_error_px, loose=loose, seed=seed)
    models = pycolmap.incremental_mapping(database, image_root, output, options)
    return _sorted_models(models)


def map_globally(database: Path, image_root: Path, output: Path, *, seed: int = 0) -> list[pycolmap.Reconstruction]:
    """All poses at once. It can go wrong unnoticed where matches are ambiguous: compare before it is believed."""
    output.mkdir(parents=True)
    options = pycolmap.GlobalPipelineOptions()
    options.random_seed = seed
    options.num_threads = 1
    return _sorted_models(pycolmap.global_mapping(database, image_root, output, options))


def finish_model(model: pycolmap.Reconstruction) -> None:
    """One full bundle adjustment, then the errors of the points; changes ``model``."""
    config = pycolmap.BundleAdjustmentConfig()
    for image_id in model.reg_image_ids():
        config.add_image(image_id)
    config.fix_gauge(pycolmap.BundleAdjustmentGauge.TWO_CAMS_FROM_WORLD)
    options = pycolmap.BundleAdjustmentOptions()
    options.print_summary = False
    options.ceres.solver_options.num_threads = 1  # sums in one order: the same bits in every run
    options.ceres.solver_options.max_num_iterations = 30
    options.ceres.solver_options.function_tolerance = 1e-6
    # Not pycolmap.bundle_adjustment, which turns logging to the terminal on.
    pycolmap.create_default_bundle_adjuster(options, config, model).solve()
    model.update_point_3d_errors()


def epipolar_agreement(
    model: pycolmap.Reconstruction,
    photos: Sequence[Photo],
    features: Sequence[Features],
    matches: Mapping[Pair, Matches],
    *,
    max_error_px: float,
) -> float:
    """Share of the matches between placed photos within ``max_error_px`` of the epipolar lines that ``model`` gives."""
    images = {image.name: image for image in model.images.values() if image.has_pose}
    placed = [images.get(photo.name) for photo in photos]
    agreeing = total = 0
    for (first, second), pair in matches.items():
        left, right = placed[first], placed[second]
        if left is None or right is None:
            continue
        rays = [
            image.camera.cam_from_img(features[index].xy[column].astype(np.float64))
            for image, index, column in ((left, first, pair.indices[:, 0]), (right, second, pair.indices[:, 1]))
        ]
        right_from_left = right.cam_from_world() * left.cam_from_world().inverse()
        essential = pycolmap.essential_matrix_from_pose(right_from_left)
        errors = sampson_errors(rays[0], rays[1], essential)
        agreeing += int((errors < max_error_px / left.camera.mean_focal_length()).sum())
        total += len(errors)
    return agreeing / max(total, 1)


def sampson_errors(
    first: Float[np.ndarray, "N 2"], second: Float[np.ndarray, "N 2"], essential: Float[np.ndarray, "3 3"]
) -> Float[np.ndarray, "N"]:
    """Distance of each match to the nearest one that fulfils x₂ᵀ E x₁ = 0, to first order (Sampson 1982)."""
    ones = np.ones((len(first), 1))
    x1, x2 = np.hstack([first, ones]), np.hstack([second, ones])
    lines2, lines1 = x1 @ essential.T, x2 @ essential
    gradient = (lines2[:, :2] ** 2).sum(1) + (lines1[:, :2] ** 2).sum(1)
    return np.abs((x2 * lines2).sum(1)) / np.sqrt(np.maximum(gradient, 1e-30))


@contextlib.contextmanager
def quiet_colmap(log_file: Path) -> Iterator[None]:
    """Sends COLMAP's chatter to ``log_file`` (a prefix: glog adds the date) and nothing to the terminal."""
    before = _LOG.logtostderr, _LOG.alsologtostderr, _LOG.stderrthreshold
    _LOG.set_log_destination(_LOG.INFO, log_file)
    _LOG.logtostderr, _LOG.alsologtostderr, _LOG.stderrthreshold = False, False, int(_LOG.FATAL)
    try:
        yield
    finally:
        _LOG.set_log_destination(_LOG.INFO, "")
        _LOG.logtostderr, _LOG.alsologtostderr, _LOG.stderrthreshold = before


def _sorted_models(models: dict[int, pycolmap.Reconstruction]) -> list[pycolmap.Reconstruction]:
    return sorted(models.values(), key=lambda model: (-model.num_reg_images(), -model.num_points3D()))


def _incremental_options(max_error_px: float, *, loose: bool, seed: int) -> pycolmap.IncrementalPipelineOptions:
    options = pycolmap.IncrementalPipelineOptions()
    options.random_seed = seed
    options.num_threads = 1  # Ceres adds up in the order in which threads end
    options.extract_colors = False
    options.min_model_size = 3
    options.ba_local_max_num_iterations = 10
    options.ba_local_max_refinements = 1
    options.ba_local_function_tolerance = 1e-3
    options.ba_global_max_num_iterations = 20
    options.ba_global_max_refinements = 2
    options.ba_global_function_tolerance = 1e-4
    options.ba_global_frames_ratio = options.ba_global_points_ratio = 1.3
    options.mapper.init_max_error = max_error_px
    options.mapper.abs_pose_max_error = 3 * max_error_px
    options.mapper.filter_max_reproj_error = max_error_px
    options.triangulation.merge_max_reproj_error = max_error_px
    options.triangulation.complete_max_reproj_error = max_error_px
    if loose:
        options.mapper.init_min_num_inliers = 30
        options.mapper.init_min_tri_angle = 4.0
        options.mapper.abs_pose_min_num_inliers = 15
        options.mapper.abs_pose_min_inlier_ratio = 0.15
        options.mapper.max_reg_trials = 6
    return options
