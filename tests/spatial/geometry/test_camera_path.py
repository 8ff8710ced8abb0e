"""Camera paths: where they look, that they stay near the capture, close, and move smoothly."""

import math

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from spatial.geometry.camera_path import (
    focus_point,
    forward_facing_path,
    interpolate,
    is_forward_facing,
    look_at,
    looks_inward,
    orbit_path,
    up_direction,
    video_path,
    walk_path,
)
from spatial.structures import Camera

SIZE = {"num_frames": 60, "width": 64, "height": 36}
# An arbitrary frame: nothing may depend on world axes or scale.
WORLD_FROM_TEST = Rotation.from_rotvec([0.4, -1.1, 0.7]).as_matrix()
FOCUS, UP, SCALE = np.array([30.0, -20.0, 5.0]), WORLD_FROM_TEST @ [0, 0, 1.0], 7.0


def camera_at(position, target, up=(0, 0, 1), *, width=80, height=60) -> Camera:
    K = torch.tensor([[70.0, 0, width / 2], [0, 70.0, height / 2], [0, 0, 1]], dtype=torch.float64)
    place = [FOCUS + SCALE * WORLD_FROM_TEST @ np.asarray(p, float) for p in (position, target)]
    return look_at(*place, WORLD_FROM_TEST @ np.asarray(up, float), K=K, width=width, height=height)


def ring(degrees: float, count: int = 24) -> list[Camera]:
    azimuths = np.radians(np.linspace(0, degrees, count, endpoint=degrees < 360))
    return [camera_at((math.cos(a), math.sin(a), 0.3 + 0.1 * math.sin(3 * a)), (0, 0, 0)) for a in azimuths]


def forward_grid() -> list[Camera]:
    return [camera_at((x, 0.05 * x * z, z), (x, 5, z)) for x in (-0.4, 0, 0.4) for z in (-0.2, 0, 0.2)]


def corridor() -> list[Camera]:
    """Walking along x, looking along x with a sway to either side."""
    return [camera_at((x, 0, 0), (x + 1, 1.5 * math.sin(7 * x), 0)) for x in np.linspace(0, 10, 30)]


def positions(cameras: list[Camera]) -> np.ndarray:
    return np.stack([c.position.numpy() for c in cameras])


def forwards(cameras: list[Camera]) -> np.ndarray:
    return np.stack([c.forward.numpy() for c in cameras])


def assert_smooth(path: list[Camera]) -> None:
    """No step, the one from the last frame to the first included, is much longer than the typical one."""
    moved = positions(path)
    steps = np.linalg.norm(np.roll(moved, -1, axis=0) - moved, axis=1)
    assert steps.max() < 4 * np.quantile(steps, 0.75) + 1e-9
    turned = np.einsum("ci,ci->c", forwards(path), np.roll(forwards(path), -1, axis=0))
    assert np.degrees(np.arccos(turned.clip(-1, 1))).max() < 15
    for camera in path:
        rotation = camera.camera_from_world[:3, :3]
        assert torch.allclose(rotation @ rotation.T, torch.eye(3).double(), atol=1e-9)
        assert torch.linalg.det(rotation) > 0


def test_look_at_puts_the_target_in_the_centre_and_up_upwards():
    camera = camera_at((1, 2, 3), (0, 0, 0))
    in_camera = camera.camera_from_world @ torch.tensor([*FOCUS, 1.0], dtype=torch.float64)
    assert torch.allclose(in_camera[:2], torch.zeros(2).double(), atol=1e-9)
    assert in_camera[2] == pytest.approx(SCALE * math.sqrt(14))
    up_in_camera = camera.camera_from_world[:3, :3].numpy() @ UP
    assert up_in_camera[0] == pytest.approx(0, abs=1e-12)
    assert up_in_camera[1] < 0  # y points down


def test_focus_is_where_viewing_rays_meet():
    assert np.allclose(focus_point(ring(360)).numpy(), FOCUS, atol=1e-4)
    assert np.allclose(focus_point(ring(90)).numpy(), FOCUS, atol=1e-3)


def test_focus_of_parallel_rays_is_finite_and_ahead():
    cameras = [camera_at((x, 0, 0), (x, 1, 0)) for x in (-1, 0, 1)]
    ahead = (focus_point(cameras).numpy() - positions(cameras).mean(0)) @ cameras[0].forward.numpy()
    assert 0.1 < ahead / SCALE < 10


@pytest.mark.parametrize("cameras", [ring(360), ring(120), forward_grid(), corridor()])
def test_up_direction(cameras):
    assert up_direction(cameras).numpy() @ UP > math.cos(math.radians(2))


def test_up_direction_of_cameras_that_all_look_down():
    cameras = [camera_at((math.cos(a), math.sin(a), 3), (0, 0, 0)) for a in np.linspace(0, 6, 12)]
    assert up_direction(cameras).numpy() @ UP > math.cos(math.radians(3))


def test_kinds_of_capture():
    assert looks_inward(ring(360)) and not is_forward_facing(ring(360))
    assert looks_inward(ring(160)) and not is_forward_facing(ring(160))
    assert is_forward_facing(forward_grid())
    outward = [
        camera_at((0.2 * math.cos(a), 0.2 * math.sin(a), 0), (5 * math.cos(a), 5 * math.sin(a), 0)) for a in range(6)
    ]
    assert not looks_inward(outward) and not is_forward_facing(outward)


def test_closed_orbit_goes_once_around_near_the_cameras():
    cameras = ring(360)
    path = orbit_path(cameras, **SIZE)
    assert_smooth(path)
    to_focus = FOCUS - positions(path)
    distances = np.linalg.norm(to_focus, axis=1)
    assert np.einsum("ci,ci->c", to_focus / distances[:, None], forwards(path)).min() > 0.9999
    in_test_frame = -to_focus @ WORLD_FROM_TEST / SCALE
    assert np.allclose(np.linalg.norm(in_test_frame[:, :2], axis=1), 1, atol=0.02)
    turns = np.diff(np.unwrap(np.arctan2(in_test_frame[:, 1], in_test_frame[:, 0])))
    assert abs(turns.sum()) == pytest.approx(2 * math.pi * 59 / 60, rel=1e-6)


@pytest.mark.parametrize("degrees", [60, 120, 200])
def test_orbit_over_an_arc_stays_on_it(degrees):
    path = orbit_path(ring(degrees), **SIZE)
    assert_smooth(path)
    in_test_frame = (positions(path) - FOCUS) @ WORLD_FROM_TEST / SCALE
    azimuths = np.degrees(np.arctan2(in_test_frame[:, 1], in_test_frame[:, 0])) % 360
    assert azimuths.min() > 0.02 * degrees
    assert azimuths.max() < 0.98 * degrees
    assert np.ptp(azimuths) > 0.8 * degrees


def test_forward_facing_path_stays_within_the_cameras():
    cameras = forward_grid()
    path = forward_facing_path(cameras, **SIZE)
    assert_smooth(path)
    low, high = positions(cameras) @ WORLD_FROM_TEST, positions(path) @ WORLD_FROM_TEST
    assert (high[:, [0, 2]].max(0) < low[:, [0, 2]].max(0)).all()
    assert (high[:, [0, 2]].min(0) > low[:, [0, 2]].min(0)).all()
    assert np.ptp(high[:, 0]) > 0.4 * np.ptp(low[:, 0])


def test_walk_follows_the_capture_there_and_back():
    path = walk_path(corridor(), **SIZE)
    along = (positions(path) - FOCUS) @ WORLD_FROM_TEST[:, 0] / SCALE
    assert along[0] < 0.6 and along[30] > 9.4
    assert (np.diff(along[:31]) > 0).all() and (np.diff(along[30:]) < 0).all()


@pytest.mark.parametrize(
    ("cameras", "expected"), [(ring(360), orbit_path), (ring(150), orbit_path), (forward_grid(), forward_facing_path)]
)
def test_video_path_chooses(cameras, expected):
    chosen, direct = video_path(cameras, **SIZE), expected(cameras, **SIZE)
    assert all(torch.equal(a.camera_from_world, b.camera_from_world) for a, b in zip(chosen, direct, strict=True))
    assert len(chosen) == 60 and (chosen[0].width, chosen[0].height) == (64, 36)


@pytest.mark.parametrize("count", [1, 2])
def test_video_path_of_very_few_cameras(count):
    assert_smooth(video_path(ring(10, count), **SIZE))


def test_no_cameras_is_an_error():
    with pytest.raises(ValueError, match="at least one camera"):
        video_path([], **SIZE)


@pytest.mark.parametrize(("width", "height"), [(64, 36), (36, 64), (50, 50)])
def test_field_of_view_lies_within_the_captured_one(width, height):
    K = orbit_path(ring(360), num_frames=2, width=width, height=height)[0].K
    half_x, half_y = width / (2 * K[0, 0]), height / (2 * K[1, 1])
    assert half_x <= 80 / 140 + 1e-9 and half_y <= 60 / 140 + 1e-9
    assert half_x == pytest.approx(80 / 140) or half_y == pytest.approx(60 / 140)


def test_interpolation_between_two_cameras():
    first, second = ring(90, 2)
    assert torch.allclose(interpolate(first, second, 0.0).camera_from_world, first.camera_from_world)
    assert torch.allclose(interpolate(first, second, 1.0).camera_from_world, second.camera_from_world)
    middle = interpolate(first, second, 0.5)
    assert torch.allclose(middle.position, (first.position + second.position) / 2)
    angles = [math.acos(float(middle.forward @ c.forward)) for c in (first, second)]
    assert angles[0] == pytest.approx(angles[1])
