"""Every format gives back what it can hold, reads real files of other tools, and refuses bad files with a remedy."""

import errno
import logging
import math
import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from spatial.errors import SpatialError
from spatial.io.gaussian_arrays import morton_order
from spatial.io.gaussian_files import GAUSSIAN_SUFFIXES, load_gaussians, save_gaussians
from spatial.io.spz import write_spz
from spatial.structures import Gaussians

MAX_DEGREE = {".ply": 4, ".spz": 4, ".sog": 3, ".glb": 3, ".gltf": 3, ".compressed.ply": 3, ".splat": 0}
# Largest differences after a round trip of `scene`: means, covariance (relative), opacity, base and further SH.
# Each is half a quantisation step, with rotations of 8 bits (.splat, .sog) bounded by their angle's error.
TOLERANCES = {
    ".ply": (0, 0, 0, 0, 0),
    ".glb": (0, 2e-6, 2e-7, 0, 0),
    ".gltf": (0, 2e-6, 2e-7, 0, 0),
    ".spz": (2.0**-19, 0.08, 0.5 / 255 + 1e-6, 0.5 / 255 / 0.15 + 1e-5, 8.5 / 128),
    ".sog": (2e-4, 0.08, 0.5 / 255 + 1e-6, 0.02, 0.02),
    ".compressed.ply": (
        3e-3,  # 10 bits of a chunk as wide as the scene
        0.03,
        0.5 / 255 + 1e-6,
        0.01,
        4.0 / 256 + 1e-6,
    ),
    ".splat": (0, 0.06, 0.5 / 255 + 1e-6, 0.5 / 255 / 0.282 + 1e-5, 0),
}


def scene(degree: int, count: int = 1024, *, antialiased: bool = False) -> Gaussians:
    """Random Gaussians within what every format can hold: sizes of a factor e around 0.05, colours in [0, 1].

    Their number is a power of two, so that SOG's palette has an entry for each: random SH have no structure to find.
    """
    generator = torch.Generator().manual_seed(degree)

    def uniform(*shape: int, low: float, high: float) -> torch.Tensor:
        return low + (high - low) * torch.rand(*shape, generator=generator)

    coefficients = (degree + 1) ** 2
    sh = uniform(count, coefficients, 3, low=-0.6, high=0.6)
    sh[:, 0] = uniform(count, 3, low=-1.7, high=1.7)
    return Gaussians(
        means=uniform(count, 3, low=-3.0, high=3.0),
        quats=torch.randn(count, 4, generator=generator),
        log_scales=math.log(0.05) + uniform(count, 3, low=-0.5, high=0.5),
        logit_opacities=uniform(count, low=-4.0, high=4.0),
        sh=sh,
        antialiased=antialiased,
    )


def covariances(g: Gaussians) -> torch.Tensor:
    axes = torch.from_numpy(Rotation.from_quat(g.quats[:, [1, 2, 3, 0]].double().numpy()).as_matrix())
    axes = axes * g.scales.double()[:, None]
    return axes @ axes.transpose(1, 2)


def load_in_order(path: Path, reference: Gaussians) -> Gaussians:
    """The file's Gaussians in the order of ``reference``: two formats sort along a Z-order curve."""
    found = load_gaussians(path)
    if not path.name.endswith((".sog", ".compressed.ply")):
        return found
    index = np.argsort(morton_order(reference.means.numpy()))
    names = ("means", "quats", "log_scales", "logit_opacities", "sh")
    return Gaussians(**{name: getattr(found, name)[index] for name in names}, antialiased=found.antialiased)


def differences(a: Gaussians, b: Gaussians) -> tuple[float, ...]:
    coefficients = min(a.sh.shape[1], b.sh.shape[1])
    sh = (a.sh[:, :coefficients] - b.sh[:, :coefficients]).abs()
    cov_a, cov_b = covariances(a), covariances(b)
    relative = (cov_a - cov_b).flatten(1).norm(dim=1) / cov_a.flatten(1).norm(dim=1)
    return (
        float((a.means - b.means).abs().max()),
        float(relative.max()),
        float((a.opacities - b.opacities).abs().max()),
        float(sh[:, 0].max()),
        float(sh[:, 1:].max()) if coefficients > 1 else 0.0,
    )


def assert_within(found: tuple[float, ...], tolerances: tuple[float, ...]) -> None:
    names = ("means", "covariance", "opacity", "base colour", "further SH")
    for name, value, tolerance in zip(names, found, tolerances, strict=True):
        assert value <= tolerance, f"{name}: {value:.3g} > {tolerance:.3g}"


@pytest.mark.parametrize("degree", range(5))
@pytest.mark.parametrize("suffix", GAUSSIAN_SUFFIXES)
def test_round_trip(tmp_path, suffix, degree):
    old = scene(degree)
    path = tmp_path / f"scene{suffix}"
    save_gaussians(old, path)
    new = load_in_order(path, old)
    assert new.sh_degree == min(degree, MAX_DEGREE[suffix])
    assert new.means.dtype == torch.float32
    assert_within(differences(old, new), TOLERANCES[suffix])


@pytest.mark.parametrize("suffix", [".ply", ".glb", ".gltf", ".spz", ".splat"])
def test_the_order_of_gaussians_is_kept(tmp_path, suffix):
    old = scene(1)
    save_gaussians(old, tmp_path / f"scene{suffix}")
    new = load_gaussians(tmp_path / f"scene{suffix}")
    torch.testing.assert_close(new.means, old.means, rtol=0, atol=1e-5)


def test_ply_keeps_every_bit(tmp_path):
    old = scene(4)
    save_gaussians(old, tmp_path / "scene.ply")
    new = load_gaussians(tmp_path / "scene.ply")
    for name in ("means", "quats", "log_scales", "logit_opacities", "sh"):
        assert torch.equal(getattr(new, name), getattr(old, name)), name


@pytest.mark.parametrize("suffix", [".sog", ".glb", ".gltf", ".compressed.ply", ".splat"])
def test_a_degree_that_a_format_cannot_hold_is_cut_off_with_a_warning(tmp_path, suffix, caplog):
    with caplog.at_level(logging.WARNING):
        save_gaussians(scene(4), tmp_path / f"scene{suffix}")
    assert "degree 4 is cut off" in caplog.text
    assert load_gaussians(tmp_path / f"scene{suffix}").sh_degree == MAX_DEGREE[suffix]


@pytest.mark.parametrize("antialiased", [False, True])
@pytest.mark.parametrize("suffix", [suffix for suffix in GAUSSIAN_SUFFIXES if suffix != ".splat"])
def test_antialiased_training_is_remembered(tmp_path, suffix, antialiased):
    save_gaussians(scene(0, antialiased=antialiased), tmp_path / f"scene{suffix}")
    assert load_gaussians(tmp_path / f"scene{suffix}").antialiased is antialiased


@pytest.mark.parametrize("suffix", GAUSSIAN_SUFFIXES)
@pytest.mark.parametrize("count", [1, 2, 256, 512])
def test_few_gaussians(tmp_path, suffix, count):
    old = scene(MAX_DEGREE[suffix], count)
    save_gaussians(old, tmp_path / f"scene{suffix}")
    assert_within(differences(old, load_in_order(tmp_path / f"scene{suffix}", old)), TOLERANCES[suffix])


@pytest.mark.parametrize("suffix", [suffix for suffix in GAUSSIAN_SUFFIXES if suffix != ".gltf"])
def test_writing_is_deterministic(tmp_path, suffix):
    for name in ("a", "b"):
        save_gaussians(scene(min(2, MAX_DEGREE[suffix])), tmp_path / f"{name}{suffix}")
    assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


@pytest.mark.parametrize("suffix", GAUSSIAN_SUFFIXES)
def test_extreme_values_stay_finite(tmp_path, suffix):
    old = scene(0, 64)
    old.logit_opacities[:2] = torch.tensor([-100.0, 100.0])
    old.log_scales[0] = -30.0
    old.quats[0] = 0.0
    save_gaussians(old, tmp_path / f"scene{suffix}")
    new = load_in_order(tmp_path / f"scene{suffix}", old)
    assert torch.isfinite(new.logit_opacities).all()
    assert new.opacities[0] < 1e-5
    assert new.opacities[1] > 1 - 1e-5
    if suffix != ".ply":
        assert (new.quats.norm(dim=1) > 0.9).all()


# Real files of other tools: counts from their headers, the rest what an upright scene of that size must look like.
REAL = [
    ("splats/fox_opensplat.ply", 11_778, 3),
    ("splats/guitar.compressed.ply", 90_854, 0),
    ("splats/plant.splat", 113_648, 0),
    ("splats/biker.spz", 152_746, 0),
]


@pytest.mark.parametrize(("name", "count", "degree"), REAL)
def test_real_files_are_plausible(shared_data, name, count, degree):
    g = load_gaussians(shared_data(name))
    assert (len(g), g.sh_degree) == (count, degree)
    extent = (torch.quantile(g.means, 0.99, dim=0) - torch.quantile(g.means, 0.01, dim=0)).max()
    sizes = g.scales.amax(dim=1).median()
    assert 1e-3 < sizes / extent < 0.1
    assert 0.1 < g.opacities.mean() < 0.9
    colors = 0.28209479 * g.sh[:, 0] + 0.5
    assert 0.0 < colors.median() < 1.0
    assert ((colors > -0.2) & (colors < 1.2)).float().mean() > 0.9


@pytest.mark.parametrize("name", ["splats/guitar.compressed.ply", "splats/biker.spz"])
def test_objects_on_the_ground_reach_upwards_along_minus_y(shared_data, name):
    """The ground is y = 0 in both files; with y down all that stands on it has y < 0, whatever the format's axes."""
    y = load_gaussians(shared_data(name)).means[:, 1]
    assert (y < 0.05).float().mean() > 0.99
    assert y.min() < -3


@pytest.mark.parametrize("suffix", GAUSSIAN_SUFFIXES)
def test_a_real_scene_survives_each_format(shared_data, tmp_path, suffix):
    old = load_gaussians(shared_data("splats/fox_opensplat.ply"))
    save_gaussians(old, tmp_path / f"fox{suffix}")
    new = load_in_order(tmp_path / f"fox{suffix}", old)
    scale = old.scales.amax(dim=1)
    assert ((new.means - old.means).norm(dim=1) / scale).quantile(0.99) < 0.1
    assert (new.opacities - old.opacities).abs().max() < 0.01
    in_range = ((0.28209479 * old.sh[:, 0]).abs() < 0.5).all(dim=1)  # what .splat can hold
    assert (new.sh[:, 0] - old.sh[:, 0]).abs()[in_range].quantile(0.99) < 0.05
    if suffix != ".splat":
        # This scene's further SH are faint (0.0025): two formats' fixed steps are coarser than that.
        step = {".spz": 1 / 32, ".compressed.ply": 1 / 64 + 1e-6}.get(suffix, 0.0)
        assert (new.sh[:, 1:] - old.sh[:, 1:]).abs().mean() < max(step, 0.5 * float(old.sh[:, 1:].std()))


def test_a_hundred_thousand_gaussians_with_sh_become_sog_in_seconds(tmp_path):
    old = scene(3, 100_000)
    start = time.process_time()
    save_gaussians(old, tmp_path / "scene.sog")
    # 16 s of CPU on a slow machine; plain k-means with 65,536 centroids takes minutes.
    assert time.process_time() - start < 60


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("degree", range(5))
def test_both_spz_versions_hold_the_same(tmp_path, version, degree):
    old = scene(degree, antialiased=True)
    write_spz(old, tmp_path / "scene.spz", version=version)
    new = load_gaussians(tmp_path / "scene.spz")
    assert_within(differences(old, new), TOLERANCES[".spz"])
    assert new.antialiased


def test_spz_positions_are_finer_where_the_scene_is_small(tmp_path):
    for extent, step in [(1e-3, 2.0**-20), (1.0, 2.0**-20), (100.0, 2.0**-16), (1e5, 2.0**-6), (8e6, 1.0)]:
        old = scene(0)
        old = Gaussians(old.means / 3 * extent, old.quats, old.log_scales, old.logit_opacities, old.sh)
        save_gaussians(old, tmp_path / "scene.spz")
        new = load_gaussians(tmp_path / "scene.spz")
        assert (new.means.double() - old.means.double()).abs().max() <= 0.5 * step + 1e-7 * extent


# Bad input


@pytest.mark.parametrize("suffix", GAUSSIAN_SUFFIXES)
def test_a_missing_file_is_named(tmp_path, suffix):
    with pytest.raises(SpatialError, match=f"absent{suffix}.*no such file"):
        load_gaussians(tmp_path / f"absent{suffix}")


@pytest.mark.parametrize("name", ["scene.obj", "scene", "ply"])
def test_an_unknown_ending_lists_the_known_ones(tmp_path, name):
    with pytest.raises(SpatialError, match=r"\.compressed\.ply, \.ply, \.splat, \.spz, \.sog, \.glb, \.gltf"):
        save_gaussians(scene(0, 4), tmp_path / name)
    with pytest.raises(SpatialError, match=r"\.sog"):
        load_gaussians(tmp_path / name)


@pytest.mark.parametrize("suffix", GAUSSIAN_SUFFIXES)
@pytest.mark.parametrize("kind", ["empty", "text", "random"])
def test_what_is_no_such_file_is_refused(tmp_path, suffix, kind):
    content = {"empty": b"", "text": b"This is not a scene.\n", "random": np.random.default_rng(0).bytes(1001)}[kind]
    path = tmp_path / f"bad{suffix}"
    path.write_bytes(content)
    with pytest.raises(SpatialError, match="bad"):
        load_gaussians(path)


@pytest.mark.parametrize("suffix", GAUSSIAN_SUFFIXES)
@pytest.mark.parametrize("fraction", [0.02, 0.5, 0.97])
def test_a_truncated_file_is_refused(tmp_path, suffix, fraction):
    path = tmp_path / f"cut{suffix}"
    save_gaussians(scene(0, 1001), path)
    content = path.read_bytes()
    keep = int(len(content) * fraction)
    path.write_bytes(content[: keep - keep % 32 + 7])
    with pytest.raises(SpatialError, match="cut"):
        load_gaussians(path)


def test_a_truncated_spz_of_version_4_is_refused(tmp_path):
    path = tmp_path / "cut.spz"
    write_spz(scene(1), path, version=4)
    content = path.read_bytes()
    for keep in (20, 40, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:keep])
        with pytest.raises(SpatialError, match="cut"):
            load_gaussians(path)


@pytest.mark.parametrize("suffix", GAUSSIAN_SUFFIXES)
@pytest.mark.parametrize("name", ["means", "quats", "log_scales", "logit_opacities", "sh"])
def test_nan_is_never_written(tmp_path, suffix, name):
    bad = scene(0, 8)
    getattr(bad, name)[5] = math.nan
    with pytest.raises(SpatialError, match=f"1 of 8 Gaussians.*row 5, property '{name}'"):
        save_gaussians(bad, tmp_path / f"scene{suffix}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", GAUSSIAN_SUFFIXES)
def test_a_full_disk_leaves_the_old_file_and_no_rubbish(tmp_path, suffix, monkeypatch):
    path = tmp_path / f"scene{suffix}"
    save_gaussians(scene(0, 32), path)
    before = path.read_bytes()

    def no_space(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", no_space)  # as late as it can fail
    with pytest.raises(SpatialError, match=f"scene{suffix}.*no space left on the disk"):
        save_gaussians(scene(0, 64), path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a device that is always full")
@pytest.mark.parametrize("suffix", GAUSSIAN_SUFFIXES)
def test_a_disk_that_fills_up_while_writing(tmp_path, suffix, monkeypatch):
    path = tmp_path / f"scene{suffix}"
    monkeypatch.setattr("secrets.token_hex", lambda _: "full")
    (tmp_path / f".{path.stem}.full.tmp{path.suffix}").symlink_to("/dev/full")
    with pytest.raises(SpatialError, match=f"scene{suffix}.*no space left on the disk"):
        save_gaussians(scene(0, 4000), path)
    assert list(tmp_path.iterdir()) == []


def test_missing_folders_are_made_and_odd_names_work(tmp_path):
    path = tmp_path / "neue Ordner" / "Fuß 狐.PLY"
    save_gaussians(scene(0, 4), path)
    assert len(load_gaussians(path)) == 4
