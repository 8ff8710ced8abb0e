"""Videos: the sharpest frame of each of N equal intervals as photos on disk, and frames to an H.264 file."""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from jaxtyping import UInt8

from spatial.errors import SpatialError
from spatial.io.atomic import atomic_path, make_folder
from spatial.io.images import write_image

logger = logging.getLogger(__name__)

VIDEO_SUFFIXES = {".mp4", ".mov", ".m4v", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".mts", ".3gp"}
SHARPNESS_SIZE_PX = 640  # noise of single pixels is not sharpness


def extract_frames(video: Path, folder: Path, *, num_frames: int = 120, suffix: str = ".jpg") -> Path:
    """Writes the sharpest frame of each of ``num_frames`` equal intervals; returns the folder that holds them.

    Sharpness is the variance of the Laplacian (Pech-Pacheco 2000) of the frame at 640 px. Frames are named by their
    time, ``frame_0001234567.jpg`` in microseconds, and turned upright by the rotation that phones store. A folder that
    an earlier call finished for the same file and options is used again.

    Args:
        video: any container and codec that FFmpeg reads.
        folder: made where absent; the frames go to a folder in it named by the video and options.
        num_frames: at least 2; a shorter video gives all its frames.
        suffix: ``.jpg`` (quality 95) or ``.png``.

    Raises:
        SpatialError: not a video, or fewer than two frames can be decoded.
    """
    stat = video.stat()
    options = f"{video.resolve()}|{stat.st_size}|{stat.st_mtime_ns}|{num_frames}|{suffix}"
    target = make_folder(folder) / f"{video.stem}-{hashlib.blake2b(options.encode(), digest_size=5).hexdigest()}"
    if target.is_dir():
        return target
    for stale in folder.glob(f".{target.name}.*.tmp"):
        shutil.rmtree(stale)  # left by a run that was killed
    with atomic_path(target) as temporary:
        temporary.mkdir()
        count = 0
        for time_us, frame in sharpest_frames(video, num_frames=num_frames):
            write_image(temporary / f"frame_{time_us:010d}{suffix}", frame)
            count += 1
        if count < 2:
            raise SpatialError(f"{video}: only {count} frame(s) can be decoded; is the file complete?")
    logger.info("%s: %d frames by sharpness", video.name, count)
    return target


def sharpest_frames(video: Path, *, num_frames: int) -> Iterator[tuple[int, UInt8[np.ndarray, "H W 3"]]]:
    """Yields (time in microseconds, frame) of the sharpest frame in each of ``num_frames`` equal intervals, in order.

    Raises:
        SpatialError: not a video, or a damaged one; frames before the damage have been yielded.
    """
    duration_us = _duration_us(video)
    best: tuple[float, int, UInt8[np.ndarray, "H W 3"]] | None = None
    interval = 0
    for time_us, frame in read_frames(video):
        now = min(num_frames - 1, time_us * num_frames // duration_us)
        if now != interval and best is not None:
            yield best[1], best[2]
            best = None
        interval = now
        score = sharpness(frame)
        if best is None or score > best[0]:
            best = score, time_us, frame
    if best is not None:
        yield best[1], best[2]


def read_frames(video: Path) -> Iterator[tuple[int, UInt8[np.ndarray, "H W 3"]]]:
    """Yields (microseconds since the first frame, RGB frame turned upright) for the whole video.

    Raises:
        SpatialError: not a video. Damage further on ends the iteration with a logged warning.
    """
    import av

    start, count = 0.0, 0
    try:
        with av.open(str(video)) as container:
            stream = _stream(container, video)
            for frame in container.decode(stream):
                seconds = float(frame.time if frame.time is not None else count / float(stream.average_rate or 30))
                start = seconds if count == 0 else start
                count += 1
                image = np.rot90(frame.to_ndarray(format="rgb24"), round(_rotation(frame) / 90) % 4)
                yield round((seconds - start) * 1e6), np.ascontiguousarray(image)
    except (av.FFmpegError, OSError) as error:
        if count == 0:
            raise SpatialError(f"{video} is not a video that can be read ({error}); convert it to MP4") from error
        logger.warning("%s is damaged after frame %d (%s); going on with the frames before", video, count, error)


def sharpness(frame: UInt8[np.ndarray, "H W 3"]) -> float:
    """Variance of the Laplacian at a common size; larger is sharper."""
    scale = SHARPNESS_SIZE_PX / max(frame.shape[:2])
    if scale < 1:
        frame = cv2.resize(frame, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    return float(cv2.Laplacian(cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY), cv2.CV_64F).var())


def write_video(path: Path, frames: Iterable[UInt8[np.ndarray, "H W 3"]], *, fps: float = 30, crf: int = 18) -> int:
    """Writes uint8 RGB frames of one size as H.264 in MP4 (yuv420p, which every player takes); returns their number.

    An odd last row or column is cut off, since yuv420p has none.

    Raises:
        SpatialError: no frames, or the disk refuses. Nothing is left behind.
    """
    import av

    count = 0
    with atomic_path(path) as temporary, av.open(str(temporary), "w", options={"movflags": "faststart"}) as container:
        stream: Any = None
        for frame in frames:
            height, width = frame.shape[0] // 2 * 2, frame.shape[1] // 2 * 2
            if stream is None:
                stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1001))
                stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
                stream.options = {"crf": str(crf)}
                stream.thread_count = 2
            image = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame[:height, :width]), format="rgb24")
            container.mux(stream.encode(image))
            count += 1
        if stream is None:
            raise SpatialError(f"{path}: there are no frames to write")
        container.mux(stream.encode())
    return count


def _stream(container: Any, video: Path) -> Any:
    if not container.streams.video:
        raise SpatialError(f"{video} holds no pictures (sound only?); give a video")
    stream = container.streams.video[0]
    stream.thread_type = "AUTO"
    return stream


def _duration_us(video: Path) -> int:
    """By the header, else by counting the packets' times."""
    import av

    try:
        with av.open(str(video)) as container:
            stream = _stream(container, video)
            if stream.duration and stream.time_base:
                return max(1, round(float(stream.duration * stream.time_base) * 1e6))
            if container.duration:
                return max(1, container.duration)
            times = [
                float(packet.pts * packet.time_base) for packet in container.demux(stream) if packet.pts is not None
            ]
            return max(1, round((max(times, default=0.0) - min(times, default=0.0)) * 1e6))
    except (av.FFmpegError, OSError) as error:
        raise SpatialError(f"{video} is not a video that can be read ({error}); convert it to MP4") from error


def _rotation(frame: Any) -> float:
    """Degrees counter-clockwise by which the frame must be turned to be upright (FFmpeg's display matrix)."""
    return float(getattr(frame, "rotation", 0) or 0)
