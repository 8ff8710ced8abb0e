"""Captures from every kind of input: views undistorted, upright, masked; and inputs that are none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pycolmap
import pytest
import torch
from PIL import Image, ImageOps

from data.captures.check import check_poses
from data.captures.load import load_capture
from data.captures.posed_views import make_views
from spatial.errors import SpatialError
from spatial.io.images import write_image
from spatial.io.posed_photos import PosedPhoto

IDENTITY = torch.eye(4, dtype=torch.float64)


def gradient(width: int, height: int) -> np.ndarray:
    """Red tells the column, green the row: a pixel says where it came from."""
    image = np.zeros((height, width, 3), np.uint8)
    image[..., 0] = np.linspace(0, 255, width)
    image[..., 1] = np.linspace(0, 255, height)[:, None]
    return image


def one_view(path: Path, lens: pycolmap.Camera, *, pose=IDENTITY, mask: Path | None = None, **options):
    return make_views([PosedPhoto(path.name, path, lens, pose, mask)], **options).views[0]


def pinhole(width: int, height: int, *params: float) -> pycolmap.Camera:
    return pycolmap.Camera(model="PINHOLE", width=width, height=height, params=params)


def test_a_pinhole_photo_is_untouched_and_scales_by_area(tmp_path):
    image = np.random.default_rng(0).integers(0, 255, (48, 64, 3), dtype=np.uint8)
    write_image(tmp_path / "a.png", image)
    view = one_view(tmp_path / "a.png", pinhole(64, 48, 50, 52, 10, 40))
    assert np.array_equal(view.load(1.0)[0], image) and view.load(1.0)[1] is None
    assert view.camera.K.tolist() == [[50, 0, 10], [0, 52, 40], [0, 0, 1]]
    assert np.array_equal(view.load(0.5)[0], cv2.resize(image, (32, 24), interpolation=cv2.INTER_AREA))
    small = one_view(tmp_path / "a.png", pinhole(64, 48, 50, 52, 10, 40), max_image_size=16)
    assert small.load(1.0)[0].shape == (12, 16, 3) and small.camera.K[0].tolist() == [12.5, 0, 2.5]


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_views_are_upright_and_their_cameras_turn_with_them(tmp_path, orientation):
    stored = gradient(64, 48)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(stored).save(tmp_path / "a.png", exif=exif)
    lens = pinhole(64, 48, 50, 55, 30, 20)
    view = one_view(tmp_path / "a.png", lens)
    with Image.open(tmp_path / "a.png") as image:
        assert np.array_equal(view.load(1.0)[0], np.asarray(ImageOps.exif_transpose(image)))
    assert (view.camera.height, view.camera.width) == view.load(1.0)[0].shape[:2]
    # A point seen in the stored image at (u, v) has that pixel's colour in the upright one.
    u, v = 12, 33
    point = np.array([(u + 0.5 - 30) / 50, (v + 0.5 - 20) / 55, 1.0])
    seen = view.camera.K.numpy() @ (view.camera.camera_from_world[:3, :3].numpy() @ point)
    x, y = seen[:2] / seen[2]
    assert np.array_equal(view.load(1.0)[0][int(y), int(x)], stored[v, u])
    assert torch.linalg.det(view.camera.camera_from_world) == pytest.approx(1)


def test_poses_made_for_the_upright_photo_are_recognised_by_its_size(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(gradient(64, 48)).save(tmp_path / "a.png", exif=exif)
    view = one_view(tmp_path / "a.png", pinhole(48, 64, 50, 50, 24, 32))
    assert view.load(1.0)[0].shape == (64, 48, 3)
    assert torch.equal(view.camera.camera_from_world, IDENTITY)


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_distorted_points_land_where_the_pinhole_camera_says(tmp_path, orientation, scale):
    """White dots drawn where the lens projects points must be found where the view's camera projects them."""
    params = [800, 780, 640, 470, -0.2, 0.05, 0.002, -0.001]
    lens = pycolmap.Camera(model="OPENCV", width=1280, height=960, params=params)
    points = np.array([[x, y, 1.0] for x in (-0.5, -0.1, 0.4) for y in (-0.35, 0.05, 0.3)])
    image = np.zeros((960, 1280, 3), np.uint8)
    for pixel in lens.img_from_cam(points):
        centre = tuple(int(c) for c in np.round((pixel - 0.5) * 16))
        cv2.circle(image, centre, 9 * 16, (255, 255, 255), -1, cv2.LINE_AA, 4)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(image).save(tmp_path / "a.jpg", exif=exif, quality=95)
    view = one_view(tmp_path / "a.jpg", lens)
    loaded, _ = view.load(scale)
    camera = view.camera.resized(loaded.shape[1], loaded.shape[0])
    _, _, _, centroids = cv2.connectedComponentsWithStats((loaded[..., 0] > 100).astype(np.uint8))
    for point in points:
        seen = camera.K.numpy() @ camera.camera_from_world[:3, :3].numpy() @ point
        assert np.linalg.norm(centroids[1:] + 0.5 - seen[:2] / seen[2], axis=1).min() < 0.6


def test_images_smaller_than_the_model_says_scale_its_camera(tmp_path):
    write_image(tmp_path / "a.png", gradient(64, 48))
    view = one_view(tmp_path / "a.png", pinhole(256, 192, 200, 208, 40, 160))
    assert view.camera.K.tolist() == [[50, 0, 10], [0, 52, 40], [0, 0, 1]]


def test_images_of_another_shape_do_not_belong(tmp_path):
    write_image(tmp_path / "a.png", gradient(64, 48))
    with pytest.raises(
        SpatialError, match=r"do not belong together: a\.png: the photo is 64×48 pixels, its camera 64×64"
    ):
        one_view(tmp_path / "a.png", pinhole(64, 64, 50, 50, 32, 32))


def test_alpha_is_the_mask_and_transparent_colours_do_not_bleed(tmp_path):
    rgba = np.zeros((48, 64, 4), np.uint8)
    rgba[...] = [200, 0, 0, 255]
    rgba[:, :33, :] = [0, 255, 0, 0]  # green where transparent; the edge does not fall on an even column
    write_image(tmp_path / "a.png", rgba)
    made = make_views([PosedPhoto("a.png", tmp_path / "a.png", pinhole(64, 48, 50, 50, 32, 24), IDENTITY)])
    assert made.has_alpha
    image, mask = made.views[0].load(0.5)
    assert mask[:, 17:].all() and not mask[:, :16].any()
    assert (image[mask] == [200, 0, 0]).all()


def test_mask_file_is_undistorted_with_the_photo_and_conservative(tmp_path):
    lens = pycolmap.Camera(model="OPENCV", width=640, height=480, params=[400, 400, 320, 240, -0.25, 0.06, 0, 0])
    (tmp_path / "images").mkdir()
    (tmp_path / "masks").mkdir()
    keep = np.full((480, 640), 255, np.uint8)
    keep[100:300, 50:200] = 0
    write_image(tmp_path / "images/a.png", np.repeat(255 - keep[..., None], 3, axis=2))  # white where masked out
    write_image(tmp_path / "masks/a.png.png", keep)
    made = make_views([PosedPhoto("a.png", tmp_path / "images/a.png", lens, IDENTITY)])
    assert made.has_alpha
    for scale in (1.0, 0.4):
        image, mask = made.views[0].load(scale)
        assert image[mask].max() <= 3  # nothing of what is masked out shows in what is kept
        assert (~mask).mean() == pytest.approx((image[..., 0] > 127).mean(), rel=0.1)


@pytest.mark.parametrize("exists", [True, False])
def test_damaged_photo_among_posed_ones_is_left_out(tmp_path, exists):
    write_image(tmp_path / "a.png", gradient(64, 48))
    if exists:
        (tmp_path / "b.png").write_bytes((tmp_path / "a.png").read_bytes()[:100])
    lens = pinhole(64, 48, 50, 50, 32, 24)
    made = make_views([PosedPhoto(name, tmp_path / name, lens, IDENTITY) for name in ("a.png", "b.png")])
    assert [view.name for view in made.views] == ["a.png"]
    assert [item.name for item in made.left_out] == ["b.png"]


def test_inputs_that_are_no_capture_say_what_was_found(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "scene.ply").write_text("ply")
    write_image(tmp_path / "one.png", gradient(64, 48))
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips/a.mp4").touch()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.txt").touch()
    for name, message in (
        ("absent", "does not exist; give"),
        ("empty", "is empty"),
        ("scene.ply", "is a .ply file; give"),
        ("one.png", "one photo"),
        ("clips", r"give the video itself: .*a\.mp4"),
        ("docs", r"holds no photos \(1 files: \.txt\)"),
    ):
        with pytest.raises(SpatialError, match=message):
            load_capture(tmp_path / name, work_dir=tmp_path / "work")


def test_permuted_images_do_not_belong_and_true_ones_do(shared_data, tmp_path):
    source = shared_data("fox/images")
    names = sorted(path.name for path in source.iterdir())
    shutil.copytree(shared_data("fox/sparse/0"), tmp_path / "sparse/0")
    (tmp_path / "images").mkdir()
    order = np.random.default_rng(0).permutation(len(names))
    for name, other in zip(names, order, strict=True):
        (tmp_path / "images" / name).symlink_to(source / names[other])
    with pytest.raises(SpatialError, match=r"poses and images do not belong together: of the features that"):
        load_capture(tmp_path, work_dir=tmp_path / "work")
    capture = load_capture(shared_data("fox"), work_dir=tmp_path / "work", check=False)
    agreements = [pair.agreement for pair in check_poses(capture.views)]
    assert len(agreements) >= 5 and min(agreements) > 0.8


def test_fox_points_project_onto_their_colours(shared_data, tmp_path):
    """Sparse points carry the mean colour of their pixels: seen where they are, at full size and after shrinking."""
    capture = load_capture(shared_data("fox/sparse/0"), work_dir=tmp_path, check=False)
    model = pycolmap.Reconstruction(str(shared_data("fox/sparse/0")))
    assert capture.name == "fox" and len(capture.views) == 50 and not capture.has_alpha
    for view, scale in ((capture.views[7], 1.0), (capture.views[30], 0.25)):
        image, _ = view.load(scale)
        camera = view.camera.resized(image.shape[1], image.shape[0])
        seen = model.find_image_with_name(view.name).get_observation_points2D()
        points = [model.points3D[observation.point3D_id] for observation in seen]
        xyz = np.array([point.xyz for point in points])
        in_camera = xyz @ camera.camera_from_world[:3, :3].numpy().T + camera.camera_from_world[:3, 3].numpy()
        pixels = in_camera @ camera.K.numpy().T
        u, v = np.floor(pixels[:, :2] / pixels[:, 2:]).astype(int).T
        inside = (u >= 0) & (v >= 0) & (u < camera.width) & (v < camera.height)
        assert inside.mean() > 0.97
        colors = np.array([point.color for point in points])[inside].astype(int)
        error = np.abs(image[v[inside], u[inside]] - colors).mean()
        chance = np.abs(image[v[inside], u[inside]] - np.roll(colors, 50, axis=0)).mean()
        assert error < 0.5 * chance


def test_lego_has_alpha_and_agrees_with_its_poses(shared_data, tmp_path):
    capture = load_capture(shared_data("lego"), work_dir=tmp_path)
    assert capture.has_alpha and len(capture.views) == 60 and len(capture.points) == 0
    _, mask = capture.views[0].load(1.0)
    assert 0.1 < mask.mean() < 0.5


def test_transforms_json_poses_are_those_of_the_file(shared_data, tmp_path):
    a = load_capture(shared_data("fox/transforms.json"), work_dir=tmp_path, check=False, max_image_size=480)
    assert (
        len(a.views) == 50 and len(a.left_out) == 17 and max(a.views[0].camera.height, a.views[0].camera.width) == 480
    )
    content = json.loads(shared_data("fox/transforms.json").read_text())
    # The camera's centre is the last column of the file's matrix: the world is not moved.
    by_name = {Path(frame["file_path"]).name: np.array(frame["transform_matrix"]) for frame in content["frames"]}
    for view in a.views[::10]:
        assert np.allclose(view.camera.position, by_name[view.name][:3, 3], atol=1e-4)
        assert np.allclose(view.camera.forward, -by_name[view.name][:3, 2], atol=1e-4)
