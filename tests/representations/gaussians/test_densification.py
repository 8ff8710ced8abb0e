"""How Gaussians come and go: clone, split, prune, relocate, and never more than the cap."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from data.synthetic.gaussians import orbit_cameras, random_gaussians
from representations.gaussians.densification import DefaultDensification
from representations.gaussians.mcmc import McmcDensification
from representations.gaussians.model import GaussianModel
from representations.gaussians.optimization import VisibleAdam
from representations.gaussians.rendering import rasterization, render
from spatial.structures import Gaussians

EXTENT = 1.0


def make(gaussians: Gaussians, *, lr: float = 1e-3) -> tuple[GaussianModel, VisibleAdam]:
    """A model and its optimiser after one step, so that there are moments to move."""
    model = GaussianModel(gaussians)
    optimizer = VisibleAdam([{"params": [p], "name": name, "lr": lr} for name, p in model.named_parameters()])
    generator = torch.Generator().manual_seed(99)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    for group in optimizer.param_groups:
        group["lr"] = lr
    return model, optimizer


def moments(model: GaussianModel, optimizer: VisibleAdam, name: str) -> torch.Tensor:
    return optimizer.state[getattr(model, name)]["exp_avg"]


def uniform_gaussians(num: int, scale: float, opacity: float = 0.5, seed: int = 0) -> Gaussians:
    gaussians = random_gaussians(num, extent=1.0, generator=torch.Generator().manual_seed(seed))
    logit = math.log(opacity / (1 - opacity))
    return dataclasses.replace(
        gaussians,
        log_scales=torch.full((num, 3), math.log(scale)),
        logit_opacities=torch.full((num,), logit),
    )


def pulled(strategy: DefaultDensification, pull: torch.Tensor) -> DefaultDensification:
    """The strategy as after 10 views that pulled so strongly at each Gaussian."""
    strategy.gradient_sums, strategy.counts = pull * 10, torch.full_like(pull, 10)
    return strategy


def update(strategy, model, optimizer, *, step: int = 100, max_steps: int = 1000, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    strategy.update(step, max_steps, model, optimizer, extent=EXTENT, generator=generator)


def test_a_small_one_is_cloned() -> None:
    model, optimizer = make(uniform_gaussians(10, scale=0.005))
    old_means, old_moments = model.means.detach().clone(), moments(model, optimizer, "means").clone()
    pull = torch.zeros(10)
    pull[3] = 1.0
    update(pulled(DefaultDensification(max_gaussians=100, start=0.0), pull), model, optimizer)
    assert len(model) == 11
    assert torch.equal(model.means[:10], old_means) and torch.equal(model.means[10], old_means[3])
    assert torch.equal(model.log_scales[10], model.log_scales[3])
    assert torch.equal(moments(model, optimizer, "means")[:10], old_moments)
    for name, _ in model.named_parameters():
        assert not moments(model, optimizer, name)[10].any()


def test_a_large_one_is_split_into_two_within_it() -> None:
    model, optimizer = make(uniform_gaussians(10, scale=0.1))
    old_means = model.means.detach().clone()
    pull = torch.zeros(10)
    pull[3] = 1.0
    update(pulled(DefaultDensification(max_gaussians=100, start=0.0), pull), model, optimizer)
    assert len(model) == 11
    others = torch.arange(10) != 3
    assert torch.equal(model.means[:10][others], old_means[others])
    for row in (3, 10):
        assert torch.allclose(model.log_scales[row].exp(), torch.tensor(0.1 / 1.6))
        assert 0 < (model.means[row] - old_means[3]).norm() < 0.5  # 5 sigma
        for name in ("means", "log_scales"):
            assert not moments(model, optimizer, name)[row].any()
    assert not torch.equal(model.means[3], model.means[10])
    assert moments(model, optimizer, "log_scales")[:10][others].all()


def test_splits_are_drawn_from_the_gaussian_itself() -> None:
    """A flat, turned one sends its halves along its own plane."""
    scene = uniform_gaussians(2000, scale=0.1)
    half = math.sqrt(0.5)  # a quarter turn about x: the local z axis becomes -y
    flat = dataclasses.replace(
        scene,
        means=torch.zeros(2000, 3),
        quats=torch.tensor([[half, half, 0.0, 0.0]]).repeat(2000, 1),
        log_scales=torch.tensor([[0.1, 0.2, 1e-4]]).log().repeat(2000, 1),
    )
    model, optimizer = make(flat)
    strategy = DefaultDensification(max_gaussians=4000, start=0.0, growth=1.0)
    update(pulled(strategy, torch.ones(2000)), model, optimizer)
    assert len(model) == 4000
    spread = model.means.detach().std(0)
    assert spread[0].item() == pytest.approx(0.1, rel=0.1) and spread[2].item() == pytest.approx(0.2, rel=0.1)
    assert spread[1] < 1e-3


def test_the_hardest_pulled_come_first_and_the_cap_holds() -> None:
    model, optimizer = make(uniform_gaussians(50, scale=0.005))
    pull = torch.linspace(0.001, 1.0, 50)
    strategy = DefaultDensification(max_gaussians=53, start=0.0, growth=1.0)
    old_means = model.means.detach().clone()
    update(pulled(strategy, pull), model, optimizer)
    assert len(model) == 53
    assert torch.equal(model.means[50:], old_means[47:])
    for _ in range(3):
        update(pulled(strategy, torch.ones(len(model))), model, optimizer)
        assert len(model) == 53


def test_below_the_threshold_nothing_grows() -> None:
    model, optimizer = make(uniform_gaussians(20, scale=0.005))
    strategy = DefaultDensification(max_gaussians=100, grad_threshold=0.5, start=0.0)
    update(pulled(strategy, torch.full((20,), 0.49)), model, optimizer)
    assert len(model) == 20


@pytest.mark.parametrize(("name", "value"), [("logit_opacities", -10.0), ("log_scales", 5.0), ("means", float("nan"))])
def test_faint_giant_and_broken_ones_go(name: str, value: float) -> None:
    model, optimizer = make(uniform_gaussians(10, scale=0.005))
    with torch.no_grad():
        getattr(model, name)[4] = value
    kept = torch.arange(10) != 4
    means, old_moments = model.means.detach()[kept].clone(), moments(model, optimizer, "sh")[kept].clone()
    update(pulled(DefaultDensification(max_gaussians=100, start=0.0), torch.zeros(10)), model, optimizer)
    assert torch.equal(model.means, means)
    assert torch.equal(moments(model, optimizer, "sh"), old_moments)


@pytest.mark.parametrize("step", [150, 20, 900])
def test_only_at_its_steps(step: int) -> None:
    """Not a multiple of 100; before the start; after the end."""
    model, optimizer = make(uniform_gaussians(10, scale=0.005))
    strategy = DefaultDensification(max_gaussians=100, every=20 if step == 20 else 100, start=0.05, stop=0.6)
    update(pulled(strategy, torch.ones(10)), model, optimizer, step=step)
    assert len(model) == 10


@pytest.mark.parametrize("absgrad", [True, False])
def test_the_pull_is_measured_on_what_is_seen(absgrad: bool) -> None:
    """A Gaussian half a picture beside its target is pulled; one that no camera sees is not counted."""
    camera = orbit_cameras(1, radius=3.0, altitude=0.0, width=48, height=32)[0]
    scene = uniform_gaussians(3, scale=0.1, opacity=0.8)
    scene = dataclasses.replace(scene, means=torch.tensor([[0.0, 0, 0], [0.0, 0.8, 0], [50.0, 0, 0]]))
    target = render(
        dataclasses.replace(scene, means=torch.tensor([[0.0, 0.08, 0], [0.0, 0.8, 0], [50.0, 0, 0]])), camera
    )
    model = GaussianModel(scene)
    strategy = DefaultDensification(max_gaussians=10, absgrad=absgrad)
    image, _, meta = rasterization(
        model.means, model.quats, model.log_scales.exp(), model.logit_opacities.sigmoid(), model.sh,
        camera.camera_from_world[None].float(), camera.K[None].float(), 48, 32, sh_degree=1, absgrad=absgrad,
    )  # fmt: skip
    strategy.prepare(meta)
    (image[0] - target.colors).abs().mean().backward()
    strategy.observe(meta)
    assert strategy.counts.tolist() == [1, 1, 0]
    assert strategy.gradient_sums[0] > 10 * strategy.gradient_sums[1:].max()


def dead_and_alive() -> Gaussians:
    scene = random_gaussians(120, extent=0.8, generator=torch.Generator().manual_seed(4), sh_degree=0)
    logits = torch.full((120,), 0.5)
    logits[80:] = -7.0  # below 1/255: invisible
    return dataclasses.replace(scene, logit_opacities=logits)


def test_relocation_hardly_changes_the_picture() -> None:
    """The dead move onto living ones, which share opacity and size; without sharing the picture would be denser."""
    camera = orbit_cameras(1, radius=2.5, altitude=0.5, width=64, height=48)[0]
    scene = dead_and_alive()
    before = render(scene, camera)
    model, optimizer = make(scene)
    strategy = McmcDensification(max_gaussians=120, start=0.0, noise=0.0)
    update(strategy, model, optimizer)
    assert len(model) == 120
    assert (model.logit_opacities.sigmoid() > 0.005).all()
    change = (render(model.gaussians(), camera).colors - before.colors).abs().mean()
    copied = dataclasses.replace(
        model.gaussians(),
        logit_opacities=torch.full((120,), 0.5),
        log_scales=torch.cat([scene.log_scales[:80], model.log_scales.detach()[80:]]),
    )
    unshared = (render(copied, camera).colors - before.colors).abs().mean()
    assert change < 0.01
    assert unshared > 3 * change
    for name, _ in model.named_parameters():
        assert not moments(model, optimizer, name)[80:].any()
    # Sources forget the moments of what was changed, and keep the others.
    touched = (model.logit_opacities[:80] != 0.5).nonzero()[:, 0]
    assert len(touched) and not moments(model, optimizer, "log_scales")[touched].any()
    assert moments(model, optimizer, "means")[touched].all()


def test_the_budget_is_reached_and_kept() -> None:
    model, optimizer = make(uniform_gaussians(100, scale=0.02))
    strategy = McmcDensification(max_gaussians=112, start=0.0, growth=0.05, noise=0.0)
    counts = []
    for step in (100, 200, 300, 400, 500):
        update(strategy, model, optimizer, step=step)
        counts.append(len(model))
    assert counts == [105, 110, 112, 112, 112]


def test_noise_moves_the_faint_within_their_shape() -> None:
    faint, solid = torch.arange(20) < 10, torch.arange(20) >= 10
    scene = uniform_gaussians(20, scale=0.1)
    scene = dataclasses.replace(
        scene,
        logit_opacities=torch.where(faint, -6.0, 3.0),
        quats=torch.tensor([[1.0, 0, 0, 0]]).repeat(20, 1),
        log_scales=torch.tensor([[0.1, 0.01, 0.1]]).log().repeat(20, 1),
    )
    model, optimizer = make(scene)
    update(McmcDensification(max_gaussians=20, noise=1e3), model, optimizer, step=7)
    moved = (model.means.detach() - scene.means).abs()
    assert moved[solid].max() < 1e-6
    assert moved[faint][:, 0].mean() > 20 * moved[faint][:, 1].mean() > 0  # by covariance: (0.1 / 0.01)² = 100


@pytest.mark.parametrize("strategy", [DefaultDensification, McmcDensification])
def test_the_same_generator_gives_the_same_gaussians(strategy: type) -> None:
    results = []
    for seed in (1, 1, 2):
        model, optimizer = make(uniform_gaussians(40, scale=0.1, opacity=0.2))
        chosen = strategy(max_gaussians=60, start=0.0)
        if isinstance(chosen, DefaultDensification):
            pulled(chosen, torch.ones(40))
        update(chosen, model, optimizer, seed=seed)
        results.append(model.means.detach().clone())
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])
