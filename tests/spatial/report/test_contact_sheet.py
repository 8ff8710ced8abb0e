"""Comparison pictures: what each pixel means and where the cells lie."""

import numpy as np
import pytest

from spatial.report.contact_sheet import (
    GAP,
    comparison_strip,
    contact_sheet,
    depth_picture,
    error_map,
    masked_out,
    to_uint8,
)


def test_error_map_is_black_without_error_and_grows_with_it():
    truth = np.full((4, 6, 3), 100, dtype=np.uint8)
    render = truth.copy()
    render[:, 2:4] += 10
    render[:, 4:] += 100
    picture = error_map(truth, render).astype(int).sum(-1)
    assert picture[0, 0] < 10
    assert picture[0, 0] < picture[0, 2] < picture[0, 4]
    assert picture[0, 4] > 600  # a quarter of full scale and more is nearly white
    assert np.array_equal(error_map(truth, render), error_map(render, truth))


def test_depth_is_ordered_and_holes_are_grey():
    depths = np.linspace(1, 8, 64)[None].repeat(4, 0)
    depths[:, 10] = 0
    alphas = np.ones_like(depths)
    alphas[:, 20] = 0.2
    picture = depth_picture(depths, alphas)
    assert (picture[:, [10, 20]] == 32).all()
    assert picture[0, 1, 0] > picture[0, 1, 2]  # near: red
    assert picture[0, -1, 0] < 100  # far: dark blue
    scaled = depth_picture(depths * 1000, alphas)
    assert np.abs(scaled.astype(int) - picture).max() <= 8  # whatever the unit
    assert (depth_picture(np.zeros((3, 3))) == 32).all()
    assert depth_picture(np.full((3, 3), 2.0)).shape == (3, 3, 3)


def test_to_uint8_rounds_and_clamps():
    assert to_uint8(np.array([[[-1.0, 0.5, 2.0]]])).tolist() == [[[0, 128, 255]]]


def test_sheet_places_images_of_mixed_sizes_under_their_labels():
    colors = [(255, 0, 0), (0, 255, 0), (0, 0, 255)]
    sizes = [(30, 60), (90, 60), (60, 60)]
    images = [np.full((*size, 3), color, dtype=np.uint8) for size, color in zip(sizes, colors, strict=True)]
    sheet = contact_sheet(images, ["a", "b", "c"], columns=2, cell_width=120)
    assert sheet.shape[1] == 2 * 120 + GAP
    places = [np.argwhere((np.abs(sheet.astype(int) - color) < 8).all(-1)) for color in colors]
    for place, (height, width) in zip(places, sizes, strict=True):
        extent = place.max(0) - place.min(0) + 1
        assert tuple(extent) == (round(120 * height / width), 120)
    assert places[0][:, 0].min() == places[1][:, 0].min() > 10  # one row, below its labels
    assert places[2][:, 0].min() > places[1][:, 0].max() + 10
    assert sheet[:16, :120].max() > 150  # the label


def test_strip_holds_photo_render_and_error():
    truth = np.full((40, 50, 3), (10, 200, 30), dtype=np.uint8)
    render = np.full((40, 50, 3), (200, 10, 30), dtype=np.uint8)
    strip = comparison_strip(truth, render, label="a long name that cannot fit in fifty pixels.jpg")
    for start, image in ((0, truth), (54, render), (108, error_map(truth, render))):
        assert np.array_equal(strip[-40:, start : start + 50], image)


def test_masked_out_and_bad_arguments():
    image = np.full((2, 2, 3), 200, dtype=np.uint8)
    mask = np.array([[True, False], [False, True]])
    assert (masked_out(image, mask)[mask] == 200).all() and (masked_out(image, mask)[~mask] == 32).all()
    assert masked_out(image, None) is image
    with pytest.raises(ValueError, match="one label per image, got 1 images and 0 labels"):
        contact_sheet([image], [])
