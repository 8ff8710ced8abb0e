"""Relocation: the paper's sum in exact arithmetic, and n copies that look like the one that they replace."""

from __future__ import annotations

import math

import pytest
import torch
from mpmath import mp, mpf

from spatial.kernels import reference
from spatial.kernels.relocation import MAX_COPIES, relocate_gaussians


def scale_factor_of_the_paper(opacity: float, copies: int) -> float:
    """Kheradmand 2024, eq. 9, with 60 digits, since its terms cancel."""
    with mp.workdps(60):
        o = mpf(opacity)
        new = 1 - (1 - o) ** (mpf(1) / copies)
        terms = (
            mp.binomial(i - 1, k) * (-1) ** k / mp.sqrt(k + 1) * new ** (k + 1)
            for i in range(1, copies + 1)
            for k in range(i)
        )
        return float(o / mp.fsum(terms))


OPACITIES = [1e-6, 0.005, 0.1, 0.5, 0.9, 0.999, 1 - 2**-24, 1.0]


@pytest.mark.parametrize("function", [relocate_gaussians, reference.relocation.relocate_gaussians])
@pytest.mark.parametrize("copies", [1, 2, 3, 10, 51])
def test_equals_the_paper(instruction_set, dtype, function, copies):
    opacities = torch.tensor(OPACITIES, dtype=dtype)
    scales = torch.tensor([1.0, 2.0, 0.25], dtype=dtype).repeat(len(OPACITIES), 1)
    new_opacities, new_scales = function(opacities, scales, torch.full((len(OPACITIES),), copies))
    wanted = torch.tensor([-math.expm1(math.log1p(-o) / copies) if o < 1 else 1.0 for o in opacities.tolist()])
    factors = torch.tensor([scale_factor_of_the_paper(o, copies) for o in opacities.tolist()], dtype=torch.float64)
    tolerance = {torch.float32: 5e-6, torch.float64: 1e-8}[dtype]
    torch.testing.assert_close(new_opacities.double(), wanted.double(), rtol=max(tolerance, 1e-6), atol=0)
    torch.testing.assert_close(new_scales.double(), factors[:, None] * scales.double(), rtol=tolerance, atol=0)


@pytest.mark.parametrize("opacity", [0.05, 0.5, 0.95])
@pytest.mark.parametrize("copies", [2, 7, 51])
def test_copies_look_like_the_old_one(instruction_set, opacity, copies):
    """Blended over one another, the copies are as opaque in the centre, and along a line through it in sum."""
    result = relocate_gaussians(
        torch.tensor([opacity], dtype=torch.float64), torch.ones(1, 3).double(), torch.tensor([copies])
    )
    x = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    old = opacity * torch.exp(-0.5 * x**2)
    one = result.opacities * torch.exp(-0.5 * (x / result.scales[0, 0]) ** 2)
    together = 1 - (1 - one) ** copies
    assert together.max().item() == pytest.approx(opacity, rel=1e-9)
    assert torch.trapezoid(together, x).item() == pytest.approx(torch.trapezoid(old, x).item(), rel=1e-6)
    assert result.scales.max() < 1


def test_one_copy_stays_what_it_is(instruction_set, dtype, assert_near):
    opacities, scales = torch.rand(100, dtype=dtype), torch.rand(100, 3, dtype=dtype)
    result = relocate_gaussians(opacities, scales, torch.ones(100, dtype=torch.int64))
    assert_near(result.opacities, opacities)
    assert_near(result.scales, scales)


def test_native_equals_reference(instruction_set, dtype, assert_near):
    g = torch.Generator().manual_seed(0)
    opacities, scales = torch.rand(3000, generator=g), torch.rand(3000, 3, generator=g)
    ratios = torch.randint(1, 60, (3000,), generator=g)
    expected = reference.relocation.relocate_gaussians(opacities.double(), scales.double(), ratios)
    actual = relocate_gaussians(opacities.to(dtype), scales.to(dtype), ratios)
    for a, b in zip(actual, expected, strict=True):
        assert_near(a, b)


@pytest.mark.parametrize("function", [relocate_gaussians, reference.relocation.relocate_gaussians])
def test_numbers_of_copies_are_kept_within_1_and_51(instruction_set, dtype, function):
    opacities, scales = torch.full((4,), 0.7, dtype=dtype), torch.ones(4, 3, dtype=dtype)
    kept = function(opacities, scales, torch.tensor([1, 1, MAX_COPIES, MAX_COPIES]))
    beyond = function(opacities, scales, torch.tensor([0, -5, 52, 2**40]))
    assert all(torch.equal(a, b) for a, b in zip(kept, beyond, strict=True))


def test_no_opacity_and_no_gaussians(instruction_set, dtype):
    result = relocate_gaussians(torch.zeros(1, dtype=dtype), torch.ones(1, 3, dtype=dtype), torch.tensor([5]))
    assert result.opacities.tolist() == [0] and result.scales.tolist() == [[1, 1, 1]]
    nothing = relocate_gaussians(torch.zeros(0, dtype=dtype), torch.zeros(0, 3, dtype=dtype), torch.zeros(0).int())
    assert nothing.opacities.shape == (0,) and nothing.scales.shape == (0, 3)


def test_inputs_need_not_be_contiguous(instruction_set):
    opacities, scales, ratios = torch.rand(20, 2), torch.rand(3, 20), torch.randint(1, 9, (20, 2))
    actual = relocate_gaussians(opacities[:, 0], scales.T, ratios[:, 1])
    expected = relocate_gaussians(opacities[:, 0].clone(), scales.T.contiguous(), ratios[:, 1].clone())
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


def test_same_bits_for_any_number_of_threads(instruction_set, dtype, each_thread_count):
    opacities, scales = torch.rand(3000, dtype=dtype), torch.rand(3000, 3, dtype=dtype)
    ratios = torch.randint(1, 52, (3000,))
    each_thread_count(lambda: list(relocate_gaussians(opacities, scales, ratios)))


def test_operator_registration(compiled):
    arguments = (torch.rand(5), torch.rand(5, 3), torch.randint(1, 9, (5,), dtype=torch.int32))
    torch.library.opcheck(torch.ops.spatial.relocate_gaussians.default, arguments)


def test_wrong_inputs_are_named(without_shape_checks):
    with pytest.raises(ValueError, match=r"scales must be \[4, 3\], got \[3, 3\]"):
        relocate_gaussians(torch.rand(4), torch.rand(3, 3), torch.ones(4).int())
