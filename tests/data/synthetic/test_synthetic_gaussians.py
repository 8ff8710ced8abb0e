"""Small Gaussian scenes and orbits: seeded, and geometrically what they say."""

import pytest
import torch
from scipy.spatial.transform import Rotation

from data.synthetic.gaussians import orbit_cameras, random_gaussians, sphere_gaussians


@pytest.mark.parametrize("sh_degree", [0, 1, 3])
def test_random_gaussians_are_seeded_and_well_shaped(sh_degree: int) -> None:
    first, again = (
        random_gaussians(500, extent=2.0, generator=torch.Generator().manual_seed(4), sh_degree=sh_degree)
        for _ in range(2)
    )
    assert torch.equal(first.means, again.means) and torch.equal(first.sh, again.sh)
    assert len(first) == 500 and first.sh_degree == sh_degree
    assert first.means.abs().max() <= 2.0
    spacing = 4.0 / 500 ** (1 / 3)
    assert first.scales.median() == pytest.approx(0.35 * spacing, rel=0.1)
    assert first.opacities.min() > 0 and first.opacities.max() < 1


def test_no_gaussians_are_fine() -> None:
    assert len(random_gaussians(0, extent=1.0, generator=torch.Generator())) == 0


def test_sphere_gaussians_lie_flat_on_the_sphere() -> None:
    sphere = sphere_gaussians(400, radius=1.5, dtype=torch.float64)
    torch.testing.assert_close(sphere.means.norm(dim=1), torch.full((400,), 1.5, dtype=torch.float64))
    rotations = Rotation.from_quat(sphere.quats[:, [1, 2, 3, 0]].numpy()).as_matrix()
    torch.testing.assert_close(torch.from_numpy(rotations[:, :, 2]), sphere.means / 1.5)
    assert (sphere.scales[:, 2] < 0.1 * sphere.scales[:, 0]).all()


def test_sphere_gaussians_are_evenly_spread() -> None:
    means = sphere_gaussians(300, radius=1.0).means
    nearest = (torch.cdist(means, means) + 10 * torch.eye(300)).amin(1)
    assert nearest.max() / nearest.min() < 1.6


def test_orbit_cameras_see_the_target_in_the_middle_with_the_sky_up() -> None:
    target = torch.tensor([0.5, -1.0, 0.3], dtype=torch.float64)
    cameras = orbit_cameras(7, radius=3.0, altitude=1.2, width=64, height=48, target=target.tolist(), fov_deg=50.0)
    for camera in cameras:
        seen = camera.camera_from_world[:3, :3] @ target + camera.camera_from_world[:3, 3]
        pixel = camera.K @ seen
        torch.testing.assert_close(pixel[:2] / pixel[2], torch.tensor([32.0, 24.0], dtype=torch.float64))
        assert seen[2] == pytest.approx((3.0**2 + 1.2**2) ** 0.5)
        assert camera.camera_from_world[1, 2] < 0  # world up is up (negative y) in the picture
    gaps = [(a.position - b.position).norm() for a, b in zip(cameras, [*cameras[1:], cameras[0]], strict=True)]
    torch.testing.assert_close(torch.stack(gaps), torch.stack(gaps)[:1].expand(7))
    assert cameras[0].position[0] == pytest.approx(3.5)
