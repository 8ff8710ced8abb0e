"""Gaussians moved to another frame look the same from there."""

import math

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from spatial.geometry.sh_rotation import (
    half_turn_about_x,
    real_sh_basis,
    rotate_sh,
    sh_rotation_matrix,
    transform_gaussians,
)
from spatial.structures import Gaussians


def polynomial_basis(directions: torch.Tensor) -> torch.Tensor:
    """Degrees 0 to 4 as the polynomials that Gaussian-splat renderers evaluate: the oracle for order and signs."""
    x, y, z = directions.unbind(-1)
    xx, yy, zz = x * x, y * y, z * z
    return torch.stack(
        [
            torch.full_like(x, 0.28209479177387814),
            -0.4886025119029199 * y,
            0.4886025119029199 * z,
            -0.4886025119029199 * x,
            1.0925484305920792 * x * y,
            -1.0925484305920792 * y * z,
            0.31539156525252005 * (2 * zz - xx - yy),
            -1.0925484305920792 * x * z,
            0.5462742152960396 * (xx - yy),
            -0.5900435899266435 * y * (3 * xx - yy),
            2.890611442640554 * x * y * z,
            -0.4570457994644658 * y * (4 * zz - xx - yy),
            0.3731763325901154 * z * (2 * zz - 3 * xx - 3 * yy),
            -0.4570457994644658 * x * (4 * zz - xx - yy),
            1.445305721320277 * z * (xx - yy),
            -0.5900435899266435 * x * (xx - 3 * yy),
            2.5033429417967046 * x * y * (xx - yy),
            -1.7701307697799304 * y * z * (3 * xx - yy),
            0.9461746957575601 * x * y * (7 * zz - 1),
            -0.6690465435572892 * y * z * (7 * zz - 3),
            0.10578554691520431 * (zz * (35 * zz - 30) + 3),
            -0.6690465435572892 * x * z * (7 * zz - 3),
            0.47308734787878004 * (xx - yy) * (7 * zz - 1),
            -1.7701307697799304 * x * z * (xx - 3 * yy),
            0.6258357354491761 * (xx * (xx - 3 * yy) - yy * (3 * xx - yy)),
        ],
        dim=-1,
    )


def unit_vectors(count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(count, 3, generator=generator, dtype=torch.float64), dim=-1)


def rotation(seed: int) -> torch.Tensor:
    return torch.from_numpy(Rotation.random(random_state=seed).as_matrix())


def gaussians(degree: int, count: int = 50) -> Gaussians:
    generator = torch.Generator().manual_seed(degree)
    return Gaussians(
        means=torch.randn(count, 3, generator=generator, dtype=torch.float64),
        quats=torch.randn(count, 4, generator=generator, dtype=torch.float64),
        log_scales=torch.randn(count, 3, generator=generator, dtype=torch.float64),
        logit_opacities=torch.randn(count, generator=generator, dtype=torch.float64),
        sh=torch.randn(count, (degree + 1) ** 2, 3, generator=generator, dtype=torch.float64),
    )


def covariances(g: Gaussians) -> torch.Tensor:
    axes = torch.from_numpy(Rotation.from_quat(g.quats[:, [1, 2, 3, 0]].numpy()).as_matrix()) * g.scales[:, None]
    return axes @ axes.transpose(1, 2)


def test_basis_is_that_of_gaussian_splatting():
    directions = unit_vectors(200)
    torch.testing.assert_close(real_sh_basis(directions, 4), polynomial_basis(directions), rtol=0, atol=1e-13)


@pytest.mark.parametrize("degree", range(5))
def test_rotated_coefficients_at_d_are_the_old_ones_at_the_inversely_rotated_d(degree):
    turn, directions = rotation(degree), unit_vectors(100, seed=1)
    sh = torch.randn(7, (degree + 1) ** 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    basis = polynomial_basis(directions)[:, : (degree + 1) ** 2]
    basis_at_inverse = polynomial_basis(directions @ turn)[:, : (degree + 1) ** 2]
    new = torch.einsum("mk,nkc->nmc", basis, rotate_sh(sh, turn))
    old = torch.einsum("mk,nkc->nmc", basis_at_inverse, sh)
    torch.testing.assert_close(new, old, rtol=0, atol=1e-12)


def test_rotation_matrices_are_orthogonal_and_compose():
    first, second = sh_rotation_matrix(rotation(0), 4), sh_rotation_matrix(rotation(1), 4)
    torch.testing.assert_close(first @ first.T, torch.eye(25, dtype=torch.float64), rtol=0, atol=1e-12)
    together = sh_rotation_matrix(rotation(1) @ rotation(0), 4)
    torch.testing.assert_close(second @ first, together, rtol=0, atol=1e-12)


def test_a_number_of_coefficients_that_is_no_square_is_refused():
    with pytest.raises(ValueError, match=r"\(degree \+ 1\)²"):
        rotate_sh(torch.zeros(2, 5, 3), torch.eye(3))


@pytest.mark.parametrize("degree", range(5))
def test_transformed_gaussians_look_the_same_from_a_transformed_camera(degree):
    old = gaussians(degree)
    turn, scale, shift = rotation(9), 2.5, torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    matrix = torch.eye(4, dtype=torch.float64)
    matrix[:3, :3], matrix[:3, 3] = scale * turn, shift
    new = transform_gaussians(old, matrix)
    torch.testing.assert_close(new.means, scale * old.means @ turn.T + shift)
    torch.testing.assert_close(covariances(new), scale**2 * turn @ covariances(old) @ turn.T)
    eye = torch.tensor([5.0, 4.0, -6.0], dtype=torch.float64)
    towards_old = torch.nn.functional.normalize(old.means - eye, dim=1)
    towards_new = torch.nn.functional.normalize(new.means - (scale * turn @ eye + shift), dim=1)
    count = (degree + 1) ** 2
    old_colors = torch.einsum("nk,nkc->nc", polynomial_basis(towards_old)[:, :count], old.sh)
    new_colors = torch.einsum("nk,nkc->nc", polynomial_basis(towards_new)[:, :count], new.sh)
    torch.testing.assert_close(new_colors, old_colors, rtol=0, atol=1e-11)


def test_a_transform_and_its_inverse_cancel_in_float32():
    old = gaussians(3)
    old = Gaussians(*(getattr(old, name).float() for name in ("means", "quats", "log_scales", "logit_opacities", "sh")))
    matrix = torch.eye(4, dtype=torch.float64)
    matrix[:3, :3], matrix[:3, 3] = 0.3 * rotation(4), torch.tensor([1.0, 2.0, 3.0])
    back = transform_gaussians(transform_gaussians(old, matrix), torch.linalg.inv(matrix))
    torch.testing.assert_close(back.means, old.means, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(back.sh, old.sh, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(back.log_scales, old.log_scales, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(covariances(back), covariances(old), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "linear",
    [np.diag([1.0, 1.0, -1.0]), np.diag([1.0, 1.0, 2.0]), np.array([[1.0, 0.5, 0], [0, 1, 0], [0, 0, 1]])],
    ids=["mirror", "uneven", "shear"],
)
def test_what_is_no_similarity_is_refused(linear):
    matrix = torch.eye(4, dtype=torch.float64)
    matrix[:3, :3] = torch.from_numpy(linear)
    with pytest.raises(ValueError, match="one positive scale"):
        transform_gaussians(gaussians(1), matrix)


@pytest.mark.parametrize("degree", range(5))
def test_half_turn_is_the_rotation_by_pi_about_x_and_undoes_itself_exactly(degree):
    old = gaussians(degree)
    new = half_turn_about_x(old)
    matrix = torch.eye(4, dtype=torch.float64)
    matrix[:3, :3] = torch.from_numpy(Rotation.from_rotvec([math.pi, 0, 0]).as_matrix())
    general = transform_gaussians(old, matrix)
    torch.testing.assert_close(new.means, general.means)
    torch.testing.assert_close(new.sh, general.sh, rtol=0, atol=1e-12)
    torch.testing.assert_close(covariances(new), covariances(general))
    back = half_turn_about_x(new)
    for name in ("means", "quats", "log_scales", "logit_opacities", "sh"):
        assert torch.equal(getattr(back, name), getattr(old, name)), name
