"""The ray caster against what sphere tracing promises: it stops at the first surface and skips none."""

import pytest
import torch

from data.synthetic import raycaster
from data.synthetic.capture import Lens, orbit, pinhole_directions
from data.synthetic.scene import Scene, room_distance
from data.synthetic.textures import linear_from_srgb, make_noise, srgb_from_linear

K = torch.tensor([[80.0, 0, 48], [0, 80, 36], [0, 0, 1]], dtype=torch.float64)


def rays_of(index: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Origin and world directions (camera z = 1) of one camera of the orbit."""
    camera = orbit(Lens(K, 0.0, 96, 72), 8, 0)[index]
    directions = pinhole_directions(K, 96, 72).flatten(1)
    rotation = camera.camera_from_world[:3, :3]
    return camera.position.float(), (rotation.T @ directions).float()


def nearest(scene: Scene, points: torch.Tensor) -> torch.Tensor:
    solids = torch.stack([solid.distance(solid.own_points(points)) for solid in scene.solids]).amin(0)
    return torch.minimum(solids, room_distance(points))


def test_no_distance_grows_faster_than_the_point_moves(scene: Scene) -> None:
    """Sphere tracing needs |d(p) - d(q)| <= |p - q| outside each solid."""
    generator = torch.Generator().manual_seed(0)
    for index, solid in enumerate(scene.solids):
        half = torch.tensor(solid.half_size)[:, None]
        points = (torch.rand(3, 20000, generator=generator) * 2 - 1) * (half * 1.3 + 0.05)
        steps = torch.nn.functional.normalize(torch.randn(3, 20000, generator=generator), dim=0) * 2e-3
        before, after = solid.distance(points), solid.distance(points + steps)
        outside = (before > 0) & (after > 0)
        assert ((after - before).abs() / 2e-3)[outside].max() < 1.03, f"solid {index}"


def test_each_solid_lies_within_its_box(scene: Scene) -> None:
    generator = torch.Generator().manual_seed(1)
    for index, solid in enumerate(scene.solids):
        half = torch.tensor(solid.half_size)[:, None] + 1e-4
        points = (torch.rand(3, 40000, generator=generator) * 2 - 1) * (half * 1.5 + 0.05)
        beyond = (points.abs() > half).any(0)
        assert (solid.distance(points[:, beyond]) > 0).all(), f"solid {index}"


@pytest.mark.parametrize("index", [0, 5])
def test_rays_end_on_the_first_surface(scene: Scene, index: int) -> None:
    origin, directions = rays_of(index)
    depths = raycaster.trace(scene, origin, directions).depths
    at_end = nearest(scene, origin[:, None] + depths * directions).abs()
    assert at_end.median() < 1e-6
    assert (at_end < 1e-4).float().mean() > 0.998  # rays that graze a surface may stop 2 mm before it
    assert at_end.max() < 2.5e-3
    for fraction in torch.linspace(0.02, 0.98, 49):
        assert nearest(scene, origin[:, None] + fraction * depths * directions).min() > -1e-3


def test_hits_name_the_solid_they_lie_on(scene: Scene) -> None:
    origin, directions = rays_of(2)
    hits = raycaster.trace(scene, origin, directions)
    points = origin[:, None] + hits.depths * directions
    assert len(hits.solids.unique()) > 7  # nearly all things are in view
    for index in hits.solids.unique().tolist():
        chosen = points[:, hits.solids == index]
        solid = scene.solids[index]
        distance = room_distance(chosen) if index < 0 else solid.distance(solid.own_points(chosen))
        assert distance.abs().max() < 2.5e-3


def test_noise_is_periodic_smooth_and_seeded(scene: Scene) -> None:
    noise, again, other = scene.noise, make_noise(0), make_noise(2)
    assert torch.equal(noise.fractal, again.fractal) and torch.equal(noise.cells, again.cells)
    assert not torch.equal(noise.fractal, other.fractal)
    assert torch.equal(noise.fractal[:, 0], noise.fractal[:, -1])
    assert noise.fractal[:, :-1, :-1, :-1].std() == pytest.approx(1, abs=1e-3)
    points = torch.rand(3, 1000)
    near = noise.cloud(points + 1e-5, 0.5) - noise.cloud(points, 0.5)
    assert near.abs().max() < 0.02


def test_srgb_goes_there_and_back() -> None:
    display = torch.linspace(0, 1, 256)
    torch.testing.assert_close(srgb_from_linear(linear_from_srgb(display)), display, atol=2e-4, rtol=0)
