"""Pairs, descriptor matches and their epipolar check, against scenes whose truth is known."""

import numpy as np
import pytest

from data.captures.sfm.features import Features
from data.captures.sfm.mapping import sampson_errors
from data.captures.sfm.matching import match_descriptors, overlapping_pairs, verify_matches, video_pairs


def unit_rows(rng, count, width=128):
    rows = np.abs(rng.standard_normal((count, width))).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def features_of(descriptors):
    count = len(descriptors)
    xy = np.zeros((count, 2), np.float32)
    return Features(xy, np.ones(count, np.float32), np.zeros(count, np.float32), descriptors, 1.0)


def two_views(rng, count):
    """Pixels of random points in two cameras of focal length 800, and the essential matrix between them."""
    points = rng.uniform([-2, -2, 4], [2, 2, 8], (count, 3))
    angle = 0.2
    rotation = np.array([[np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)]])
    translation = np.array([-1.0, 0.1, 0.2])
    moved = points @ rotation.T + translation
    x, y, z = translation
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    first, second = points[:, :2] / points[:, 2:], moved[:, :2] / moved[:, 2:]
    return first * 800 + 500, second * 800 + 500, cross @ rotation


def test_matches_recover_a_permutation():
    rng = np.random.default_rng(0)
    first = unit_rows(rng, 200)
    order = rng.permutation(200)
    matches = match_descriptors(first, first[order])
    assert len(matches) == 200
    assert (order[matches[:, 1]] == matches[:, 0]).all()


def test_a_repeated_descriptor_is_not_matched():
    rng = np.random.default_rng(1)
    first = unit_rows(rng, 50)
    twice = np.concatenate([first, first[:1]])
    assert 0 not in match_descriptors(first, twice)[:, 0]


def test_ratio_is_of_distances():
    # Second nearest at distance d: the nearest passes below 0.8 d and fails above.
    def at(distance):
        angle = 2 * np.arcsin(distance / 2)
        return [np.cos(angle), np.sin(angle)]

    query = np.array([[1, 0], [-1, 0]], np.float32)
    for nearest, passes in ((0.39, True), (0.41, False)):
        candidates = np.array([at(nearest), at(-0.5)], np.float32)
        found = match_descriptors(query, candidates)
        assert (len(found[found[:, 0] == 0]) == 1) is passes


@pytest.mark.parametrize("count", [0, 1])
def test_photos_without_features_match_nothing(count):
    rng = np.random.default_rng(2)
    assert match_descriptors(unit_rows(rng, count), unit_rows(rng, 10)).shape == (0, 2)


def test_verification_keeps_true_matches_and_drops_false_ones():
    rng = np.random.default_rng(3)
    first, second, _ = two_views(rng, 300)
    second[200:] = rng.uniform(0, 1000, (100, 2))
    indices = np.stack([np.arange(300), np.arange(300)], 1).astype(np.uint32)
    verified = verify_matches(first, second, indices)
    assert verified is not None
    kept = verified.indices[:, 0]
    assert (kept < 200).sum() > 195
    assert (kept >= 200).sum() < 20  # a random point lies within 4 px of a line through the image now and then


def test_verification_gives_the_same_answer_twice():
    rng = np.random.default_rng(4)
    first, second, _ = two_views(rng, 120)
    second += rng.normal(0, 1.0, second.shape)
    second[60:] = rng.uniform(0, 1000, (60, 2))
    indices = np.stack([np.arange(120), np.arange(120)], 1).astype(np.uint32)
    one, two = (verify_matches(first, second, indices) for _ in range(2))
    assert one is not None and two is not None
    assert (one.indices == two.indices).all() and (one.fundamental == two.fundamental).all()


@pytest.mark.parametrize("seed", range(20))
def test_unrelated_photos_are_refused(seed):
    rng = np.random.default_rng(seed)
    first, second = rng.uniform(0, 1000, (2, 100, 2))
    indices = np.stack([np.arange(100), np.arange(100)], 1).astype(np.uint32)
    assert verify_matches(first, second, indices) is None


def test_sampson_error_is_the_distance_in_pixels():
    rng = np.random.default_rng(5)
    first, second, essential = two_views(rng, 50)
    rays = (first - 500) / 800, (second - 500) / 800
    assert sampson_errors(*rays, essential).max() < 1e-12
    # A shift of both points across their lines by s changes the distance to the nearest perfect match by about s √2.
    lines = np.column_stack([rays[0], np.ones(50)]) @ essential.T
    shifted = rays[1] + 1e-4 * lines[:, :2] / np.linalg.norm(lines[:, :2], axis=1, keepdims=True)
    errors = sampson_errors(rays[0], shifted, essential)
    assert (errors <= 1e-4 * 1.001).all() and (errors > 1e-4 * 0.3).all()


def test_two_groups_of_photos_stay_connected():
    rng = np.random.default_rng(6)
    groups = [unit_rows(rng, 40), unit_rows(rng, 40)]
    photos = [features_of(groups[index // 6]) for index in range(12)]
    pairs = overlapping_pairs(photos, partners=2)
    assert len(pairs) < 12 * 11 / 2
    reached = {0}
    for _ in range(12):
        reached |= {second for first, second in pairs if first in reached}
        reached |= {first for first, second in pairs if second in reached}
    assert reached == set(range(12))
    assert sum((first < 6) != (second < 6) for first, second in pairs) == 1


def test_video_matches_neighbours_and_a_revisit():
    rng = np.random.default_rng(7)
    places = [unit_rows(rng, 30) for _ in range(30)]
    route = [*range(30), *range(15)]  # the second lap sees the first places again
    pairs = video_pairs([features_of(places[place]) for place in route], overlap=3)
    assert {(index, index + step) for step in (1, 2, 3, 4, 8) for index in range(45 - step)} <= set(pairs)
    assert {(index, index + 30) for index in range(0, 15, 3)} <= set(pairs)
    assert len(pairs) < 45 * 44 / 4
