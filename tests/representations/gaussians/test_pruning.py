"""Pruning by what photos show: hidden Gaussians and those in free space go, the picture stays."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from data.synthetic.gaussians import orbit_cameras, random_gaussians
from representations.gaussians import reconstruction
from representations.gaussians.densification import DefaultDensification
from representations.gaussians.model import GaussianModel
from representations.gaussians.optimization import VisibleAdam
from representations.gaussians.pruning import ViewPruning, nearest_depth, pixels_shown
from representations.gaussians.rendering import render
from representations.gaussians.training import LitGaussians
from spatial.kernels.reference.rasterization import rasterize_gaussians as rasterize_densely
from spatial.structures import Gaussians, PointCloud
from spatial.training import memory

CAMERAS = orbit_cameras(5, radius=3.0, altitude=0.8, width=48, height=40)
NO_POINTS = PointCloud(torch.zeros(0, 3), torch.zeros(0, 3))


@pytest.fixture
def scene() -> Gaussians:
    return random_gaussians(80, extent=0.8, generator=torch.Generator().manual_seed(3))


def made(gaussians: Gaussians) -> tuple[GaussianModel, VisibleAdam]:
    model = GaussianModel(gaussians)
    return model, VisibleAdam([{"params": [p], "name": n, "lr": 1e-3} for n, p in model.named_parameters()])


def with_one_more(gaussians: Gaussians, mean: torch.Tensor, *, log_scale: float, logit: float = 4.0) -> Gaussians:
    last = dataclasses.replace(
        gaussians, means=mean[None].float(), quats=gaussians.quats[:1],
        log_scales=torch.full((1, 3), log_scale), logit_opacities=torch.tensor([logit]), sh=gaussians.sh[:1],
    )  # fmt: skip
    names = ("means", "quats", "log_scales", "logit_opacities", "sh")
    joined = {name: torch.cat([getattr(gaussians, name), getattr(last, name)]) for name in names}
    return dataclasses.replace(gaussians, **joined)


def update(pruning: ViewPruning, gaussians: Gaussians, *, step: int = 300, max_steps: int = 1000) -> GaussianModel:
    model, optimizer = made(gaussians)
    pruning.update(step, max_steps, model, optimizer, torch.Generator().manual_seed(0))
    return model


def in_front_of(index: int, depth: float) -> torch.Tensor:
    camera = CAMERAS[index]
    return camera.position + depth * camera.forward


def test_pixels_shown_is_the_largest_sum_of_blending_weights(scene: Gaussians) -> None:
    """Against weights found by leaving each Gaussian out of the sum: a scene of one-hot colours, densely composited."""
    from spatial.kernels.intersection import intersect_tiles
    from spatial.kernels.projection import project_gaussians

    expected = torch.zeros(len(scene))
    for camera in CAMERAS:
        projected = project_gaussians(
            scene.means, scene.quats, scene.scales, scene.opacities, camera.camera_from_world[None].float(),
            camera.K[None].float(), camera.width, camera.height,
        )  # fmt: skip
        opacities = scene.opacities[None]
        tiles = intersect_tiles(
            projected.means2d,
            projected.conics,
            opacities,
            projected.depths,
            projected.radii,
            camera.width,
            camera.height,
        )
        weights, _ = rasterize_densely(
            projected.means2d, projected.conics, torch.eye(len(scene))[None], opacities, camera.width, camera.height, tiles,
        )  # fmt: skip
        expected = torch.maximum(expected, weights.sum(dim=(0, 1, 2)))
    torch.testing.assert_close(pixels_shown(scene, CAMERAS), expected, rtol=1e-4, atol=1e-3)


def test_what_no_photo_shows_goes_and_pictures_stay(scene: Gaussians) -> None:
    pruning = ViewPruning(CAMERAS, NO_POINTS, min_pixels=0.5)
    model = update(pruning, scene)
    assert 0 < len(model) < len(scene)
    for camera in CAMERAS:
        difference = render(scene, camera).colors - render(model.gaussians(), camera).colors
        assert difference.abs().mean() < 0.01


@pytest.mark.parametrize("step, acts", [(300, True), (250, False), (100, False), (1000, False)])
def test_acts_every_so_many_steps_within_its_share_of_the_training(scene: Gaussians, step: int, acts: bool) -> None:
    pruning = ViewPruning(CAMERAS, NO_POINTS, min_pixels=5.0, start=0.15, stop=0.95, every_shown=100)
    assert (len(update(pruning, scene, step=step)) < len(scene)) == acts


def test_a_gaussian_between_a_camera_and_all_that_it_sees_goes(scene: Gaussians) -> None:
    points = PointCloud(scene.means, torch.zeros(len(scene), 3))
    nearest = nearest_depth(CAMERAS[2], points)
    assert nearest is not None and 1.5 < nearest < 3.2
    pruning = ViewPruning(CAMERAS, points, min_pixels=0, free_space=0.5)
    before = len(update(pruning, scene))
    near = update(pruning, with_one_more(scene, in_front_of(2, 0.4 * nearest), log_scale=-2.0))
    far = update(pruning, with_one_more(scene, in_front_of(2, 0.7 * nearest), log_scale=-2.0))
    assert before == len(scene) and len(near) == before and len(far) == before + 1


def test_free_space_follows_each_camera(scene: Gaussians) -> None:
    """Behind a camera, and beside its picture, nothing is free."""
    points = PointCloud(scene.means, torch.zeros(len(scene), 3))
    pruning = ViewPruning(CAMERAS[:1], points, min_pixels=0)
    behind = with_one_more(scene, in_front_of(0, -0.3), log_scale=-2.0)
    assert len(update(pruning, behind)) == len(behind)


def test_too_few_points_make_nothing_free(scene: Gaussians) -> None:
    few = PointCloud(scene.means[:5], torch.zeros(5, 3))
    assert ViewPruning(CAMERAS, few).free == [] and nearest_depth(CAMERAS[0], NO_POINTS) is None


def test_it_never_leaves_nothing(scene: Gaussians) -> None:
    assert len(update(ViewPruning(CAMERAS, NO_POINTS, min_pixels=1e9), scene)) == len(scene)


def test_moments_follow(scene: Gaussians) -> None:
    model, optimizer = made(scene)
    for name, moment in optimizer.state[model.means].items():
        optimizer.state[model.means][name] = torch.arange(len(scene)).float()[:, None].expand(-1, 3).clone()
        assert moment.shape == (len(scene), 3)
    shown = pixels_shown(scene, CAMERAS)
    ViewPruning(CAMERAS, NO_POINTS, min_pixels=0.5).update(300, 1000, model, optimizer, torch.Generator())
    expected = (shown >= 0.5).nonzero()[:, 0].float()
    assert torch.equal(optimizer.state[model.means]["exp_avg"][:, 0], expected)


def test_the_cap_follows_the_memory_at_hand(
    scene: Gaussians, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = DefaultDensification(max_gaussians=100_000)
    module = LitGaussians(scene, strategy, max_steps=10, extent=1.0, view_names=[])
    monkeypatch.setattr(reconstruction, "available_bytes", lambda: 60_000_000)
    reconstruction._limit_to_memory(module)
    assert strategy.max_gaussians == 10_000 and "at most 10,000 Gaussians instead of 100,000" in caplog.text
    monkeypatch.setattr(reconstruction, "available_bytes", lambda: 10**12)
    reconstruction._limit_to_memory(module)
    assert strategy.max_gaussians == 10_000


def test_a_container_s_limit_counts(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    whole = memory.available_bytes()
    (tmp_path / "memory.max").write_text("3000000\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    assert memory.available_bytes() == 2_000_000 < whole
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available_bytes() > 2_000_000
