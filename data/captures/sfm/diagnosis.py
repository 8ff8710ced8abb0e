"""Why a photo has no pose, in words for the user: out of focus, nothing to hold on to, no overlap, or another model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pycolmap
from jaxtyping import Int

from data.captures.photos import Photo
from data.captures.sfm.features import Features
from data.captures.sfm.matching import Matches, Pair
from spatial.structures import LeftOut

BLURRED = 0.25  # share of the capture's median sharpness below which a photo is called blurred
FEW_FEATURES = 300
WEAK_OVERLAP = 30  # the mapper asks for as many matches with points that it has already placed


def explain_left_out(
    photos: Sequence[Photo],
    features: Sequence[Features],
    matches: Mapping[Pair, Matches],
    models: Sequence[pycolmap.Reconstruction],
) -> list[LeftOut]:
    """One line for each photo that the first of ``models`` does not hold, in the order of ``photos``."""
    placed = [_registered_names(model) for model in models] or [set()]
    strengths = match_counts(len(photos), matches)
    median_sharpness = float(np.median([found.sharpness for found in features]))
    return [
        LeftOut(photo.name, _explain(index, photos, features, strengths, median_sharpness, placed))
        for index, photo in enumerate(photos)
        if photo.name not in placed[0]
    ]


def match_counts(num_photos: int, matches: Mapping[Pair, Matches]) -> Int[np.ndarray, "P P"]:
    """Verified matches between each two photos, symmetric."""
    counts = np.zeros((num_photos, num_photos), np.int64)
    for (first, second), pair in matches.items():
        counts[first, second] = counts[second, first] = len(pair.indices)
    return counts


def describe_failure(photos: Sequence[Photo], left_out: Sequence[LeftOut], *, listed: int = 20) -> str:
    """The message for a capture whose poses cannot be found: what to change, then each photo with its cause."""
    lines = [f"  {item.name}: {item.reason}" for item in left_out[:listed]]
    more = [f"  … and {len(left_out) - listed} more"] if len(left_out) > listed else []
    head = (
        f"no poses could be found for {len(photos)} photos in {photos[0].path.parent}: take photos that overlap by "
        "two thirds or more, from different positions (not turning on the spot), sharp and evenly lit"
    )
    return "\n".join([head, *lines, *more])


def _explain(
    index: int,
    photos: Sequence[Photo],
    features: Sequence[Features],
    strengths: np.ndarray,
    median_sharpness: float,
    placed: Sequence[set[str]],
) -> str:
    second = next((len(names) for names in placed[1:] if photos[index].name in names), None)
    if second is not None:
        return f"in a second model of {second} photos that shares too little with the main one"
    strongest = int(strengths[index].argmax())
    count = int(strengths[index, strongest])
    causes = []
    if features[index].sharpness < BLURRED * median_sharpness:
        causes.append(f"blurred (sharpness {features[index].sharpness / median_sharpness:.0%} of the median)")
    if len(features[index]) < FEW_FEATURES:
        causes.append(f"few features ({len(features[index])})")
    if count == 0:
        causes.append("no overlap found with any other photo")
    elif count < WEAK_OVERLAP:
        causes.append(f"too few matches (at most {count}, with {photos[strongest].name})")
    return ", ".join(causes) or _unplaced(count, photos[strongest].name, placed[0])


def _unplaced(count: int, partner: str, main: set[str]) -> str:
    where = "" if partner in main or not main else ", itself left out"
    return (
        f"{count} matches with {partner}{where}, but no position agreed with them (repetition, or too little parallax)"
    )


def _registered_names(model: pycolmap.Reconstruction) -> set[str]:
    return {image.name for image in model.images.values() if image.has_pose}
