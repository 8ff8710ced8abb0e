"""A triangle mesh from Gaussians: rendered depth, fused into a truncated signed distance field (Curless & Levoy 1996)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Int32, UInt8

from representations.gaussians.rendering import render
from spatial.errors import SpatialError
from spatial.io.atomic import atomic_path
from spatial.structures import Camera, Gaussians

SOLID = 0.5  # accumulated opacity above which a pixel shows a surface
TRUNCATION_VOXELS = 4.0  # of the distance field, either side of the surface


class Mesh(NamedTuple):
    """Triangles in the world, counter-clockwise seen from outside, with display-sRGB colours."""

    vertices: Float32[np.ndarray, "V 3"]
    faces: Int32[np.ndarray, "F 3"]
    colors: UInt8[np.ndarray, "V 3"]


class DepthPicture(NamedTuple):
    """What one camera sees: z-depth in world units, 0 where nothing is solid, and colour."""

    depth: Float32[np.ndarray, "H W"]
    colors: UInt8[np.ndarray, "H W 3"]
    camera: Camera


def fuse_mesh(
    gaussians: Gaussians,
    cameras: Sequence[Camera],
    *,
    voxel_size: float | None = None,
    resolution: int = 256,
    depth_trunc: float | None = None,
    min_views: int = 2,
    max_faces: int | None = 500_000,
    longest_side: int = 800,
) -> Mesh:
    """The largest connected surface that the cameras see.

    Args:
        cameras: from which depth is rendered; any principal point.
        voxel_size: edge of a voxel in world units; by default the size of what is seen (the longest side of the box of
            the middle 90 % of surface points) divided by ``resolution``.
        depth_trunc: depths beyond it are not fused; by default 1.1 times the 95th percentile of all depths, so that a
            far background does not cost memory.
        min_views: a surface that fewer cameras see is left out.
        max_faces: simplified by quadric error to at most so many; None keeps all.
        longest_side: of the rendered depths in pixels; cameras that are larger are shrunk.

    Raises:
        SpatialError: open3d is not installed, or the cameras see no surface.
    """
    o3d = _open3d()
    small = [_shrunk(camera, longest_side) for camera in cameras]
    measured_size, measured_trunc = _measure(gaussians, small)
    depth_trunc = depth_trunc or measured_trunc
    voxel_size = voxel_size or measured_size / resolution
    volume = _VoxelGrid(o3d, voxel_size, depth_trunc)
    for picture in _depth_pictures(gaussians, small):
        volume.integrate(picture)
    mesh = _largest_part(volume.surface(min_views))
    if max_faces is not None and len(mesh.triangles) > max_faces:
        mesh = mesh.simplify_quadric_decimation(max_faces)
    return Mesh(
        np.asarray(mesh.vertices).astype(np.float32),
        np.asarray(mesh.triangles).astype(np.int32),
        (np.asarray(mesh.vertex_colors) * 255).round().astype(np.uint8),
    )


def write_mesh(mesh: Mesh, path: Path) -> None:
    """Writes a binary PLY with coloured vertices, whole or not at all."""
    from plyfile import PlyData, PlyElement

    columns = [*((axis, "f4") for axis in "xyz"), *((channel, "u1") for channel in ("red", "green", "blue"))]
    vertices = np.zeros(len(mesh.vertices), columns)
    for index, (name, _) in enumerate(columns):
        vertices[name] = mesh.vertices[:, index] if index < 3 else mesh.colors[:, index - 3]
    faces = np.zeros(len(mesh.faces), [("vertex_indices", "i4", (3,))])
    faces["vertex_indices"] = mesh.faces
    elements = [PlyElement.describe(vertices, "vertex"), PlyElement.describe(faces, "face")]
    with atomic_path(path) as temporary:
        PlyData(elements).write(str(temporary))


def require_open3d() -> None:
    """Says now, and not after an hour of training, that a mesh cannot be made.

    Raises:
        SpatialError: open3d, or a system library that it needs, is not installed.
    """
    _open3d()


def _open3d() -> Any:
    try:
        import open3d
    except ImportError as error:
        raise SpatialError(
            'a mesh needs Open3D: pip install "spatial-ai[open3d]", and on Debian or Ubuntu '
            f"apt-get install libgl1 libusb-1.0-0 libgomp1 libx11-6 ({error})"
        ) from error
    except OSError as error:  # installed, but a library of the system is missing
        raise SpatialError(
            f"Open3D cannot start ({error}); on Debian or Ubuntu: apt-get install libgl1 libusb-1.0-0 libgomp1 libx11-6"
        ) from error
    return open3d


def _shrunk(camera: Camera, longest_side: int) -> Camera:
    scale = min(1.0, longest_side / max(camera.width, camera.height))
    return camera if scale == 1 else camera.resized(round(camera.width * scale), round(camera.height * scale))


def _depth_pictures(gaussians: Gaussians, cameras: Sequence[Camera]) -> Iterator[DepthPicture]:
    for camera in cameras:
        seen = render(gaussians, camera)
        solid = seen.alphas > SOLID
        colors = (seen.colors / seen.alphas.clamp_min(SOLID)).clamp(0, 1)  # not darkened towards the black behind
        yield DepthPicture(
            seen.depths.where(solid, 0.0)[..., 0].numpy().astype(np.float32),
            (colors * 255).round().byte().numpy(),
            camera,
        )


def _measure(gaussians: Gaussians, cameras: Sequence[Camera]) -> tuple[float, float]:
    """Size of what is seen, and how far away it is at most; robust, from low-resolution depths."""
    depths, points = [], []
    for picture in _depth_pictures(gaussians, [_shrunk(camera, 128) for camera in cameras]):
        rows, columns = np.nonzero(picture.depth)
        z = picture.depth[rows, columns]
        depths.append(z)
        points.append(_to_world(picture.camera, columns + 0.5, rows + 0.5, z))
    z, xyz = np.concatenate(depths), np.concatenate(points)
    if not len(z):
        raise SpatialError("no camera sees a surface, so there is no mesh: the scene is transparent or out of view")
    limit = 1.1 * float(np.quantile(z, 0.95))
    near = xyz[z <= limit]
    low, high = np.quantile(near, [0.05, 0.95], axis=0)
    return float((high - low).max()) / 0.9, limit


def _to_world(
    camera: Camera, x: Float[np.ndarray, "N"], y: Float[np.ndarray, "N"], z: Float[np.ndarray, "N"]
) -> Float[np.ndarray, "N 3"]:
    rays = np.column_stack([x, y, np.ones(len(x))]) @ np.linalg.inv(camera.K.double().numpy()).T
    world_from_camera = np.linalg.inv(camera.camera_from_world.double().numpy())
    return (rays * z[:, None]) @ world_from_camera[:3, :3].T + world_from_camera[:3, 3]


class _VoxelGrid:
    """Open3D's sparse distance field. (Its older ScalableTSDFVolume extracts nothing in release 0.20.)"""

    BLOCK = 8  # voxels along the edge of a block
    ATTRIBUTES: ClassVar[dict[str, int]] = {"tsdf": 1, "weight": 1, "color": 3}

    def __init__(self, o3d: Any, voxel_size: float, depth_trunc: float):
        core = o3d.core
        self.o3d, self.depth_trunc = o3d, depth_trunc
        self.grid = o3d.t.geometry.VoxelBlockGrid(
            tuple(self.ATTRIBUTES), (core.float32,) * 3, tuple((size,) for size in self.ATTRIBUTES.values()),
            voxel_size, self.BLOCK, 5000, core.Device("CPU:0"),
        )  # fmt: skip

    def integrate(self, picture: DepthPicture) -> None:
        o3d, K = self.o3d, picture.camera.K.double().numpy().copy()
        K[:2, 2] -= 0.5  # Open3D's pixel centres lie at whole numbers, ours half a pixel further
        intrinsics = o3d.core.Tensor(K)
        extrinsics = o3d.core.Tensor(picture.camera.camera_from_world.double().numpy().copy())
        depth = o3d.t.geometry.Image(np.ascontiguousarray(picture.depth[..., None]))
        color = o3d.t.geometry.Image(picture.colors.astype(np.float32) / 255)
        reach = (intrinsics, extrinsics, 1.0, self.depth_trunc, TRUNCATION_VOXELS)
        blocks = self.grid.compute_unique_block_coordinates(depth, *reach)
        if len(blocks):
            self.grid.integrate(blocks, depth, color, *reach)

    def surface(self, min_views: int) -> Any:
        return self.grid.extract_triangle_mesh(float(min_views)).to_legacy()


def _largest_part(mesh: Any) -> Any:
    clusters, sizes, _ = mesh.cluster_connected_triangles()
    if not len(sizes):
        raise SpatialError("the fused depths hold no surface: choose a smaller voxel_size or a larger depth_trunc")
    mesh.remove_triangles_by_mask(np.asarray(clusters) != int(np.argmax(sizes)))
    mesh.remove_unreferenced_vertices()
    return mesh
