"""Smooth camera paths for videos that stay near the cameras of a capture, where a scene looks right.

Three kinds of capture need three paths: cameras around something (an orbit, or a swing where they cover only an arc),
cameras side by side facing forward (a gentle loop in their plane), and everything else (a walk along the capture).
``video_path`` chooses. All paths are closed, so that a video loops without a jump, except the walk, which goes there
and back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from scipy.spatial.transform import Rotation, Slerp
from torch import Tensor

from spatial.structures import Camera

FORWARD_FACING_MAX_ANGLE_DEG = 40.0  # cameras side by side: all look about the same way
CLOSED_ORBIT_MAX_GAP_DEG = 110.0  # a larger hole in the azimuths is not crossed


def video_path(cameras: Sequence[Camera], *, num_frames: int, width: int, height: int) -> list[Camera]:
    """The path that suits how the capture was taken; see the module's docstring.

    Args:
        cameras: the capture's cameras in the order in which they were taken (sorted names).
        width, height: size of the returned cameras; their field of view lies within the capture's own.

    Raises:
        ValueError: no cameras.
    """
    size = {"num_frames": num_frames, "width": width, "height": height}
    if not cameras:
        raise ValueError("a camera path needs at least one camera, got none")
    if len(cameras) < 3 or is_forward_facing(cameras):
        return forward_facing_path(cameras, **size)
    if looks_inward(cameras):
        return orbit_path(cameras, **size)
    return walk_path(cameras, **size)


def orbit_path(cameras: Sequence[Camera], *, num_frames: int, width: int, height: int) -> list[Camera]:
    """A loop around the focus point at the captured cameras' own radii and heights; a swing where they cover an arc."""
    focus, up = focus_point(cameras).numpy(), up_direction(cameras).numpy()
    axes = _plane_axes(up, _positions(cameras)[0] - focus)
    offsets = _positions(cameras) - focus
    azimuths = np.arctan2(offsets @ axes[1], offsets @ axes[0])
    radii, heights = np.linalg.norm(offsets @ axes.T, axis=1), offsets @ up
    path_azimuths = _closed_azimuths(azimuths, num_frames)
    intrinsics = _intrinsics_within(cameras, width, height)
    path = []
    for azimuth, radius, rise in zip(
        path_azimuths,
        _smoothed_over_azimuth(azimuths, radii, path_azimuths),
        _smoothed_over_azimuth(azimuths, heights, path_azimuths),
        strict=True,
    ):
        position = focus + radius * (np.cos(azimuth) * axes[0] + np.sin(azimuth) * axes[1]) + rise * up
        path.append(look_at(position, focus, up, K=intrinsics, width=width, height=height))
    return path


def forward_facing_path(cameras: Sequence[Camera], *, num_frames: int, width: int, height: int) -> list[Camera]:
    """A gentle closed loop in the plane of the cameras, looking at their focus point.

    One camera has no plane of its own: the loop is then 2 % of the distance to what it looks at (1 unit).
    """
    center, forward = _positions(cameras).mean(0), _mean_direction(_forwards(cameras))
    focus, up = focus_point(cameras).numpy(), up_direction(cameras).numpy()
    distance = max(float((focus - center) @ forward), 1e-6)
    focus = center + distance * forward  # on the mean viewing ray, so that the loop sways evenly
    right = np.cross(forward, up)
    right /= np.linalg.norm(right)
    down = np.cross(forward, right)
    offsets = _positions(cameras) - center
    sway = max(0.8 * float(np.std(offsets @ right)), 0.02 * distance)
    rise = max(0.8 * float(np.std(offsets @ down)), 0.01 * distance)
    intrinsics = _intrinsics_within(cameras, width, height)
    path = []
    for phase in 2 * math.pi * np.arange(num_frames) / num_frames:
        position = center + sway * math.sin(phase) * right + rise * math.sin(phase + math.pi / 2) * down
        path.append(look_at(position, focus, up, K=intrinsics, width=width, height=height))
    return path


def walk_path(cameras: Sequence[Camera], *, num_frames: int, width: int, height: int) -> list[Camera]:
    """Along the capture in its own order and back, smoothed over neighbouring cameras."""
    intrinsics = _intrinsics_within(cameras, width, height)
    smooth = [_averaged(cameras[max(i - 2, 0) : i + 3]) for i in range(len(cameras))]
    path = []
    for phase in 2 * math.pi * np.arange(num_frames) / num_frames:
        along = 0.5 * (1 - math.cos(phase)) * (len(cameras) - 1)
        first = min(int(along), len(cameras) - 2)
        pose = interpolate(smooth[first], smooth[first + 1], along - first).camera_from_world
        path.append(Camera(intrinsics, pose, width, height))
    return path


def interpolate(first: Camera, second: Camera, fraction: float) -> Camera:
    """The camera ``fraction`` of the way: centre and focal length linearly, rotation along the shortest arc (slerp)."""
    rotations = Rotation.from_matrix(np.stack([c.camera_from_world[:3, :3].numpy() for c in (first, second)]))
    rotation = Slerp([0.0, 1.0], rotations)(fraction).as_matrix()
    center = (1 - fraction) * first.position.numpy() + fraction * second.position.numpy()
    K = (1 - fraction) * first.K + fraction * second.resized(first.width, first.height).K
    return Camera(K, _pose(rotation, center), first.width, first.height)


def look_at(
    position: ndarray, target: ndarray, up: ndarray, *, K: Float[Tensor, "3 3"], width: int, height: int
) -> Camera:
    """A camera at ``position`` with ``target`` straight ahead and ``up`` upwards in its picture; all in the world."""
    forward = (target - position) / np.linalg.norm(target - position)
    right = np.cross(forward, up)
    if np.linalg.norm(right) < 1e-6:  # straight up or down: any horizontal direction is as good
        right = np.cross(forward, np.roll(up, 1))
    right /= np.linalg.norm(right)
    return Camera(K, _pose(np.stack([right, np.cross(forward, right), forward]), position), width, height)


def focus_point(cameras: Sequence[Camera]) -> Float[Tensor, "3"]:
    """The point nearest to all viewing rays (least squares), in the world, float64.

    Parallel rays leave the depth open; a weak pull towards one unit of the cameras' spread ahead of their centre
    settles it then, and is negligible otherwise.
    """
    positions, forwards = _positions(cameras), _forwards(cameras)
    across = np.eye(3) - forwards[:, :, None] * forwards[:, None, :]  # [C, 3, 3] projections off each ray
    spread = float(np.linalg.norm(positions - positions.mean(0), axis=1).mean())
    ahead = positions.mean(0) + (spread or 1.0) * _mean_direction(forwards)
    weak = 1e-6 * len(positions)
    left = across.sum(0) + weak * np.eye(3)
    return torch.from_numpy(np.linalg.solve(left, np.einsum("cij,cj->i", across, positions) + weak * ahead))


def up_direction(cameras: Sequence[Camera]) -> Float[Tensor, "3"]:
    """Unit vector that points up in the world, float64, taking photographers to hold their cameras level.

    It is the direction most nearly perpendicular to every image's x axis; where those do not settle it (cameras side
    by side), the mean of the images' upward directions does.
    """
    rights = np.stack([c.camera_from_world[0, :3].double().numpy() for c in cameras])
    mean_up = _mean_direction(np.stack([-c.camera_from_world[1, :3].double().numpy() for c in cameras]))
    cost = rights.T @ rights / len(rights) + 0.01 * (np.eye(3) - np.outer(mean_up, mean_up))
    up = np.linalg.eigh(cost)[1][:, 0]
    return torch.from_numpy(up if up @ mean_up >= 0 else -up)


def is_forward_facing(cameras: Sequence[Camera]) -> bool:
    """True where all cameras look within 40° of their mean direction (nine in ten of them)."""
    forwards = _forwards(cameras)
    angles = np.degrees(np.arccos(np.clip(forwards @ _mean_direction(forwards), -1, 1)))
    return bool(np.quantile(angles, 0.9) < FORWARD_FACING_MAX_ANGLE_DEG)


def looks_inward(cameras: Sequence[Camera]) -> bool:
    """True where four cameras in five have the focus point before them, within 45° of where they look."""
    towards = focus_point(cameras).numpy() - _positions(cameras)
    cosines = np.einsum("ci,ci->c", towards, _forwards(cameras)) / np.linalg.norm(towards, axis=1).clip(1e-9)
    return bool(np.mean(cosines > math.cos(math.pi / 4)) >= 0.8)


def _positions(cameras: Sequence[Camera]) -> Float[ndarray, "C 3"]:
    return np.stack([c.position.double().numpy() for c in cameras])


def _forwards(cameras: Sequence[Camera]) -> Float[ndarray, "C 3"]:
    return np.stack([c.forward.double().numpy() for c in cameras])


def _mean_direction(directions: Float[ndarray, "C 3"]) -> Float[ndarray, "3"]:
    mean = directions.mean(0)
    length = np.linalg.norm(mean)
    return mean / length if length > 1e-9 else directions[0]


def _pose(camera_from_world_rotation: ndarray, center: ndarray) -> Float[Tensor, "4 4"]:
    pose = np.eye(4)
    pose[:3, :3] = camera_from_world_rotation
    pose[:3, 3] = -camera_from_world_rotation @ center
    return torch.from_numpy(pose)


def _plane_axes(up: ndarray, towards: ndarray) -> Float[ndarray, "2 3"]:
    """Two horizontal unit axes, the first one below ``towards``."""
    first = towards - (towards @ up) * up
    if np.linalg.norm(first) < 1e-9:
        first = np.eye(3)[np.argmin(np.abs(up))]
        first = first - (first @ up) * up
    first = first / np.linalg.norm(first)
    return np.stack([first, np.cross(up, first)])


def _closed_azimuths(azimuths: Float[ndarray, "C"], num_frames: int) -> Float[ndarray, "F"]:
    """Once around, or there and back over the arc that the cameras cover where it leaves a large gap."""
    ordered = np.sort(azimuths)
    gaps = np.diff(ordered, append=ordered[0] + 2 * math.pi)
    largest = int(np.argmax(gaps))
    phases = np.arange(num_frames) / num_frames
    if gaps[largest] < math.radians(CLOSED_ORBIT_MAX_GAP_DEG):
        return azimuths[0] + 2 * math.pi * phases
    start, arc = ordered[(largest + 1) % len(ordered)], 2 * math.pi - gaps[largest]
    # 5 % short of both ends: the outermost cameras see the least.
    return start + arc * (0.5 - 0.45 * np.cos(2 * math.pi * phases))


def _smoothed_over_azimuth(azimuths: ndarray, values: ndarray, at: ndarray) -> Float[ndarray, "F"]:
    """Kernel average of the cameras' values around each azimuth; the kernel is as wide as their spacing asks."""
    ordered = np.sort(azimuths)
    spacing = np.diff(ordered, append=ordered[0] + 2 * math.pi).max()
    width = max(math.radians(20), min(spacing, math.radians(60)))
    weights = np.exp((np.cos(at[:, None] - azimuths[None, :]) - 1) / width**2)  # von Mises
    return (weights * values).sum(1) / weights.sum(1)


def _averaged(cameras: Sequence[Camera]) -> Camera:
    rotations = Rotation.from_matrix(np.stack([c.camera_from_world[:3, :3].numpy() for c in cameras]))
    middle = cameras[len(cameras) // 2]
    pose = _pose(rotations.mean().as_matrix(), _positions(cameras).mean(0))
    return Camera(middle.K, pose, middle.width, middle.height)


def _intrinsics_within(cameras: Sequence[Camera], width: int, height: int) -> Float[Tensor, "3 3"]:
    """Centred intrinsics whose field of view lies within the median captured one, in both directions."""
    half_x = np.median([c.width / (2 * float(c.K[0, 0])) for c in cameras])
    half_y = np.median([c.height / (2 * float(c.K[1, 1])) for c in cameras])
    focal = max(width / (2 * half_x), height / (2 * half_y))
    return torch.tensor([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]], dtype=torch.float64)
