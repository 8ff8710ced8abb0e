"""Spherical harmonics: hand values, gsplat's PyTorch code, orthonormality, finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from spatial.kernels import reference
from spatial.kernels.spherical_harmonics import spherical_harmonics

DEGREES = [0, 1, 2, 3, 4]


@pytest.fixture
def inputs():
    g = torch.Generator().manual_seed(2)
    return torch.randn(50, 3, generator=g).double(), torch.randn(50, 25, 3, generator=g).double()


def with_gradients(function, degree, dirs, coeffs, *masks):
    dirs, coeffs = dirs.clone().requires_grad_(), coeffs.clone().requires_grad_()
    colors = function(degree, dirs, coeffs, *masks)
    weights = torch.linspace(-1, 1, colors.numel()).reshape(colors.shape).to(colors.dtype)
    return colors.detach(), *torch.autograd.grad((colors * weights).sum(), [dirs, coeffs], allow_unused=True)


@pytest.mark.parametrize("function", [spherical_harmonics, reference.spherical_harmonics.spherical_harmonics])
def test_hand_values(instruction_set, dtype, function):
    """Degree 1 is (−y, z, −x) · 0.4886 (Condon-Shortley), and the length of the direction does not count."""
    dirs, coeffs = torch.tensor([[2.0, 4.0, 4.0]], dtype=dtype), torch.zeros(1, 4, 3, dtype=dtype)
    coeffs[0, 0], coeffs[0, 1:] = 1.0, torch.eye(3)
    bands = torch.tensor([-2 / 3, 2 / 3, -1 / 3], dtype=dtype) * math.sqrt(3 / (4 * math.pi))
    torch.testing.assert_close(function(1, dirs, coeffs)[0], bands + 1 / math.sqrt(4 * math.pi))
    torch.testing.assert_close(function(0, dirs, coeffs)[0], torch.full((3,), 1 / math.sqrt(4 * math.pi), dtype=dtype))


@pytest.mark.parametrize("degree", DEGREES)
def test_native_equals_reference(instruction_set, dtype, assert_near, inputs, degree):
    actual = with_gradients(spherical_harmonics, degree, *(t.to(dtype) for t in inputs))
    expected = with_gradients(reference.spherical_harmonics.spherical_harmonics, degree, *inputs)
    for name, a, b in zip(("colors", "gradient by dirs", "gradient by coeffs"), actual, expected, strict=True):
        assert_near(a, torch.zeros_like(a).double() if b is None else b, name)


@pytest.mark.parametrize("degree", DEGREES)
def test_equals_gsplat(instruction_set, gsplat, assert_near, inputs, degree):
    actual = with_gradients(spherical_harmonics, degree, *inputs)
    expected = with_gradients(gsplat._spherical_harmonics, degree, *inputs)
    for a, b in zip(actual, expected, strict=True):
        assert_near(a, torch.zeros_like(a) if b is None else b)


def test_bases_are_orthonormal(instruction_set):
    """∫ over the sphere of basisᵢ·basisⱼ is 1 for i = j, else 0 (Gauss-Legendre in z, even steps around: exact)."""
    z, weights = (torch.from_numpy(t) for t in np.polynomial.legendre.leggauss(10))
    angles = torch.arange(20, dtype=torch.float64) * (2 * math.pi / 20)
    ring = torch.stack([angles.cos(), angles.sin()], -1)
    dirs = torch.cat([(1 - z**2).sqrt()[:, None, None] * ring, z[:, None, None].expand(10, 20, 1)], -1).reshape(-1, 3)
    one_hot = torch.eye(25, dtype=torch.float64)[:, :, None].expand(25, 25, 3)
    coeffs = one_hot[:, None].expand(25, 200, 25, 3)
    bases = spherical_harmonics(4, dirs.expand(25, 200, 3), coeffs)[..., 0]  # [25, 200]
    gram = bases * weights.repeat_interleave(20) * (2 * math.pi / 20) @ bases.T
    torch.testing.assert_close(gram, torch.eye(25, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("degree", DEGREES)
def test_gradients_by_finite_differences(instruction_set, inputs, degree):
    dirs, coeffs = (t[:6].clone().requires_grad_() for t in inputs)
    assert torch.autograd.gradcheck(lambda d, c: spherical_harmonics(degree, d, c), (dirs, coeffs))


def test_masked_rows_are_black_and_get_no_gradient(instruction_set, dtype, inputs):
    masks = torch.arange(50) % 3 > 0
    colors, v_dirs, v_coeffs = with_gradients(spherical_harmonics, 3, *(t.to(dtype) for t in inputs), masks)
    plain = with_gradients(spherical_harmonics, 3, *(t.to(dtype) for t in inputs))
    for actual, unmasked in zip((colors, v_dirs, v_coeffs), plain, strict=True):
        assert (actual[~masks] == 0).all() and torch.equal(actual[masks], unmasked[masks])


def test_bases_beyond_the_degree_get_no_gradient(instruction_set, dtype, inputs):
    _, _, v_coeffs = with_gradients(spherical_harmonics, 1, *(t.to(dtype) for t in inputs))
    assert (v_coeffs[:, 4:] == 0).all() and (v_coeffs[:, :4] != 0).any(-1).all()


def test_directions_of_no_and_of_extreme_length(instruction_set, dtype, assert_near, inputs):
    dirs, coeffs = (t[:3].to(dtype) for t in inputs)
    with_zero = dirs * torch.tensor([[0.0], [1e-12], [1e12]], dtype=dtype)
    colors, v_dirs, v_coeffs = with_gradients(spherical_harmonics, 4, with_zero, coeffs)
    assert all(t.isfinite().all() for t in (colors, v_dirs, v_coeffs)) and (v_dirs[0] == 0).all()
    assert_near(colors[1:], spherical_harmonics(4, dirs, coeffs)[1:])


def test_batches_and_strides(instruction_set, inputs):
    dirs, coeffs = inputs
    expected = spherical_harmonics(2, dirs, coeffs[:, :9])  # a slice of bases is not contiguous
    shaped = spherical_harmonics(2, dirs.reshape(2, 5, 5, 3), coeffs[:, :9].reshape(2, 5, 5, 9, 3))
    assert torch.equal(shaped.reshape(50, 3), expected)
    strided = dirs.T.contiguous().T
    assert torch.equal(spherical_harmonics(2, strided, coeffs), expected)


def test_no_rows(instruction_set, dtype):
    dirs = torch.zeros(0, 3, dtype=dtype, requires_grad=True)
    spherical_harmonics(4, dirs, torch.zeros(0, 25, 3, dtype=dtype)).sum().backward()
    assert dirs.grad.shape == (0, 3)


def test_same_bits_for_any_number_of_threads(instruction_set, dtype, each_thread_count):
    g = torch.Generator().manual_seed(0)
    dirs, coeffs = torch.randn(9000, 3, generator=g).to(dtype), torch.randn(9000, 16, 3, generator=g).to(dtype)
    each_thread_count(lambda: list(with_gradients(spherical_harmonics, 3, dirs, coeffs)))


def test_operator_registration(compiled, inputs):
    dirs, coeffs = (t[:5].clone().requires_grad_() for t in inputs)
    masks = torch.tensor([True, False, True, True, True])
    torch.library.opcheck(torch.ops.spatial.spherical_harmonics.default, (3, dirs, coeffs, masks))
    torch.library.opcheck(torch.ops.spatial.spherical_harmonics.default, (0, dirs, coeffs, None))
    for need_dirs in (True, False):
        torch.library.opcheck(
            torch.ops.spatial.spherical_harmonics_vjp.default,
            (3, dirs.detach(), coeffs.detach(), masks, torch.randn(5, 3).double(), need_dirs),
        )


def test_wrong_degrees_are_named(inputs):
    dirs, coeffs = inputs
    for degree in (-1, 5):
        with pytest.raises(ValueError, match=f"degree must be 0–4 .* got {degree}"):
            spherical_harmonics(degree, dirs, coeffs)
    with pytest.raises(ValueError, match="≤ 4 coefficients, got 2"):
        spherical_harmonics(2, dirs, coeffs[:, :4])
