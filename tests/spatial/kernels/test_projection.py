"""Projection: hand values, gsplat's PyTorch code, finite differences, and every way of being culled."""

from __future__ import annotations

import math

import pytest
import torch

from spatial.kernels import reference
from spatial.kernels.projection import project_gaussians

NAMES = ("means", "quats", "scales", "opacities", "viewmats", "Ks")
DIFFERENTIABLE = (0, 1, 2, 4)


def one_gaussian(mean=(0.0, 0.0, 2.0), scale=(0.1, 0.1, 0.1), opacity=0.8, quat=(1.0, 0, 0, 0), dtype=torch.float64):
    K = [[[100.0, 0, 50], [0, 100, 40], [0, 0, 1]]]
    values = ([mean], [quat], [scale], [opacity], torch.eye(4)[None], K)
    return [torch.as_tensor(value, dtype=dtype) for value in values]


def with_gradients(function, scene, cotangents, **options):
    """Outputs (radii, means2d, depths, conics, compensations) and gradients by what is differentiable."""
    tensors = [t.detach().clone() for t in scene[:6]]
    for i in DIFFERENTIABLE:
        tensors[i].requires_grad_()
    outputs = function(*tensors, scene.width, scene.height, **options)
    loss = sum((v * out).sum() for v, out in zip(cotangents, outputs[1:], strict=True))
    return outputs, torch.autograd.grad(loss, [tensors[i] for i in DIFFERENTIABLE])


def random_cotangents(scene, visible):
    """Cotangents of all outputs but radii, 0 where culled; float32-exact."""
    g = torch.Generator().manual_seed(1)
    shape = (scene.viewmats.shape[0], scene.means.shape[0])
    made = [torch.randn(*shape, *rest, generator=g).to(scene.means.dtype) for rest in ((2,), (), (3,), ())]
    return [v * visible.reshape(*shape, *[1] * (v.dim() - 2)) for v in made]


def away_from_the_clamp(scene):
    """[C, N] where the Jacobian's clamp (a kink of its gradient) is at least 1e-3 away in x/z and y/z."""
    points = torch.einsum("cij,nj->cni", scene.viewmats[:, :3, :3], scene.means) + scene.viewmats[:, None, :3, 3]
    far = torch.ones(points.shape[:2], dtype=torch.bool)
    for axis, size in ((0, scene.width), (1, scene.height)):
        ratio = points[..., axis] / points[..., 2]
        focal, centre = scene.Ks[:, axis, axis, None], scene.Ks[:, axis, 2, None]
        margin = 0.15 * size / focal
        for limit in (-(centre / focal + margin), (size - centre) / focal + margin):
            far &= (ratio - limit).abs() > 1e-3
    return far


def same_radii(actual, expected, exact):
    """Radii are rounded up: they may differ by one where the number itself is next to a whole one."""
    differs = actual != expected
    assert ((actual - expected).abs() <= 1).all()
    assert ((exact - exact.round()).abs()[differs] < 1e-3).all()


def exact_radii(conics, opacities):
    determinant = conics[..., 0] * conics[..., 2] - conics[..., 1] ** 2
    variances = torch.stack([conics[..., 2], conics[..., 0]], -1) / determinant[..., None]
    return (2 * (255 * opacities).log()).sqrt().clamp_max(3.33)[..., None] * variances.sqrt()


def test_hand_values_on_the_axis(instruction_set, dtype):
    radii, means2d, depths, conics, compensations = project_gaussians(*one_gaussian(dtype=dtype), 100, 80)
    variance = (100 * 0.1 / 2) ** 2
    torch.testing.assert_close(means2d[0, 0], torch.tensor([50.0, 40.0], dtype=dtype))
    assert depths.item() == 2
    torch.testing.assert_close(conics[0, 0], torch.tensor([1.0, 0, 1.0], dtype=dtype) / (variance + 0.3))
    assert compensations.item() == pytest.approx(variance / (variance + 0.3), rel=1e-6)
    assert radii.tolist() == [[[math.ceil(math.sqrt(2 * math.log(255 * 0.8)) * math.sqrt(variance + 0.3))] * 2]]


def test_hand_values_off_the_axis(instruction_set, dtype):
    """At (0.4, 0.2, 2) a Gaussian that is long in depth smears along (x, y): its Jacobian there is fx·(1/z, −x/z²)."""
    inputs = one_gaussian(mean=(0.4, 0.2, 2.0), scale=(0.0, 0.0, 0.5), dtype=dtype)
    _, means2d, _, conics, _ = project_gaussians(*inputs, 100, 80)
    torch.testing.assert_close(means2d[0, 0], torch.tensor([70.0, 50.0], dtype=dtype))
    smear = torch.tensor([-100 * 0.4 / 4 * 0.5, -100 * 0.2 / 4 * 0.5], dtype=torch.float64)
    covariance = torch.outer(smear, smear) + 0.3 * torch.eye(2)
    expected = covariance.inverse()[[0, 0, 1], [0, 1, 1]].to(dtype)
    torch.testing.assert_close(conics[0, 0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("antialiased", [False, True])
@pytest.mark.parametrize("num_cameras", [1, 3])
def test_native_equals_reference(instruction_set, dtype, make_scene, assert_near, antialiased, num_cameras):
    scene = make_scene(123, num_cameras=num_cameras)
    options = dict(antialiased=antialiased)
    expected = reference.projection.project_gaussians(*scene, **options)
    visible = (expected[0] > 0).all(-1) & away_from_the_clamp(scene)
    cotangents = random_cotangents(scene, visible)
    _, expected_gradients = with_gradients(reference.projection.project_gaussians, scene, cotangents, **options)
    outputs, gradients = with_gradients(
        project_gaussians, scene.to(dtype), [v.to(dtype) for v in cotangents], **options
    )
    opacities = scene.opacities * expected[4] if antialiased else scene.opacities
    seen = (expected[0] > 0).all(-1)
    assert 0.3 < seen.float().mean() < 0.95
    assert torch.equal((outputs.radii > 0).all(-1), seen)
    same_radii(outputs.radii[seen], expected[0][seen], exact_radii(expected[3], opacities)[seen])
    for name, actual, wanted in zip(outputs._fields[1:], outputs[1:], expected[1:], strict=True):
        assert_near(actual, wanted, name)
        assert (actual[~seen] == 0).all()
    for i, actual, wanted in zip(DIFFERENTIABLE, gradients, expected_gradients, strict=True):
        assert_near(actual, wanted, f"gradient by {NAMES[i]}", factor=4)


@pytest.mark.parametrize("function", [project_gaussians, reference.projection.project_gaussians])
def test_equals_gsplat(gsplat, make_scene, assert_near, function):
    scene = make_scene(80)

    def gsplat_projection(means, quats, scales, opacities, viewmats, Ks, width, height):
        covariances, _ = gsplat._quat_scale_to_covar_preci(quats, scales, compute_preci=False)
        return gsplat._fully_fused_projection(means, covariances, viewmats, Ks, width, height, calc_compensations=True)

    ours = function(*scene)
    seen = (ours[0] > 0).all(-1)
    theirs = gsplat_projection(*scene)
    assert ((theirs[0] > 0).all(-1) | ~seen).all()  # its radii ignore the opacity, so that it keeps a little more
    for actual, wanted in zip(ours[1:], theirs[1:], strict=True):
        assert_near(actual[seen], wanted[seen])
    cotangents = random_cotangents(scene, seen)
    _, gradients = with_gradients(function, scene, cotangents)
    _, their_gradients = with_gradients(gsplat_projection, scene, cotangents)
    for i, actual, wanted in zip(DIFFERENTIABLE, gradients, their_gradients, strict=True):
        assert_near(actual, wanted, f"gradient by {NAMES[i]}")


def test_gradients_by_finite_differences(instruction_set, make_scene):
    scene = make_scene(30, seed=3)
    visible = (project_gaussians(*scene).radii > 0).all(-1) & away_from_the_clamp(scene)
    assert visible.sum() > 20

    def outputs(means, quats, scales, viewmats):
        result = project_gaussians(means, quats, scales, scene.opacities, viewmats, scene.Ks, scene.width, scene.height)
        return tuple(t[visible] for t in result[1:])

    inputs = [scene[i].clone().requires_grad_() for i in DIFFERENTIABLE]
    assert torch.autograd.gradcheck(outputs, inputs, eps=1e-7, atol=1e-4, rtol=1e-4, fast_mode=True)


def test_gradients_where_the_jacobian_is_clamped(instruction_set, make_scene):
    """Beyond 1.3 half fields of view the Jacobian stands still sideways; wide Gaussians are visible from there."""
    scene = make_scene(40, seed=4)
    means = scene.means.clone()
    means[:, 0] = 1.6 * means[:, 2]
    scales = scene.scales + 0.5
    inputs = [means, scene.quats, scales, scene.viewmats]

    def outputs(means, quats, scales, viewmats):
        result = project_gaussians(means, quats, scales, scene.opacities, viewmats, scene.Ks, scene.width, scene.height)
        return tuple(t[visible] for t in result[1:])

    radii = project_gaussians(means, scene.quats, scales, scene.opacities, scene.viewmats, scene.Ks, 53, 37).radii
    visible = (radii > 0).all(-1) & away_from_the_clamp(scene._replace(means=means))
    assert visible.sum() > 20
    inputs = [t.clone().requires_grad_() for t in inputs]
    assert torch.autograd.gradcheck(outputs, inputs, eps=1e-7, atol=1e-4, rtol=1e-4, fast_mode=True)


CULLED = {
    "behind the camera": dict(mean=(0, 0, -2.0)),
    "on the near plane": dict(mean=(0, 0, 0.01)),
    "beyond the far plane": dict(mean=(0, 0, 2e10)),
    "left of the image": dict(mean=(-3.0, 0, 2)),
    "below the image": dict(mean=(0, 3.0, 2)),
    "too faint": dict(opacity=0.0039),
    "of no opacity": dict(opacity=0.0),
    "NaN mean": dict(mean=(math.nan, 0, 2)),
    "NaN depth": dict(mean=(0, 0, math.nan)),
    "infinite mean": dict(mean=(math.inf, 0, 2)),
    "NaN quaternion": dict(quat=(math.nan, 0, 0, 1)),
    "NaN scale": dict(scale=(0.1, math.nan, 0.1)),
    "infinite scale": dict(scale=(0.1, math.inf, 0.1)),
    "NaN opacity": dict(opacity=math.nan),
}


@pytest.mark.parametrize("why", CULLED)
def test_is_culled(instruction_set, dtype, why):
    """All outputs 0, and no gradient that is not a number reaches the parameters."""
    inputs = one_gaussian(**CULLED[why], dtype=dtype)
    for i in DIFFERENTIABLE:
        inputs[i].requires_grad_()
    outputs = project_gaussians(*inputs, 100, 80)
    assert all((t == 0).all() for t in outputs)
    sum(t.sum() for t in outputs[1:]).backward()
    assert all((inputs[i].grad == 0).all() for i in DIFFERENTIABLE)


@pytest.mark.parametrize("why", [key for key in CULLED if "infinite" not in key])
def test_reference_culls_the_same(why):
    assert all((t == 0).all() for t in reference.projection.project_gaussians(*one_gaussian(**CULLED[why]), 100, 80))


KEPT = {
    "just beyond the near plane": dict(mean=(0, 0, 0.0101), scale=(1e-4, 1e-4, 1e-4)),
    "centre on the left border": dict(mean=(-1.0, 0, 2)),
    "centre just outside": dict(mean=(-1.05, 0, 2)),
    "barely visible": dict(opacity=0.00393),
    "opaque": dict(opacity=1.0),
    "a point": dict(scale=(0, 0, 0)),
    "a line": dict(scale=(0.3, 0, 0)),
    "zero quaternion": dict(quat=(0, 0, 0, 0)),
    "large": dict(scale=(1e3, 1e3, 1e3)),
}


@pytest.mark.parametrize("what", KEPT)
def test_is_kept_with_finite_gradients(instruction_set, dtype, assert_near, what):
    inputs = one_gaussian(**KEPT[what], dtype=dtype)
    for i in DIFFERENTIABLE:
        inputs[i].requires_grad_()
    outputs = project_gaussians(*inputs, 100, 80)
    assert (outputs.radii > 0).all()
    expected = reference.projection.project_gaussians(*(t.detach().double() for t in inputs), 100, 80)
    for name, actual, wanted in zip(outputs._fields[1:], outputs[1:], expected[1:], strict=True):
        assert_near(actual.detach(), wanted, name, factor=20)
    sum(t.sum() for t in outputs[1:]).backward()
    assert all(inputs[i].grad.isfinite().all() for i in DIFFERENTIABLE)


@pytest.mark.parametrize("scale", [1e6, 1e9, 1e12, 1e18, 1e30])
def test_huge_scales_stay_finite(instruction_set, dtype, scale):
    """Whether kept or culled where numbers overflow: nothing that is not a number comes out, forwards or backwards."""
    inputs = one_gaussian(mean=(0.2, 0.1, 2.0), scale=(scale, scale, scale / 3), quat=(1.0, 0.2, 0.3, 0.4), dtype=dtype)
    for i in DIFFERENTIABLE:
        inputs[i].requires_grad_()
    outputs = project_gaussians(*inputs, 100, 80)
    assert all(t.isfinite().all() for t in outputs)
    sum(t.sum() for t in outputs[1:]).backward()
    assert all(inputs[i].grad.isfinite().all() for i in DIFFERENTIABLE)


def test_zero_quaternion_is_no_rotation(instruction_set, dtype):
    shape = dict(scale=(0.1, 0.2, 0.3), mean=(0.3, 0.2, 2.0), dtype=dtype)
    zero, identity = (project_gaussians(*one_gaussian(quat=q, **shape), 100, 80) for q in ((0, 0, 0, 0), (1, 0, 0, 0)))
    # Without a norm the quaternion (0, 0, 0, 0) gives the matrix 1 − 2·0 on its diagonal: no rotation.
    assert all(torch.equal(a, b) for a, b in zip(zero, identity, strict=True))


def test_quaternions_of_any_length(instruction_set, dtype, make_scene, assert_near):
    scene = make_scene(50).to(dtype)
    expected = project_gaussians(*scene)
    actual = project_gaussians(*scene._replace(quats=scene.quats * 7))
    for a, b in zip(actual[1:], expected[1:], strict=True):
        assert_near(a, b)


def test_radius_clip_and_planes(instruction_set, make_scene):
    scene = make_scene(200, num_cameras=1)
    plain = project_gaussians(*scene)
    clipped = project_gaussians(*scene, radius_clip=6.0)
    assert torch.equal((clipped.radii > 0).all(-1), (plain.radii > 6).any(-1))
    sliced = project_gaussians(*scene, near_plane=2.0, far_plane=4.0)
    seen = (plain.depths > 2) & (plain.depths < 4)
    assert torch.equal((sliced.radii > 0).all(-1), seen) and seen.any()


def test_antialiasing_culls_by_the_compensated_opacity(instruction_set, dtype):
    inputs = one_gaussian(scale=(0.001, 0.001, 0.001), opacity=0.1, dtype=dtype)
    assert (project_gaussians(*inputs, 100, 80).radii > 0).all()
    assert (project_gaussians(*inputs, 100, 80, antialiased=True).radii == 0).all()


def test_inputs_need_not_be_contiguous(instruction_set, make_scene):
    scene = make_scene(70)
    strided = [torch.stack([t, t + 1], dim=-1)[..., 0] for t in scene[:6]]
    assert not any(t.is_contiguous() for t in strided)
    outputs = project_gaussians(*strided, scene.width, scene.height)
    assert all(torch.equal(a, b) for a, b in zip(outputs, project_gaussians(*scene), strict=True))


def test_no_gaussians(instruction_set, dtype, make_scene):
    scene = make_scene(0).to(dtype)
    viewmats = scene.viewmats.requires_grad_()
    outputs = project_gaussians(*scene)
    assert [list(t.shape) for t in outputs] == [[2, 0, 2], [2, 0, 2], [2, 0], [2, 0, 3], [2, 0]]
    outputs.means2d.sum().backward()
    assert (viewmats.grad == 0).all()


@pytest.mark.parametrize("num", [1, 7, 8, 9, 1025])
def test_every_row_is_written(instruction_set, dtype, make_scene, num):
    """Sizes around a register's and a task's: the rows of a small scene do not depend on how many follow."""
    scene = make_scene(1100).to(dtype)
    whole = project_gaussians(*scene)
    part = project_gaussians(*(t[:num] for t in scene[:4]), *scene[4:])
    assert all(torch.equal(a, b[:, :num]) for a, b in zip(part, whole, strict=True))


def test_same_bits_for_any_number_of_threads(instruction_set, dtype, make_scene, each_thread_count):
    scene = make_scene(5000).to(dtype)
    cotangents = random_cotangents(scene, torch.ones(2, 5000, dtype=dtype))

    def run():
        outputs, gradients = with_gradients(project_gaussians, scene, cotangents)
        return [*outputs, *gradients]

    each_thread_count(run)


def test_operator_registration(compiled, make_scene):
    scene = make_scene(20)
    operator, numbers = torch.ops.spatial.project_gaussians.default, (53, 37, 0.3, 0.01, 1e10, 0.0, False)
    torch.library.opcheck(operator, (*scene[:6], *numbers))
    inputs = [t.clone().requires_grad_(i in DIFFERENTIABLE) for i, t in enumerate(scene[:6])]
    # With gradients opcheck itself adds all outputs in the type of the first, here whole numbers, and fails; the next
    # test compiles with gradients instead.
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(operator, (*inputs, *numbers), test_utils=checks)
    outputs = project_gaussians(*scene)
    cotangents = [torch.randn_like(t) for t in outputs[1:]]
    torch.library.opcheck(
        torch.ops.spatial.project_gaussians_vjp.default,
        (*scene[:3], *scene[4:6], 53, 37, 0.3, outputs.radii, *cotangents),
    )


def test_compiled_gradients(compiled, make_scene):
    scene = make_scene(20)
    cotangents = random_cotangents(scene, torch.ones(2, 20))

    def project(*inputs):
        return torch.ops.spatial.project_gaussians(*inputs, 0.3, 0.01, 1e10, 0.0, False)

    compiled = torch.compile(project, backend="aot_eager", fullgraph=True)
    _, expected = with_gradients(project, scene, cotangents)
    _, actual = with_gradients(compiled, scene, cotangents)
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


def test_wrong_inputs_are_named(without_shape_checks, make_scene):
    scene = make_scene(5)
    with pytest.raises(ValueError, match=r"quats must be \[5, 4\], got \[5, 3\]"):
        project_gaussians(scene.means, scene.means, *scene[2:])
    with pytest.raises(TypeError, match=r"scales is torch.float32"):
        project_gaussians(*scene[:2], scene.scales.float(), *scene[3:])
    with pytest.raises(TypeError, match=r"float32 or float64, got torch\.float16"):
        project_gaussians(*(t.half() for t in scene[:6]), 53, 37)
