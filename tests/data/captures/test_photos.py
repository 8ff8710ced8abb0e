"""Which files of a folder are photos, what their headers say, and how damaged ones are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data.captures.masks import find_mask
from data.captures.photos import find_photos, natural_key
from spatial.errors import SpatialError


def write_photo(path: Path, *, size=(64, 48), exif: dict[int, object] | None = None, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(len(path.name)).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    header = Image.Exif()
    for tag, value in (exif or {}).items():
        target = header if tag < 0x8000 else header.get_ifd(0x8769)
        target[tag] = value
    Image.fromarray(pixels).save(path, exif=header, **options)
    return path


def test_all_formats_nested_spaced_and_non_ascii_sorted_by_number(tmp_path):
    for name in ("b/img 10.jpg", "b/img 9.JPG", "a/img 9.png", "ünï/照片.webp", "z.tiff"):
        write_photo(tmp_path / name)
    photos, left_out = find_photos(tmp_path)
    assert [photo.name for photo in photos] == ["a/img 9.png", "b/img 9.JPG", "b/img 10.jpg", "z.tiff", "ünï/照片.webp"]
    assert not left_out
    assert {(photo.width, photo.height) for photo in photos} == {(64, 48)}


def test_bad_files_among_good_ones_are_named_with_the_reason(tmp_path):
    for i in range(3):
        write_photo(tmp_path / f"good{i}.jpg", size=(400, 300))
    whole = (tmp_path / "good0.jpg").read_bytes()
    (tmp_path / "truncated.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "almost.jpg").write_bytes(whole[:-200])
    write_photo(tmp_path / "truncated.png", size=(400, 300))
    content = (tmp_path / "truncated.png").read_bytes()
    (tmp_path / "truncated.png").write_bytes(content[: len(content) // 2])
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "text.jpg").write_text("not a photo")
    (tmp_path / "notes.txt").write_text("a list")
    (tmp_path / "raw.DNG").write_bytes(b"II*\0")
    write_photo(tmp_path / "icon.png", size=(8, 8))
    photos, left_out = find_photos(tmp_path)
    assert [photo.name for photo in photos] == ["good0.jpg", "good1.jpg", "good2.jpg"]
    reasons = {item.name: item.reason for item in left_out}
    assert set(reasons) == {
        "truncated.jpg", "almost.jpg", "truncated.png", "empty.jpg", "text.jpg", "notes.txt", "raw.DNG", "icon.png",
    }  # fmt: skip
    assert "truncated" in reasons["truncated.jpg"] and "truncated" in reasons["almost.jpg"]
    assert "0 bytes" in reasons["empty.jpg"] and "not an image" in reasons["text.jpg"]
    assert "raw" in reasons["raw.DNG"] and "8×8" in reasons["icon.png"]


def test_hidden_files_and_masks_are_passed_over(tmp_path):
    for name in ("a.jpg", "b.jpg", "b_mask.png", "masks/a.jpg.png", ".hidden.jpg", ".cache/x.jpg", "lone_mask.png"):
        write_photo(tmp_path / name)
    photos, left_out = find_photos(tmp_path)
    assert [photo.name for photo in photos] == ["a.jpg", "b.jpg", "lone_mask.png"] and not left_out


@pytest.mark.parametrize("files", [[], ["one.jpg"]])
def test_too_few_photos_is_an_error_that_names_the_folder_and_what_was_skipped(tmp_path, files):
    for name in files:
        write_photo(tmp_path / name)
    (tmp_path / "empty.png").touch()
    with pytest.raises(SpatialError, match=r"empty\.png: empty file") as caught:
        find_photos(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_exif_orientation_focal_and_time(tmp_path):
    exif = {0x0112: 6, 0xA405: 26, 0x9003: "2026:05:04 10:20:30", 0x9291: "25", 0x9011: "+02:00"}
    write_photo(tmp_path / "a.jpg", size=(400, 300), exif=exif)
    write_photo(tmp_path / "b.jpg", size=(400, 300), exif={0x920A: 4.0, 0xA20E: 5000.0, 0xA210: 2, 0xA002: 800})
    (a, b), _ = find_photos(tmp_path)
    assert (a.width, a.height, a.exif_orientation) == (400, 300, 6)
    assert a.focal_px == pytest.approx(26 / 43.2666 * 500, rel=1e-4)
    assert a.timestamp_us == 1777882830250000
    # 4 mm on a sensor of 5000 pixels an inch, photo resized from 800 to 400 pixels
    assert b.focal_px == pytest.approx(4 / 25.4 * 5000 / 2) and b.timestamp_us is None and b.exif_orientation == 1


def test_heic_is_read_with_its_extra(tmp_path):
    heif = pytest.importorskip("pillow_heif", reason="pillow-heif is not installed")
    heif.register_heif_opener()
    for name in ("a.heic", "b.HEIC"):
        write_photo(tmp_path / name, format="HEIF")
    photos, left_out = find_photos(tmp_path)
    assert [photo.name for photo in photos] == ["a.heic", "b.HEIC"] and not left_out


def test_without_the_extra_heic_is_left_out_with_the_command(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pillow_heif", None)
    for name in ("a.jpg", "b.jpg"):
        write_photo(tmp_path / name)
    (tmp_path / "c.heic").write_bytes(b"heic")
    _, (left_out,) = find_photos(tmp_path)
    assert left_out.name == "c.heic" and "pip install 'spatial-ai[heic]'" in left_out.reason


def test_natural_order():
    assert sorted(["f10", "f9", "f009b", "e"], key=natural_key) == ["e", "f009b", "f9", "f10"]


@pytest.mark.parametrize(
    "mask", ["masks/a/b.jpg.png", "masks/a/b.png", "images/a/b_mask.png", "images/masks/a/b.png", "masks/a/b.jpg"]
)
def test_mask_layouts(tmp_path, mask):
    photo = write_photo(tmp_path / "images/a/b.jpg")
    assert find_mask(photo, "a/b.jpg") is None
    write_photo(tmp_path / mask)
    assert find_mask(photo, "a/b.jpg") == tmp_path / mask


def test_real_photos_are_all_read(shared_data):
    photos, left_out = find_photos(shared_data("lund/images"))
    assert len(photos) == 29 and not left_out
    assert all(photo.focal_px and 900 < photo.focal_px < 1200 for photo in photos)
