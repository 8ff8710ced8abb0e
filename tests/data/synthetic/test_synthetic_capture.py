"""The written capture: the same bytes each time, photos that agree with their depth, poses and lens, clear refusals."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pycolmap
import pytest
import torch
from PIL import Image

from data.captures.photos import read_photo
from data.synthetic.capture import Lens, orbit, pinhole_directions, write_capture
from data.synthetic.truth import read_truth
from spatial.errors import SpatialError


def digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def settings_of(folder: Path) -> dict[str, int]:
    settings = json.loads((folder / "truth" / "cameras.json").read_text())["settings"]
    return {key: settings[key] for key in ("num_photos", "width", "height")}


def sampled(image: np.ndarray, pixels: torch.Tensor) -> torch.Tensor:
    """Bilinear values of [H, W, C] at [N, 2] pixel positions (centres at +0.5)."""
    size = torch.tensor([image.shape[1], image.shape[0]], dtype=torch.float64)
    values = torch.from_numpy(image.astype(np.float64)).permute(2, 0, 1)[None]
    grid = (pixels / size * 2 - 1)[None, None]
    return torch.nn.functional.grid_sample(values, grid, align_corners=False)[0, :, 0].T


def test_files_are_all_there_and_nothing_else(small_capture: Path) -> None:
    names = [f"{index:03d}" for index in range(6)]
    photos = [f"images/{name}.jpg" for name in names]
    depths = [f"truth/depth/{name}.npz" for name in names]
    assert sorted(digests(small_capture)) == sorted([*photos, *depths, "truth/README.txt", "truth/cameras.json"])


def test_another_run_gives_the_same_bytes_with_any_number_of_threads(small_capture: Path, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if threads > 1 else 2)
    try:
        write_capture(tmp_path, **settings_of(small_capture))
    finally:
        torch.set_num_threads(threads)
    assert digests(tmp_path) == digests(small_capture)


def test_an_interrupted_run_is_completed_and_a_complete_one_left_alone(small_capture: Path) -> None:
    before = digests(small_capture)
    lost, kept = small_capture / "images" / "003.jpg", small_capture / "images" / "002.jpg"
    written = kept.stat().st_mtime_ns
    lost.unlink()
    calls: list[tuple[int, int]] = []
    write_capture(small_capture, **settings_of(small_capture), progress=lambda *done: calls.append(done))
    assert calls == [(1, 1)]
    assert digests(small_capture) == before
    assert kept.stat().st_mtime_ns == written


def test_a_folder_with_another_capture_or_other_photos_is_refused(small_capture: Path, tmp_path: Path) -> None:
    with pytest.raises(SpatialError, match="another synthetic capture"):
        write_capture(small_capture, **{**settings_of(small_capture), "seed": 5})
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "holiday.jpg").write_bytes(b"precious")
    with pytest.raises(SpatialError, match="not ours"):
        write_capture(tmp_path)
    assert (tmp_path / "images" / "holiday.jpg").read_bytes() == b"precious"


@pytest.mark.parametrize("wrong", [{"num_photos": 1}, {"width": 641}, {"height": 0}])
def test_impossible_numbers_are_refused(tmp_path: Path, wrong: dict[str, int]) -> None:
    with pytest.raises(SpatialError, match="at least 2 photos"):
        write_capture(tmp_path / "out", **wrong)
    assert not (tmp_path / "out").exists()


def test_exif_tells_the_focal_length_as_roughly_as_a_phone(small_capture: Path) -> None:
    photo = read_photo(small_capture / "images" / "000.jpg", "000.jpg")
    true_focal = float(read_truth(small_capture / "truth").cameras["000.jpg"].K[0, 0])
    assert photo.focal_px == pytest.approx(true_focal, rel=0.03)
    assert photo.focal_px != pytest.approx(true_focal, rel=0.002)


def test_photos_are_well_exposed_and_full_of_texture(small_capture: Path) -> None:
    for path in sorted((small_capture / "images").iterdir()):
        grey = np.asarray(Image.open(path).convert("L"), float)
        assert 70 < grey.mean() < 190
        assert (grey > 252).mean() < 0.02
        assert np.abs(np.diff(grey, axis=1)).mean() > 4


@pytest.mark.parametrize(("first", "second"), [(0, 3), (1, 4), (0, 5)])
def test_a_pixel_carried_to_another_view_meets_the_same_surface(small_capture: Path, first: int, second: int) -> None:
    """Unprojected by its depth and projected through pose, lens and K it finds the same depth and colour."""
    truth = read_truth(small_capture / "truth")
    names = [f"{index:03d}.jpg" for index in (first, second)]
    depths = [truth.depth(name).double() for name in names]
    height, width = depths[0].shape
    cameras = [truth.cameras[name] for name in names]
    halves = [camera.resized(width, height) for camera in cameras]
    y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    pixels = torch.stack([x, y, torch.ones_like(x)], -1).double().reshape(-1, 3)
    rays = pixels @ torch.linalg.inv(halves[0].K).T
    in_first = torch.cat([rays * depths[0].reshape(-1, 1), torch.ones(len(rays), 1).double()], 1)
    in_second = (in_first @ (cameras[1].camera_from_world @ torch.linalg.inv(cameras[0].camera_from_world)).T)[:, :3]
    normalized = in_second[:, :2] / in_second[:, 2:]

    at = normalized @ halves[1].K[:2, :2].T + halves[1].K[:2, 2]
    inside = (in_second[:, 2] > 0.1) & ((at > 1) & (at < torch.tensor([width - 1.0, height - 1.0]))).all(1)
    met = sampled(depths[1][..., None].numpy(), at)[:, 0]
    seen = inside & ((met / in_second[:, 2] - 1).abs() < 0.01)
    assert seen.sum() / inside.sum() > 0.5  # the rest is hidden behind something in the second view
    assert (met / in_second[:, 2] - 1)[seen].abs().median() < 3e-4

    photos = [np.asarray(Image.open(small_capture / "images" / name)) for name in names]
    k1 = json.loads((small_capture / "truth" / "cameras.json").read_text())["photos"][0]["distortion"]["k1"]

    def color_error(shift_px: float) -> float:
        colors = []
        for photo, plane, camera in zip(photos, (rays[:, :2], normalized), cameras, strict=True):
            distorted = plane * (1 + k1 * plane.square().sum(1, keepdim=True))
            colors.append(sampled(photo, distorted @ camera.K[:2, :2].T + camera.K[:2, 2] + shift_px))
            shift_px = 0.0  # the first photo alone is shifted
        return float((colors[0] - colors[1])[seen].abs().median())

    assert color_error(0) < 11
    assert color_error(0) < 0.6 * min(color_error(4), color_error(-4))


def test_the_lens_is_colmaps(small_capture: Path) -> None:
    """Rays agree with pycolmap's SIMPLE_RADIAL, and bend."""
    K = read_truth(small_capture / "truth").cameras["000.jpg"].K
    lens = Lens(K, -0.045, 128, 96)
    oracle = pycolmap.Camera(model="SIMPLE_RADIAL", width=128, height=96, params=[float(K[0, 0]), 64, 48, -0.045])
    y, x = np.mgrid[:96, :128] + 0.5
    expected = oracle.cam_from_img(np.stack([x, y], -1).reshape(-1, 2))
    rays = lens.directions()
    np.testing.assert_allclose(rays[:2].flatten(1).T.numpy(), expected, atol=1e-9)
    straight = pinhole_directions(K, 128, 96)
    assert (rays - straight)[:2].norm(dim=0).max() * K[0, 0] > 1  # more than a pixel at the corners


def test_another_seed_holds_the_camera_otherwise() -> None:
    lens = Lens(torch.eye(3, dtype=torch.float64), 0.0, 64, 48)
    first, second = orbit(lens, 4, seed=1), orbit(lens, 4, seed=2)
    assert 1e-3 < (first[0].position - second[0].position).norm() < 0.1
