"""COLMAP projects as they lie on users' disks: layouts, sub-models, missing and damaged parts; and writing models."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pycolmap
import pytest
import torch

from spatial.errors import SpatialError
from spatial.io.colmap import find_models, read_colmap_project, write_colmap_model
from spatial.io.images import write_image
from spatial.structures import Camera, PointCloud, View

NAMES = ["a/1.jpg", "a/2.jpg", "b/1.jpg", "b/2.JPG"]


def make_model(names=tuple(NAMES), *, seed=0, num_points=5) -> pycolmap.Reconstruction:
    options = pycolmap.SyntheticDatasetOptions()
    options.num_rigs, options.num_cameras_per_rig, options.num_frames_per_rig = 1, 1, len(names)
    options.num_points3D = num_points
    model = pycolmap.synthesize_dataset(options)
    for image, name in zip(sorted(model.images.values(), key=lambda image: image.image_id), names, strict=True):
        image.name = name
    return model


def write_images(root: Path, names, size=(64, 48)) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        write_image(root / name, np.full((size[1], size[0], 3), 100, np.uint8))


def write_model(model, folder: Path, *, text: bool = False) -> Path:
    folder.mkdir(parents=True)
    (model.write_text if text else model.write_binary)(str(folder))
    return folder


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("place", ["sparse/0", "sparse", "colmap/sparse/0", "."])
def test_layouts_binary_and_text_agree_with_the_model(tmp_path, place, text):
    model = make_model()
    if place == ".":
        model.write_text(str(tmp_path)) if text else model.write_binary(str(tmp_path))
    else:
        write_model(model, tmp_path / place, text=text)
    write_images(tmp_path / "images", NAMES)
    posed = read_colmap_project(tmp_path)
    assert [photo.name for photo in posed.photos] == sorted(NAMES) and not posed.left_out
    for photo in posed.photos:
        image = model.find_image_with_name(photo.name)
        assert np.allclose(photo.camera_from_world[:3], image.cam_from_world().matrix())
        assert np.allclose(photo.lens.params, image.camera.params) and photo.lens.model == image.camera.model
        assert photo.path == tmp_path / "images" / photo.name
    assert len(posed.points) == 5 and 0 <= posed.points.colors.min() <= posed.points.colors.max() <= 1
    assert "4 of 4 photos" in posed.source


def test_model_folder_itself_finds_images_above(tmp_path):
    folder = write_model(make_model(), tmp_path / "project/sparse/0")
    write_images(tmp_path / "project/images", NAMES)
    assert len(read_colmap_project(folder).photos) == 4


def test_other_case_other_extension_and_smaller_folder_are_found(tmp_path):
    write_model(make_model(), tmp_path / "sparse/0")
    write_images(tmp_path / "images_2", ["a/1.JPG", "A/2.png", "b/1.jpg", "b/2.jpg"])
    posed = read_colmap_project(tmp_path)
    assert sorted(photo.path.name for photo in posed.photos) == ["1.JPG", "1.jpg", "2.jpg", "2.png"]


def test_largest_model_is_used_and_the_rest_is_named(tmp_path):
    write_model(make_model(["a/1.jpg", "x.jpg"]), tmp_path / "sparse/0")
    write_model(make_model(), tmp_path / "sparse/1")
    write_images(tmp_path / "images", [*NAMES, "x.jpg", "y.jpg"])
    posed = read_colmap_project(tmp_path)
    assert "sparse/1, the largest of 2: 4 of 6 photos" in posed.source
    reasons = {item.name: item.reason for item in posed.left_out}
    assert reasons == {
        "x.jpg": "registered only in the smaller, separate model 0",
        "y.jpg": "not registered by COLMAP",
    }


def test_absent_images_are_named_and_all_absent_is_an_error(tmp_path):
    write_model(make_model(), tmp_path / "sparse/0")
    write_images(tmp_path / "images", NAMES[:3])
    posed = read_colmap_project(tmp_path)
    assert len(posed.photos) == 3 and [item.name for item in posed.left_out] == ["b/2.JPG"]
    shutil.rmtree(tmp_path / "images")
    with pytest.raises(SpatialError, match=r"none of the 4 photos .*put them into images/"):
        read_colmap_project(tmp_path)


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("how", ["empty", "absent"])
def test_model_without_points_has_none(tmp_path, text, how):
    folder = write_model(make_model(num_points=5), tmp_path / "sparse/0", text=text)
    points = folder / f"points3D.{'txt' if text else 'bin'}"
    points.unlink()
    if how == "empty":
        points.write_bytes(b"" if text else bytes(8))
    write_images(tmp_path / "images", NAMES)
    posed = read_colmap_project(tmp_path)
    assert len(posed.photos) == 4 and posed.points.points.shape == (0, 3)


@pytest.mark.parametrize("name", ["cameras.bin", "images.bin", "points3D.bin"])
def test_truncated_model_is_named(tmp_path, name):
    folder = write_model(make_model(), tmp_path / "sparse/0")
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])
    write_images(tmp_path / "images", NAMES)
    with pytest.raises(SpatialError, match=rf"sparse/0: not a complete COLMAP model \({name} is truncated"):
        read_colmap_project(tmp_path)


def test_no_model(tmp_path):
    assert find_models(tmp_path) == []
    with pytest.raises(SpatialError, match="holds no COLMAP model"):
        read_colmap_project(tmp_path)


def test_real_model_outlives_its_reconstruction(shared_data):
    posed = read_colmap_project(shared_data("fox"))
    assert len(posed.photos) == 50 and len(posed.points) == 11914
    assert all(np.allclose(photo.lens.params[:4], [1375.803, 1375.190, 540, 960], atol=1e-3) for photo in posed.photos)


def test_written_model_reads_back_and_equal_intrinsics_share_a_camera(tmp_path):
    views = [make_view(f"ünï {i}.jpg", focal=500 + 10 * (i == 3), seed=i) for i in range(4)]
    points = PointCloud(torch.randn(7, 3), torch.rand(7, 3))
    (tmp_path / "out").mkdir()
    write_colmap_model(tmp_path / "out/sparse", views, points)
    model = pycolmap.Reconstruction(str(tmp_path / "out/sparse"))
    assert model.num_cameras() == 2 and model.num_reg_images() == 4
    for view in views:
        image = model.find_image_with_name(view.name)
        assert np.allclose(image.cam_from_world().matrix(), view.camera.camera_from_world[:3])
        assert np.allclose(image.camera.calibration_matrix(), view.camera.K)
    xyz = np.array([point.xyz for _, point in sorted(model.points3D.items())])
    assert np.allclose(xyz, points.points, atol=1e-6)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["sparse"]


def make_view(name: str, *, focal: float, seed: int) -> View:
    rotation, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))
    pose = torch.eye(4, dtype=torch.float64)
    pose[:3, :3] = rotation * torch.linalg.det(rotation).sign()
    pose[:3, 3] = torch.tensor([seed, 1.0, 2.0])
    K = torch.tensor([[focal, 0, 31.5], [0, focal + 3, 20], [0, 0, 1]], dtype=torch.float64)
    return View(name, Camera(K, pose, 64, 48), load=lambda scale: (np.zeros((48, 64, 3), np.uint8), None))
