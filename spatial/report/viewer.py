"""A web viewer: the server renders what the browser's camera sees and sends it as the scene's background picture.

Any renderer works, because a renderer is a function from a camera to a ``Render``. While the camera moves, the
resolution follows the machine's speed to keep a frame rate; once it rests, the picture is refined step by step to full
resolution, and a moving camera interrupts between steps.

The browser's world is the capture's own, scaled so that the cameras stand about 3 units from what they look at: the
client's clipping planes, orbit limits and depth format (0 to 167) then suit any capture. Nothing else changes frame.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from numpy import ndarray

from spatial.geometry.camera_path import up_direction
from spatial.report.contact_sheet import depth_picture, to_uint8
from spatial.report.viewer_geometry import (
    DISTANCE_IN_VIEWER,
    camera_from_viser,
    depth_of_focus,
    focus_distance,
    frustum_depth,
    vertical_fov,
    viser_scale,
    wxyz_of,
)
from spatial.report.viewer_session import REST_S, Session
from spatial.structures import Camera, Render, View

logger = logging.getLogger(__name__)

MODES = ("Colour", "Depth", "Opacity")
FAR_IN_VIEWER = 160.0  # viser's depth pictures end at 167.77
MAX_DEPTH_LINES = 360
THUMBNAIL_PX, PHOTO_PX = 200, 640
MAX_THUMBNAILS = 120
MOVING_JPEG_QUALITY, RESTING_JPEG_QUALITY = 75, 95


def view(
    render: Callable[[Camera], Render],
    views: Sequence[View] = (),
    *,
    cameras: Sequence[Camera] = (),
    host: str = "127.0.0.1",
    port: int = 8080,
    target_fps: float = 12.0,
    title: str = "Spatial",
) -> None:
    """Serves the viewer until Ctrl-C; see ``Viewer``."""
    with Viewer(render, views, cameras=cameras, host=host, port=port, target_fps=target_fps, title=title) as viewer:
        logger.info("viewer at %s, Ctrl-C ends it", viewer.url)
        try:
            viewer.wait()
        except KeyboardInterrupt:
            logger.info("viewer closed")


class Viewer:
    """A running web viewer; ``close`` (or leaving its ``with`` block) ends it.

    Args:
        render: called from one thread at a time, without gradients.
        views: the capture's photos, shown as frusta to click on; may be empty.
        cameras: where there are no photos, cameras about the scene, for the first view, its size and its up direction.
        host: the address to listen on; "0.0.0.0" lets other machines connect.
        port: the next free one is taken where it is in use; see ``url``.
        target_fps: frames per second to keep while the camera moves.
        title: shown above the controls.
    """

    def __init__(
        self,
        render: Callable[[Camera], Render],
        views: Sequence[View] = (),
        *,
        cameras: Sequence[Camera] = (),
        host: str = "127.0.0.1",
        port: int = 8080,
        target_fps: float = 12.0,
        title: str = "Spatial",
    ):
        import viser

        self.render = render
        self.views = list(views)
        self.target_fps = target_fps
        self._cameras = [v.camera for v in self.views] or list(cameras)
        self.viewer_from_world = DISTANCE_IN_VIEWER / focus_distance(self._cameras)
        self._sessions: dict[int, Session] = {}
        self._changed = threading.Condition()
        self._is_closing = False
        self._error: Exception | None = None
        self._server = viser.ViserServer(host=host, port=port, label=title, verbose=False)
        self.url = f"http://{'localhost' if host == '0.0.0.0' else host}:{self._server.get_port()}"
        self._set_up_scene(self._cameras)
        self._add_controls()
        self._add_frusta()
        self._server.on_client_connect(self._connect)
        self._server.on_client_disconnect(self._disconnect)
        self._threads = [threading.Thread(target=self._guarded, args=(f,)) for f in (self._draw, self._add_thumbnails)]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Viewer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def wait(self) -> None:
        """Blocks until the viewer is closed.

        Raises:
            Exception: whatever the renderer raised.
        """
        with self._changed:
            while not self._is_closing:
                self._changed.wait(timeout=0.5)  # a timeout, so that Ctrl-C is noticed at once
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Ends the threads and the server; may be called twice."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._server.stop()

    # The scene and its controls.

    def _set_up_scene(self, cameras: Sequence[Camera]) -> None:
        self._server.gui.configure_theme(dark_mode=True, show_logo=False, show_share_button=False)
        self._server.gui.main_panel.dock_right()
        if not cameras:
            return
        self._server.scene.set_up_direction(up_direction(cameras).numpy())
        first = cameras[0]
        initial = self._server.initial_camera
        initial.position = self._to_viewer(first.position)
        initial.look_at = self._to_viewer(first.position + first.forward * depth_of_focus(first, cameras))
        initial.fov = vertical_fov(first)

    def _add_controls(self) -> None:
        gui = self._server.gui
        self._mode = gui.add_dropdown("Show", MODES)
        self._fov = gui.add_slider(
            "Field of view, °",
            min=10,
            max=120,
            step=1,
            initial_value=round(math.degrees(self._server.initial_camera.fov)) if self._cameras else 50,
        )
        self._max_height = gui.add_slider("Resolution at rest, lines", min=120, max=2160, step=60, initial_value=1080)
        self._show_cameras = gui.add_checkbox("Show cameras", initial_value=True, visible=bool(self.views))
        self._status = gui.add_markdown("")
        self._mode.on_update(lambda _: self._refresh())
        self._max_height.on_update(lambda _: self._refresh())
        self._fov.on_update(self._set_fov)
        self._show_cameras.on_update(lambda _: self._show_frusta(self._show_cameras.value))
        if self.views:
            self._photo: Any = gui.add_dropdown("Go to photo", [v.name for v in self.views])
            self._photo_image = gui.add_image(np.zeros((1, 1, 3), np.uint8), label="The photo", visible=False)
            self._photo.on_update(self._photo_chosen)

    def _photo_chosen(self, event: Any) -> None:
        if event.client is not None:  # by hand, not by a click on a frustum
            self._jump(event.client, [v.name for v in self.views].index(self._photo.value))

    def _add_frusta(self) -> None:
        cameras = [v.camera for v in self.views]
        depth = frustum_depth(cameras) * self.viewer_from_world
        # A client that stands where a photo was taken must see the render, not the photo pinned to that frustum.
        self._server.initial_camera.near = 1.1 * depth if cameras else 0.01
        self._frusta: list[Any] = []
        for index, camera in enumerate(cameras):
            frustum = self._server.scene.add_camera_frustum(
                f"/cameras/{index:05d}",
                fov=vertical_fov(camera),
                aspect=camera.width / camera.height,
                scale=depth * viser_scale(camera),
                thickness=1.5,
                thickness_units="screen",
                color=(79, 195, 168),
                wxyz=wxyz_of(camera),
                position=self._to_viewer(camera.position),
            )
            frustum.on_click(partial(self._frustum_clicked, index))
            self._frusta.append(frustum)

    def _frustum_clicked(self, index: int, event: Any) -> None:
        self._jump(event.client, index)

    def _add_thumbnails(self) -> None:
        """Decodes photos for the frusta, spread evenly over the capture where there are very many."""
        count = min(len(self.views), MAX_THUMBNAILS)
        for index in (round(i) for i in np.linspace(0, len(self.views) - 1, count)):
            if self._is_closing:
                return
            self._frusta[index].image = self._load_small(index, THUMBNAIL_PX)

    def _show_frusta(self, is_visible: bool) -> None:
        for frustum in self._frusta:
            frustum.visible = is_visible
        self._refresh()

    def _set_fov(self, event: Any) -> None:
        clients = [event.client] if event.client else self._server.get_clients().values()
        for client in clients:
            client.camera.fov = math.radians(self._fov.value)

    def _jump(self, client: Any, index: int) -> None:
        """Puts the client's camera where the photo was taken, wide enough to hold all of it."""
        camera = self.views[index].camera
        canvas_aspect = client.camera.aspect
        wide_enough = 2 * math.atan(camera.width / (2 * float(camera.K[0, 0])) / canvas_aspect)
        focus_depth = depth_of_focus(camera, [v.camera for v in self.views])
        with client.atomic():
            client.camera.wxyz = wxyz_of(camera)
            client.camera.position = self._to_viewer(camera.position)
            client.camera.look_at = self._to_viewer(camera.position + camera.forward * focus_depth)
            client.camera.fov = max(vertical_fov(camera), wide_enough)
        self._photo.value = self.views[index].name
        self._photo_image.image = self._load_small(index, PHOTO_PX)
        self._photo_image.visible = True

    def _load_small(self, index: int, longest_side: int) -> UInt8[ndarray, "H W 3"]:
        camera = self.views[index].camera
        image, _ = self.views[index].load(min(1.0, longest_side / max(camera.width, camera.height)))
        return image

    def _to_viewer(self, position: torch.Tensor) -> ndarray:
        return position.double().numpy() * self.viewer_from_world

    # Clients and drawing.

    def _connect(self, client: Any) -> None:
        with self._changed:
            self._sessions[client.client_id] = Session(client)
            self._changed.notify_all()
        client.camera.on_update(lambda _: self._moved(client.client_id))

    def _disconnect(self, client: Any) -> None:
        with self._changed:
            self._sessions.pop(client.client_id, None)

    def _moved(self, client_id: int) -> None:
        with self._changed:
            if (session := self._sessions.get(client_id)) is not None:
                session.moved()
            self._changed.notify_all()

    def _refresh(self) -> None:
        with self._changed:
            for session in self._sessions.values():
                session.drawn_scale = 0.0
            self._changed.notify_all()

    def _guarded(self, work: Callable[[], None]) -> None:
        """Runs ``work``; an error ends the viewer and is raised in ``wait``, as a frozen viewer tells nothing."""
        try:
            work()
        except Exception as error:
            logger.exception("the viewer stops")
            with self._changed:
                self._error, self._is_closing = error, True
                self._changed.notify_all()

    def _draw(self) -> None:
        while True:
            with self._changed:
                session = None
                while not self._is_closing and (session := self._next_session()) is None:
                    self._changed.wait(timeout=REST_S)
                if session is None:
                    return
                scale = session.next_scale()
                session.drawn_scale = scale
                camera = self._camera(session.client.camera, scale)
            self._draw_frame(session, camera, is_final=scale == 1.0)

    def _next_session(self) -> Session | None:
        """The session that has waited longest among those with something to draw."""
        waiting = [s for s in self._sessions.values() if s.needs_frame()]
        return min(waiting, key=lambda s: s.drawn_at, default=None)

    def _camera(self, handle: Any, scale: float) -> Camera:
        lines = min(handle.image_height, self._max_height.value)
        height = max(1, round(lines * scale))
        width = max(1, round(lines * scale * handle.aspect))
        return camera_from_viser(
            handle.wxyz, handle.position / self.viewer_from_world, handle.fov, width=width, height=height
        )

    def _draw_frame(self, session: Session, camera: Camera, *, is_final: bool) -> None:
        began = time.perf_counter()
        with torch.no_grad():
            result = self.render(camera)
        depths, alphas = result.depths[..., 0].cpu().numpy(), result.alphas[..., 0].cpu().numpy()
        picture = _picture(result, depths, alphas, self._mode.value)
        # Depth lets the browser hide the frusta that lie behind the scene.
        depth = _depth_in_viewer(depths, alphas, self.viewer_from_world) if self._has_frusta() else None
        session.client.scene.set_background_image(
            picture,
            format="jpeg",
            jpeg_quality=RESTING_JPEG_QUALITY if is_final else MOVING_JPEG_QUALITY,
            depth=depth,
        )
        session.client.flush()
        seconds = time.perf_counter() - began
        with self._changed:
            session.drawn(seconds, 1 / self.target_fps)
        if is_final:
            self._status.content = f"{camera.width} × {camera.height} in {1000 * seconds:.0f} ms"

    def _has_frusta(self) -> bool:
        return bool(self._frusta) and self._show_cameras.value


def _picture(result: Render, depths: ndarray, alphas: ndarray, mode: str) -> UInt8[ndarray, "H W 3"]:
    if mode == "Depth":
        return depth_picture(depths, alphas)
    if mode == "Opacity":
        return np.repeat(to_uint8(alphas)[..., None], 3, axis=-1)
    return to_uint8(result.colors.cpu().numpy())


def _depth_in_viewer(depths: ndarray, alphas: ndarray, viewer_from_world: float) -> ndarray:
    """Depth as viser wants it, at no more than ``MAX_DEPTH_LINES``: frusta need no finer edges, and PNG is slow."""
    step = max(1, round(depths.shape[0] / MAX_DEPTH_LINES))
    depths, alphas = depths[::step, ::step], alphas[::step, ::step]
    is_hit = (depths > 0) & (alphas > 0.5)
    return np.where(is_hit, np.minimum(depths * viewer_from_world, FAR_IN_VIEWER), FAR_IN_VIEWER).astype(np.float32)
