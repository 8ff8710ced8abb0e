"""Frames by sharpness from a video that we wrote, and videos that can be read back."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from spatial.errors import SpatialError
from spatial.io.images import read_image
from spatial.io.video import extract_frames, read_frames, sharpest_frames, write_video

SHARP = {3, 14, 20, 39}  # one in each ten frames


def scene(index: int) -> np.ndarray:
    """A texture whose brightness tells the frame; blurred but for the sharp ones."""
    noise = np.random.default_rng(index).integers(0, 120, (60, 80), dtype=np.uint8)
    image = cv2.resize(noise, (320, 240), interpolation=cv2.INTER_NEAREST) + np.uint8(3 * index)
    image = image if index in SHARP else cv2.GaussianBlur(image, (0, 0), 5)
    return np.repeat(image[..., None], 3, axis=2)


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    path = tmp_path_factory.mktemp("vidéo clips") / "a clip.mp4"
    assert write_video(path, (scene(i) for i in range(40)), fps=20) == 40
    return path


def test_what_is_written_is_read_back(video):
    frames = list(read_frames(video))
    assert [time for time, _ in frames] == [50_000 * i for i in range(40)]
    for index in (0, 14, 39):
        assert np.abs(frames[index][1].astype(int) - scene(index)).mean() < 6
    assert [path.name for path in video.parent.iterdir()] == ["a clip.mp4"]


def test_the_sharp_frame_of_each_interval_is_taken(video):
    taken = list(sharpest_frames(video, num_frames=4))
    assert [time // 50_000 for time, _ in taken] == sorted(SHARP)


def test_frames_are_files_named_by_time_and_reused(video, tmp_path):
    folder = extract_frames(video, tmp_path, num_frames=4)
    names = [f"frame_{50_000 * index:010d}.jpg" for index in sorted(SHARP)]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert np.abs(read_image(folder / names[1]).rgb.astype(int) - scene(14)).mean() < 6
    before = (folder / names[0]).stat().st_mtime_ns
    assert extract_frames(video, tmp_path, num_frames=4) == folder
    assert (folder / names[0]).stat().st_mtime_ns == before
    assert extract_frames(video, tmp_path, num_frames=5) != folder


def test_more_intervals_than_frames_takes_all(video):
    assert len(list(sharpest_frames(video, num_frames=400))) == 40


def test_odd_sizes_lose_a_row(tmp_path):
    write_video(tmp_path / "odd.mp4", [np.full((33, 47, 3), 128, np.uint8)] * 3)
    assert next(read_frames(tmp_path / "odd.mp4"))[1].shape == (32, 46, 3)


def test_bad_videos_are_named_and_leave_nothing(video, tmp_path):
    (tmp_path / "text.mp4").write_text("no video")
    with pytest.raises(SpatialError, match=r"text\.mp4 is not a video"):
        extract_frames(tmp_path / "text.mp4", tmp_path / "frames")
    assert list((tmp_path / "frames").iterdir()) == []
    with pytest.raises(SpatialError, match="no frames"):
        write_video(tmp_path / "none.mp4", [])

    def failing():
        yield scene(0)
        raise RuntimeError("renderer died")

    with pytest.raises(RuntimeError, match="renderer died"):
        write_video(tmp_path / "half.mp4", failing())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["frames", "text.mp4"]


def test_portrait_video_of_a_phone_comes_upright(tmp_path):
    """The track header's matrix (a, b, u, c, d, v, x, y, w) = (0, 1, 0, -1, 0, …) asks for a quarter turn clockwise."""
    image = np.zeros((240, 320, 3), np.uint8)
    image[:60, :80] = 255  # top left as stored, top right as shown
    write_video(tmp_path / "a.mp4", [image] * 3)
    content = (tmp_path / "a.mp4").read_bytes()
    start = content.index(b"tkhd") + 44  # type, version and flags, times, ids, layer, volume
    one, zero = (1 << 16).to_bytes(4, "big"), bytes(4)
    assert content[start : start + 20] == one + zero * 3 + one
    turned = zero + one + zero + (-(1 << 16)).to_bytes(4, "big", signed=True) + zero
    (tmp_path / "a.mp4").write_bytes(content[:start] + turned + content[start + 20 :])
    frame = next(read_frames(tmp_path / "a.mp4"))[1]
    assert frame.shape == (320, 240, 3)
    assert frame[20, 220].min() > 200 and frame[20, 20].max() < 50
