"""Where training starts: a Gaussian a point, whatever the points are."""

from __future__ import annotations

import pytest
import torch

from data.synthetic.gaussians import orbit_cameras, random_gaussians
from representations.gaussians.model import SH_C0, GaussianModel, gaussians_from_points, random_points
from representations.gaussians.rendering import render
from spatial.structures import Gaussians, PointCloud


def cloud_of(points: torch.Tensor) -> PointCloud:
    return PointCloud(points, torch.rand(len(points), 3, generator=torch.Generator().manual_seed(0)))


def assert_usable(gaussians: Gaussians) -> None:
    for values in (gaussians.means, gaussians.quats, gaussians.log_scales, gaussians.logit_opacities, gaussians.sh):
        assert values.isfinite().all() and values.dtype == torch.float32
    assert (gaussians.scales > 0).all()


def test_as_wide_as_the_neighbours_are_far() -> None:
    """On a unit grid each corner's three neighbours are at distance 1."""
    grid = torch.cartesian_prod(*[torch.arange(2.0)] * 3)
    cloud = cloud_of(grid)
    gaussians = gaussians_from_points(cloud, sh_degree=2, opacity=0.3, scale_factor=0.5)
    assert_usable(gaussians)
    assert torch.allclose(gaussians.scales, torch.tensor(0.5))
    assert torch.allclose(gaussians.opacities, torch.tensor(0.3))
    assert torch.allclose(gaussians.sh[:, 0] * SH_C0 + 0.5, cloud.colors, atol=1e-6)
    assert gaussians.sh.shape == (8, 9, 3) and not gaussians.sh[:, 1:].any()
    assert torch.equal(gaussians.means, grid)


def test_a_point_is_drawn_in_its_colour() -> None:
    camera = orbit_cameras(1, radius=2.0, altitude=0.0, width=32, height=32)[0]
    cloud = PointCloud(torch.zeros(1, 3), torch.tensor([[0.8, 0.4, 0.1]]))
    seen = render(gaussians_from_points(cloud, sh_degree=3, opacity=0.99), camera)
    assert torch.allclose(seen.colors[16, 16] / seen.alphas[16, 16], cloud.colors[0], atol=1e-5)


@pytest.mark.parametrize(
    "points",
    [
        torch.zeros(50, 3),
        torch.ones(1, 3),
        torch.tensor([[0.0, 0, 0], [1, 0, 0]]),
        torch.cat([torch.zeros(5, 3), torch.rand(5, 3, generator=torch.Generator().manual_seed(1))]),
        torch.cat([torch.rand(20, 3, generator=torch.Generator().manual_seed(1)), torch.full((1, 3), 1e6)]),
        torch.rand(10, 3, generator=torch.Generator().manual_seed(1)).double() * 1e-4,
        torch.zeros(0, 3),
    ],
    ids=["all at one place", "one", "two", "some at one place", "one far away", "tiny and double", "none"],
)
def test_odd_clouds_start_finite(points: torch.Tensor) -> None:
    gaussians = gaussians_from_points(cloud_of(points), sh_degree=1)
    assert len(gaussians) == len(points)
    assert_usable(gaussians)


def test_a_stray_point_is_not_as_wide_as_it_is_far() -> None:
    near = torch.rand(200, 3, generator=torch.Generator().manual_seed(1))
    gaussians = gaussians_from_points(cloud_of(torch.cat([near, torch.full((1, 3), 1e5)])), sh_degree=0)
    assert gaussians.scales[-1].max() <= 10.01 * gaussians.scales[:-1].median()


def test_random_points_lie_where_the_cameras_look() -> None:
    centres = torch.tensor([[3.0, 0, 1], [-1.0, 0, 1], [1.0, 2, 1], [1.0, -2, 1]])
    focus = torch.tensor([1.0, 0, 1])
    cloud = random_points(centres, focus, 4000, generator=torch.Generator().manual_seed(2))
    distances = (cloud.points - focus).norm(dim=-1)
    assert len(cloud) == 4000 and distances.max() <= 1  # the cameras are 2 away
    assert (distances < 0.5).float().mean().item() == pytest.approx(1 / 8, abs=0.03)  # uniform in the ball
    assert cloud.points.mean(0).allclose(focus, atol=0.1)
    assert (cloud.colors >= 0).all() and (cloud.colors <= 1).all() and cloud.colors.std() > 0.2
    again = random_points(centres, focus, 4000, generator=torch.Generator().manual_seed(2))
    assert torch.equal(cloud.points, again.points) and torch.equal(cloud.colors, again.colors)


def test_the_module_holds_copies_and_gives_back_what_it_got() -> None:
    start = random_gaussians(7, extent=1.0, generator=torch.Generator().manual_seed(3))
    model = GaussianModel(start)
    with torch.no_grad():
        model.means += 1
    assert torch.equal(model.gaussians().means, start.means + 1)
    assert torch.equal(model.gaussians().sh, start.sh) and not model.gaussians().sh.requires_grad
    model.resize(3)
    assert len(model) == 3 and {len(parameter) for parameter in model.parameters()} == {3}
