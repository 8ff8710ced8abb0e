"""Cameras as viser has them, and how large to draw them in a scene of any size."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy import ndarray
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation

from spatial.geometry.camera_path import focus_point
from spatial.structures import Camera

DISTANCE_IN_VIEWER = 3.0


def camera_from_viser(wxyz: ndarray, position: ndarray, fov_rad: float, *, width: int, height: int) -> Camera:
    """The pinhole camera of a viser client: OpenCV axes, ``wxyz`` world-from-camera, ``fov_rad`` vertical."""
    w, x, y, z = wxyz
    rotation = Rotation.from_quat([x, y, z, w]).as_matrix().T
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = rotation, -rotation @ np.asarray(position)
    focal = height / (2 * math.tan(fov_rad / 2))
    K = torch.tensor([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]], dtype=torch.float64)
    return Camera(K, torch.from_numpy(pose), width, height)


def wxyz_of(camera: Camera) -> ndarray:
    x, y, z, w = Rotation.from_matrix(camera.camera_from_world[:3, :3].double().numpy().T).as_quat()
    return np.array([w, x, y, z])


def vertical_fov(camera: Camera) -> float:
    return 2 * math.atan(camera.height / (2 * float(camera.K[1, 1])))


def focus_distance(cameras: Sequence[Camera]) -> float:
    """Median distance from the cameras to what they look at, in the world; 3 without cameras."""
    if not cameras:
        return DISTANCE_IN_VIEWER
    focus = focus_point(cameras)
    return max(float(np.median([float((c.position - focus).norm()) for c in cameras])), 1e-9)


def depth_of_focus(camera: Camera, cameras: Sequence[Camera]) -> float:
    """How far ahead of ``camera`` the scene's focus lies; where it lies behind, the median distance."""
    ahead = float((focus_point(cameras) - camera.position) @ camera.forward)
    median = focus_distance(cameras)
    return ahead if ahead > 0.1 * median else median


def frustum_depth(cameras: Sequence[Camera]) -> float:
    """Depth of frusta that do not hide each other: the median spacing, at most 15 % of the distance to the scene."""
    longest = 0.15 * focus_distance(cameras)
    if len(cameras) < 2:
        return longest
    centers = np.stack([c.position.double().numpy() for c in cameras])
    spacing = float(np.median(cKDTree(centers).query(centers, k=2)[0][:, 1]))
    return min(max(spacing, 0.2 * longest), longest)


def viser_scale(camera: Camera) -> float:
    """viser's ``scale`` for a frustum one unit deep: it keeps the volume, not the depth, the same for all lenses."""
    half_height = camera.height / (2 * float(camera.K[1, 1]))
    half_width = half_height * camera.width / camera.height
    return (half_height * half_width / 3) ** (1 / 3)
