"""Images of every kind come as 8-bit RGB and alpha; what is written is read back."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from PIL import Image

from spatial.errors import SpatialError
from spatial.io.images import read_image, read_mask, read_size, write_image

RGB = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)


def test_png_round_trip_with_and_without_alpha(tmp_path):
    alpha = RGB[..., 0]
    write_image(tmp_path / "a.png", RGB)
    write_image(tmp_path / "b.png", np.dstack([RGB, alpha]))
    assert np.array_equal(read_image(tmp_path / "a.png").rgb, RGB) and read_image(tmp_path / "a.png").alpha is None
    assert np.array_equal(read_image(tmp_path / "b.png").rgb, RGB)
    assert np.array_equal(read_image(tmp_path / "b.png").alpha, alpha)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "b.png"]


def test_opaque_alpha_is_no_alpha(tmp_path):
    write_image(tmp_path / "a.png", np.dstack([RGB, np.full_like(RGB[..., 0], 255)]))
    assert read_image(tmp_path / "a.png").alpha is None


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_16_bit_colour_and_grey_lose_the_low_byte(tmp_path, suffix):
    wide = RGB.astype(np.uint16) * 257
    cv2.imwrite(str(tmp_path / f"c{suffix}"), wide[..., ::-1])
    cv2.imwrite(str(tmp_path / f"g{suffix}"), wide[..., 0])
    assert np.array_equal(read_image(tmp_path / f"c{suffix}").rgb, RGB)
    assert np.array_equal(read_image(tmp_path / f"g{suffix}").rgb, np.repeat(RGB[..., :1], 3, 2))


def test_grey_palette_and_cmyk(tmp_path):
    Image.fromarray(RGB[..., 0]).save(tmp_path / "grey.png")
    assert np.array_equal(read_image(tmp_path / "grey.png").rgb, np.repeat(RGB[..., :1], 3, 2))
    palette = Image.new("P", (4, 4))
    palette.putpalette([10, 20, 30, 200, 100, 50])
    palette.putpixel((1, 2), 1)
    palette.save(tmp_path / "palette.png", transparency=0)
    pixels = read_image(tmp_path / "palette.png")
    assert tuple(pixels.rgb[2, 1]) == (200, 100, 50) and pixels.alpha[2, 1] == 255 and pixels.alpha[0, 0] == 0
    Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(tmp_path / "cmyk.jpg")
    red, green, blue = read_image(tmp_path / "cmyk.jpg").rgb[4, 4]
    assert red > 200 and green < 60 and blue < 60


def test_min_size_shrinks_jpeg_by_a_power_of_two_to_its_area_mean(tmp_path):
    smooth = cv2.resize(RGB, (240, 160), interpolation=cv2.INTER_CUBIC)
    write_image(tmp_path / "a.jpg", smooth)
    small = read_image(tmp_path / "a.jpg", min_size=(60, 40)).rgb
    assert small.shape == (40, 60, 3)
    assert np.abs(cv2.resize(smooth, (60, 40), interpolation=cv2.INTER_AREA).astype(int) - small).mean() < 3
    assert read_image(tmp_path / "a.jpg", min_size=(200, 140)).rgb.shape == smooth.shape


def test_masks_from_white_and_from_alpha(tmp_path):
    keep = np.zeros((20, 30), np.uint8)
    keep[5:9] = 255
    write_image(tmp_path / "white.png", keep)
    write_image(tmp_path / "alpha.png", np.dstack([RGB, keep]))
    assert np.array_equal(read_mask(tmp_path / "white.png"), keep)
    assert np.array_equal(read_mask(tmp_path / "alpha.png"), keep)


def test_pixels_and_size_are_as_stored_whatever_the_orientation(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(RGB).save(tmp_path / "a.png", exif=exif)
    assert np.array_equal(read_image(tmp_path / "a.png").rgb, RGB)
    assert read_size(tmp_path / "a.png") == (30, 20, 6)


def test_errors_name_the_file_and_the_remedy(tmp_path):
    write_image(tmp_path / "a.png", RGB)
    (tmp_path / "cut.png").write_bytes((tmp_path / "a.png").read_bytes()[:600])
    (tmp_path / "text.png").write_text("no image")
    for name, reason in (("cut.png", "truncated"), ("text.png", "not an image"), ("none.png", "does not exist")):
        with pytest.raises(SpatialError, match=rf"{name}.*{reason}"):
            read_image(tmp_path / name)
