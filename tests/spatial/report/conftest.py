"""A headless Chromium driven over its DevTools protocol, and a small scene whose renderer is analytic."""

from __future__ import annotations

import base64
import io
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from spatial.geometry.camera_path import look_at
from spatial.structures import Camera, Render

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
CHROMIUM_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--use-gl=angle",  # WebGL in software
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--remote-debugging-port=0",
]


class Page:
    """One tab: commands go out and answers come back over a WebSocket; events in between are kept."""

    def __init__(self, socket: Any):
        self.socket = socket
        self.count = 0
        self.events: list[dict[str, Any]] = []

    def __call__(self, method: str, **params: Any) -> dict[str, Any]:
        self.count += 1
        self.socket.send(json.dumps({"id": self.count, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv(timeout=60))
            if message.get("id") == self.count:
                assert "error" not in message, message
                return message["result"]
            self.events.append(message)

    def open(self, url: str, *, width: int, height: int, is_dark: bool = False) -> None:
        self("Page.enable")
        self("Runtime.enable")
        self("Network.enable")
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self("Emulation.setEmulatedMedia", features=[scheme])
        self("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        result = self("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, expression: str, *, timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.evaluate(expression):
            assert time.monotonic() < deadline, f"{expression} did not become true"
            time.sleep(0.1)

    def screenshot(self, *, is_whole_page: bool = False) -> np.ndarray:
        """The window (or the whole page) as [H, W, 3] uint8."""
        data = self("Page.captureScreenshot", format="png", captureBeyondViewport=is_whole_page)["data"]
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    """A fresh tab in a Chromium of its own; skips where none is installed."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed (apt-get install chromium)")
    client = pytest.importorskip("websockets.sync.client", reason="websockets comes with viser")
    profile = tmp_path / "chromium-profile"
    with (tmp_path / "chromium.log").open("wb") as log:
        process = subprocess.Popen([CHROMIUM, *CHROMIUM_FLAGS, f"--user-data-dir={profile}"], stdout=log, stderr=log)
        try:
            port = _debugging_port(process, profile / "DevToolsActivePort", tmp_path / "chromium.log")
            tabs = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=30))
            url = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
            with client.connect(url, max_size=None) as socket:
                yield Page(socket)
        finally:
            process.terminate()
            process.wait(timeout=30)


def _debugging_port(process: subprocess.Popen[bytes], file: Path, log: Path) -> int:
    deadline = time.monotonic() + 30
    while not (file.exists() and file.read_text().count("\n")):
        assert process.poll() is None and time.monotonic() < deadline, log.read_text(errors="replace")
        time.sleep(0.05)
    return int(file.read_text().splitlines()[0])


def trace_room(camera: Camera) -> Render:
    """Ray-traced: three coloured balls on a checkered floor (z = 0, z up) below a sky."""
    rows, columns = torch.meshgrid(torch.arange(camera.height) + 0.5, torch.arange(camera.width) + 0.5, indexing="ij")
    pixels = torch.stack([columns, rows, torch.ones_like(rows)], dim=-1).double()
    in_camera = pixels @ torch.linalg.inv(camera.K).T  # z = 1, so a ray's length is its depth
    rays, origin = in_camera @ camera.camera_from_world[:3, :3], camera.position
    depth = torch.where(rays[..., 2] < -1e-9, -origin[2] / rays[..., 2].clamp(max=-1e-9), torch.inf)
    depth = torch.where(depth < 60, depth, torch.inf)
    floor = origin + rays * depth.nan_to_num(posinf=0.0)[..., None]
    checker = (floor[..., 0].floor() + floor[..., 1].floor()).remainder(2)[..., None]
    colors = torch.where(torch.isfinite(depth)[..., None], 0.35 + 0.4 * checker, torch.tensor([0.55, 0.7, 0.9]))
    for x, y, radius, color in (
        (0, 0, 0.8, (0.9, 0.2, 0.15)),
        (2, 0.5, 0.5, (0.2, 0.7, 0.3)),
        (-1, 1.8, 0.6, (0.2, 0.3, 0.9)),
    ):
        center = torch.tensor([x, y, radius], dtype=torch.float64)
        a, b = (rays * rays).sum(-1), (rays * (origin - center)).sum(-1)
        root = b * b - a * ((origin - center).square().sum() - radius**2)
        hit = (-b - root.clamp(min=0).sqrt()) / a
        is_hit = (root > 0) & (hit > 0) & (hit < depth)
        normal = (origin + rays * hit[..., None] - center) / radius
        shade = (0.35 + 0.65 * (normal @ torch.tensor([0.5, -0.4, 0.77]).double()).clamp(min=0))[..., None]
        colors = torch.where(is_hit[..., None], shade * torch.tensor(color), colors)
        depth = torch.where(is_hit, hit, depth)
    alphas = torch.isfinite(depth)[..., None].float()
    return Render(colors.float(), alphas, depth.nan_to_num(posinf=0.0)[..., None].float())


def ring_of_cameras(count: int = 12, *, width: int = 160, height: int = 120, arc: float = 2 * np.pi) -> list[Camera]:
    """Cameras around the balls at radius 6, 2.5 above the floor."""
    K = torch.tensor([[1.1 * width, 0, width / 2], [0, 1.1 * width, height / 2], [0, 0, 1]], dtype=torch.float64)
    cameras = []
    for azimuth in arc * np.arange(count) / count:
        position = np.array([6 * np.cos(azimuth), 6 * np.sin(azimuth), 2.5])
        cameras.append(look_at(position, np.array([0, 0, 0.5]), np.array([0.0, 0, 1]), K=K, width=width, height=height))
    return cameras


@pytest.fixture
def room() -> Callable[[Camera], Render]:
    return trace_room


@pytest.fixture
def ring() -> list[Camera]:
    return ring_of_cameras()
