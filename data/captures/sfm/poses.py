"""Poses from photos: features, matches and mapping, tried harder until most photos have a place, then kept on disk."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pycolmap

from data.captures.photos import Photo
from data.captures.sfm import learned, mapping, matching
from data.captures.sfm.coloring import color_points
from data.captures.sfm.database import write_database
from data.captures.sfm.diagnosis import describe_failure, explain_left_out
from data.captures.sfm.features import Features, detect_sift
from data.captures.sfm.matching import Matches, Pair
from spatial.errors import SpatialError
from spatial.io.atomic import atomic_path, make_folder, write_json_atomic
from spatial.structures import LeftOut

logger = logging.getLogger(__name__)

RECIPE = 1  # part of the cache's key: raise it when a change here changes results
ENOUGH_REGISTERED = 0.8  # share of the photos below which a stronger attempt follows
EXHAUSTIVE_UP_TO = 120  # photos for which a stronger attempt matches every pair


class SfmResult(NamedTuple):
    """Poses and sparse points of a capture.

    Attributes:
        reconstruction: COLMAP model; intrinsics and key points in the photos' stored pixels (before EXIF rotation).
        left_out: photos without a pose, each with the likely cause.
        seconds: wall-clock seconds by stage, summed over attempts.
        source: one sentence with figures.
    """

    reconstruction: pycolmap.Reconstruction
    left_out: list[LeftOut]
    seconds: dict[str, float]
    source: str


class Attempt(NamedTuple):
    """What one recipe found: models by falling size, and what the diagnosis needs."""

    recipe: str
    features: list[Features]
    matches: dict[Pair, Matches]
    models: list[pycolmap.Reconstruction]

    @property
    def num_registered(self) -> int:
        return self.models[0].num_reg_images() if self.models else 0


def reconstruct_poses(
    photos: Sequence[Photo],
    root: Path,
    work_dir: Path,
    *,
    ordered: bool = False,
    seed: int = 0,
    max_side_px: int = 960,
    max_features: int = 2500,
    retry: bool = True,
) -> SfmResult:
    """Finds where each photo was taken. The same photos and options give the same result, bit for bit.

    A result is kept in ``work_dir`` under a key made of the photos' contents and the options, and is reused when asked
    for again; it is moved there when whole, so that an interrupted run leaves nothing that looks like one.

    Args:
        photos: at least two, as `data.captures.photos.find_photos` lists them.
        root: folder to which ``Photo.name`` is relative.
        work_dir: is made where absent.
        ordered: photos are consecutive frames of a video; neighbours and revisits are matched instead of all pairs.
        max_side_px, max_features: of the first attempt.
        retry: follow a weak result by stronger attempts: more and finer features of all pairs and an easier start,
            then all poses at once, then learned features where the extra ``features`` is installed.

    Raises:
        SpatialError: no two photos overlap enough; the message says why for each photo.
    """
    target = make_folder(work_dir) / f"poses-{_cache_key(photos, ordered, seed, max_side_px, max_features, retry)}"
    if target.is_dir():
        logger.info("poses: reusing %s", target)
        return _read_result(target)
    for stale in target.parent.glob(f".{target.name}.*.tmp"):
        shutil.rmtree(stale)  # left by a run that was killed
    with atomic_path(target) as folder:
        folder.mkdir()
        with mapping.quiet_colmap(folder / "colmap.log."):
            search = _Search(photos, root, folder, seed)
            quick = lambda: search.by_sift(max_side_px, max_features, ordered=ordered)  # noqa: E731
            result = _best_result(search, [quick, *(_stronger(search) if retry else [])])
        _write_result(result, folder)
    return result


def _stronger(search: _Search) -> list[Callable[[], Attempt]]:
    stronger = [lambda: search.by_sift(1600, 8000, contrast=0.01, loose=True), search.globally]
    return [*stronger, search.by_learned_features] if learned.is_installed() else stronger


def _best_result(search: _Search, attempts: Sequence[Callable[[], Attempt]]) -> SfmResult:
    best: Attempt | None = None
    for number, attempt in enumerate(attempts):
        found = attempt()
        if best is None or found.num_registered > best.num_registered:
            best = found
        if search.is_good(best):
            break
        if number + 1 < len(attempts):
            logger.warning(
                "poses: %s placed %d of %d photos; trying harder",
                found.recipe,
                found.num_registered,
                len(search.photos),
            )
    assert best is not None
    return search.finish(best)


class _Search:
    """The photos with what earlier attempts found, their folder, and the time each stage took."""

    def __init__(self, photos: Sequence[Photo], root: Path, folder: Path, seed: int) -> None:
        self.photos, self.root, self.folder, self.seed = photos, root, folder, seed
        self.seconds: dict[str, float] = {}
        self.last: Attempt | None = None
        # COLMAP's limit of 4 px suits photos of about 2 megapixels; key points are found at a fixed size, so that their
        # noise grows with the photo.
        long_side = float(np.median([max(photo.width, photo.height) for photo in photos]))
        self.max_error_px = 4.0 * max(1.0, long_side / 1920)

    def by_sift(
        self,
        max_side_px: int,
        max_features: int,
        *,
        ordered: bool = False,
        contrast: float = 0.02,
        loose: bool = False,
    ) -> Attempt:
        features = self._timed(
            "features",
            lambda: detect_sift(self.photos, max_side_px=max_side_px, max_features=max_features, contrast=contrast),
        )
        matches = self._timed("matching", lambda: self._match(features, ordered, loose))
        recipe = "SIFT with more features" if loose else "SIFT"
        return self._map(recipe, features, matches, loose=loose)

    def globally(self) -> Attempt:
        """All poses at once from the last matches."""
        assert self.last is not None
        models = self._timed("mapping", lambda: mapping.map_globally(self._database(), self.root, self._new_folder()))
        sound = [model for model in models if self._agrees(model, self.last)]
        return self.last._replace(recipe="global mapping", models=sound)

    def by_learned_features(self) -> Attempt:
        features, matches = self._timed(
            "learned features", lambda: learned.learned_matches(self.photos, max_error_px=self.max_error_px)
        )
        return self._map("ALIKED with LightGlue", features, matches, loose=True)

    def is_good(self, attempt: Attempt) -> bool:
        enough = attempt.num_registered >= max(2, ENOUGH_REGISTERED * len(self.photos))
        return enough and attempt.models[0].compute_mean_reprojection_error() < 0.6 * self.max_error_px

    def finish(self, attempt: Attempt) -> SfmResult:
        left_out = explain_left_out(self.photos, attempt.features, attempt.matches, attempt.models)
        if not attempt.models:
            hint = "" if learned.is_installed() else f"\n  learned features may find more; run: {learned.INSTALL}"
            raise SpatialError(describe_failure(self.photos, left_out) + hint)
        model = attempt.models[0]
        self._timed("mapping", lambda: mapping.finish_model(model))
        self._timed("colors", lambda: color_points(model, self.photos))
        source = (
            f"COLMAP ({attempt.recipe}): {model.num_reg_images()} of {len(self.photos)} photos, "
            f"{model.num_points3D():,} points, {model.compute_mean_reprojection_error():.2f} px"
        )
        logger.info("poses: %s", source)
        return SfmResult(model, left_out, self.seconds, source)

    def _match(self, features: list[Features], ordered: bool, exhaustive: bool) -> dict[Pair, Matches]:
        if ordered:
            pairs = matching.video_pairs(features)
        elif exhaustive and len(features) <= EXHAUSTIVE_UP_TO:
            pairs = matching.all_pairs(len(features))
        else:
            pairs = matching.overlapping_pairs(features, partners=40 if exhaustive else 20)
        return matching.match_pairs(features, pairs, max_error_px=self.max_error_px)

    def _map(self, recipe: str, features: list[Features], matches: dict[Pair, Matches], *, loose: bool) -> Attempt:
        self._database().unlink(missing_ok=True)
        write_database(self._database(), self.photos, features, matches)
        models = self._timed(
            "mapping",
            lambda: mapping.map_incrementally(
                self._database(),
                self.root,
                self._new_folder(),
                max_error_px=self.max_error_px,
                loose=loose,
                seed=self.seed,
            ),
        )
        self.last = Attempt(recipe, features, matches, models)
        return self.last

    def _agrees(self, model: pycolmap.Reconstruction, attempt: Attempt) -> bool:
        share = mapping.epipolar_agreement(
            model, self.photos, attempt.features, attempt.matches, max_error_px=self.max_error_px
        )
        logger.info("global mapping: %.0f %% of the matches agree with it", 100 * share)
        return share > 0.8

    def _database(self) -> Path:
        return self.folder / "database.db"

    def _new_folder(self) -> Path:
        return self.folder / f"attempt-{sum(1 for _ in self.folder.glob('attempt-*'))}"

    def _timed(self, stage: str, run: Callable):
        start = time.perf_counter()
        found = run()
        spent = time.perf_counter() - start
        self.seconds[stage] = self.seconds.get(stage, 0.0) + spent
        logger.info("%s: %.1f s", stage, spent)
        return found


def _write_result(result: SfmResult, folder: Path) -> None:
    for attempt in folder.glob("attempt-*"):
        shutil.rmtree(attempt)
    (folder / "model").mkdir()
    result.reconstruction.write(folder / "model")
    content = {
        "source": result.source,
        "seconds": result.seconds,
        "left_out": [{"name": item.name, "reason": item.reason} for item in result.left_out],
    }
    write_json_atomic(folder / "result.json", content)


def _read_result(folder: Path) -> SfmResult:
    content: Mapping = json.loads((folder / "result.json").read_text("utf-8"))
    left_out = [LeftOut(**item) for item in content["left_out"]]
    return SfmResult(pycolmap.Reconstruction(folder / "model"), left_out, content["seconds"], content["source"])


def _cache_key(photos: Sequence[Photo], *options: object) -> str:
    facts = [[photo.name, photo.content_hash, photo.width, photo.height, photo.focal_px] for photo in photos]
    text = json.dumps([RECIPE, pycolmap.__version__, learned.is_installed(), options, facts])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
