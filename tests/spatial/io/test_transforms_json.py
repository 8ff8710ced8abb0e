"""transforms.json of nerfstudio, instant-ngp and Blender: axes, intrinsics, missing files, bad numbers."""

from __future__ import annotations

import json
import logging
import math

import numpy as np
import pytest
import torch

from spatial.errors import SpatialError
from spatial.io.images import write_image
from spatial.io.transforms_json import read_transforms_json, write_transforms_json
from spatial.structures import Camera, View

IDENTITY = np.eye(4).tolist()


def write(folder, *, names=("a.png", "b.png"), frames=None, size=(64, 48), **top):
    (folder / "images").mkdir(exist_ok=True)
    for name in names:
        write_image(folder / "images" / name, np.zeros((size[1], size[0], 3), np.uint8))
    frames = frames or [{"file_path": f"images/{name}", "transform_matrix": IDENTITY} for name in names]
    path = folder / "transforms.json"
    path.write_text(json.dumps({"fl_x": 50.0, **top, "frames": frames}))
    return path


def test_camera_looks_along_minus_z_of_the_file_with_y_up(tmp_path):
    world_from_camera = np.eye(4)
    world_from_camera[:3, 3] = [1, 2, 3]
    frames = [{"file_path": "images/a.png", "transform_matrix": world_from_camera.tolist()}]
    photo = read_transforms_json(write(tmp_path, frames=frames)).photos[0]
    # A point 5 in front of the file's camera (along −z) and 1 above it (+y)
    x, y, z, _ = photo.camera_from_world @ torch.tensor([1.0, 3.0, -2.0, 1.0], dtype=torch.float64)
    assert (x.item(), y.item(), z.item()) == pytest.approx((0, -1, 5))


def test_intrinsics_of_a_frame_override_the_shared_ones(tmp_path):
    frames = [
        {"file_path": "images/a.png", "transform_matrix": IDENTITY},
        {
            "file_path": "images/b.png",
            "transform_matrix": IDENTITY,
            "fl_x": 70,
            "fl_y": 71,
            "cx": 30,
            "k1": 0.1,
            "k3": 0.2,
        },
    ]
    path = write(tmp_path, frames=frames, fl_y=51, cx=32, cy=20, w=64, h=48)
    a, b = read_transforms_json(path).photos
    assert a.lens.model_name == "PINHOLE" and a.lens.params.tolist() == [50, 51, 32, 20]
    assert b.lens.model_name == "FULL_OPENCV" and b.lens.params.tolist() == [70, 71, 30, 20, 0.1, 0, 0, 0, 0.2, 0, 0, 0]


@pytest.mark.parametrize(
    ("keys", "model", "params"),
    [
        ({"k1": 0.1, "p2": 0.01}, "OPENCV", [50, 50, 32, 24, 0.1, 0, 0, 0.01]),
        ({"camera_model": "OPENCV_FISHEYE", "k4": 0.1}, "OPENCV_FISHEYE", [50, 50, 32, 24, 0, 0, 0, 0.1]),
        ({"is_fisheye": True, "k1": 0.1}, "OPENCV_FISHEYE", [50, 50, 32, 24, 0.1, 0, 0, 0]),
        ({"fl_x": None, "camera_angle_x": math.pi / 2}, "PINHOLE", [32, 32, 32, 24]),
        ({"fl_x": 40, "camera_angle_x": 1.0, "camera_angle_y": 2.0}, "PINHOLE", [40, 40, 32, 24]),
    ],
)
def test_camera_models_and_defaults_from_the_image(tmp_path, keys, model, params):
    lens = read_transforms_json(write(tmp_path, **keys)).photos[0].lens
    assert lens.model_name == model and np.allclose(lens.params, params)
    assert (lens.width, lens.height) == (64, 48)


def test_path_without_extension_names_and_masks(tmp_path):
    write_image(tmp_path / "m.png", np.zeros((48, 64), np.uint8))
    frames = [
        {"file_path": "./images/b", "transform_matrix": IDENTITY, "mask_path": "m.png"},
        {"file_path": "images\\A.PNG", "transform_matrix": IDENTITY},
    ]
    posed = read_transforms_json(write(tmp_path, names=("a.png", "b.png"), frames=frames))
    assert {photo.path.name for photo in posed.photos} == {"a.png", "b.png"}
    by_path = {photo.path.name: photo for photo in posed.photos}
    assert by_path["b.png"].mask_path == tmp_path / "m.png" and by_path["a.png"].mask_path is None
    assert by_path["b.png"].name == "b.png"


def test_absent_and_repeated_files_are_named_and_none_left_is_an_error(tmp_path):
    frames = [{"file_path": f"images/{name}", "transform_matrix": IDENTITY} for name in ("a.png", "c.png", "a.png")]
    posed = read_transforms_json(write(tmp_path, frames=frames))
    assert [photo.name for photo in posed.photos] == ["a.png"] and posed.source == "transforms.json: 1 of 3 photos"
    reasons = {item.name: item.reason for item in posed.left_out}
    assert "images/c.png, which does not exist" in reasons["c.png"] and "second time" in reasons["a.png"]
    with pytest.raises(SpatialError, match=r"none of its 1 images \(such as images/zz\.png\)"):
        read_transforms_json(write(tmp_path, frames=[{"file_path": "images/zz.png", "transform_matrix": IDENTITY}]))


NAN_MATRIX = [[1, 0, 0, float("nan")], *IDENTITY[1:]]
SCALED = (np.diag([2.0, 2, 2, 1])).tolist()
MIRRORED = (np.diag([-1.0, 1, 1, 1])).tolist()


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ({"transform_matrix": NAN_MATRIX}, "transform_matrix holds NaN"),
        ({"transform_matrix": SCALED}, r"no rotation \(determinant 8"),
        ({"transform_matrix": MIRRORED}, r"no rotation \(determinant -1"),
        ({"transform_matrix": [[1, 2], [3, 4]]}, "must be 4 × 4, got 2 × 2"),
        ({"transform_matrix": "no"}, "not a table of numbers"),
        ({}, "no transform_matrix"),
        ({"transform_matrix": IDENTITY, "fl_x": float("nan")}, "fl_x is nan"),
        ({"transform_matrix": IDENTITY, "cx": "left"}, "cx must be a number, got 'left'"),
        ({"transform_matrix": IDENTITY, "fl_x": -3}, "must be positive"),
        ({"transform_matrix": IDENTITY, "k4": 0.3}, "k4 = 0.3 has no meaning"),
        ({"transform_matrix": IDENTITY, "camera_model": "EQUIRECTANGULAR"}, "EQUIRECTANGULAR is not supported"),
        ({"transform_matrix": IDENTITY, "mask_path": "gone.png"}, "mask_path gone.png does not exist"),
        ({"transform_matrix": IDENTITY, "fl_x": None}, "no focal length"),
    ],
)
def test_what_is_wrong_with_a_frame_names_file_frame_and_image(tmp_path, frame, message):
    good = {"file_path": "images/a.png", "transform_matrix": IDENTITY}
    path = write(tmp_path, frames=[good, {"file_path": "images/b.png", **frame}])
    with pytest.raises(SpatialError, match=rf"transforms\.json: frame 1 \(images/b\.png\).*{message}"):
        read_transforms_json(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [('{"frames": [\n1,}', "line 2: not JSON"), ("[]", "holds a list"), ("{}", "no list of 'frames'"),
     ('{"frames": [3]}', "frame 0 has no 'file_path'")],
)  # fmt: skip
def test_what_is_wrong_with_the_file(tmp_path, content, message):
    (tmp_path / "transforms.json").write_text(content)
    with pytest.raises(SpatialError, match=message):
        read_transforms_json(tmp_path / "transforms.json")


def test_points_of_the_ply_and_a_note_where_it_is_absent(tmp_path, caplog):
    path = write(tmp_path, ply_file_path="points.ply")
    with caplog.at_level(logging.WARNING):
        assert len(read_transforms_json(path).points) == 0
    assert "points.ply does not exist" in caplog.text
    (tmp_path / "points.ply").write_text(
        "ply\nformat ascii 1.0\nelement vertex 3\nproperty double x\nproperty double y\nproperty double z\n"
        "property uchar red\nproperty uchar green\nproperty uchar blue\nend_header\n"
        "1 2 3 255 0 51\nnan 0 0 0 0 0\n4 5 6 0 255 0\n"
    )
    points = read_transforms_json(path).points
    assert points.points.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert torch.allclose(points.colors[0], torch.tensor([1, 0, 0.2]))


def test_what_is_written_is_read_back_as_the_same_cameras(tmp_path):
    rotation, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    pose = torch.eye(4, dtype=torch.float64)
    pose[:3, :3], pose[:3, 3] = rotation * torch.linalg.det(rotation).sign(), torch.tensor([1.0, -2, 3])
    K = torch.tensor([[50.0, 0, 31], [0, 52, 20], [0, 0, 1]], dtype=torch.float64)
    write(tmp_path)
    views = [View(name, Camera(K, pose, 64, 48), load=lambda scale: None) for name in ("a.png", "b.png")]
    write_transforms_json(tmp_path / "out.json", views)
    for view, photo in zip(views, read_transforms_json(tmp_path / "out.json").photos, strict=True):
        assert photo.name == view.name
        assert torch.allclose(photo.camera_from_world, pose, atol=1e-12)
        assert np.allclose(photo.lens.calibration_matrix(), K)


def test_real_files(shared_data):
    fox = read_transforms_json(shared_data("fox/transforms.json"))
    assert len(fox.photos) == 50 and len(fox.left_out) == 17
    assert fox.photos[0].name == "0001.jpg" and fox.photos[0].lens.model_name == "OPENCV"
    lego = read_transforms_json(shared_data("lego/transforms_train.json"))
    assert len(lego.photos) == 60 and lego.photos[0].lens.params[0] == pytest.approx(555.5555, abs=1e-3)
