"""The web viewer in a real browser: what the canvas shows is what the renderer gives for the browser's camera."""

import math
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from spatial.metrics.image import psnr
from spatial.report.contact_sheet import depth_picture, to_uint8
from spatial.report.viewer import Viewer
from spatial.report.viewer_geometry import camera_from_viser
from spatial.report.viewer_session import Session
from spatial.structures import Camera, Render, View

pytest.importorskip("viser", reason="viser is not installed")
CANVAS_BOX = """(() => { const b = document.querySelector('canvas').getBoundingClientRect();
    return [b.left, b.top, b.right, b.bottom]; })()"""
ONLY_CANVAS = """(() => { const s = document.createElement('style');
    s.textContent = 'body * {visibility: hidden} canvas {visibility: visible}'; document.head.append(s); })()"""


@pytest.fixture
def views(room: Callable[[Camera], Render], ring: list[Camera]) -> list[View]:
    def photo(camera: Camera, name: str) -> View:
        def load(scale: float) -> tuple[np.ndarray, None]:
            small = camera.resized(round(camera.width * scale), round(camera.height * scale))
            return to_uint8(room(small).colors.numpy()), None

        return View(name, camera, load)

    return [photo(camera, f"{i:02d}.jpg") for i, camera in enumerate(ring)]


@pytest.fixture
def viewer(room: Callable[[Camera], Render], views: list[View]) -> Iterator[Viewer]:
    with Viewer(room, views, port=8765, title="Test") as viewer:
        yield viewer


def wait_until_sharp(viewer: Viewer) -> None:
    """Until the one client has had its camera at rest and its picture at full resolution for a moment."""
    deadline = time.monotonic() + 120
    sharp_since = math.inf
    while time.monotonic() - sharp_since < 0.6:
        assert time.monotonic() < deadline, viewer._sessions
        is_sharp = [s.drawn_scale == 1.0 and s.drawn_at > s.moved_at for s in viewer._sessions.values()] == [True]
        sharp_since = min(sharp_since, time.monotonic()) if is_sharp else math.inf
        time.sleep(0.05)


def canvas(page, viewer: Viewer) -> tuple[np.ndarray, Camera]:
    """What the browser shows without its panels, and the camera from which it should."""
    wait_until_sharp(viewer)
    page.evaluate(ONLY_CANVAS)
    left, top, right, bottom = (round(v) for v in page.evaluate(CANVAS_BOX))
    shown = page.screenshot()[top:bottom, left:right]
    handle = next(iter(viewer._server.get_clients().values())).camera
    position = handle.position / viewer.viewer_from_world
    size = {"width": shown.shape[1], "height": shown.shape[0]}
    return shown, camera_from_viser(handle.wxyz, position, handle.fov, **size)


def shown_camera(page, viewer: Viewer, expected: Callable[[Camera], torch.Tensor]) -> Camera:
    """The browser's camera, once its canvas shows what is expected from there at 25 dB and better."""
    deadline, similarity = time.monotonic() + 60, 0.0
    while time.monotonic() < deadline:
        shown, camera = canvas(page, viewer)
        similarity = psnr(torch.from_numpy(shown / 255).float(), expected(camera))
        if similarity > 25:
            assert shown.std() > 20  # not blank
            return camera
    raise AssertionError(f"the canvas is at {similarity:.1f} dB from the direct render")


def depth_colors(render: Render) -> torch.Tensor:
    depths, alphas = render.depths[..., 0].numpy(), render.alphas[..., 0].numpy()
    return torch.from_numpy(depth_picture(depths, alphas) / 255).float()


def test_browser_shows_the_render_jumps_to_photos_and_switches_modes(page, viewer, room, ring):
    page.open(viewer.url, width=700, height=400)
    page.wait_for("document.querySelector('canvas') !== null")
    viewer._show_cameras.value = False  # nothing but the render

    camera = shown_camera(page, viewer, lambda camera: room(camera).colors)
    assert np.allclose(camera.position, ring[0].position, atol=1e-3)  # it opens at the first photo
    other = Camera(camera.K, ring[5].camera_from_world, camera.width, camera.height)
    assert psnr(room(other).colors, room(camera).colors) < 20  # the measure does tell views apart

    viewer._jump(next(iter(viewer._server.get_clients().values())), 5)
    camera = shown_camera(page, viewer, lambda camera: room(camera).colors)
    assert np.allclose(camera.camera_from_world, ring[5].camera_from_world, atol=2e-3)
    assert camera.width / camera.K[0, 0] >= ring[5].width / ring[5].K[0, 0] - 1e-6  # all of the photo is in view
    assert camera.height / camera.K[1, 1] >= ring[5].height / ring[5].K[1, 1] - 1e-6

    viewer._mode.value = "Depth"
    shown_camera(page, viewer, lambda camera: depth_colors(room(camera)))


def test_frusta_are_drawn_over_the_render(page, viewer, room, ring):
    page.open(viewer.url, width=700, height=400)
    page.wait_for("document.querySelector('canvas') !== null")
    wait_until_sharp(viewer)
    client = next(iter(viewer._server.get_clients().values()))
    client.camera.position = np.array([10.0, 0, 11]) * viewer.viewer_from_world
    client.camera.look_at = np.zeros(3)
    viewer._show_cameras.value = False
    camera = shown_camera(page, viewer, lambda camera: room(camera).colors)
    without, _ = canvas(page, viewer)
    viewer._show_cameras.value = True
    with_frusta, _ = canvas(page, viewer)
    changed = (np.abs(with_frusta.astype(int) - without) > 40).any(-1)
    assert 0.002 < changed.mean() < 0.3
    for seen in ring:  # something has changed around each captured camera that is in view
        x, y, z = camera.K @ (camera.camera_from_world @ torch.cat([seen.position, torch.ones(1)]).double())[:3]
        u, v = int(x / z), int(y / z)
        if 25 < u < camera.width - 25 and 25 < v < camera.height - 25:
            assert changed[v - 25 : v + 25, u - 25 : u + 25].any(), (u, v)


def test_an_error_in_the_renderer_ends_the_viewer_and_is_raised(page, views):
    def broken(camera: Camera) -> Render:
        raise RuntimeError("out of memory")

    with Viewer(broken, views, port=8766) as viewer:
        page("Page.navigate", url=viewer.url)
        with pytest.raises(RuntimeError, match="out of memory"):
            viewer.wait()
    assert not any(thread.is_alive() for thread in viewer._threads)


def test_viewer_without_photos_opens_and_closes(room):
    viewer = Viewer(room, port=8767)
    viewer.close()
    viewer.close()
    assert not any(thread.is_alive() for thread in viewer._threads)
    with Viewer(room, port=8767):  # the port is free again
        pass


def test_camera_of_a_viser_client():
    half = math.sqrt(0.5)
    camera = camera_from_viser(np.array([half, half, 0, 0]), np.array([1.0, 2, 3]), math.pi / 2, width=40, height=20)
    assert torch.allclose(camera.position, torch.tensor([1.0, 2, 3]).double())
    assert torch.allclose(camera.forward, torch.tensor([0.0, -1, 0]).double(), atol=1e-12)  # 90° about x takes z to -y
    assert camera.K[0, 0] == camera.K[1, 1] == pytest.approx(10)
    assert camera.K[:2, 2].tolist() == [20, 10]


@pytest.mark.parametrize("megapixels_per_second", [0.3, 3, 300])
def test_moving_resolution_settles_at_the_wanted_frame_rate(megapixels_per_second):
    session, target_s = Session(client=None), 1 / 12
    overhead_s = 0.01
    for _ in range(60):
        session.moved()
        scale = session.next_scale()
        session.drawn_scale = scale
        seconds = overhead_s + scale**2 / megapixels_per_second
        session.drawn(seconds, target_s)
    assert 0.8 < target_s / seconds < 1.25 or (session.moving_scale == 1.0 and seconds < target_s)


def test_a_resting_camera_is_refined_to_full_resolution_and_then_left_alone(monkeypatch):
    session, scales = Session(client=None), []
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    session.moved_at = 99.0
    while session.needs_frame():
        scales.append(session.next_scale())
        session.drawn_scale = scales[-1]
        session.drawn(1 / 12, 1 / 12)
    assert scales == [0.25, 0.5, 1.0]
