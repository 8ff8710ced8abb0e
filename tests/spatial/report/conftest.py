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
        self("Page.bringToFront")  # a tab behind another draws no frames
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


@pytest.fixture(scope="session")
def browser_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The DevTools port of a Chromium of our own; skips where none is installed."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed (apt-get install chromium)")
    folder = tmp_path_factory.mktemp("chromium")
    command = [CHROMIUM, *CHROMIUM_FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield _debugging_port(process, folder / "profile" / "DevToolsActivePort", folder / "log")
        finally:
            process.terminate()
            process.wait(timeout=30)


@pytest.fixture
def page(browser_port: int) -> Iterator[Page]:
    """A fresh tab."""
    client = pytest.importorskip("websockets.sync.client", reason="websockets comes with viser")
    address = f"http://127.0.0.1:{browser_port}/json"
    tab = json.load(
        urllib.request.urlopen(urllib.request.Request(f"{address}/new?about:blank", method="PUT"), timeout=30)
    )
    with client.connect(tab["webSocketDebuggerUrl"], max_size=None, close_timeout=1) as socket:
        yield Page(socket)
    urllib.request.urlopen(f"{address}/close/{tab['id']}", timeout=30).close()


def _debugging_port(process: subprocess.Popen[bytes], file: Path, log: Path) -> int:
    deadline = time.monotonic() + 30
    while not (file.exists() and file.read_text().count("\n")):
        assert process.poll() is None and time.monotonic() < deadline, log.read_text(errors="replace")
        time.sleep(0.05)
    return int(file.read_text().splitlines()[0])


BALLS = (  # x, y, radius, colour
    (0.0, 0.0, 0.8, (0.9, 0.2, 0.15)),
    (2.0, 0.5, 0.5, (0.2, 0.7, 0.3)),
    (-1.0, 1.8, 0.6, (0.2, 0.3, 0.9)),
)


def trace_room(camera: Camera) -> Render:
    """Ray-traced: three coloured balls on a checkered floor (z = 0, z up) below a sky."""
    columns, rows = np.meshgrid(np.arange(camera.width) + 0.5, np.arange(camera.height) + 0.5)
    pixels = np.stack([columns, rows, np.ones_like(rows)], axis=-1)
    in_camera = pixels @ np.linalg.inv(camera.K.numpy()).T  # z = 1, so a ray's length is its depth
    rays, origin = in_camera @ camera.camera_from_world[:3, :3].numpy(), camera.position.numpy()
    depth = np.where(rays[..., 2] < -1e-9, -origin[2] / np.minimum(rays[..., 2], -1e-9), np.inf)
    depth[depth > 60] = np.inf
    is_floor = np.isfinite(depth)[..., None]
    floor = np.floor(origin + rays * np.where(is_floor, depth[..., None], 0))
    colors = np.where(is_floor, 0.35 + 0.4 * ((floor[..., :1] + floor[..., 1:2]) % 2), [0.55, 0.7, 0.9])
    for x, y, radius, color in BALLS:
        center = np.array([x, y, radius])
        a, b = (rays * rays).sum(-1), rays @ (origin - center)
        root = b * b - a * (((origin - center) ** 2).sum() - radius**2)
        hit = (-b - np.sqrt(np.maximum(root, 0))) / a
        is_hit = (root > 0) & (hit > 0) & (hit < depth)
        normals = (origin + rays[is_hit] * hit[is_hit, None] - center) / radius
        colors[is_hit] = (0.35 + 0.65 * np.maximum(normals @ [0.5, -0.4, 0.77], 0))[:, None] * color
        depth[is_hit] = hit[is_hit]
    is_hit = np.isfinite(depth)[..., None]
    depths = np.where(is_hit, depth[..., None], 0)
    return Render(*(torch.from_numpy(x.astype(np.float32)) for x in (colors.clip(0, 1), is_hit, depths)))


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
