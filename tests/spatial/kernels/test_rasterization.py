"""Rasterisation against a compositor that knows neither tiles nor lists, finite differences, and brute force.

Blending is discontinuous where an alpha crosses 1/255 and where a ray's transmittance crosses 1e-4. A pixel within
``BAND`` of such a crossing may go either way; every other pixel must agree to the table's tolerance.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from spatial.kernels import native, reference
from spatial.kernels.intersection import intersect_tiles
from spatial.kernels.rasterization import rasterize_gaussians

MIN_ALPHA, MIN_TRANSMITTANCE = 1 / 255, 1e-4
BAND = {torch.float32: 2e-3, torch.float64: 1e-9}  # relative distance to a crossing
NAMES = ("means2d", "conics", "colors", "opacities", "backgrounds")


class Dense(NamedTuple):
    colors: Tensor  # [C, H, W, D]
    alphas: Tensor  # [C, H, W, 1]
    margins: Tensor  # [C, H, W] relative distance of the pixel's nearest crossing


def composite_densely(flat, backgrounds, max_alpha=0.999) -> Dense:
    """Every Gaussian at every pixel, one after the other in the order of depth."""
    H, W = flat.height, flat.width
    y, x = torch.meshgrid(torch.arange(H).double() + 0.5, torch.arange(W).double() + 0.5, indexing="ij")
    images, opacities, margins = [], [], []
    for c in range(flat.depths.shape[0]):
        T, running = torch.ones(H, W, dtype=torch.float64), torch.ones(H, W, dtype=torch.bool)
        image, margin = torch.zeros(H, W, flat.colors.shape[-1], dtype=torch.float64), torch.ones(H, W)
        for n in flat.depths[c].argsort(stable=True).tolist():
            dx, dy = flat.means2d[c, n, 0] - x, flat.means2d[c, n, 1] - y
            A, B, C = flat.conics[c, n]
            raw = flat.opacities[c, n] * torch.exp(-0.5 * (A * dx**2 + C * dy**2) - B * dx * dy)
            alpha = raw.clamp(max=max_alpha)
            visible = (raw >= MIN_ALPHA) & running
            after = T * (1 - alpha)
            with torch.no_grad():
                margin = torch.where(running, margin.minimum((raw / MIN_ALPHA - 1).abs()), margin)
                margin = torch.where(visible, margin.minimum((after / MIN_TRANSMITTANCE - 1).abs()), margin)
                margin = torch.where(visible, margin.minimum((raw / max_alpha - 1).abs()), margin)
            running = running & ~(visible & (after <= MIN_TRANSMITTANCE))
            weight = torch.where(visible & running, alpha * T, 0)
            image = image + weight[..., None] * flat.colors[c, n]
            T = torch.where(visible & running, after, T)
        if backgrounds is not None:
            image = image + T[..., None] * backgrounds[c]
        images.append(image)
        opacities.append(1 - T[..., None])
        margins.append(margin)
    return Dense(torch.stack(images), torch.stack(opacities), torch.stack(margins))


def rasterize(flat, backgrounds=None, tiles=None, **options):
    tiles = intersect_tiles(*flat.for_tiles()) if tiles is None else tiles
    inputs = (flat.means2d, flat.conics, flat.colors, flat.opacities, flat.width, flat.height, tiles)
    return rasterize_gaussians(*inputs, backgrounds=backgrounds, **options)


def by_reference(flat, backgrounds=None, **options):
    tiles = reference.intersection.intersect_tiles(*flat.for_tiles())
    inputs = (flat.means2d, flat.conics, flat.colors, flat.opacities, flat.width, flat.height, tiles)
    return reference.rasterization.rasterize_gaussians(*inputs, backgrounds=backgrounds, **options)


def with_gradients(function, flat, backgrounds, v_colors, v_alphas, **options):
    leaves = [t.detach().clone().requires_grad_() for t in (*flat[:4], backgrounds)]
    outputs = function(flat._replace(**dict(zip(NAMES[:4], leaves[:4], strict=True))), leaves[4], **options)
    loss = (outputs[0] * v_colors).sum() + (outputs[1] * v_alphas).sum()
    return outputs, torch.autograd.grad(loss, leaves)


def cotangents(flat, certain):
    """Random gradients of colours and alphas, 0 where a pixel may go either way; float32-exact."""
    g = torch.Generator().manual_seed(5)
    shape = (*flat.depths.shape[:1], flat.height, flat.width)
    colors = torch.randn(*shape, flat.colors.shape[-1], generator=g).double()
    return colors * certain[..., None], torch.randn(*shape, 1, generator=g).double() * certain[..., None]


def backgrounds_for(flat):
    return torch.linspace(0.125, 0.875, flat.depths.shape[0] * flat.colors.shape[-1]).double().reshape(
        flat.depths.shape[0], -1
    )  # fmt: skip


class Case(NamedTuple):
    flat: object
    backgrounds: Tensor
    dense: Dense
    v_colors: Tensor
    v_alphas: Tensor
    gradients: tuple[Tensor, ...]


@functools.cache  # each instruction set and dtype is compared with the same one
def dense_case(make_flat, max_alpha=0.999, **parameters) -> Case:
    """A scene, what the dense compositor makes of it in float64, and gradients of every pixel that is no crossing."""
    flat = make_flat(**parameters)
    backgrounds = backgrounds_for(flat).float().double()
    dense = composite_densely(flat, backgrounds, max_alpha)
    v_colors, v_alphas = cotangents(flat, dense.margins > BAND[torch.float32])
    _, gradients = with_gradients(composite_densely, flat, backgrounds, v_colors, v_alphas, max_alpha=max_alpha)
    return Case(flat, backgrounds, dense, v_colors, v_alphas, gradients)


def check(function, case, dtype, assert_near, max_alpha=0.999):
    """Values and gradients of ``function`` in ``dtype`` against the dense compositor in float64."""
    outputs, gradients = with_gradients(
        function, case.flat.to(dtype), case.backgrounds.to(dtype), case.v_colors.to(dtype), case.v_alphas.to(dtype),
        max_alpha=max_alpha,
    )  # fmt: skip
    certain = case.dense.margins > BAND[dtype]
    assert certain.double().mean() > 0.8
    assert_near(outputs[0][certain].detach(), case.dense.colors[certain], "colors")
    assert_near(outputs[1][certain].detach(), case.dense.alphas[certain], "alphas")
    # At a crossing one contribution of 1/255 comes or goes, or what lies behind a transmittance of 1e-4.
    assert (outputs[1].detach().double() - case.dense.alphas).abs().max() < 1.2 * MIN_ALPHA
    for name, actual, wanted in zip(NAMES, gradients, case.gradients, strict=True):
        assert_near(actual, wanted, f"gradient by {name}", factor=4)


@pytest.mark.parametrize("channels", [1, 3, 4, 7])
def test_equals_dense_compositing(instruction_set, dtype, make_flat, assert_near, channels):
    check(rasterize, dense_case(make_flat, num=40, channels=channels, seed=channels), dtype, assert_near)


SCENES = {
    "40 channels": dict(num=20, channels=40, width=20, height=18),
    "3 cameras": dict(num=30, cameras=3, width=33, height=16),
    "1 pixel": dict(num=40, width=1, height=1, sizes=(1.0, 20.0)),
    "1 tile": dict(num=40, width=16, height=16, sizes=(1.0, 20.0)),
    "1 column more": dict(num=40, width=17, height=15, sizes=(1.0, 20.0)),
    "narrow": dict(num=40, width=5, height=40, sizes=(1.0, 20.0)),
    "1 Gaussian": dict(num=1, width=70, height=60, sizes=(5.0, 20.0)),
}


@pytest.mark.parametrize("scene", SCENES)
def test_equals_dense_compositing_of(instruction_set, dtype, make_flat, assert_near, scene):
    check(rasterize, dense_case(make_flat, **SCENES[scene]), dtype, assert_near)


OPAQUE = dict(num=60, sizes=(3.0, 12.0), opacities=(0.9, 1.0), width=37, height=29)


@pytest.mark.parametrize("max_alpha", [0.99, 0.999])
def test_equals_dense_compositing_of_opaque_gaussians(instruction_set, dtype, make_flat, assert_near, max_alpha):
    """Alphas are clamped, and most rays end before the last Gaussian."""
    case = dense_case(make_flat, max_alpha, **OPAQUE)
    assert (case.dense.alphas > 0.999).double().mean() > 0.5
    check(rasterize, case, dtype, assert_near, max_alpha)


@pytest.mark.parametrize(
    "parameters", [SCENES["3 cameras"], SCENES["narrow"], OPAQUE], ids=["plain", "narrow", "opaque"]
)
def test_reference_equals_dense_compositing(make_flat, assert_near, parameters):
    check(by_reference, dense_case(make_flat, **parameters), torch.float64, assert_near)


def test_native_equals_reference(instruction_set, dtype, make_flat, assert_near):
    """More Gaussians than the dense compositor has time for; lists are longer than what is prepared ahead."""
    flat = make_flat(1200, width=48, height=32, sizes=(0.6, 5.0), opacities=(0.01, 0.6))
    backgrounds = backgrounds_for(flat).to(dtype).double()
    colors, alphas = by_reference(flat, backgrounds)
    outputs = rasterize(flat.to(dtype), backgrounds.to(dtype))
    error = (outputs.alphas.double() - alphas).abs()[..., 0]
    agree = error < 1e-5 if dtype == torch.float32 else error < 1e-9
    assert agree.double().mean() > 0.97 and error.max() < MIN_ALPHA  # each other pixel is a crossing
    assert_near(outputs.colors[agree], colors[agree], factor=2)
    if dtype == torch.float64:
        v_colors, v_alphas = cotangents(flat, agree)
        _, expected = with_gradients(by_reference, flat, backgrounds, v_colors, v_alphas)
        _, gradients = with_gradients(rasterize, flat, backgrounds, v_colors, v_alphas)
        for name, actual, wanted in zip(NAMES, gradients, expected, strict=True):
            assert_near(actual, wanted, f"gradient by {name}", factor=10)


def by_hand(make_flat, opacities, colors, dtype, depths=None):
    """Wide Gaussians (nearly constant over the image) around pixel (8, 8) of a 16 × 16 image."""
    num = len(opacities)
    flat = make_flat(num, width=16, height=16).to(dtype)
    return flat._replace(
        means2d=torch.full((1, num, 2), 8.5, dtype=dtype),
        conics=torch.tensor([0.01, 0, 0.01], dtype=dtype).repeat(1, num, 1),
        colors=torch.tensor([colors], dtype=dtype), opacities=torch.tensor([opacities], dtype=dtype),
        depths=torch.tensor([depths or list(range(1, num + 1))], dtype=dtype),
        radii=torch.full((1, num, 2), 33, dtype=torch.int32),
    )  # fmt: skip


def test_hand_values(instruction_set, dtype, make_flat):
    flat = by_hand(make_flat, [0.5, 0.25], [[1.0, 0, 0], [0, 1.0, 0]], dtype)
    colors, alphas = rasterize(flat, torch.tensor([[0.0, 0, 1]], dtype=dtype))
    # At the centre 0.5 of the nearer, 0.25 of the other half behind it, and what is left shows the background.
    torch.testing.assert_close(colors[0, 8, 8], torch.tensor([0.5, 0.125, 0.375], dtype=dtype), rtol=1e-5, atol=1e-6)
    assert alphas[0, 8, 8].item() == pytest.approx(0.625, rel=1e-5)
    # One pixel to the right both are fainter by exp(-0.5 · 0.01).
    near = 0.5 * 0.9950124791926823
    far = 0.25 * 0.9950124791926823 * (1 - near)
    expected = torch.tensor([near, far, 1 - near - far], dtype=dtype)
    torch.testing.assert_close(colors[0, 8, 9], expected, rtol=1e-5, atol=1e-6)


def test_a_ray_ends_before_the_gaussian_that_would_exhaust_it(instruction_set, dtype, make_flat):
    """Behind an alpha of 0.999 (transmittance 1e-3), one of 0.95 would leave 5e-5: it, and all behind, are left out."""
    flat = by_hand(make_flat, [1.0, 0.95, 0.5], [[1.0], [1.0], [1.0]], dtype)
    colors, alphas = rasterize(flat)
    assert colors[0, 8, 8].item() == alphas[0, 8, 8].item() == pytest.approx(0.999, rel=1e-6)
    colors, _ = rasterize(flat, max_alpha=0.9)
    assert colors[0, 8, 8].item() == pytest.approx(1 - 0.1 * 0.1 * 0.5, rel=1e-5)


def test_the_nearer_is_in_front_and_equal_depths_keep_their_order(instruction_set, dtype, make_flat):
    colors = [[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0]]
    for depths, order in (([3.0, 1.0, 2.0], [1, 2, 0]), ([2.0, 2.0, 2.0], [0, 1, 2]), ([2.0, 1.0, 2.0], [1, 0, 2])):
        flat = by_hand(make_flat, [0.5, 0.5, 0.5], colors, dtype, depths)
        pixel = rasterize(flat).colors[0, 8, 8]
        torch.testing.assert_close(pixel[order], torch.tensor([0.5, 0.25, 0.125], dtype=dtype), rtol=1e-5, atol=1e-6)


def test_no_gradient_passes_the_clamp(instruction_set, dtype, make_flat):
    flat = by_hand(make_flat, [1.0], [[1.0]], dtype)._replace(
        conics=torch.full((1, 1, 3), 1e-9, dtype=dtype) * torch.tensor([1, 0, 1])
    )
    leaves = [t.clone().requires_grad_() for t in flat[:4]]
    rasterize(flat._replace(**dict(zip(NAMES[:4], leaves, strict=True)))).colors.sum().backward()
    assert all((leaf.grad == 0).all() for leaf in (leaves[0], leaves[1], leaves[3]))
    assert leaves[2].grad.item() == pytest.approx(256 * 0.999, rel=1e-5)


@pytest.mark.parametrize("channels", [1, 3, 7])
def test_gradients_by_finite_differences(instruction_set, make_flat, channels):
    flat = make_flat(5, width=18, height=17, sizes=(1.0, 6.0), opacities=(0.3, 0.999), channels=channels)
    backgrounds, tiles = backgrounds_for(flat), intersect_tiles(*flat.for_tiles())
    certain = (composite_densely(flat, backgrounds).margins > 1e-3)[..., None]
    assert certain.double().mean() > 0.9

    def render(*inputs):
        moved = flat._replace(**dict(zip(NAMES[:4], inputs[:4], strict=True)))
        colors, alphas = rasterize(moved, inputs[4], tiles)
        return colors * certain, alphas * certain

    inputs = [t.clone().requires_grad_() for t in (*flat[:4], backgrounds)]
    assert torch.autograd.gradcheck(render, inputs, eps=1e-6, atol=1e-5, rtol=1e-4, fast_mode=channels != 3)


def test_absgrad_equals_brute_force(instruction_set, dtype, make_flat, assert_near):
    """Σ over pixels of |gradient of that pixel alone by means2d|."""
    flat = make_flat(6, width=18, height=17, sizes=(1.0, 5.0))
    dense = composite_densely(flat, None)
    certain = dense.margins > BAND[dtype]
    v_colors, v_alphas = cotangents(flat, certain)
    means2d = flat.means2d.clone().requires_grad_()
    colors, alphas, _ = composite_densely(flat._replace(means2d=means2d), None)
    per_pixel = ((colors * v_colors).sum(-1) + (alphas * v_alphas).sum(-1)).reshape(-1)
    expected = sum(torch.autograd.grad(p, means2d, retain_graph=True)[0].abs() for p in per_pixel)
    moved = flat.to(dtype)._replace(means2d=flat.means2d.to(dtype).requires_grad_())
    outputs = rasterize(moved, absgrad=True)
    ((outputs.colors * v_colors.to(dtype)).sum() + (outputs.alphas * v_alphas.to(dtype)).sum()).backward()
    assert_near(moved.means2d.absgrad, expected, factor=4)
    assert (moved.means2d.absgrad >= moved.means2d.grad.abs() - 1e-5).all()


def test_absgrad_of_the_reference(compiled, monkeypatch, make_flat, assert_near):
    """Without compiled kernels density control works too: the reference leaves the same sums behind."""
    sums = []
    for module in (native.compiled(), None):
        monkeypatch.setattr(native, "compiled", lambda module=module: module)
        flat = make_flat(20, cameras=2, width=40, height=24)
        moved = flat._replace(means2d=flat.means2d.clone().requires_grad_())
        outputs = rasterize(moved, absgrad=True)
        (outputs.colors.square().sum() + outputs.alphas.sum()).backward()
        sums.append(moved.means2d.absgrad)
    assert sums[0].abs().max() > 0
    assert_near(sums[0], sums[1])


def test_absgrad_with_many_channels_is_refused(instruction_set, make_flat):
    """Channels beyond one pass are rendered in chunks, whose absolute values would not add up to the whole's."""
    with pytest.raises(ValueError, match="absgrad needs at most 32 channels, got 40"):
        rasterize(make_flat(5, width=16, height=16, channels=40), absgrad=True)


def test_nothing_there_shows_the_background(instruction_set, dtype, make_flat):
    flat = make_flat(0, cameras=2).to(dtype)
    backgrounds = backgrounds_for(flat).to(dtype).requires_grad_()
    colors, alphas = rasterize(flat, backgrounds)
    assert torch.equal(colors, backgrounds[:, None, None].expand_as(colors)) and (alphas == 0).all()
    colors.sum().backward()
    assert (backgrounds.grad == flat.width * flat.height).all()
    assert (rasterize(flat).colors == 0).all()


def test_culled_gaussians_draw_nothing_and_get_no_gradient(instruction_set, dtype, make_flat):
    """Rows as ``project_gaussians`` leaves them where it culls: zeros, and opacities of any kind."""
    flat = make_flat(12).to(dtype)
    culled = torch.zeros(1, 12, dtype=torch.bool)
    culled[0, ::3] = True
    opacities = flat.opacities.clone()
    opacities[0, 0], opacities[0, 3], opacities[0, 6] = 0.0, float("nan"), 1.0
    zeroed = flat._replace(
        means2d=flat.means2d * ~culled[..., None], conics=flat.conics * ~culled[..., None],
        radii=flat.radii * ~culled[..., None], depths=flat.depths * ~culled, opacities=opacities,
    )  # fmt: skip
    kept = flat._make(t[:, ~culled[0]] if isinstance(t, Tensor) else t for t in flat)
    backgrounds = backgrounds_for(flat).to(dtype)
    v = [t.to(dtype) for t in cotangents(flat, torch.ones(1, flat.height, flat.width))]
    outputs, gradients = with_gradients(rasterize, zeroed, backgrounds, *v)
    expected, expected_gradients = with_gradients(rasterize, kept, backgrounds, *v)
    assert torch.equal(outputs.colors, expected.colors) and torch.equal(outputs.alphas, expected.alphas)
    for actual, wanted in zip(gradients[:4], expected_gradients[:4], strict=True):
        assert (actual[culled] == 0).all() and torch.equal(actual[:, ~culled[0]], wanted)


def test_inputs_need_not_be_contiguous(instruction_set, make_flat):
    flat = make_flat(30)
    backgrounds = backgrounds_for(flat)
    strided = flat._make(torch.stack([t, t], dim=-1)[..., 0] if isinstance(t, Tensor) else t for t in flat)
    v = cotangents(flat, torch.ones(1, flat.height, flat.width))
    strided_v = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in v]
    outputs, gradients = with_gradients(rasterize, flat, backgrounds, *v)
    others, other_gradients = with_gradients(rasterize, strided, backgrounds.T.contiguous().T, *strided_v)
    assert all(torch.equal(a, b) for a, b in zip([*outputs, *gradients], [*others, *other_gradients], strict=True))


def test_same_bits_for_any_number_of_threads(instruction_set, dtype, make_flat, each_thread_count):
    flat = make_flat(2000, width=70, height=50, cameras=2).to(dtype)
    backgrounds = backgrounds_for(flat).to(dtype)
    v = [t.to(dtype) for t in cotangents(flat, torch.ones(2, flat.height, flat.width))]

    def run():
        outputs, gradients = with_gradients(rasterize, flat, backgrounds, *v)
        return [*outputs, *gradients]

    each_thread_count(run)


def test_operator_registration(compiled, make_flat):
    flat = make_flat(6, width=20, height=17)
    tiles = intersect_tiles(*flat.for_tiles())
    none = flat.means2d.new_zeros(0)
    inputs = [t.clone().requires_grad_() for t in (*flat[:4], backgrounds_for(flat))]
    torch.library.opcheck(torch.ops.spatial.rasterize_gaussians.default, (*inputs, 20, 17, *tiles, 0.999, none))
    colors, alphas = torch.ops.spatial.rasterize_gaussians(*flat[:4], None, 20, 17, *tiles, 0.999, none)
    arguments = (*flat[:4], 20, 17, *tiles, 0.999)
    for absgrad in (none, torch.zeros_like(flat.means2d)):
        torch.library.opcheck(
            torch.ops.spatial.rasterize_gaussians_vjp.default,
            (*arguments, absgrad, colors, alphas, torch.randn_like(colors), torch.randn_like(alphas)),
        )


def test_wrong_inputs_are_named(without_shape_checks, make_flat):
    flat = make_flat(5)
    with pytest.raises(ValueError, match=r"conics must be \[1, 5, 3\], got \[1, 4, 3\]"):
        tiles = intersect_tiles(*flat.for_tiles())
        rasterize(flat._replace(conics=flat.conics[:, :4]), tiles=tiles)
