"""Pictures of Gaussians against closed forms: one Gaussian on the axis, two behind each other, several cameras."""

from __future__ import annotations

import dataclasses
import inspect
import math

import pytest
import torch
from torch import Tensor

from data.synthetic.gaussians import orbit_cameras, random_gaussians
from representations.gaussians.rendering import RENDER_MODES, rasterization, render
from spatial.structures import Camera, Gaussians

WIDTH, HEIGHT, FOCAL = 48, 32, 40.0
RED, BLUE = torch.tensor([0.9, 0.1, 0.2]), torch.tensor([0.1, 0.3, 0.8])


def intrinsics(cx: float = WIDTH / 2, cy: float = HEIGHT / 2, fx: float = FOCAL, fy: float = FOCAL) -> Tensor:
    return torch.tensor([[fx, 0, cx], [0, fy, cy], [0, 0, 1]])


def balls(*balls: tuple[float, float, float]) -> dict[str, Tensor]:
    """Arguments of round Gaussians on the axis of a camera at the origin, each (depth, scale, opacity)."""
    depths, scales, opacities = torch.tensor(balls).T
    means = torch.zeros(len(balls), 3)
    means[:, 2] = depths
    quats = torch.tensor([[2.0, 0, 0, 0]]).repeat(len(balls), 1)
    return {"means": means, "quats": quats, "scales": scales[:, None].repeat(1, 3), "opacities": opacities}


def draw(scene: dict[str, Tensor], colors: Tensor, K: Tensor | None = None, **options):
    K = intrinsics() if K is None else K
    return rasterization(
        **scene, colors=colors, viewmats=torch.eye(4)[None], Ks=K[None], width=WIDTH, height=HEIGHT, **options
    )


def closed_form_alpha(depth: float, scale: float, opacity: float, cx: float = WIDTH / 2, cy: float = HEIGHT / 2):
    """A round Gaussian on the axis is round in the image too: variance (f s / z)² + 0.3."""
    y, x = torch.meshgrid(torch.arange(HEIGHT) + 0.5, torch.arange(WIDTH) + 0.5, indexing="ij")
    squared = (x - cx) ** 2 + (y - cy) ** 2
    alpha = (opacity * torch.exp(-0.5 * squared / ((FOCAL * scale / depth) ** 2 + 0.3))).clamp(max=0.999)
    return torch.where(alpha < 1 / 255, 0, alpha)[..., None]


def assert_close_but_for_the_rim(got: Tensor, want: Tensor) -> None:
    """Equal, except that a pixel whose alpha is 1/255 within rounding may be in or out."""
    differs = (got - want).abs() > 2e-5
    assert differs.float().mean() < 0.005
    assert (got - want).abs().max() < 1.5 / 255


def test_arguments_are_those_of_gsplat() -> None:
    gsplat = pytest.importorskip("gsplat.rendering", reason="gsplat is not installed: pip install gsplat")
    theirs = list(inspect.signature(gsplat.rasterization).parameters.values())
    ours = [p for p in inspect.signature(rasterization).parameters.values() if p.kind is not p.KEYWORD_ONLY]
    assert [p.name for p in ours] == [p.name for p in theirs[: len(ours)]]
    assert [p.default for p in ours] == [p.default for p in theirs[: len(ours)]]
    assert ours[-1].name == "rasterize_mode"


@pytest.mark.parametrize(("cx", "cy"), [(24, 16), (31, 9), (20.25, 18.75)])
def test_one_gaussian_by_hand(cx: float, cy: float) -> None:
    """Also off-centre: the principal point is where the axis meets the image, wherever that is."""
    depth, scale, opacity = 2.0, 0.2, 0.7
    background = torch.tensor([[0.2, 0.4, 0.6]])
    image, alphas, _ = draw(balls((depth, scale, opacity)), RED[None], intrinsics(cx, cy), backgrounds=background)
    want = closed_form_alpha(depth, scale, opacity, cx, cy)
    assert_close_but_for_the_rim(alphas[0], want)
    assert_close_but_for_the_rim(image[0], want * RED + (1 - want) * background[0])


def test_the_nearer_one_covers_whatever_the_order_in_memory() -> None:
    far, near = (4.0, 0.5, 0.9), (2.0, 0.2, 0.6)
    image, alphas, _ = draw(balls(far, near), torch.stack([BLUE, RED]))
    front, back = closed_form_alpha(*near), closed_form_alpha(*far)
    assert_close_but_for_the_rim(image[0], front * RED + (1 - front) * back * BLUE)
    transmittance = (1 - front) * (1 - back)
    assert_close_but_for_the_rim(alphas[0], 1 - transmittance)


@pytest.mark.parametrize("mode", RENDER_MODES)
def test_render_modes(mode: str) -> None:
    far, near = (4.0, 0.5, 0.9), (2.0, 0.2, 0.6)
    image, alphas, _ = draw(balls(far, near), torch.stack([BLUE, RED]), render_mode=mode)
    front, back = closed_form_alpha(*near), closed_form_alpha(*far)
    depth = front * near[0] + (1 - front) * back * far[0]
    assert image.shape[-1] == {"RGB": 3, "D": 1, "ED": 1, "RGB+D": 4, "RGB+ED": 4}[mode]
    if mode == "RGB":
        return
    if "ED" in mode:
        solid = alphas[0] > 0.1
        assert torch.allclose(image[0, ..., -1:][solid], (depth / (1 - (1 - front) * (1 - back)))[solid], atol=0.05)
    else:
        assert_close_but_for_the_rim(image[0, ..., -1:] / 4, depth / 4)
    if "RGB" in mode:
        assert torch.equal(image[..., :3], draw(balls(far, near), torch.stack([BLUE, RED]))[0])


def test_depth_is_along_z_not_along_the_ray() -> None:
    scene = balls((3.0, 0.1, 0.9))
    scene["means"] = torch.tensor([[0.9, 0.0, 3.0]])
    image, alphas, _ = draw(scene, RED[None], render_mode="ED")
    assert alphas.max() > 0.5
    assert image[alphas > 0.1].allclose(torch.tensor(3.0), atol=1e-4)


def test_non_square_pixels() -> None:
    scene = balls((2.0, 0.02, 0.9))
    scene["means"] = torch.tensor([[0.2, 0.1, 2.0]])
    _, _, meta = draw(scene, RED[None], intrinsics(10, 20, fx=60.0, fy=30.0))
    assert torch.allclose(meta["means2d"], torch.tensor([[[10 + 6.0, 20 + 1.5]]]))


def test_antialiased_dims_what_is_smaller_than_a_pixel() -> None:
    """Mip-Splatting: the low-pass spreads a tiny Gaussian over a pixel, and its opacity falls in proportion."""
    depth, scale, opacity = 2.0, 0.01, 0.9
    variance = (FOCAL * scale / depth) ** 2
    K = intrinsics(24.5, 16.5)
    classic, blurred = (
        draw(balls((depth, scale, opacity)), RED[None], K, rasterize_mode=mode)[1][0, 16, 24, 0]
        for mode in ("classic", "antialiased")
    )
    assert classic.item() == pytest.approx(opacity, rel=1e-5)
    assert blurred.item() == pytest.approx(opacity * variance / (variance + 0.3), rel=1e-4)
    large = balls((2.0, 0.5, 0.9))
    assert torch.allclose(draw(large, RED[None])[0], draw(large, RED[None], rasterize_mode="antialiased")[0], atol=5e-3)


@pytest.fixture(scope="module")
def cloud() -> Gaussians:
    return random_gaussians(60, extent=0.8, generator=torch.Generator().manual_seed(3), sh_degree=2)


def cameras_of(count: int) -> list[Camera]:
    return orbit_cameras(count, radius=2.5, altitude=0.5, width=WIDTH, height=HEIGHT)


def draw_cloud(scene: Gaussians, cameras: list[Camera], **options):
    viewmats = torch.stack([camera.camera_from_world for camera in cameras]).to(scene.means)
    Ks = torch.stack([camera.K for camera in cameras]).to(scene.means)
    return rasterization(
        scene.means, scene.quats, scene.scales, scene.opacities, scene.sh, viewmats, Ks, WIDTH, HEIGHT, **options
    )


@pytest.mark.parametrize("rasterize_mode", ["classic", "antialiased"])
def test_several_cameras_are_as_many_single_ones(cloud: Gaussians, rasterize_mode: str) -> None:
    cameras, backgrounds = cameras_of(3), torch.rand(3, 3, generator=torch.Generator().manual_seed(0))
    options = {"sh_degree": 2, "render_mode": "RGB+ED", "rasterize_mode": rasterize_mode}
    together = draw_cloud(cloud, cameras, backgrounds=backgrounds, **options)
    for index, camera in enumerate(cameras):
        image, alphas, meta = draw_cloud(cloud, [camera], backgrounds=backgrounds[index : index + 1], **options)
        assert torch.equal(together[0][index], image[0]) and torch.equal(together[1][index], alphas[0])
        assert torch.equal(together[2]["radii"][index], meta["radii"][0])
    assert together[2]["n_cameras"] == 3 and together[2]["radii"].shape == (3, 60, 2)
    assert not torch.equal(together[0][0], together[0][1])


def test_background_shows_through_by_transmittance_and_not_in_depth(cloud: Gaussians) -> None:
    camera, background = cameras_of(1), torch.tensor([[0.3, 0.6, 0.9]])
    options = {"sh_degree": 2, "render_mode": "RGB+D"}
    with_it, alphas, _ = draw_cloud(cloud, camera, backgrounds=background, **options)
    without, _, _ = draw_cloud(cloud, camera, **options)
    assert torch.allclose(with_it[..., :3], without[..., :3] + (1 - alphas) * background, atol=1e-6)
    assert torch.equal(with_it[..., 3], without[..., 3])


@pytest.mark.parametrize("degree", [0, 1, 2])
def test_fewer_sh_bands_than_there_are(cloud: Gaussians, degree: int) -> None:
    cut = dataclasses.replace(cloud, sh=cloud.sh[:, : (degree + 1) ** 2].contiguous())
    ours = draw_cloud(cloud, cameras_of(1), sh_degree=degree)[0]
    assert torch.equal(ours, draw_cloud(cut, cameras_of(1), sh_degree=degree)[0])


def test_nothing_to_draw() -> None:
    nothing = random_gaussians(0, extent=1.0, generator=torch.Generator())
    seen = render(nothing, cameras_of(1)[0], background=torch.tensor([0.1, 0.2, 0.3]))
    assert torch.equal(seen.colors, torch.tensor([0.1, 0.2, 0.3]).expand(HEIGHT, WIDTH, 3))
    assert not seen.alphas.any() and not seen.depths.any()
    behind, alphas, _ = draw(balls((-2.0, 0.2, 0.9)), RED[None])
    assert not behind.any() and not alphas.any()


@pytest.mark.parametrize("rasterize_mode", ["classic", "antialiased"])
def test_gradient_to_the_pose_by_finite_differences(rasterize_mode: str) -> None:
    """Through projection, view-dependent colour and depth, in float64, for each of the twelve numbers of a pose."""
    generator = torch.Generator().manual_seed(5)
    scene = random_gaussians(12, extent=0.5, generator=generator, sh_degree=2, dtype=torch.float64)
    viewmat = cameras_of(1)[0].camera_from_world[None].clone()
    K = cameras_of(1)[0].K[None]
    weights = torch.rand(1, HEIGHT, WIDTH, 5, generator=generator, dtype=torch.float64)

    def loss(viewmats: Tensor) -> Tensor:
        image, alphas, _ = rasterization(
            scene.means, scene.quats, scene.scales, scene.opacities * 0.6, scene.sh, viewmats, K, WIDTH, HEIGHT,
            sh_degree=2, render_mode="RGB+D", rasterize_mode=rasterize_mode,
        )  # fmt: skip
        return (torch.cat([image, alphas], -1) * weights).sum()

    moving = viewmat.clone().requires_grad_()
    loss(moving).backward()
    assert moving.grad is not None
    for row in range(3):
        for column in range(4):
            step = torch.zeros_like(viewmat)
            step[0, row, column] = 1e-6
            difference = (loss(viewmat + step) - loss(viewmat - step)).item() / 2e-6
            assert moving.grad[0, row, column].item() == pytest.approx(difference, rel=1e-4, abs=1e-4), (row, column)


def test_absgrad_adds_up_without_signs(cloud: Gaussians) -> None:
    scene = dataclasses.replace(cloud, means=cloud.means.clone().requires_grad_())
    image, _, meta = draw_cloud(scene, cameras_of(2), sh_degree=2, absgrad=True)
    meta["means2d"].retain_grad()
    (image**2).sum().backward()
    signed, absolute = meta["means2d"].grad, meta["means2d"].absgrad
    assert (absolute >= signed.abs() * (1 - 1e-4) - 1e-6).all()
    assert absolute.sum() > 1.5 * signed.abs().sum()


def test_what_cannot_be_done_is_said(cloud: Gaussians) -> None:
    with pytest.raises(ValueError, match=r"render_mode must be one of RGB, D, .*got 'RGBD'"):
        draw(balls((2.0, 0.2, 0.9)), RED[None], render_mode="RGBD")
    with pytest.raises(ValueError, match="rasterize_mode must be classic or antialiased"):
        draw(balls((2.0, 0.2, 0.9)), RED[None], rasterize_mode="mip")
    with pytest.warns(UserWarning, match="no effect"):
        draw(balls((2.0, 0.2, 0.9)), RED[None], sparse_grad=True)


def test_render_is_the_public_function_clamped(cloud: Gaussians) -> None:
    camera = cameras_of(3)[2]
    bright = dataclasses.replace(cloud, sh=cloud.sh * 3, antialiased=True)
    image, alphas, _ = draw_cloud(bright, [camera], sh_degree=2, render_mode="RGB+ED", rasterize_mode="antialiased")
    seen = render(bright, camera)
    assert torch.equal(seen.colors, image[0, ..., :3].clamp(0, 1)) and image[..., :3].max() > 1
    assert torch.equal(seen.alphas, alphas[0]) and torch.equal(seen.depths, image[0, ..., 3:])
    assert not torch.equal(seen.colors, render(dataclasses.replace(bright, antialiased=False), camera).colors)


def test_turning_scene_and_camera_together_changes_nothing() -> None:
    """Geometry alone (degree 0): the picture depends on where things lie relative to the camera."""
    scene = random_gaussians(40, extent=0.7, generator=torch.Generator().manual_seed(9), sh_degree=0)
    camera = cameras_of(1)[0]
    angle = 0.7
    turn = torch.eye(4, dtype=torch.float64)
    turn[:2, :2] = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    turn[:3, 3] = torch.tensor([0.3, -0.2, 0.5])
    w, x, y, z = scene.quats.unbind(-1)
    c, s = math.cos(angle / 2), math.sin(angle / 2)
    turned = dataclasses.replace(
        scene,
        means=(scene.means.double() @ turn[:3, :3].T + turn[:3, 3]).float(),
        quats=torch.stack([c * w - s * z, c * x - s * y, c * y + s * x, c * z + s * w], -1),
    )
    moved = dataclasses.replace(camera, camera_from_world=camera.camera_from_world @ torch.linalg.inv(turn))
    assert (render(scene, camera).colors - render(turned, moved).colors).abs().mean() < 1e-4
