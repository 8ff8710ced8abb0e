"""What users get wrong, through the command line: one line that names the file and the remedy, and nothing half-written.

Details of each reader are tested where the reader is; here each mistake goes all the way.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.lib.recfunctions import repack_fields
from PIL import Image
from plyfile import PlyData, PlyElement

from spatial.cli.main import main
from spatial.io.gaussian_files import load_gaussians

QUICK = ["max_steps=10", "sh_degree=0", "video_seconds=0"]


@pytest.fixture
def capture(tiny_capture: Path, tmp_path: Path) -> Path:
    """A copy of the tiny capture, to be spoilt."""
    return Path(shutil.copytree(tiny_capture, tmp_path / "capture"))


@pytest.fixture(scope="module")
def scene(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A splat file as training writes it."""
    run = tmp_path_factory.mktemp("runs") / "run"
    assert main(["reconstruct", str(tiny_capture), "--out", str(run), *QUICK]) == 0
    return run / "scene.ply"


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The error that a command line ends with: one line, notes before it, details of single photos indented after it."""
    capsys.readouterr()
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if line.startswith("spatial: error: ")]
    assert code == 2, err
    ending = [line for line in err.splitlines() if not line.startswith("  ")]
    assert len(lines) == 1 and ending[-1] == lines[0], err
    assert "Traceback" not in err and not out
    return lines[0]


def reconstruct_refused(capsys: pytest.CaptureFixture[str], source: Path, out: Path, *more: str) -> str:
    """As `refused`; and the run's folder is not there, since nothing came of it."""
    line = refused(capsys, "reconstruct", source, "--out", out, *QUICK, *more)
    assert not out.exists()
    return line


def noise_photo(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = np.random.default_rng(seed).integers(0, 255, (40, 60, 3)).astype(np.uint8)
    Image.fromarray(coarse).resize((240, 160), Image.Resampling.BICUBIC).save(path)


def test_empty_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "photos").mkdir()
    line = reconstruct_refused(capsys, tmp_path / "photos", tmp_path / "run")
    assert "photos is empty; give a folder of photos" in line


def test_no_such_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nowhere does not exist" in reconstruct_refused(capsys, tmp_path / "nowhere", tmp_path / "run")


def test_one_photo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noise_photo(tmp_path / "photos" / "a.jpg", 0)
    line = reconstruct_refused(capsys, tmp_path / "photos", tmp_path / "run")
    assert "only 1 readable photo" in line and "overlapping" in line
    line = reconstruct_refused(capsys, tmp_path / "photos" / "a.jpg", tmp_path / "run")
    assert "is one photo" in line and "give their folder" in line


def test_photos_without_overlap(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(4):
        noise_photo(tmp_path / "photos" / f"{seed}.jpg", seed)
    line = refused(capsys, "reconstruct", tmp_path / "photos", "--out", tmp_path / "run", *QUICK)
    assert "overlap" in line
    assert not (tmp_path / "run" / "scene.ply").exists()


def test_damaged_files_among_good_ones_are_skipped_and_named(capture: Path, tmp_path: Path) -> None:
    images = capture / "images"
    whole = (images / "1.png").read_bytes()
    (images / "1.png").write_bytes(whole[: len(whole) // 2])
    (images / "2.png").write_bytes(b"")
    (images / "3.png").write_bytes(os.urandom(3000))
    assert main(["reconstruct", str(capture), "--out", str(tmp_path / "run"), *QUICK]) == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    reasons = {item["name"]: item["reason"] for item in metrics["left_out"]}
    assert f"{len(reasons)} photos left out" in (tmp_path / "run" / "log.txt").read_text("utf-8")
    assert set(reasons) == {"1.png", "2.png", "3.png"} and metrics["num_photos"] == 6
    assert "truncated" in reasons["1.png"] and "0 bytes" in reasons["2.png"] and "not an image" in reasons["3.png"]
    report = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert all(name in report for name in reasons)


@pytest.mark.slow
def test_damaged_files_among_photos_without_poses(tmp_path: Path) -> None:
    """The same through our own poses, a text file and a file in a second folder with a name that is taken included."""
    from data.synthetic.capture import write_capture

    photos = write_capture(tmp_path / "capture", num_photos=10, width=320, height=240)
    (photos / "notes.txt").write_text("sunny")
    (photos / "broken.jpg").write_bytes((photos / "000.jpg").read_bytes()[:2000])
    (photos / "empty.jpg").write_bytes(b"")
    (photos / "upper").mkdir()
    shutil.move(photos / "009.jpg", photos / "upper" / "000.jpg")
    assert main(["reconstruct", str(photos), "--out", str(tmp_path / "run"), *QUICK]) == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    left_out = {item["name"] for item in metrics["left_out"]}
    assert {"notes.txt", "broken.jpg", "empty.jpg"} <= left_out
    assert metrics["num_photos"] + len(left_out) == 13


def test_two_photos_of_one_name_in_different_folders(capture: Path, tmp_path: Path) -> None:
    """Both are used, each with its own pose."""
    content = json.loads((capture / "transforms.json").read_text())
    for index, frame in enumerate(content["frames"]):
        folder = "low" if index % 2 else "high"
        target = capture / "images" / folder / f"{index // 2}.png"
        target.parent.mkdir(exist_ok=True)
        shutil.move(capture / frame["file_path"], target)
        frame["file_path"] = target.relative_to(capture).as_posix()
    (capture / "transforms.json").write_text(json.dumps(content))
    assert main(["reconstruct", str(capture), "--out", str(tmp_path / "run"), *QUICK, "data.hold_out_every=2"]) == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["num_photos"] == 9
    assert [view["name"] for view in metrics["views"]] == [
        "high/0.png",
        "high/2.png",
        "high/4.png",
        "low/1.png",
        "low/3.png",
    ]
    pictures = {path.name for path in (tmp_path / "run" / "pictures").glob("*.jpg")}
    assert {"high__0.jpg", "low__1.jpg"} <= pictures


def test_odd_paths(tiny_capture: Path, tmp_path: Path) -> None:
    odd = tmp_path / "Füchse im Wald, 100% = ${schön}" / "写真 1"
    shutil.copytree(tiny_capture, odd)
    (odd / "images" / "0.png").rename(odd / "images" / "Füchsin 0.png")
    text = (odd / "transforms.json").read_text("utf-8").replace("images/0.png", "images/Füchsin 0.png")
    (odd / "transforms.json").write_text(text, "utf-8")
    run = tmp_path / "läuft & läuft"
    assert main(["reconstruct", str(odd), "--out", str(run), *QUICK, "exports=[spz]"]) == 0
    assert json.loads((run / "metrics.json").read_text("utf-8"))["num_photos"] == 9
    assert main(["evaluate", str(run)]) == 0
    assert main(["export", str(run), "--out", str(tmp_path / "ex port"), "formats=[splat]"]) == 0
    assert (tmp_path / "ex port" / "scene.splat").exists()


def test_output_where_one_may_not_write(capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    line = refused(capsys, "reconstruct", capture, "--out", tmp_path / "file", *QUICK)
    assert "file is a file; choose another --out" in line
    line = refused(capsys, "reconstruct", capture, "--out", tmp_path / "file" / "run", *QUICK)
    assert "choose another" in line
    assert (tmp_path / "file").read_text() == "mine"
    line = refused(capsys, "reconstruct", capture, "--out", capture, *QUICK)
    assert "not empty and not a run" in line


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of two megabytes; skipped where one may not mount."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs rights that this user has not")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_read_only_disk(small_disk: Path, capture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    line = refused(capsys, "reconstruct", capture, "--out", small_disk / "run", *QUICK)
    assert str(small_disk / "run") in line and "the disk is read-only; choose a folder" in line


def test_disk_full(small_disk: Path, capture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Full in the middle of training: named, what was whole stays whole; with room again, resuming finishes."""
    run, ballast = small_disk / "run", small_disk / "ballast"
    ballast.write_bytes(bytes(1_960_000))
    line = refused(capsys, "reconstruct", capture, "--out", run, *QUICK)
    assert f"cannot write {run}" in line and "no space left on the disk; free some" in line
    leftovers = [path for path in run.rglob("*") if ".tmp" in path.name]
    assert not leftovers
    if (run / "scene.ply").exists():  # it is saved first; what is there is whole
        assert len(load_gaussians(run / "scene.ply")) > 0
    ballast.unlink()
    assert main(["reconstruct", str(capture), "--out", str(run), "--resume", *QUICK]) == 0
    assert len(load_gaussians(run / "scene.ply")) > 0


def test_disk_full_while_exporting(
    scene: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no small disk can be mounted: the last moment at which a disk can refuse is the flush."""
    monkeypatch.setattr("os.fsync", lambda descriptor: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    line = refused(capsys, "export", scene, "--out", tmp_path / "out", "formats=[spz]")
    assert "scene.spz: no space left on the disk" in line
    assert list((tmp_path / "out").iterdir()) == []


def test_poses_that_belong_to_other_photos(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Images of another shape than the cameras; images in another order than the poses."""
    from data.synthetic.capture import write_capture

    photos = write_capture(tmp_path / "capture", num_photos=16, width=480, height=360)
    truth = json.loads((tmp_path / "capture" / "truth" / "cameras.json").read_text())
    frames = frames_of(truth)
    write_frames(tmp_path / "capture" / "right.json", frames, range(len(frames)))
    write_frames(tmp_path / "capture" / "mixed.json", frames, np.roll(range(len(frames)), 5))
    line = reconstruct_refused(capsys, tmp_path / "capture" / "mixed.json", tmp_path / "run")
    assert "poses and images do not belong together" in line and "Give the images that the poses were made from" in line
    for path in photos.glob("*.jpg"):
        Image.open(path).crop((0, 0, 200, 360)).save(path)
    line = reconstruct_refused(capsys, tmp_path / "capture" / "right.json", tmp_path / "run")
    assert "do not belong together" in line and "200×360" in line


def frames_of(truth: dict) -> list[dict]:
    """transforms.json's frames of the synthetic capture's true cameras."""
    frames = []
    for photo in truth["photos"]:
        K, world_from_camera = photo["K"], np.linalg.inv(np.array(photo["camera_from_world"]))
        frames.append(
            {
                "file_path": f"images/{photo['name']}", "w": photo["width"], "h": photo["height"],
                "fl_x": K[0][0], "fl_y": K[1][1], "cx": K[0][2], "cy": K[1][2], "k1": photo["distortion"]["k1"],
                "transform_matrix": (world_from_camera @ np.diag([1.0, -1, -1, 1])).tolist(),
            }
        )  # fmt: skip
    return frames


def write_frames(path: Path, frames: list[dict], order) -> None:
    """Each photo with the pose that ``order`` says."""
    mixed = [frame | {"file_path": frames[int(index)]["file_path"]} for frame, index in zip(frames, order, strict=True)]
    path.write_text(json.dumps({"frames": mixed}))


def test_nan_in_a_json(capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads((capture / "transforms.json").read_text())
    content["frames"][3]["transform_matrix"][0][3] = float("nan")
    (capture / "transforms.json").write_text(json.dumps(content))
    line = reconstruct_refused(capsys, capture, tmp_path / "run")
    assert "transforms.json: frame 3 (images/3.png)" in line and "NaN" in line and "mend" in line


def test_json_cut_short(capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (capture / "transforms.json").read_text()
    (capture / "transforms.json").write_text(text[: len(text) // 2])
    line = reconstruct_refused(capsys, capture, tmp_path / "run")
    assert "transforms.json, line" in line and "not JSON" in line


def change_ply(scene: Path, target: Path, change) -> None:
    vertices = PlyData.read(str(scene))["vertex"].data
    PlyData([PlyElement.describe(change(vertices.copy()), "vertex")]).write(str(target))


def test_nan_in_a_ply(scene: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def spoil(vertices: np.ndarray) -> np.ndarray:
        vertices["f_dc_1"][7] = np.nan
        return vertices

    change_ply(scene, tmp_path / "nan.ply", spoil)
    line = refused(capsys, "export", tmp_path / "nan.ply", "--out", tmp_path / "out", "formats=[spz]")
    assert "nan.ply" in line and "7" in line
    assert not list(tmp_path.glob("out/*"))


def test_ply_without_a_property(scene: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def drop(vertices: np.ndarray) -> np.ndarray:
        return repack_fields(vertices[[name for name in vertices.dtype.names if name != "rot_2"]])

    change_ply(scene, tmp_path / "short.ply", drop)
    line = refused(capsys, "export", tmp_path / "short.ply", "--out", tmp_path / "out", "formats=[spz]")
    assert "short.ply" in line and "rot_2" in line


def test_ply_reordered_and_in_double_precision_is_read(scene: Path, tmp_path: Path) -> None:
    def rewrite(vertices: np.ndarray) -> np.ndarray:
        other = np.zeros(len(vertices), [(name, "f8") for name in reversed(vertices.dtype.names)])
        for name in vertices.dtype.names:
            other[name] = vertices[name]
        return other

    change_ply(scene, tmp_path / "double.ply", rewrite)
    for source, out in ((scene, "one"), (tmp_path / "double.ply", "other")):
        assert main(["export", str(source), "--out", str(tmp_path / out), "formats=[splat]"]) == 0
    assert (tmp_path / "one" / "scene.splat").read_bytes() == (tmp_path / "other" / "double.splat").read_bytes()


def test_transforms_that_name_absent_files(capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (capture / "images" / "4.png").unlink()
    assert main(["reconstruct", str(capture), "--out", str(tmp_path / "run"), *QUICK]) == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    (left_out,) = metrics["left_out"]
    assert left_out["name"] == "4.png" and "images/4.png, which does not exist" in left_out["reason"]
    shutil.rmtree(capture / "images")
    line = reconstruct_refused(capsys, capture, tmp_path / "other")
    assert "none of its 9 images (such as images/0.png) is on disk" in line


def test_colmap_model_without_points(
    tiny_capture: Path, scene: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Works, from random points."""
    pycolmap = pytest.importorskip("pycolmap")
    project = tmp_path / "project"
    shutil.copytree(tiny_capture / "images", project / "images")
    model = pycolmap.Reconstruction(str(scene.parent / "sparse" / "0"))
    for point in list(model.points3D):
        model.delete_point3D(point)
    (project / "sparse" / "0").mkdir(parents=True)
    model.write_binary(str(project / "sparse" / "0"))
    words = ["reconstruct", str(project), "--out", str(tmp_path / "run"), *QUICK, "num_random_points=500"]
    assert main(words) == 0
    assert "no points: starting from 500 random ones" in capsys.readouterr().err
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["num_photos"] == 9 and metrics["num_gaussians"] == 500


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["reconstruct", "x", "qualty=draft"], "did you mean quality?"),
        (["reconstruct", "x", "quality=drat"], "did you mean draft?"),
        (["reconstruct", "x", "max_image=3"], "did you mean load_capture.max_image_size?"),
        (["reconstruct", "x", "exports=[obj]"], "ply, splat, spz, sog, glb, compressed.ply, mesh"),
        (["recontruct", "x"], "did you mean reconstruct?"),
    ],
)
def test_wrong_words(words: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert hint in refused(capsys, *words)


@pytest.mark.parametrize("setting", ["max_steps=-1", "sh_degree=9", "initial_opacity=2"])
def test_impossible_settings_are_refused_at_once(
    setting: str, capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reconstruct", str(capture), "--out", str(tmp_path / "run"), setting]) == 2
    name, _, value = setting.partition("=")
    error = capsys.readouterr().err
    assert name in error and value in error and not (tmp_path / "run").exists()
