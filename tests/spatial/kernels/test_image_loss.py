"""L1 + SSIM against scikit-image, torch's convolutions and finite differences."""

from __future__ import annotations

import pytest
import torch
from skimage.metrics import structural_similarity

from spatial.kernels import reference
from spatial.kernels.image_loss import l1_ssim_loss

# Windows just fit; several blocks of rows and of columns; several images.
SHAPES = [(1, 11, 11, 3), (1, 12, 11, 1), (2, 45, 97, 3), (1, 33, 64, 4), (1, 20, 300, 1)]


def pair(shape, seed=0):
    g = torch.Generator().manual_seed(seed)
    target = torch.rand(shape, generator=g)
    return (0.7 * target + 0.3 * torch.rand(shape, generator=g)).double(), target.double()


def random_mask(shape):
    mask = torch.rand(shape[:3], generator=torch.Generator().manual_seed(3)) > 0.3
    mask[:, : shape[1] // 2, : shape[2] // 3] = False
    return mask


def with_gradient(function, image, target, mask=None, ssim_weight=0.2):
    image = image.clone().requires_grad_()
    loss = function(image, target, mask, ssim_weight=ssim_weight)
    return loss.detach(), torch.autograd.grad(3 * loss, image)[0]


@pytest.mark.parametrize("function", [l1_ssim_loss, reference.image_loss.l1_ssim_loss])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_ssim_equals_scikit_image(instruction_set, function, shape):
    image, target = pair(shape)
    maps = [
        structural_similarity(
            a.numpy(), b.numpy(), gaussian_weights=True, sigma=1.5, use_sample_covariance=False, data_range=1.0,
            channel_axis=-1, full=True,
        )[1][5:-5, 5:-5]
        for a, b in zip(image, target, strict=True)
    ]  # fmt: skip
    expected = 1 - sum(m.mean() for m in maps) / len(maps)
    assert function(image, target, ssim_weight=1.0).item() == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("function", [l1_ssim_loss, reference.image_loss.l1_ssim_loss])
def test_hand_values(instruction_set, dtype, function):
    black, grey = torch.zeros(1, 16, 20, 3, dtype=dtype), torch.full((1, 16, 20, 3), 0.5, dtype=dtype)
    assert function(grey, grey).item() == pytest.approx(0, abs=1e-6)
    assert function(grey, black, ssim_weight=0.0).item() == pytest.approx(0.5, rel=1e-6)
    # Flat images have no variance: SSIM is that of their means, c1 / (0.25 + c1).
    assert function(grey, black).item() == pytest.approx(0.8 * 0.5 + 0.2 * (1 - 1e-4 / 0.2501), rel=1e-5)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_native_equals_reference(instruction_set, dtype, assert_near, shape, masked):
    image, target = pair(shape)
    mask = random_mask(shape) if masked else None
    expected = with_gradient(reference.image_loss.l1_ssim_loss, image, target, mask)
    actual = with_gradient(l1_ssim_loss, image.to(dtype), target.to(dtype), mask)
    assert_near(actual[0], expected[0], "loss")
    assert_near(actual[1], expected[1], "gradient")


@pytest.mark.parametrize("masked", [False, True])
def test_gradient_by_finite_differences(instruction_set, masked):
    shape = (1, 15, 14, 2)
    image, target = pair(shape)
    mask = random_mask(shape) if masked else None
    assert (image - target).abs().min() > 1e-5  # off the kink of L1
    inputs = (image.requires_grad_(),)
    assert torch.autograd.gradcheck(lambda x: l1_ssim_loss(x, target, mask), inputs, eps=1e-7, atol=1e-6, rtol=1e-4)


def test_what_is_masked_does_not_count(instruction_set, dtype):
    """Loss and gradient are the same whatever stands under the mask, and nothing flows there."""
    shape = (1, 24, 30, 3)
    image, target = (t.to(dtype) for t in pair(shape))
    mask = random_mask(shape)
    other = torch.where(mask[..., None], image, torch.rand_like(image))
    first, second = with_gradient(l1_ssim_loss, image, target, mask), with_gradient(l1_ssim_loss, other, target, mask)
    assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])
    assert (first[1][~mask] == 0).all() and (first[1][mask] != 0).all()
    everything = torch.ones_like(mask)
    torch.testing.assert_close(l1_ssim_loss(image, target, everything), l1_ssim_loss(image, target))


def test_nothing_but_mask(instruction_set, dtype):
    image, target = (t.to(dtype) for t in pair((1, 16, 16, 3)))
    loss, gradient = with_gradient(l1_ssim_loss, image, target, torch.zeros(1, 16, 16, dtype=torch.bool))
    assert loss.isfinite() and (gradient == 0).all()


def test_equal_pixels_have_no_gradient_of_l1(instruction_set, dtype):
    image, target = (t.to(dtype) for t in pair((1, 16, 16, 3)))
    image[0, :8] = target[0, :8]
    _, gradient = with_gradient(l1_ssim_loss, image, target, ssim_weight=0.0)
    assert (gradient[0, :8] == 0).all()
    assert torch.allclose(gradient[0, 8:].abs(), torch.tensor(3 / (16 * 16 * 3), dtype=dtype))


def test_extreme_images_stay_finite(instruction_set, dtype):
    """Black on black, white on white, and a render far brighter than 1."""
    for value, other in ((0.0, 0.0), (1.0, 1.0), (50.0, 0.2), (0.0, 1.0)):
        image, target = torch.full((1, 16, 16, 3), value, dtype=dtype), torch.full((1, 16, 16, 3), other, dtype=dtype)
        loss, gradient = with_gradient(l1_ssim_loss, image, target)
        assert loss.isfinite() and loss > -1e-6 and gradient.isfinite().all()


def test_inputs_need_not_be_contiguous(instruction_set, dtype):
    shape = (2, 20, 23, 3)
    image, target = (t.to(dtype) for t in pair(shape))
    mask = random_mask(shape)
    strided = [t.movedim(-1, 1).contiguous().movedim(1, -1) for t in (image, target)]
    expected = with_gradient(l1_ssim_loss, image, target, mask)
    actual = with_gradient(l1_ssim_loss, *strided, mask.transpose(1, 2).contiguous().transpose(1, 2))
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


def test_same_bits_for_any_number_of_threads(instruction_set, dtype, each_thread_count):
    image, target = (t.to(dtype) for t in pair((2, 90, 130, 3)))
    each_thread_count(lambda: list(with_gradient(l1_ssim_loss, image, target, random_mask(image.shape))))


def test_operator_registration(compiled):
    image, target = pair((1, 14, 13, 2))
    mask = random_mask(image.shape)
    for m in (mask, None):
        torch.library.opcheck(torch.ops.spatial.l1_ssim.default, (image.clone().requires_grad_(), target, m, 0.2))
    _, moments = torch.ops.spatial.l1_ssim(image, target, mask, 0.2)
    torch.library.opcheck(
        torch.ops.spatial.l1_ssim_vjp.default, (image, target, mask, 0.2, moments, torch.tensor(1.5).double())
    )


def test_wrong_inputs_are_named(without_shape_checks):
    image, target = pair((1, 16, 16, 3))
    with pytest.raises(ValueError, match=r"target must be \[1, 16, 16, 3\], got \[1, 16, 15, 3\]"):
        l1_ssim_loss(image, target[:, :, :15])
    with pytest.raises(ValueError, match=r"at least 11×11 pixels, got \[1, 10, 16, 3\]"):
        l1_ssim_loss(image[:, :10], target[:, :10])
    with pytest.raises(ValueError, match=r"mask must be \[1, 16, 16\]"):
        l1_ssim_loss(image, target, torch.ones(16, 16, dtype=torch.bool))
    with pytest.raises(TypeError, match=r"target is torch\.float32"):
        l1_ssim_loss(image, target.float())
