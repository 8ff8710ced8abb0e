"""A reconstruction of the synthetic capture against its truth: poses, focal length and depth, in numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from data.synthetic.capture import pinhole_directions
from spatial.errors import SpatialError
from spatial.geometry.alignment import PoseErrors, pose_errors
from spatial.structures import Camera, View


class Truth(NamedTuple):
    """What is known of the capture.

    Args:
        cameras: by photo name, the pinhole camera (lens distortion removed) in metres.
        orbit_radius: mean distance of the cameras from what they look at, in metres.
        folder: where the depth maps lie.
    """

    cameras: dict[str, Camera]
    orbit_radius: float
    folder: Path

    def depth(self, name: str) -> Float[Tensor, "H W"]:
        """z-depth in metres at half the photo's size, of the pinhole camera."""
        with np.load(self.folder / "depth" / f"{Path(name).stem}.npz") as arrays:
            return torch.from_numpy(arrays["depth"])


def read_truth(folder: str | Path) -> Truth:
    """Reads the ``truth`` folder that `data.synthetic.capture.write_capture` wrote."""
    folder = Path(folder)
    path = folder / "cameras.json"
    if not path.exists():
        raise SpatialError(f"{path} does not exist; the truth belongs to a capture written by `spatial synthesize`")
    content = json.loads(path.read_text("utf-8"))
    cameras = {}
    for photo in content["photos"]:
        K, pose = (torch.tensor(photo[key], dtype=torch.float64) for key in ("K", "camera_from_world"))
        cameras[photo["name"]] = Camera(K, pose, photo["width"], photo["height"])
    return Truth(cameras, content["orbit_radius"], folder)


def compare_with_truth(
    views: Sequence[View],
    truth_dir: str | Path,
    render_depth: Callable[[Camera], Float[Tensor, "H W"]] | None = None,
) -> dict[str, Any]:
    """Errors of a reconstruction, its world first laid over the true one by the similarity that fits camera centres.

    Args:
        views: the reconstruction's posed photos, names as in the capture, cameras at the photos' own pixel scale
            (undistortion may have cropped them).
        truth_dir: the capture's ``truth`` folder.
        render_depth: z-depth of the reconstruction for one of its cameras, in its own units, 0 where nothing is seen.

    Returns:
        ``photos``, ``photos_posed``; ``rotation_error_deg_mean`` / ``_max``; ``position_error_percent_mean`` / ``_max``
        (of the orbit's radius); ``focal_error_percent`` (mean, signed); ``depth_error_percent_median`` / ``_p90`` and
        ``depth_coverage_percent`` (share of true pixels within view that have a depth), None without ``render_depth``;
        ``text``, all of it in a sentence or two.

    Raises:
        SpatialError: fewer than three of the views belong to this capture.
    """
    truth = read_truth(truth_dir)
    views = [view for view in views if view.name in truth.cameras]
    if len(views) < 3:
        raise SpatialError(
            f"{truth.folder}: only {len(views)} of the reconstructed photos belong to this capture; at least 3 are "
            "needed to compare poses with the truth"
        )
    cameras, true_cameras = [view.camera for view in views], [truth.cameras[view.name] for view in views]
    poses = pose_errors(cameras, true_cameras, extent=truth.orbit_radius)
    ratios = [float(c.K[0, 0] / t.K[0, 0]) for c, t in zip(cameras, true_cameras, strict=True)]
    result: dict[str, Any] = {
        "photos": len(truth.cameras),
        "photos_posed": len(views),
        "rotation_error_deg_mean": float(poses.rotation_deg.mean()),
        "rotation_error_deg_max": float(poses.rotation_deg.max()),
        "position_error_percent_mean": float(poses.position_percent.mean()),
        "position_error_percent_max": float(poses.position_percent.max()),
        "focal_error_percent": (float(np.mean(ratios)) - 1) * 100,
    }
    result |= _depth_errors(views, truth, poses, render_depth)
    return result | {"text": _in_words(result)}


def depth_along_true_rays(
    depth: Float[Tensor, "h w"], camera: Camera, true_camera: Camera
) -> tuple[Float[Tensor, "H W"], Float[Tensor, "H W"]]:
    """An estimated depth map resampled to the rays of ``true_camera``'s pixels, both cameras being at one pose.

    Since z-depth is the same number in both, only the pixel positions differ (other K, other size).

    Returns:
        The bilinear depth, and its weight: the share of it that comes from pixels with a depth (> 0), 0 outside.
    """
    rays = pinhole_directions(true_camera.K, true_camera.width, true_camera.height)
    pixels = torch.einsum("ij,jhw->hwi", camera.K.to(rays), rays)[..., :2]
    size = torch.tensor([depth.shape[1], depth.shape[0]], dtype=pixels.dtype)
    grid = (pixels / size * 2 - 1).to(depth.dtype)[None]
    valid = (depth > 0).to(depth.dtype)
    sampled = functional.grid_sample(torch.stack([depth * valid, valid])[None], grid, align_corners=False)[0]
    return sampled[0] / sampled[1].clamp_min(1e-6), sampled[1]


def _depth_errors(
    views: Sequence[View],
    truth: Truth,
    poses: PoseErrors,
    render_depth: Callable[[Camera], Float[Tensor, "H W"]] | None,
) -> dict[str, float | None]:
    keys = ("depth_error_percent_median", "depth_error_percent_p90", "depth_coverage_percent")
    if render_depth is None:
        return dict.fromkeys(keys)
    errors, num_seen = [], 0
    for view in views:
        true_depth = truth.depth(view.name)
        true_camera = truth.cameras[view.name].resized(true_depth.shape[1], true_depth.shape[0])
        depth = render_depth(view.camera).detach().to("cpu", torch.float32)
        estimate, weight = depth_along_true_rays(depth, view.camera, true_camera)
        _, in_view = depth_along_true_rays(torch.ones_like(depth), view.camera, true_camera)
        num_seen += int((in_view > 0.999).sum())
        compared = weight > 0.999
        scaled = estimate[compared] * poses.truth_from_estimate.scale
        errors.append((scaled / true_depth[compared] - 1).abs())
    merged = torch.cat(errors)
    if merged.numel() == 0:
        return dict.fromkeys(keys)
    ordered = merged.sort().values * 100
    numbers = [ordered[len(ordered) // 2], ordered[len(ordered) * 9 // 10], torch.tensor(len(ordered) / num_seen * 100)]
    return {key: float(number) for key, number in zip(keys, numbers, strict=True)}


def _in_words(result: dict[str, Any]) -> str:
    text = (
        f"{result['photos_posed']} of {result['photos']} photos posed. Against the truth, rotations are off by "
        f"{result['rotation_error_deg_mean']:.3f}° on average (at most {result['rotation_error_deg_max']:.3f}°), "
        f"camera positions by {result['position_error_percent_mean']:.3f} % of the orbit's radius (at most "
        f"{result['position_error_percent_max']:.3f} %), the focal length by {result['focal_error_percent']:+.2f} %."
    )
    if result["depth_error_percent_median"] is not None:
        text += (
            f" The median depth error is {result['depth_error_percent_median']:.2f} % (90 % of the pixels are within "
            f"{result['depth_error_percent_p90']:.2f} %; {result['depth_coverage_percent']:.1f} % have a depth)."
        )
    return text
