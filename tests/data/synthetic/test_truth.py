"""Comparison with the truth: nothing is found wrong with the truth itself, and known errors come out as they are."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from scipy.spatial.transform import Rotation

from data.synthetic import raycaster
from data.synthetic.capture import pinhole_directions
from data.synthetic.scene import Scene
from data.synthetic.truth import compare_with_truth, depth_along_true_rays, read_truth
from spatial.errors import SpatialError
from spatial.geometry.alignment import Similarity
from spatial.structures import Camera, View

SCALE = 7.5
TRUTH_FROM_RECONSTRUCTION = Similarity(
    SCALE,
    torch.from_numpy(Rotation.from_euler("xyz", [0.3, -1.1, 2.0]).as_matrix()),
    torch.tensor([3.0, -1.0, 0.5], dtype=torch.float64),
)


def reconstructed(camera: Camera, *, turn_rad: float = 0.0, focal: float = 1.0, crop: int = 0) -> Camera:
    """The true camera as seen from the reconstruction's world, turned, with another focal length, cropped."""
    R, t = TRUTH_FROM_RECONSTRUCTION.rotation, TRUTH_FROM_RECONSTRUCTION.translation
    rotation, translation = camera.camera_from_world[:3, :3], camera.camera_from_world[:3, 3]
    turn = torch.from_numpy(Rotation.from_rotvec([0, turn_rad, 0]).as_matrix())
    pose = torch.eye(4, dtype=torch.float64)
    pose[:3, :3] = turn @ rotation @ R
    pose[:3, 3] = turn @ (rotation @ t + translation) / SCALE
    K = camera.K.clone()
    K[0, 0] *= focal
    K[1, 1] *= focal
    K[:2, 2] -= crop
    return Camera(K, pose, camera.width - 2 * crop, camera.height - 2 * crop)


def views_of(cameras: dict[str, Camera]) -> list[View]:
    def load(scale: float) -> tuple:
        raise AssertionError("the comparison needs no pixels")

    return [View(name, camera, load) for name, camera in sorted(cameras.items())]


@pytest.fixture(scope="module")
def depth_of(scene: Scene) -> Callable[[Camera], torch.Tensor]:
    """Renders the true scene's depth for a camera given in the reconstruction's world."""

    def render(camera: Camera) -> torch.Tensor:
        position = TRUTH_FROM_RECONSTRUCTION.apply(camera.position)
        rotation = camera.camera_from_world[:3, :3] @ TRUTH_FROM_RECONSTRUCTION.rotation.T
        pose = torch.eye(4, dtype=torch.float64)
        pose[:3, :3], pose[:3, 3] = rotation, -rotation @ position
        rays = pinhole_directions(camera.K, camera.width, camera.height).float()
        return raycaster.render_depth(scene, pose, rays) / SCALE

    return render


def test_the_truth_in_another_world_has_no_error(small_capture: Path, depth_of: Callable) -> None:
    truth = read_truth(small_capture / "truth")
    views = views_of({name: reconstructed(camera, crop=3) for name, camera in truth.cameras.items()})
    result = compare_with_truth(views, small_capture / "truth", depth_of)
    assert result["photos"] == result["photos_posed"] == 6
    assert result["rotation_error_deg_max"] < 1e-6
    assert result["position_error_percent_max"] < 1e-6
    assert result["focal_error_percent"] == pytest.approx(0, abs=1e-9)
    assert result["depth_error_percent_median"] < 0.02  # bilinear interpolation of a curved surface
    assert result["depth_coverage_percent"] == pytest.approx(100)
    assert "6 of 6 photos posed" in result["text"]


def test_known_errors_come_out_as_they_are(small_capture: Path, depth_of: Callable) -> None:
    truth = read_truth(small_capture / "truth")
    cameras = {
        name: reconstructed(camera, turn_rad=math.radians(0.4), focal=1.02) for name, camera in truth.cameras.items()
    }

    def too_deep(camera: Camera) -> torch.Tensor:
        """5 % too deep, for a straight camera with the true focal length; the left half is missing."""
        name = next(name for name, other in cameras.items() if other is camera)
        depth = 1.05 * depth_of(reconstructed(truth.cameras[name], focal=1.02))
        depth[:, : camera.width // 2] = 0
        return depth

    result = compare_with_truth(views_of(cameras), small_capture / "truth", too_deep)
    assert result["rotation_error_deg_mean"] == pytest.approx(0.4, rel=1e-6)
    assert result["position_error_percent_max"] < 1e-6
    assert result["focal_error_percent"] == pytest.approx(2)
    assert result["depth_error_percent_median"] == pytest.approx(5, abs=0.05)
    assert result["depth_coverage_percent"] == pytest.approx(50, abs=2)


def test_a_moved_camera_shows_in_percent_of_the_orbit(small_capture: Path) -> None:
    truth = read_truth(small_capture / "truth")
    cameras = {name: reconstructed(camera) for name, camera in truth.cameras.items()}
    moved = cameras["002.jpg"]
    pose = moved.camera_from_world.clone()
    pose[0, 3] += 0.03 * truth.orbit_radius / SCALE
    cameras["002.jpg"] = Camera(moved.K, pose, moved.width, moved.height)
    result = compare_with_truth(views_of(cameras), small_capture / "truth")
    # The alignment takes a share of the one error out of six, and spreads it.
    assert 1.0 < result["position_error_percent_max"] <= 3.0
    assert result["depth_error_percent_median"] is None


def test_photos_left_out_are_counted_and_too_few_refused(small_capture: Path) -> None:
    truth = read_truth(small_capture / "truth")
    views = views_of({name: reconstructed(camera) for name, camera in truth.cameras.items()})
    assert compare_with_truth(views[:4], small_capture / "truth")["photos_posed"] == 4
    with pytest.raises(SpatialError, match="only 2"):
        compare_with_truth(views[:2], small_capture / "truth")
    with pytest.raises(SpatialError, match="does not exist"):
        compare_with_truth(views, small_capture / "images")


def test_depth_is_resampled_by_rays_not_by_pixels() -> None:
    """A slanted plane, whose depth is known for any ray, seen with another focal length, centre and size."""

    def plane(camera: Camera) -> torch.Tensor:
        rays = pinhole_directions(camera.K, camera.width, camera.height)
        return (2 / (1 + 0.2 * rays[0] - 0.3 * rays[1])).float()

    def camera(focal: float, cx: float, cy: float, width: int, height: int) -> Camera:
        K = torch.tensor([[focal, 0, cx], [0, focal, cy], [0, 0, 1]], dtype=torch.float64)
        return Camera(K, torch.eye(4, dtype=torch.float64), width, height)

    estimated, true = camera(190, 101, 70, 211, 151), camera(100, 60, 40, 120, 80)
    depth, weight = depth_along_true_rays(plane(estimated), estimated, true)
    inside = weight > 0.999
    assert 0.5 < inside.float().mean() < 1
    torch.testing.assert_close(depth[inside], plane(true)[inside], rtol=1e-4, atol=0)
