"""Nearest neighbours against all pairs and scipy's tree, on points that trouble trees and grids."""

from __future__ import annotations

import math
import os
import signal
import time

import numpy as np
import pytest
import torch
from scipy.spatial import cKDTree

from spatial.kernels import reference
from spatial.kernels.nearest import nearest_distances


def random_points(num, seed=0):
    return torch.randn(num, 3, generator=torch.Generator().manual_seed(seed))


def with_duplicates(num):
    return random_points(num)[torch.randint(num // 4, (num,), generator=torch.Generator().manual_seed(1))]


CLOUDS = {
    "random": lambda n: random_points(n),
    "one far outlier": lambda n: torch.cat([random_points(n - 1), torch.full((1, 3), 1e6)]),
    "two far clusters": lambda n: torch.cat([random_points(n // 2), 1e-3 * random_points(n - n // 2) + 1e3]),
    "all the same": lambda n: torch.full((n, 3), 0.7),
    "many duplicates": with_duplicates,
    "on a line": lambda n: random_points(n)[:, :1] * torch.tensor([1.0, -2.0, 3.0]),
    "on a plane": lambda n: random_points(n) * torch.tensor([1.0, 1.0, 0.0]),
    "on a grid": lambda n: torch.cartesian_prod(*[torch.arange(13.0)] * 3)[:n],
    "far from the origin": lambda n: random_points(n) + 1000,
    "tiny": lambda n: random_points(n) * 1e-15,
}


def by_scipy(points, k):
    return torch.from_numpy(cKDTree(points.double().numpy()).query(points.double().numpy(), k=k + 1)[0][:, 1:])


def assert_same_distances(actual, expected, points):
    """Float32 coordinates keep differences to their own last bit, and distances to theirs."""
    assert actual.shape == expected.shape
    assert torch.equal(actual.isinf(), expected.isinf())
    finite = expected.isfinite()
    slack = 4 * torch.finfo(points.dtype).eps
    assert ((actual[finite].double() - expected[finite].double()).abs() <= slack * expected[finite].double()).all()


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize("k", [1, 3, 10])
def test_equals_scipy(instruction_set, dtype, cloud, k):
    points = CLOUDS[cloud](1500).to(dtype)
    assert_same_distances(nearest_distances(points, k), by_scipy(points, k), points)


@pytest.mark.parametrize("num", [1, 2, 3, 8, 9, 16, 17, 100])
@pytest.mark.parametrize("k", [1, 3, 20])
def test_equals_all_pairs(instruction_set, dtype, num, k):
    points = random_points(num).to(dtype)
    expected = (points[:, None] - points[None]).norm(dim=-1).fill_diagonal_(math.inf).sort(dim=-1).values[:, :k]
    expected = torch.nn.functional.pad(expected, (0, k - expected.shape[1]), value=math.inf)
    assert_same_distances(nearest_distances(points, k), expected, points)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_reference_equals_scipy(dtype, cloud):
    points = CLOUDS[cloud](300).to(dtype)
    assert_same_distances(reference.nearest.nearest_distances(points, 3), by_scipy(points, 3), points)


def test_reference_in_several_chunks(monkeypatch):
    points = random_points(50)
    monkeypatch.setattr(reference.nearest, "CHUNK_PAIRS", 50 * 7)
    assert_same_distances(reference.nearest.nearest_distances(points, 3), by_scipy(points, 3), points)


@pytest.mark.parametrize("function", [nearest_distances, reference.nearest.nearest_distances])
def test_hand_values(instruction_set, dtype, function):
    points = torch.tensor([[0, 0, 0], [3, 4, 0], [0, 0, 0], [0, 0, 12]], dtype=dtype)
    expected = [[0, 5, 12, math.inf], [5, 5, 13, math.inf], [0, 5, 12, math.inf], [12, 12, 13, math.inf]]
    assert function(points, 4).tolist() == expected


@pytest.mark.parametrize("function", [nearest_distances, reference.nearest.nearest_distances])
def test_no_point_and_a_lone_point(instruction_set, dtype, function):
    assert function(torch.zeros(0, 3, dtype=dtype), 3).shape == (0, 3)
    assert function(torch.zeros(1, 3, dtype=dtype), 2).tolist() == [[math.inf, math.inf]]


def test_huge_coordinates_overflow_to_infinity(instruction_set):
    points = torch.tensor([[1e30, 0, 0], [-1e30, 0, 0], [-1e30, 1, 0]])
    assert nearest_distances(points, 1).tolist() == [[math.inf], [1.0], [1.0]]


def test_points_need_not_be_contiguous_nor_without_gradient(instruction_set):
    points = random_points(200).T.contiguous().T.requires_grad_()
    distances = nearest_distances(points, 3)
    assert not distances.requires_grad and torch.equal(distances, nearest_distances(points.detach().contiguous(), 3))


def test_same_bits_for_any_number_of_threads(instruction_set, dtype, each_thread_count):
    points = CLOUDS["many duplicates"](20000).to(dtype)
    each_thread_count(lambda: [nearest_distances(points, 3)])


@pytest.mark.parametrize("cloud", ["random", "one far outlier", "all the same", "on a line"])
def test_half_a_million_points_take_a_second(compiled, cloud):
    """Of processor time, so that a busy machine does not fail it; with two threads it is less."""
    points = CLOUDS[cloud](500_000)
    began = time.process_time()
    distances = nearest_distances(points, 3)
    assert time.process_time() - began < 2.0
    rows = np.random.default_rng(0).integers(0, 500_000, 50)
    pairs = (points[rows, None].double() - points[None].double()).norm(dim=-1)
    pairs[torch.arange(50), torch.from_numpy(rows)] = math.inf
    expected = pairs.topk(3, largest=False).values
    assert_same_distances(distances[rows], expected, points)


def test_after_a_fork(compiled):
    """Data loaders fork: the child has no threads of the pool, and makes its own."""
    points = random_points(3000)  # few enough for PyTorch to use no threads of its own, which would hang in the child
    expected = nearest_distances(points, 3)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(0 if torch.equal(nearest_distances(points, 3), expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_operator_registration(compiled):
    torch.library.opcheck(torch.ops.spatial.nearest_distances.default, (random_points(20), 3))


def test_wrong_inputs_are_named(without_shape_checks):
    with pytest.raises(ValueError, match=r"points must be finite, row 1 is \[0.0, nan, 0.0\]"):
        nearest_distances(torch.tensor([[0.0, 0, 0], [0, math.nan, 0]]), 1)
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        nearest_distances(random_points(3), 0)
    with pytest.raises(ValueError, match=r"points must be \[\*, 3\], got \[3, 2\]"):
        nearest_distances(random_points(3)[:, :2], 1)
