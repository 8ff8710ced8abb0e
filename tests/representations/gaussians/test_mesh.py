"""A sphere of Gaussians becomes a sphere of triangles: radius, position, colours, orientation, one part, a budget."""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from data.synthetic.gaussians import orbit_cameras, sphere_gaussians
from representations.gaussians.mesh import fuse_mesh, write_mesh
from spatial.errors import SpatialError
from spatial.structures import Camera, Gaussians

RADIUS, CENTRE = 0.7, torch.tensor([0.3, -0.2, 0.5])


@pytest.fixture(scope="module")
def open3d():
    return pytest.importorskip("open3d", reason='open3d is not installed: pip install "spatial-ai[open3d]"')


def sphere() -> Gaussians:
    scene = sphere_gaussians(4000, radius=RADIUS)
    return dataclasses.replace(scene, means=scene.means + CENTRE)


def cameras(shift_px: float = 0.0) -> list[Camera]:
    """Above and below; their principal point may lie off the middle."""
    result = []
    for altitude in (1.4, -1.4):
        for camera in orbit_cameras(8, radius=1.8, altitude=altitude, width=160, height=120, target=CENTRE.tolist()):
            K = camera.K.clone()
            K[0, 2] += shift_px
            K[1, 2] -= shift_px / 2
            result.append(dataclasses.replace(camera, K=K))
    return result


@pytest.mark.parametrize("shift_px", [0.0, 17.0])
def test_a_sphere(open3d, shift_px: float) -> None:
    voxel = 0.02
    mesh = fuse_mesh(sphere(), cameras(shift_px), voxel_size=voxel)
    offsets = mesh.vertices - CENTRE.numpy()
    radii = np.linalg.norm(offsets, axis=1)
    assert abs(np.median(radii) - RADIUS) < 0.5 * voxel
    assert np.abs(radii - RADIUS).max() < 2 * voxel
    # A shift of the principal point by half a pixel would move it by 0.01.
    middle = (mesh.vertices.max(0) + mesh.vertices.min(0)) / 2
    assert np.abs(middle - CENTRE.numpy()).max() < 0.6 * voxel
    assert volume_of(mesh.vertices, mesh.faces) == pytest.approx(4 / 3 * math.pi * RADIUS**3, rel=0.05)
    want = (offsets / radii[:, None] * 0.5 + 0.5) * 255  # the sphere is coloured by its normals
    assert np.abs(mesh.colors - want).mean() < 12


def volume_of(vertices: np.ndarray, faces: np.ndarray) -> float:
    """By the divergence theorem: positive where triangles turn counter-clockwise seen from outside."""
    a, b, c = (vertices[faces[:, k]].astype(np.float64) for k in range(3))
    return float((a * np.cross(b, c)).sum() / 6)


def test_the_grid_follows_the_size_of_what_is_seen(open3d) -> None:
    coarse, fine = (fuse_mesh(sphere(), cameras(), resolution=resolution) for resolution in (24, 48))
    assert 2.5 < len(fine.faces) / len(coarse.faces) < 6  # four times as many, about
    wide = dataclasses.replace(sphere(), means=sphere().means * 50, log_scales=sphere().log_scales + math.log(50))
    far = []
    for camera in cameras():
        pose = camera.camera_from_world.clone()
        pose[:3, 3] *= 50
        far.append(dataclasses.replace(camera, camera_from_world=pose))
    scaled = fuse_mesh(wide, far, resolution=24)
    assert len(scaled.faces) == pytest.approx(len(coarse.faces), rel=0.05)


def test_only_the_largest_part_and_within_the_budget(open3d) -> None:
    small = sphere_gaussians(400, radius=0.08)
    small = dataclasses.replace(small, means=small.means + CENTRE + torch.tensor([0.0, 0.0, 1.0]))
    both = Gaussians(
        *(torch.cat([getattr(sphere(), name), getattr(small, name)]) for name in
          ("means", "quats", "log_scales", "logit_opacities", "sh"))
    )  # fmt: skip
    mesh = fuse_mesh(both, cameras(), voxel_size=0.03, max_faces=900)
    assert 400 < len(mesh.faces) <= 900
    assert np.linalg.norm(mesh.vertices - CENTRE.numpy(), axis=1).max() < RADIUS + 0.06
    assert mesh.faces.max() == len(mesh.vertices) - 1


def test_the_file_opens_elsewhere(open3d, tmp_path: Path) -> None:
    mesh = fuse_mesh(sphere(), cameras(), voxel_size=0.04)
    write_mesh(mesh, tmp_path / "mesh.ply")
    read = open3d.io.read_triangle_mesh(str(tmp_path / "mesh.ply"))
    assert np.allclose(np.asarray(read.vertices), mesh.vertices) and np.array_equal(
        np.asarray(read.triangles), mesh.faces
    )
    assert np.abs(np.asarray(read.vertex_colors) * 255 - mesh.colors).max() < 0.51
    assert [path.name for path in tmp_path.iterdir()] == ["mesh.ply"]


def test_nothing_to_see_is_said(open3d) -> None:
    clear = dataclasses.replace(sphere(), logit_opacities=torch.full((4000,), -9.0))
    with pytest.raises(SpatialError, match="no camera sees a surface"):
        fuse_mesh(clear, cameras())


def test_without_open3d_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "open3d", None)
    with pytest.raises(SpatialError, match=r"pip install .*open3d.*libgl1 libusb-1\.0-0"):
        fuse_mesh(sphere(), cameras())
