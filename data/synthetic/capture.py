"""A small capture of the synthetic still life on disk: photos as a phone leaves them, and the truth beside them."""

from __future__ import annotations

import io
import json
import logging
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from data.synthetic.lighting import bake
from data.synthetic.raycaster import render_colors, render_depth
from data.synthetic.scene import still_life
from data.synthetic.textures import make_noise
from spatial.errors import SpatialError
from spatial.geometry.camera_path import look_at
from spatial.io.atomic import atomic_path, make_folder, write_json_atomic, write_text_atomic
from spatial.structures import Camera

logger = logging.getLogger(__name__)

FORMAT = 1  # raised when the same settings give other pictures
TARGET_M = (0.0, 0.0, 0.08)
RINGS_M = ((1.30, 0.42), (1.00, 0.90))  # horizontal distance and height of the two orbits
FOCAL_IN_WIDTHS = 0.8
FOCAL_LENGTH_35MM = 28  # what EXIF says: rounded to a whole number, thus about 1 % off, as phones have it
README = """The truth behind ../images, for checking a reconstruction. Nothing here is needed to reconstruct.

cameras.json   for each photo: camera_from_world [4, 4] (OpenCV: x right, y down, z forward; world in metres, z up),
               K [3, 3] in pixels (pixel centres at +0.5), and the lens: COLMAP's SIMPLE_RADIAL with k1.
depth/*.npz    "depth": z-depth in metres of the undistorted pinhole with the same K, at half the photo's size
               (float32; pixel (0, 0) is centred at (0.5, 0.5) of the halved image).
"""


@dataclass(frozen=True)
class Lens:
    """COLMAP's SIMPLE_RADIAL: x_distorted = x (1 + k1 |x|²) on the plane z = 1, then K."""

    K: Float[Tensor, "3 3"]
    k1: float
    width: int
    height: int

    def directions(self) -> Float[Tensor, "3 H W"]:
        """Rays through the photo's pixel centres, camera frame, z = 1."""
        distorted = pinhole_directions(self.K, self.width, self.height)
        undistorted = distorted[:2].clone()
        for _ in range(20):  # a contraction for mild lenses: converges to float64's limits
            undistorted = distorted[:2] / (1 + self.k1 * (undistorted * undistorted).sum(0))
        return torch.cat([undistorted, distorted[2:]])


def write_capture(
    folder: str | Path,
    *,
    num_photos: int = 24,
    width: int = 640,
    height: int = 480,
    seed: int = 0,
    k1: float = -0.045,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Writes ``images/000.jpg …`` and ``truth/``, and returns the folder of the photos.

    Files are whole or absent; a call that was interrupted goes on where it stopped, one that finished is not repeated.
    The same settings give the same bytes.

    Args:
        folder: made where absent; must not hold other photos.
        num_photos: shared between a low and a high orbit.
        width, height: of the photos, in pixels, even.
        seed: of textures and of the cameras' jitter.
        k1: the lens's radial distortion.
        progress: called with the number of photos done and in all.

    Raises:
        SpatialError: the folder holds something else, or cannot be written; the numbers make no sense.
    """
    folder = Path(folder)
    if num_photos < 2 or width < 16 or height < 16 or width % 2 or height % 2:
        raise SpatialError(
            "a synthetic capture needs at least 2 photos with an even width and height of at least 16, "
            f"got num_photos={num_photos}, width={width}, height={height}"
        )
    settings = {"format": FORMAT, "num_photos": num_photos, "width": width, "height": height, "seed": seed, "k1": k1}
    _claim(folder, settings)
    lens = Lens(_intrinsics(width, height), k1, width, height)
    cameras = orbit(lens, num_photos, seed)
    names = [f"{index:03d}" for index in range(num_photos)]
    write_text_atomic(folder / "truth" / "README.txt", README)
    write_json_atomic(folder / "truth" / "cameras.json", _truth(settings, lens, names, cameras))
    missing = [i for i, name in enumerate(names) if not _photo(folder, name).exists()]
    if missing:
        _write_photos(folder, lens, [names[i] for i in missing], [cameras[i] for i in missing], seed, progress)
    return folder / "images"


def orbit(lens: Lens, num_photos: int, seed: int) -> list[Camera]:
    """Two rings about the table, the upper one's azimuths between the lower one's, held by an unsteady hand."""
    jitter = np.random.default_rng([seed, 1]).uniform(-1, 1, (num_photos, 6))
    num_low = -(-num_photos // 2)
    cameras = []
    for index in range(num_photos):
        ring, count, turn = (0, num_low, index) if index < num_low else (1, num_photos - num_low, index - num_low + 0.5)
        radius, height = RINGS_M[ring]
        azimuth = 2 * math.pi * turn / count
        position = np.array([radius * math.cos(azimuth), radius * math.sin(azimuth), height]) + 0.03 * jitter[index, :3]
        target = np.array(TARGET_M) + 0.03 * np.array([*jitter[index, 3:5], 0.0])
        roll = 0.04 * jitter[index, 5] * np.array([-math.sin(azimuth), math.cos(azimuth), 0.0])
        up = np.array([0.0, 0.0, 1.0]) + roll
        cameras.append(look_at(position, target, up, K=lens.K, width=lens.width, height=lens.height))
    return cameras


def pinhole_directions(K: Float[Tensor, "3 3"], width: int, height: int) -> Float[Tensor, "3 H W"]:
    """Rays through the pixel centres of a pinhole camera, camera frame, z = 1, in K's dtype."""
    u = (torch.arange(width, dtype=K.dtype) + 0.5 - K[0, 2]) / K[0, 0]
    v = (torch.arange(height, dtype=K.dtype) + 0.5 - K[1, 2]) / K[1, 1]
    y, x = torch.meshgrid(v, u, indexing="ij")
    return torch.stack([x, y, torch.ones_like(x)])


def _intrinsics(width: int, height: int) -> Float[Tensor, "3 3"]:
    focal = FOCAL_IN_WIDTHS * max(width, height)
    return torch.tensor([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]], dtype=torch.float64)


def _photo(folder: Path, name: str) -> Path:
    return folder / "images" / f"{name}.jpg"


def _claim(folder: Path, settings: dict[str, Any]) -> None:
    """Makes the folders, unless something else lies there."""
    truth = folder / "truth" / "cameras.json"
    if truth.exists():
        try:
            found = json.loads(truth.read_text("utf-8")).get("settings")
        except ValueError:
            found = "an unreadable truth/cameras.json"
        if found != settings:
            raise SpatialError(
                f"{folder} already holds another synthetic capture ({found}, wanted {settings}); "
                "delete it or choose another folder"
            )
    elif (folder / "images").exists() and any((folder / "images").iterdir()):
        raise SpatialError(f"{folder / 'images'} already holds files that are not ours; choose another folder")
    for part in ("images", "truth", "truth/depth"):
        make_folder(folder / part)


def _truth(settings: dict[str, Any], lens: Lens, names: list[str], cameras: list[Camera]) -> dict[str, Any]:
    radius = np.mean([np.linalg.norm(camera.position.numpy() - TARGET_M) for camera in cameras])
    shared = {
        "width": lens.width,
        "height": lens.height,
        "K": lens.K.tolist(),
        "distortion": {"model": "SIMPLE_RADIAL", "k1": lens.k1},
    }
    return {
        "convention": "OpenCV cameras (x right, y down, z forward), metres, world z up, pixel centres at +0.5",
        "settings": settings,
        "target": list(TARGET_M),
        "orbit_radius": float(radius),
        "photos": [
            {"name": f"{name}.jpg", "camera_from_world": camera.camera_from_world.tolist(), **shared}
            for name, camera in zip(names, cameras, strict=True)
        ],
    }


def _write_photos(
    folder: Path,
    lens: Lens,
    names: list[str],
    cameras: list[Camera],
    seed: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    # A view a thread, each with single-threaded operations: threads within operations this small would only wait.
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        write = _photographer(folder, lens, seed)
        with ThreadPoolExecutor(num_threads) as pool:
            for done, _ in enumerate(pool.map(write, names, cameras), start=1):
                if done == len(names) or done % 8 == 0:
                    logger.info("wrote synthetic photo %d of %d", done, len(names))
                if progress is not None:
                    progress(done, len(names))
    finally:
        torch.set_num_threads(num_threads)


def _photographer(folder: Path, lens: Lens, seed: int) -> Callable[[str, Camera], None]:
    """Builds the scene; returns the function that writes one photo with its depth."""
    scene = still_life(make_noise(seed))
    lighting = bake(scene)
    photo_rays, pixel_size = lens.directions().float(), 1 / float(lens.K[0, 0])
    scale = torch.tensor([[0.5], [0.5], [1.0]], dtype=torch.float64)
    depth_rays = pinhole_directions(lens.K * scale, lens.width // 2, lens.height // 2).float()

    def write(name: str, camera: Camera) -> None:
        pose = camera.camera_from_world
        depth = render_depth(scene, pose, depth_rays)
        colors = render_colors(scene, lighting, pose, photo_rays, pixel_size=pixel_size)
        with atomic_path(folder / "truth" / "depth" / f"{name}.npz") as temporary:
            np.savez_compressed(temporary, depth=depth.numpy())
        # The photo comes last: where it exists, its truth does too.
        with atomic_path(_photo(folder, name)) as temporary:
            temporary.write_bytes(_jpeg((colors.clamp(0, 1) * 255).round().to(torch.uint8).numpy()))

    return write


def _jpeg(pixels: np.ndarray) -> bytes:
    """JPEG with the EXIF entries by which a focal length is known."""
    exif = Image.Exif()
    exif[0x010F], exif[0x0110] = "Spatial", "Synthetic phone"  # Make, Model
    exif.get_ifd(0x8769)[0xA405] = FOCAL_LENGTH_35MM
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=95, exif=exif)
    return buffer.getvalue()
