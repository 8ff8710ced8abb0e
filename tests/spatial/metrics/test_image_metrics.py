"""PSNR and SSIM against scikit-image, masks by their defining property, LPIPS by its refusals."""

import importlib.util
import math

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from spatial.metrics import image as metrics
from spatial.metrics.image import color_corrected, lpips, psnr, round_to_8_bit, ssim


def noisy_pair(height: int = 50, width: int = 70, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    target = np.clip(gaussian_filter(rng.random((height, width, 3)), (2, 2, 0)) * 3 - 1, 0, 1)
    image = np.clip(target + 0.05 * rng.standard_normal(target.shape), 0, 1)
    return torch.from_numpy(image), torch.from_numpy(target)


def skimage_ssim(image: torch.Tensor, target: torch.Tensor) -> float:
    return structural_similarity(
        image.numpy(),
        target.numpy(),
        gaussian_weights=True,
        use_sample_covariance=False,
        sigma=1.5,
        data_range=1,
        channel_axis=-1,
    )


def test_psnr_and_ssim_agree_with_scikit_image_on_a_real_photo(shared_data):
    path = next(p for p in sorted(shared_data("kitchen/images").iterdir()) if p.suffix.lower() in (".jpg", ".png"))
    photo = Image.open(path).convert("RGB").resize((400, 267), Image.Resampling.BOX)
    target = torch.from_numpy(np.asarray(photo) / 255)
    image = torch.from_numpy(gaussian_filter(target.numpy(), (1, 1, 0)))
    assert psnr(image, target) == pytest.approx(peak_signal_noise_ratio(target.numpy(), image.numpy(), data_range=1))
    assert ssim(image, target) == pytest.approx(skimage_ssim(image, target), abs=1e-9)


@pytest.mark.parametrize(("height", "width"), [(50, 70), (11, 11), (11, 40)])
def test_ssim_agrees_with_scikit_image(height, width):
    image, target = noisy_pair(height, width)
    assert ssim(image, target) == pytest.approx(skimage_ssim(image, target), abs=1e-9)
    assert ssim(image.float(), target.float()) == pytest.approx(skimage_ssim(image, target), abs=1e-5)


def test_ssim_agrees_with_torchmetrics():
    torchmetrics = pytest.importorskip("torchmetrics.functional.image", reason="torchmetrics is not installed")
    batch = [x.permute(2, 0, 1)[None] for x in noisy_pair()]
    theirs = torchmetrics.structural_similarity_index_measure(*batch, data_range=1.0, sigma=1.5, kernel_size=11)
    # torchmetrics reflects the images at their borders and then takes every window.
    reflected = [torch.nn.functional.pad(x, [5] * 4, mode="reflect")[0].permute(1, 2, 0) for x in batch]
    assert ssim(*reflected) == pytest.approx(float(theirs), abs=1e-6)


def test_same_padding_is_one_zero_padded_window_per_pixel():
    image, target = noisy_pair(20, 24)
    kernel = torch.exp(-(torch.arange(-5, 6).double() ** 2) / 4.5)
    kernel = torch.outer(kernel, kernel) / kernel.sum() ** 2
    x, y = (torch.nn.functional.pad(a.permute(2, 0, 1), [5] * 4).permute(1, 2, 0) for a in (image, target))
    values = []
    for i in range(20):
        for j in range(24):
            a, b = x[i : i + 11, j : j + 11], y[i : i + 11, j : j + 11]
            ma, mb = ((kernel[..., None] * v).sum((0, 1)) for v in (a, b))
            va, vb = ((kernel[..., None] * v * v).sum((0, 1)) - m * m for v, m in ((a, ma), (b, mb)))
            cov = (kernel[..., None] * a * b).sum((0, 1)) - ma * mb
            values.append((2 * ma * mb + 1e-4) * (2 * cov + 9e-4) / ((ma**2 + mb**2 + 1e-4) * (va + vb + 9e-4)))
    assert ssim(image, target, padding="same") == pytest.approx(float(torch.stack(values).mean()), abs=1e-9)


def test_equal_images_and_known_errors():
    image, target = noisy_pair()
    assert psnr(target, target) == math.inf
    assert ssim(target, target) == pytest.approx(1)
    assert psnr(torch.full((4, 4, 3), 0.6), torch.full((4, 4, 3), 0.5)) == pytest.approx(20, abs=1e-4)
    assert ssim(image, target) < 1


@pytest.mark.parametrize("padding", ["valid", "same"])
def test_pixels_outside_the_mask_have_no_influence(padding):
    image, target = noisy_pair()
    mask = torch.zeros(50, 70, dtype=torch.bool)
    mask[8:40, 15:60] = True
    garbage = torch.where(mask[..., None], image, torch.rand(50, 70, 3, generator=torch.Generator().manual_seed(1)))
    assert psnr(image, target, mask) == psnr(garbage, target, mask) != psnr(image, target)
    assert ssim(image, target, mask, padding=padding) == ssim(garbage, target, mask, padding=padding)
    assert ssim(image, target, torch.ones_like(mask), padding=padding) == pytest.approx(
        ssim(image, target, padding=padding)
    )


def test_valid_masked_ssim_is_that_of_the_crop():
    image, target = noisy_pair()
    mask = torch.zeros(50, 70, dtype=torch.bool)
    mask[8:40, 15:60] = True
    assert ssim(image, target, mask) == pytest.approx(ssim(image[8:40, 15:60], target[8:40, 15:60]))
    assert psnr(image, target, mask) == pytest.approx(psnr(image[8:40, 15:60], target[8:40, 15:60]))


def test_degenerate_masks_and_sizes(without_shape_checks):
    image, target = noisy_pair()
    with pytest.raises(ValueError, match="at least one pixel"):
        psnr(image, target, torch.zeros(50, 70, dtype=torch.bool))
    thin = torch.zeros(50, 70, dtype=torch.bool)
    thin[20:25] = True
    assert math.isnan(ssim(image, target, thin))
    assert 0 < ssim(image, target, thin, padding="same") < 1
    assert math.isnan(ssim(image[:5], target[:5]))
    with pytest.raises(ValueError, match="must both be"):
        psnr(image, target[:10])
    with pytest.raises(ValueError, match="mask must be"):
        ssim(image, target, thin[:3])
    with pytest.raises(ValueError, match="'valid' or 'same'"):
        ssim(image, target, padding="reflect")


def test_round_trip_through_8_bits_is_that_of_a_png(tmp_path):
    image, _ = noisy_pair()
    image = image * 1.2 - 0.1  # out of range on both sides
    Image.fromarray((image.clamp(0, 1) * 255).round().byte().numpy()).save(tmp_path / "x.png")
    assert np.array_equal(round_to_8_bit(image).numpy(), np.asarray(Image.open(tmp_path / "x.png")) / 255)


def test_color_correction_undoes_exposure_and_tint_but_not_structure():
    image, target = noisy_pair()
    tinted = image * torch.tensor([0.6, 0.8, 0.7]) + torch.tensor([0.1, 0.02, 0.05])
    assert psnr(tinted, target) < psnr(image, target) - 3
    corrected = color_corrected(tinted, target)
    assert (
        psnr(corrected, target) >= psnr(image, target) - 1e-6
    )  # the best affine fit is at least as good as undoing it
    assert psnr(corrected, target) < psnr(image, target) + 1
    mask = torch.zeros(50, 70, dtype=torch.bool)
    mask[:20] = True
    spoiled = torch.where(mask[..., None], tinted, 1 - tinted)
    assert torch.allclose(color_corrected(spoiled, target, mask)[mask], color_corrected(tinted, target, mask)[mask])
    flat = color_corrected(torch.full_like(target, 0.3), target)
    assert torch.allclose(flat.mean((0, 1)), target.mean((0, 1)), atol=1e-5)


@pytest.fixture
def no_cached_network():
    metrics._lpips_network.cache_clear()
    yield
    metrics._lpips_network.cache_clear()


@pytest.mark.usefixtures("no_cached_network")
def test_lpips_says_why_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))  # no weights there, and none may be fetched
    value, reason = lpips(*noisy_pair(64, 64))
    assert value is None
    assert "pip install" in reason or str(tmp_path) in reason
    assert not list(tmp_path.rglob("*.pth"))
    assert lpips(*noisy_pair(40, 64)).reason.startswith("LPIPS needs images")


@pytest.mark.usefixtures("no_cached_network")
@pytest.mark.skipif(importlib.util.find_spec("lpips") is None, reason="the package lpips is not installed")
def test_lpips_runs_on_a_backbone_from_disk(tmp_path, monkeypatch):
    from torchvision.models import AlexNet_Weights, alexnet

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    name = AlexNet_Weights.IMAGENET1K_V1.url.rsplit("/", 1)[-1]
    torch.manual_seed(0)  # a random backbone: the plumbing is tested, not the number
    torch.save(alexnet().state_dict(), tmp_path / "hub" / "checkpoints" / name)
    image, target = noisy_pair(80, 80)
    assert lpips(target, target).value == pytest.approx(0, abs=1e-6)
    assert lpips(image, target).value > 1e-4
    nothing = torch.zeros(80, 80, dtype=torch.bool)
    assert lpips(image, target, nothing).value == pytest.approx(0, abs=1e-6)
