"""Undistortion against OpenCV's own, against COLMAP's unprojection, and over every camera model."""

from __future__ import annotations

import cv2
import numpy as np
import pycolmap
import pytest

from spatial.errors import SpatialError
from spatial.geometry import distortion
from spatial.geometry.distortion import Pinhole, is_pinhole, pinhole_for, resized_lens, undistortion_map

LENSES = {
    "SIMPLE_PINHOLE": [500, 310, 260],
    "PINHOLE": [500, 430, 310, 260],
    "SIMPLE_RADIAL": [500, 330, 230, 0.08],
    "SIMPLE_RADIAL_FISHEYE": [300, 330, 230, 0.02],
    "RADIAL": [500, 330, 230, -0.15, 0.04],
    "RADIAL_FISHEYE": [300, 330, 230, 0.03, -0.01],
    "OPENCV": [500, 430, 340, 220, -0.2, 0.05, 0.002, -0.003],
    "OPENCV_FISHEYE": [290, 300, 340, 220, 0.04, -0.01, 0.002, 0.0],
    "FULL_OPENCV": [500, 430, 340, 220, 0.1, 0.05, 0.001, 0.001, 0.01, 0.12, 0.02, 0.0],
    "FOV": [400, 410, 330, 250, 0.7],
    "THIN_PRISM_FISHEYE": [300, 310, 330, 250, 0.02, 0.01, 0.001, 0.001, 0.0, 0.0, 0.001, 0.001],
    "RAD_TAN_THIN_PRISM_FISHEYE": [300, 310, 330, 250, 0.02, 0.01, 0, 0, 0, 0, 0.001, 0.001, 0.001, 0, 0.001, 0],
    "SIMPLE_DIVISION": [500, 330, 250, -0.1],
    "DIVISION": [500, 480, 330, 250, 0.1],
    "SIMPLE_FISHEYE": [300, 330, 250],
    "FISHEYE": [300, 310, 330, 250],
    "EUCM": [400, 410, 330, 250, 0.6, 1.1],
}


def make_lens(model: str, params: list[float] | None = None, width: int = 640, height: int = 480) -> pycolmap.Camera:
    return pycolmap.Camera(model=model, width=width, height=height, params=params or LENSES[model])


def smooth_image(width: int, height: int) -> np.ndarray:
    """Blobs without sharp edges: two correct resamplings of it differ by little."""
    noise = np.random.default_rng(0).integers(0, 256, (height // 16, width // 16, 3), dtype=np.uint8)
    return cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC)


def test_every_model_of_pycolmap_is_covered():
    models = set(pycolmap.CameraModelId.__members__) - {"INVALID"}
    assert models <= set(LENSES) | {"EQUIRECTANGULAR"}


@pytest.mark.parametrize("model", sorted(set(LENSES) & set(pycolmap.CameraModelId.__members__)))
def test_pixels_lie_on_the_rays_that_colmap_unprojects_and_all_are_seen(model):
    lens = make_lens(model)
    target = pinhole_for(lens)
    pixels = distortion._exact_map(lens, target, 0, target.height) + 0.5
    assert np.isfinite(pixels).all()
    tolerance = distortion.BORDER_TOLERANCE_PX
    assert pixels.min() >= -tolerance and (pixels.max((0, 1)) <= [640 + tolerance, 480 + tolerance]).all()
    v, u = np.meshgrid(np.arange(0, target.height, 23), np.arange(0, target.width, 23), indexing="ij")
    rays = lens.cam_from_img(pixels[v, u].reshape(-1, 2).astype(np.float64)).reshape(*u.shape, 2)
    wanted = np.stack([u + 0.5 - target.K[0, 2], v + 0.5 - target.K[1, 2]], -1) / target.K[[0, 1], [0, 1]]
    assert np.abs(rays - wanted).max() < 1e-3


@pytest.mark.parametrize("model", sorted(set(LENSES) & set(pycolmap.CameraModelId.__members__)))
def test_no_side_can_be_moved_out_by_three_pixels(model):
    lens = make_lens(model)
    if is_pinhole(lens):
        assert pinhole_for(lens)[1:] == (640, 480)
        return
    K, width, height = pinhole_for(lens)
    limit = np.tan(distortion.MAX_HALF_ANGLE_RAD)
    for left, top, right, bottom in np.eye(4) * 3:
        edges = np.array([-left - K[0, 2], -top - K[1, 2], width + right - K[0, 2], height + bottom - K[1, 2]])
        x0, y0, x1, y1 = edges / [K[0, 0], K[1, 1], K[0, 0], K[1, 1]]
        corners = np.array([[x0, y0, 1], [x1, y0, 1], [x0, y1, 1], [x1, y1, 1]])
        border = np.concatenate([np.linspace(corners[a], corners[b], 200) for a, b in ((0, 1), (1, 3), (2, 3), (0, 2))])
        pixels = lens.img_from_cam(border)
        outside = ~((pixels >= 0) & (pixels <= [640, 480])).all(axis=1)
        assert outside.any() or np.abs(border[:, :2]).max() > limit


def test_centre_resolution_is_kept_and_principal_point_moves_with_the_crop():
    lens = make_lens("OPENCV")
    K, width, height = pinhole_for(lens)
    assert np.allclose(K[[0, 1], [0, 1]], [500, 430], rtol=1e-6)
    assert 0 < K[0, 2] < width and 0 < K[1, 2] < height
    assert K[0, 2] / width > 0.5 > K[1, 2] / height  # off-centre to the same sides as (340, 220) of 640 × 480


@pytest.mark.parametrize("shift", [(0, 0), (55, -40), (-700, 100)])
def test_radial_tangential_matches_opencv_undistort(shift):
    fx, fy, cx, cy = 520.0, 480.0, 320.0 + shift[0], 240.0 + shift[1]
    coefficients = [-0.12, 0.03, 0.002, -0.001] if shift[0] > -100 else [0.01, 0.001, 0.0002, -0.0001]
    lens = make_lens("OPENCV", [fx, fy, cx, cy, *coefficients])
    target = pinhole_for(lens)
    image = smooth_image(640, 480)
    ours = undistortion_map(lens, target).apply(image)
    K, new = np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1.0]]), target.K.copy()
    for matrix in (K, new):
        matrix[:2, 2] -= 0.5  # OpenCV: pixel centres at whole numbers
    maps = cv2.initUndistortRectifyMap(
        K, np.array(coefficients), None, new, (target.width, target.height), cv2.CV_32FC1
    )
    theirs = cv2.remap(image, *maps, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    assert np.abs(ours.astype(int) - theirs).max() <= 2
    if shift == (0, 0):
        plain = cv2.undistort(image, K, np.array(coefficients))
        same = undistortion_map(lens, Pinhole(np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1.0]]), 640, 480)).apply(image)
        inner = (slice(30, -30), slice(30, -30))
        assert np.abs(plain[inner].astype(int) - same[inner]).max() <= 2


@pytest.mark.parametrize("centre", [(320.0, 240.0), (370.0, 205.0)])
def test_fisheye_matches_opencv_fisheye_with_the_principal_point_off_centre(centre):
    fx, fy, (cx, cy), coefficients = 280.0, 295.0, centre, [0.05, -0.02, 0.004, -0.001]
    lens = make_lens("OPENCV_FISHEYE", [fx, fy, cx, cy, *coefficients])
    target = pinhole_for(lens)
    image = smooth_image(640, 480)
    K, new = np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1.0]]), target.K.copy()
    for matrix in (K, new):
        matrix[:2, 2] -= 0.5
    maps = cv2.fisheye.initUndistortRectifyMap(
        K, np.array(coefficients), np.eye(3), new, (target.width, target.height), cv2.CV_32FC1
    )
    theirs = cv2.remap(image, *maps, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    ours = undistortion_map(lens, target).apply(image)
    assert np.abs(ours.astype(int) - theirs).max() <= 2


@pytest.mark.parametrize("model", ["OPENCV", "OPENCV_FISHEYE", "EUCM"])
def test_interpolated_map_of_a_large_image_is_exact_to_a_fiftieth_of_a_pixel(model):
    lens = resized_lens(make_lens(model), 2560, 1920)
    target = pinhole_for(lens)
    rows = (target.height // 2 // 8 * 8, target.height)
    exact = distortion._exact_map(lens, target, *rows)
    assert np.abs(exact - distortion._interpolated_map(lens, target, *rows)).max() < 0.02


def test_distortion_that_moves_nothing_needs_no_resampling():
    assert is_pinhole(make_lens("OPENCV", [500, 500, 320, 240, 1e-6, 0, 0, 0]))
    assert not is_pinhole(make_lens("OPENCV", [500, 500, 320, 240, 1e-2, 0, 0, 0]))


def test_resized_lens_sees_the_same_rays():
    lens = make_lens("OPENCV")
    half = resized_lens(lens, 320, 240)
    points = np.random.default_rng(0).uniform(-0.4, 0.4, (50, 3)) + np.array([0, 0, 1])
    assert np.allclose(half.img_from_cam(points) * 2, lens.img_from_cam(points))


def test_panorama_and_absurd_calibration_are_named():
    with pytest.raises(SpatialError, match="EQUIRECTANGULAR"):
        pinhole_for(make_lens("EQUIRECTANGULAR", [640, 320], 640, 320))
    with pytest.raises(SpatialError, match="calibration is wrong"):
        pinhole_for(make_lens("OPENCV", [500, 500, 320, 240, -4000.0, 0, 0, 0]))
