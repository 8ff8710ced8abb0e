"""Similarity alignment and pose errors: known similarities are found, known perturbations are measured."""

import math

import pytest
import torch
from scipy.spatial.transform import Rotation

from spatial.geometry.alignment import Similarity, align_points, pose_errors, rotation_angle_deg
from spatial.structures import Camera


def rotation(seed: int) -> torch.Tensor:
    return torch.from_numpy(Rotation.random(random_state=seed).as_matrix())


def similarity(seed: int, scale: float) -> Similarity:
    generator = torch.Generator().manual_seed(seed)
    return Similarity(scale, rotation(seed), torch.randn(3, dtype=torch.float64, generator=generator))


def random_points(num: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def cameras_at(centers: torch.Tensor, rotations: list[torch.Tensor]) -> list[Camera]:
    cameras = []
    for center, camera_rotation in zip(centers, rotations, strict=True):
        pose = torch.eye(4, dtype=torch.float64)
        pose[:3, :3], pose[:3, 3] = camera_rotation, -camera_rotation @ center
        cameras.append(Camera(torch.eye(3, dtype=torch.float64), pose, 4, 3))
    return cameras


def moved(cameras: list[Camera], truth_from_new: Similarity) -> list[Camera]:
    """The same cameras described in another world."""
    new_from_truth = truth_from_new.inverse()
    centers = new_from_truth.apply(torch.stack([camera.position for camera in cameras]))
    return cameras_at(centers, [c.camera_from_world[:3, :3] @ truth_from_new.rotation for c in cameras])


@pytest.mark.parametrize("scale", [1e-3, 1.0, 250.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_known_similarity_is_found(seed: int, scale: float) -> None:
    wanted = similarity(seed, scale)
    points = random_points(9, seed)
    found = align_points(points, wanted.apply(points))
    assert found.scale == pytest.approx(scale, rel=1e-12)
    torch.testing.assert_close(found.rotation, wanted.rotation, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.translation, wanted.translation, rtol=0, atol=1e-9 * max(scale, 1))


def test_matrix_apply_and_inverse_agree() -> None:
    mapping, points = similarity(3, 2.5), random_points(5)
    there = mapping.apply(points)
    torch.testing.assert_close(there, points @ mapping.matrix[:3, :3].T + mapping.matrix[:3, 3])
    torch.testing.assert_close(mapping.inverse().apply(there), points)


def test_points_in_a_plane_get_a_rotation_and_no_reflection() -> None:
    points = random_points(6)
    points[:, 2] = 0
    found = align_points(points, similarity(1, 3.0).apply(points))
    assert torch.linalg.det(found.rotation) == pytest.approx(1)
    torch.testing.assert_close(found.rotation, rotation(1))


def test_a_mirrored_cloud_is_not_matched_by_a_reflection() -> None:
    points = random_points(8)
    assert torch.linalg.det(align_points(points, points * torch.tensor([1.0, 1.0, -1.0])).rotation) == pytest.approx(1)


def test_no_small_change_of_the_similarity_fits_better() -> None:
    """Least squares: the residual is a minimum over all seven parameters."""
    points = random_points(12)
    target = similarity(5, 1.7).apply(points) + 0.1 * random_points(12, seed=9)
    best = align_points(points, target)
    least = (best.apply(points) - target).square().sum()
    for axis in range(7):
        for step in (-1e-3, 1e-3):
            nudge = torch.zeros(7, dtype=torch.float64)
            nudge[axis] = step
            turn = torch.from_numpy(Rotation.from_rotvec(nudge[:3].numpy()).as_matrix())
            other = Similarity(best.scale * (1 + float(nudge[6])), turn @ best.rotation, best.translation + nudge[3:6])
            assert (other.apply(points) - target).square().sum() > least


@pytest.mark.parametrize("num", [1, 2])
def test_too_few_points_are_refused(num: int) -> None:
    with pytest.raises(ValueError, match="at least 3"):
        align_points(random_points(num), random_points(num))


def test_points_on_a_line_are_refused() -> None:
    line = torch.linspace(0, 1, 5, dtype=torch.float64)[:, None] * torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    with pytest.raises(ValueError, match="one line"):
        align_points(line, random_points(5))


def test_cameras_in_another_world_have_no_error() -> None:
    cameras = cameras_at(random_points(7), [rotation(i) for i in range(7)])
    errors = pose_errors(moved(cameras, similarity(11, 0.2)), cameras, extent=1.0)
    assert errors.rotation_deg.max() < 1e-6
    assert errors.position_percent.max() < 1e-9
    assert errors.truth_from_estimate.scale == pytest.approx(0.2)


def test_a_turned_camera_shows_its_angle_and_a_moved_one_its_distance() -> None:
    centers = torch.cat([random_points(60), -random_points(60)])
    cameras = cameras_at(centers, [rotation(i) for i in range(120)])
    turn = torch.from_numpy(Rotation.from_rotvec([0, math.radians(0.5), 0]).as_matrix())
    rotations = [c.camera_from_world[:3, :3] for c in cameras]
    rotations[4] = turn @ rotations[4]
    shifted = centers.clone()
    shifted[9] += torch.tensor([0.0, 0.02, 0.0])
    errors = pose_errors(moved(cameras_at(shifted, rotations), similarity(2, 30.0)), cameras, extent=4.0)
    assert errors.rotation_deg[4] == pytest.approx(0.5, rel=0.04)  # the moved camera turns the alignment a little
    assert errors.position_percent[9] == pytest.approx(0.5, rel=0.05)
    others = [i for i in range(120) if i not in (4, 9)]
    assert errors.rotation_deg[others].max() < 0.02
    assert errors.position_percent[others].max() < 0.03


@pytest.mark.parametrize("degrees", [0.0, 1e-5, 0.3, 90.0, 179.99])
def test_rotation_angle_is_exact_at_both_ends(degrees: float) -> None:
    axis = torch.tensor([0.6, 0.0, 0.8], dtype=torch.float64)
    turn = torch.from_numpy(Rotation.from_rotvec((axis * math.radians(degrees)).numpy()).as_matrix())
    assert float(rotation_angle_deg(turn @ rotation(0), rotation(0))) == pytest.approx(degrees, rel=1e-6, abs=1e-9)
