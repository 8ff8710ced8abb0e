"""The report page: complete, self-contained, small, escaped, written in one step, and sound in a real browser."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch

from spatial.errors import SpatialError
from spatial.report import html as html_report
from spatial.report.contact_sheet import depth_picture, to_uint8
from spatial.report.html import (
    MAX_BYTES,
    Comparison,
    Exported,
    Picture,
    ReportContent,
    ViewScore,
    format_bytes,
    format_duration,
    render_report,
    representative,
    write_report,
)
from spatial.report.plots import Curve
from spatial.structures import Camera, LeftOut, PointCloud, Render


@pytest.fixture
def content(room: Callable[[Camera], Render], ring: list[Camera]) -> ReportContent:
    rng = np.random.default_rng(0)
    scores, comparisons = [], []
    for index, psnr in ((0, 24.5), (4, 31.25), (8, 19.75)):
        truth = to_uint8(room(ring[index]).colors.numpy())
        render = to_uint8(truth / 255 + 0.04 * rng.standard_normal(truth.shape))
        scores.append(ViewScore(f"IMG_{index:04d}.jpg", psnr, 0.8))
        comparisons.append(Comparison(scores[-1], truth, render))
    points = torch.from_numpy(rng.uniform(-2, 2, (500, 3))).float()
    depth = room(ring[0]).depths[..., 0].numpy()
    seconds = np.linspace(0, 90, 1000)
    return ReportContent(
        title="Balls & <checkers>",
        scores=scores,
        comparisons=comparisons,
        num_gaussians=12345,
        protocol="Every 4th photo is held out. SSIM with valid padding.",
        source="Poses from COLMAP: 12 of 14 photos.",
        num_photos=12,
        left_out=[LeftOut("dark.jpg", "too dark"), LeftOut("<b>.jpg", "not an image")],
        cameras=ring,
        is_held_out=[i % 4 == 0 for i in range(len(ring))],
        points=PointCloud(points, (points / 4 + 0.5).clamp(0, 1)),
        seconds={"poses": 21.0, "training": 90.0, "evaluation": 0.4},
        peak_memory_bytes=1_234_000_000,
        curves=[
            Curve("Loss", seconds, np.exp(-seconds / 20) + 0.01, is_log=True),
            Curve("Gaussians", seconds, seconds),
        ],
        pictures=[Picture("Depth", depth_picture(depth))],
        exports=[
            Exported("scene.ply", 2_900_000, 25.1667),
            Exported("spaced name.spz", 310_000, 24.9667, "for the web"),
        ],
        warnings=["Two photos are nearly black."],
        lpips_reason="the package lpips is not installed",
        video="orbit.mp4",
        poster=comparisons[0].truth,
        facts={"Machine": "2 cores"},
    )


class Links(HTMLParser):
    """Every address in a page, and whether its tags balance."""

    VOID = ("meta", "img", "input", "br", "link")

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.open_tags: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.addresses += [value for name, value in attrs if name in ("src", "href", "poster", "srcset")]
        if tag not in self.VOID:
            self.open_tags.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.addresses += [value for name, value in attrs if name in ("src", "href", "poster")]

    def handle_endtag(self, tag):
        assert self.open_tags.pop() == tag


def text_of(page: str) -> str:
    page = re.sub(r"<(style|script|title)[^>]*>.*?</\1>", "", page, flags=re.S)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", page))


def test_page_says_everything_and_escapes_names(content):
    page = render_report(content)
    text = text_of(page)
    for said in (
        *("Balls &amp; &lt;checkers&gt;", "25.17 dB", "0.800", "12,345", "12 of 14", "1:51 min", "1.2 GB"),
        *(
            "Every 4th photo is held out",
            "Poses from COLMAP",
            "too dark",
            "&lt;b&gt;.jpg",
            "Two photos are nearly black",
        ),
        *("No LPIPS: the package lpips is not installed", "poses21 s", "training1 min 30 s", "evaluation0.4 s"),
        *("scene.ply2.9 MBnone", "spaced name.spz310 kB0.20 dBfor the web", "Machine2 cores"),
    ):
        assert said in text, said
    assert "<b>.jpg" not in page


def test_page_is_well_formed_and_needs_nothing_but_the_files_beside_it(content):
    links = Links()
    links.feed(render_report(content))
    assert links.open_tags == []
    outside = {a for a in links.addresses if not a.startswith("data:image/jpeg;base64,")}
    assert outside == {"orbit.mp4", "scene.ply", "spaced%20name.spz"}
    assert "http" not in re.sub(r"data:[^\"]+", "", render_report(content))


def test_views_come_worst_first_with_their_ranks(content):
    text = text_of(render_report(content))
    strips = text[text.index("Drag to compare") : text.index("All 3 held-out views")]
    found = re.findall(r"IMG_\d{4}\.jpg (\w+) ([\d.]+) dB", strips)
    assert found == [("worst", "19.75"), ("median", "24.50"), ("best", "31.25")]


def test_a_bare_run_still_gives_a_page(content):
    bare = replace(
        content,
        **dict.fromkeys(("scores", "comparisons", "left_out", "cameras", "is_held_out", "curves", "pictures"), ()),
        **dict.fromkeys(("exports", "warnings"), ()),
        **dict.fromkeys(("video", "poster", "peak_memory_bytes"), None),
        seconds={},
        facts={},
    )
    text = text_of(render_report(bare))
    assert "No view was held out" in text
    assert "Held-out PSNR–" in text.replace(" dB", "").replace("PSNR –", "PSNR–")
    for absent in ("Photos left out", "Files", "Training", "Where the time went", "Cameras", "nan", "None"):
        assert absent not in text, absent


def test_page_stays_below_8_mb(content):
    rng = np.random.default_rng(1)
    noise = rng.integers(0, 256, (900, 1200, 3), dtype=np.uint8)  # the worst that JPEG can be given
    many = [Comparison(ViewScore(f"{i}.jpg", 20.0 + i, 0.5), noise, noise[::-1].copy()) for i in range(8)]
    full_size = 24 * len(html_report.data_uri(noise, longest_side=840, quality=85))
    page = render_report(replace(content, comparisons=many))
    assert full_size > MAX_BYTES > len(page)


def test_report_is_replaced_in_one_step(content, tmp_path):
    path = write_report(tmp_path / "new folder", content)
    assert path.read_text(encoding="utf-8") == render_report(content)
    write_report(path.parent, replace(content, title="second"))
    assert "second" in path.read_text(encoding="utf-8")
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]


def test_failed_write_keeps_the_old_report(content, tmp_path, monkeypatch):
    path = write_report(tmp_path, content)
    before = path.read_bytes()

    def full_disk(self, text, encoding):
        self.open("w").write(text[:1000])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full_disk)
    with pytest.raises(SpatialError, match=r"report\.html: No space left on device"):
        write_report(tmp_path, content)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["report.html"]


def test_representative_views_span_the_range():
    scores = [ViewScore(f"{i:03d}.jpg", 20 + (i * 37) % 101 / 10, 0.5) for i in range(101)]
    chosen = representative(scores, 9)
    values = [s.psnr for s in chosen]
    assert values == sorted(values) and len(set(values)) == 9
    assert (values[0], values[4], values[-1]) == pytest.approx((20.0, 25.0, 30.0))
    assert len(representative(scores[:3], 9)) == 3


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.7, "1 min 00 s"), (184, "3 min 04 s"), (7800, "2 h 10 min")],
)
def test_durations(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(812, "812 B"), (3400, "3.4 kB"), (310_000, "310 kB"), (2.31e9, "2.3 GB")])
def test_sizes(count, text):
    assert format_bytes(count) == text


@pytest.mark.parametrize("width", [390, 1280])
def test_in_a_browser_nothing_overflows_nothing_fails_and_dark_is_dark(content, tmp_path, page, width):
    path = write_report(tmp_path, replace(content, video=None))
    brightness = {}
    for is_dark in (False, True):
        page.open(path.as_uri(), width=width, height=800, is_dark=is_dark)
        brightness[is_dark] = page.screenshot()[:, :8].mean()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        overflowing = """[...document.querySelectorAll('dd, h1, h2, p, figcaption')]
            .filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent.trim())"""
        assert page.evaluate(overflowing) == []
        broken = "[...document.images].filter(i => !i.complete || i.naturalWidth === 0).length"
        assert page.evaluate(broken) == 0
        assert page.evaluate("document.images.length") == 13
    assert brightness[True] < 60 < 200 < brightness[False]
    requests = [e["params"]["request"]["url"] for e in page.events if e["method"] == "Network.requestWillBeSent"]
    assert {u for u in requests if not u.startswith("data:")} == {path.as_uri()}
    assert not [e for e in page.events if e["method"] == "Runtime.exceptionThrown"], json.dumps(page.events)


def test_dragging_uncovers_the_photo(content, tmp_path, page):
    path = write_report(tmp_path, content)
    page.open(path.as_uri(), width=1280, height=800)
    page.evaluate("""(() => { const i = document.querySelector('.compare input');
        i.value = 80; i.dispatchEvent(new Event('input')); })()""")
    clip = page.evaluate("getComputedStyle(document.querySelectorAll('.compare img')[1]).clipPath")
    assert clip == "inset(0px 0px 0px 80%)"
