"""Verbs on a finished scene: evaluate, render, export; on a run and on a bare splat file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from representations.gaussians.commands import scene_cameras, scene_file
from spatial.cli.main import main
from spatial.errors import SpatialError
from spatial.io.gaussian_files import load_gaussians

SETTINGS = ["max_steps=40", "sh_degree=1", "video_seconds=0"]


@pytest.fixture(scope="module")
def run(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert main(["reconstruct", str(tiny_capture), "--out", str(folder), *SETTINGS]) == 0
    return folder


def test_evaluate_says_what_training_said(run: Path, tmp_path: Path) -> None:
    assert main(["evaluate", str(run), "--out", str(tmp_path / "again.json")]) == 0
    again, metrics = (json.loads(path.read_text()) for path in (tmp_path / "again.json", run / "metrics.json"))
    for key in ("psnr", "ssim", "lpips", "views"):
        assert again[key] == metrics[key], key


def test_evaluate_needs_a_run(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run / "scene.ply")]) == 2
    assert "is not a run" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path / "nowhere")]) == 2
    error = capsys.readouterr().err
    assert "nowhere" in error and error.count("\n") == 1


@pytest.mark.parametrize("suffix", ["spz", "sog", "glb", "splat", "compressed.ply"])
def test_export_round_trip(run: Path, tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(run), "--out", str(tmp_path), f"formats=[{suffix}]"]) == 0
    said = capsys.readouterr().err
    assert f"scene.{suffix}" in said and "dB on held-out photos" in said
    written, original = load_gaussians(tmp_path / f"scene.{suffix}"), load_gaussians(run / "scene.ply")
    assert len(written) == len(original)
    # Formats may reorder: compare as sets, along one axis.
    ours, theirs = written.means[:, 0].sort().values, original.means[:, 0].sort().values
    assert torch.allclose(ours, theirs, atol=0.01)


def test_export_of_a_bare_file(run: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone" / "bear.ply"
    alone.parent.mkdir()
    shutil.copy(run / "scene.ply", alone)
    assert main(["export", str(alone), "--out", str(tmp_path / "small"), "formats=[spz]"]) == 0
    assert len(load_gaussians(tmp_path / "small" / "bear.spz")) == len(load_gaussians(alone))


def test_export_never_replaces_what_it_reads(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = tmp_path / "bear.ply"
    shutil.copy(run / "scene.ply", alone)
    before = alone.read_bytes()
    assert main(["export", str(alone), "formats=[spz,ply]"]) == 2
    assert "would be replaced" in capsys.readouterr().err
    assert alone.read_bytes() == before and not (tmp_path / "bear.spz").exists()


@pytest.mark.parametrize(
    "settings, word", [(["--out", "film"], "film"), (["seconds=0"], "0"), (["longest_side=4"], "4 pixels")]
)
def test_a_video_that_cannot_be_made_is_refused(
    run: Path, settings: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["render", str(run), *settings]) == 2
    assert word in capsys.readouterr().err


def test_an_unknown_format_is_refused_before_anything_is_written(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run), "--out", str(tmp_path / "out"), "formats=[obj]"]) == 2
    error = capsys.readouterr().err
    assert "obj" in error and "spz" in error


@pytest.mark.parametrize("what", ["run", "file"])
def test_render_makes_a_video(run: Path, tmp_path: Path, what: str) -> None:
    import av

    source = run if what == "run" else run / "scene.ply"
    assert main(["render", str(source), "--out", str(tmp_path / "a.mp4"), "seconds=0.25", "longest_side=96"]) == 0
    with av.open(str(tmp_path / "a.mp4")) as video:
        frames = [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
    assert len(frames) == 6 and max(frames[0].shape) == 96
    assert all(frame.std() > 3 for frame in frames)


def test_cameras_of_a_bare_file_look_at_its_middle(run: Path) -> None:
    gaussians = load_gaussians(run / "scene.ply")
    cameras = scene_cameras(str(run / "scene.ply"), gaussians, 100)
    centre = gaussians.means.median(0).values.double()
    for camera in cameras:
        assert max(camera.width, camera.height) == 100
        pixel = camera.K @ (camera.camera_from_world[:3, :3] @ centre + camera.camera_from_world[:3, 3])
        assert torch.allclose(pixel[:2] / pixel[2], torch.tensor([50.0, 37.5], dtype=torch.float64), atol=0.01)


def test_what_is_no_scene_is_said(tmp_path: Path) -> None:
    with pytest.raises(SpatialError, match="does not exist"):
        scene_file(str(tmp_path / "x"))
    with pytest.raises(SpatialError, match=r"no scene\.ply"):
        scene_file(str(tmp_path))
