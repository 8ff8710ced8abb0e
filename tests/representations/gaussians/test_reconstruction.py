"""The whole way, from files with poses to a finished run folder, and what lies in it agrees with itself."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from data.captures.load import load_capture
from data.synthetic.gaussians import orbit_cameras
from representations.gaussians import products
from representations.gaussians.evaluation import evaluate_views
from representations.gaussians.reconstruction import scene_extent
from spatial.cli.main import main
from spatial.errors import SpatialError
from spatial.io.gaussian_files import load_gaussians
from spatial.structures import Gaussians, PointCloud, View
from spatial.training.run_folder import read_config

STEPS = 150
SETTINGS = [
    f"max_steps={STEPS}",
    "sh_degree=1",
    "model.coarse_until=0.2",
    "video_seconds=0.5",
    "model.densification.max_gaussians=600",
]


@pytest.fixture(scope="module")
def run(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert main(["reconstruct", str(tiny_capture), "--out", str(folder), *SETTINGS, "exports=[spz,glb]"]) == 0
    return folder


@pytest.fixture(scope="module")
def metrics(run: Path) -> dict:
    return json.loads((run / "metrics.json").read_text("utf-8"))


def test_views_that_it_was_not_trained_on_look_right(metrics: dict) -> None:
    assert metrics["psnr"] > 23
    assert [view["name"] for view in metrics["views"]] == ["0.png", "8.png"]
    assert metrics["psnr"] == pytest.approx(np.mean([view["psnr"] for view in metrics["views"]]))


def test_every_file_is_there_and_nothing_half_written(run: Path) -> None:
    files = {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}
    expected = {
        "config.yaml", "log.txt", "metrics.json", "metrics.csv", "report.html", "orbit.mp4", "scene.ply", "scene.spz",
        "scene.glb", f"checkpoints/step-{STEPS:08d}.ckpt", "pictures/depth.jpg", "pictures/0.jpg", "pictures/8.jpg",
    }  # fmt: skip
    assert expected <= files, expected - files
    assert not [name for name in files if ".tmp" in name]
    assert {"cameras", "images", "points3D"} <= {Path(name).stem for name in files if name.startswith("sparse/0/")}


def test_the_numbers_say_how_they_were_made(run: Path, metrics: dict) -> None:
    assert "Every 8th of 9 photos" in metrics["protocol"] and "96 × 64" in metrics["protocol"]
    assert metrics["num_photos"] == 9 and metrics["num_gaussians"] == len(load_gaussians(run / "scene.ply"))
    assert metrics["lpips"] is not None or metrics["lpips_missing_because"]
    assert {"poses", "training", "evaluation"} <= set(metrics["seconds"])
    assert metrics["peak_memory_bytes"] > 1e8 and metrics["interrupted"] is None
    assert metrics["left_out"] == [] and "9 of 9" in metrics["poses"]
    assert read_config(run)["max_steps"] == STEPS


def test_the_ply_drawn_again_has_the_psnr_that_was_said(
    run: Path, metrics: dict, tiny_capture: Path, tmp_path: Path
) -> None:
    capture = load_capture(tiny_capture, work_dir=tmp_path)
    held_out = [view for view in capture.views if view.name in {"0.png", "8.png"}]
    again = evaluate_views(load_gaussians(run / "scene.ply"), held_out, scale=1.0)
    assert again.psnr == metrics["psnr"] and again.ssim == metrics["ssim"]
    by_name = {item["path"]: item for item in metrics["exports"]}
    assert by_name["scene.ply"]["psnr"] == metrics["psnr"]
    for name, item in by_name.items():
        assert item["num_bytes"] == (run / name).stat().st_size
        assert evaluate_views(load_gaussians(run / name), held_out, scale=1.0).psnr == item["psnr"]
    assert by_name["scene.spz"]["num_bytes"] < by_name["scene.ply"]["num_bytes"] / 3
    assert metrics["psnr"] - 1 < by_name["scene.spz"]["psnr"]


def test_poses_read_back_from_the_colmap_model(run: Path, tiny_capture: Path, tmp_path: Path) -> None:
    pycolmap = pytest.importorskip("pycolmap")
    model = pycolmap.Reconstruction(str(run / "sparse" / "0"))
    views = load_capture(tiny_capture, work_dir=tmp_path).views
    by_name = {image.name: image for image in model.images.values()}
    assert set(by_name) == {view.name for view in views}
    for view in views:
        image = by_name[view.name]
        ours = view.camera.camera_from_world[:3].numpy()
        assert np.allclose(image.cam_from_world().matrix(), ours, atol=1e-9)
        camera = model.cameras[image.camera_id]
        assert np.allclose(camera.calibration_matrix(), view.camera.K.numpy()) and camera.width == 96
    assert len(model.points3D) == 300


def test_the_report_stands_alone_with_pictures_and_curves(run: Path) -> None:
    text = (run / "report.html").read_text("utf-8")
    assert len(re.findall(r'src="data:image/', text)) >= 5  # two comparisons of two or three, depth
    assert text.count("<svg") >= 4 and "orbit.mp4" in text
    assert not re.findall(r'(?:src|href)="https?://', text)
    for word in ("Training loss", "PSNR", "held out", "96 × 64"):
        assert word in text, word


def test_the_video_plays(run: Path) -> None:
    import av

    with av.open(str(run / "orbit.mp4")) as video:
        frames = [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
    assert len(frames) == 12
    assert frames[0].shape == (64, 96, 3) and frames[0].std() > 10
    assert np.abs(frames[6].astype(int) - frames[0]).mean() > 1  # it moves


def test_the_log_tells_the_stages(run: Path) -> None:
    text = (run / "log.txt").read_text("utf-8")
    for word in ("poses:", "training:", "evaluation:", "held-out PSNR", "done:"):
        assert word in text


def test_the_same_seed_gives_the_same_bytes_whatever_the_threads(tiny_capture: Path, tmp_path: Path) -> None:
    """Densified both ways: 300 Gaussians become more and less in the middle of it."""
    threads = torch.get_num_threads()
    settings = ["max_steps=40", "sh_degree=1", "video_seconds=0", "+model.densification.every=10"]
    try:
        for strategy in ("default", "mcmc"):
            written = []
            for count, seed in ((1, 42), (2, 42), (1, 43)):
                torch.set_num_threads(count)
                out = tmp_path / f"{strategy}-{count}-{seed}"
                words = [
                    "reconstruct",
                    str(tiny_capture),
                    "--out",
                    str(out),
                    f"densification={strategy}",
                    f"seed={seed}",
                ]
                assert main([*words, *settings]) == 0
                written.append((out / "scene.ply").read_bytes())
            assert written[0] == written[1]
            assert written[0] != written[2]
    finally:
        torch.set_num_threads(threads)


def test_without_points_it_starts_from_random_ones(tiny_capture: Path, tmp_path: Path, capsys) -> None:
    capture = tmp_path / "no points"
    shutil.copytree(tiny_capture, capture)
    (capture / "points.ply").unlink()
    settings = ["max_steps=150", "sh_degree=0", "video_seconds=0", "num_random_points=3000", "initial_opacity=0.1"]
    assert main(["reconstruct", str(capture), "--out", str(tmp_path / "run"), *settings]) == 0
    assert "starting from 3000 random" in capsys.readouterr().err
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["psnr"] > 18


def test_all_photos_for_training(tiny_capture: Path, tmp_path: Path) -> None:
    settings = ["max_steps=20", "sh_degree=0", "video_seconds=0", "data.hold_out_every=0"]
    assert main(["reconstruct", str(tiny_capture), "--out", str(tmp_path / "run"), *settings]) == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["psnr"] is None and metrics["views"] == []
    assert "Nothing was held out" in metrics["protocol"]
    assert (tmp_path / "run" / "report.html").exists()


def test_extent_is_robust_and_needs_a_baseline() -> None:
    cameras = orbit_cameras(9, radius=3.0, altitude=0.0, width=32, height=32)
    views = [View(f"{i}", camera, lambda scale: None) for i, camera in enumerate(cameras)]  # type: ignore[arg-type, return-value]
    points = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)) * 0.1
    points[:5] = 1e6
    assert scene_extent(views, PointCloud(points, torch.zeros(200, 3))) == pytest.approx(3.0, abs=0.1)
    none = PointCloud(torch.zeros(0, 3), torch.zeros(0, 3))
    assert scene_extent(views, none) == pytest.approx(3.0, abs=0.1)
    with pytest.raises(SpatialError, match="parallax"):
        scene_extent(views[:1] * 3, PointCloud(views[0].camera.position[None].float(), torch.zeros(1, 3)))


def test_an_export_that_fails_costs_neither_the_report_nor_the_other_exports(
    tiny_capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the run is finished later without it, though it was made with it."""
    write = products.save_gaussians

    def fail_for_spz(gaussians: Gaussians, path: Path) -> None:
        if path.suffix == ".spz":
            raise SpatialError("no room in this format")
        write(gaussians, path)

    monkeypatch.setattr(products, "save_gaussians", fail_for_spz)
    words = ["reconstruct", str(tiny_capture), "--out", str(tmp_path / "run"), "max_steps=5", "video_seconds=0"]
    assert main([*words, "exports=[spz,glb]"]) == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text("utf-8"))
    assert [Path(item["path"]).name for item in metrics["exports"]] == ["scene.ply", "scene.glb"]
    assert metrics["problems"] == ["The export spz failed: no room in this format"]
    assert "no room in this format" in (tmp_path / "run" / "report.html").read_text("utf-8")
    assert main([*words, "exports=[glb]", "--resume"]) == 0
    assert json.loads((tmp_path / "run" / "metrics.json").read_text("utf-8"))["problems"] == []
