"""Key points lie where they should in the photo's stored pixels."""

import numpy as np
import pytest
from PIL import Image

from data.captures.photos import read_photo
from data.captures.sfm.features import detect_sift, measure_sharpness, read_grey
from data.captures.sfm.learned import turn_back

CENTER = (1234.0, 321.0)


@pytest.fixture
def blob_photo(tmp_path):
    """Makes a JPEG of 2000×1000 stored pixels with one bright blob at CENTER (pixel centres at +0.5)."""

    def make(orientation):
        x, y = np.meshgrid(np.arange(2000) + 0.5, np.arange(1000) + 0.5)
        blob = 200 * np.exp(-((x - CENTER[0]) ** 2 + (y - CENTER[1]) ** 2) / (2 * 20**2))
        image = Image.fromarray((30 + blob).astype(np.uint8))
        exif = Image.Exif()
        exif[0x0112] = orientation
        path = tmp_path / f"blob {orientation} ä.jpg"
        image.save(path, quality=95, exif=exif)
        return read_photo(path, path.name)

    return make


@pytest.mark.parametrize("max_side_px", [500, 960, 2000])
@pytest.mark.parametrize("orientation", [1, 6])
def test_key_points_are_in_stored_pixels(blob_photo, max_side_px, orientation):
    photo = blob_photo(orientation)
    (features,) = detect_sift([photo], max_side_px=max_side_px)
    distances = np.linalg.norm(features.xy - CENTER, axis=1)
    assert distances.min() < 0.5
    assert 15 < features.scales[distances.argmin()] < 60
    np.testing.assert_allclose(np.linalg.norm(features.descriptors, axis=1), 1, atol=1e-5)


def test_a_blank_photo_has_no_features(tmp_path):
    Image.new("RGB", (300, 200), "gray").save(tmp_path / "blank.png")
    (features,) = detect_sift([read_photo(tmp_path / "blank.png", "blank.png")])
    assert len(features) == 0 and features.descriptors.shape == (0, 128)


def test_sharpness_falls_with_blur(shared_data):
    import cv2

    grey = read_grey(read_photo(shared_data("fern/images/000.jpg"), "000.jpg"), 640)
    assert measure_sharpness(cv2.GaussianBlur(grey, (0, 0), 3)) < 0.1 * measure_sharpness(grey)


@pytest.mark.parametrize("turns", range(4))
def test_turned_points_come_back(turns):
    image = np.arange(35).reshape(5, 7)  # each value names its pixel
    turned = np.rot90(image, turns)
    rows, columns = np.indices(turned.shape)
    back = turn_back(np.stack([columns.ravel() + 0.5, rows.ravel() + 0.5], 1), turns, (7, 5))
    assert (image[back[:, 1].astype(int), back[:, 0].astype(int)] == turned.ravel()).all()
