"""What one browser has been sent, and how finely to draw its next frame."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

MIN_SCALE = 1 / 12
REST_S = 0.15  # a camera that has not moved for so long is at rest


@dataclass
class Session:
    """What one browser has been sent. ``drawn_scale`` is 0 for nothing yet and 1 for full resolution."""

    client: Any
    moving_scale: float = 0.25
    drawn_scale: float = 0.0
    drawn_at: float = 0.0
    moved_at: float = -math.inf

    def moved(self) -> None:
        self.moved_at, self.drawn_scale = time.monotonic(), 0.0

    def needs_frame(self) -> bool:
        return self.drawn_scale == 0.0 or (self.drawn_scale < 1.0 and self._is_at_rest())

    def next_scale(self) -> float:
        """The scale of the moving camera first, then twice as fine each time."""
        if self.drawn_scale == 0.0:
            return self.moving_scale
        finer = 2 * self.drawn_scale
        return finer if finer < 0.75 else 1.0

    def drawn(self, seconds: float, target_seconds: float) -> None:
        """Books a frame; one drawn at the moving scale corrects that scale towards the wanted time."""
        self.drawn_at = time.monotonic()
        if self.drawn_scale in (0.0, self.moving_scale):
            # The time grows with the area, so the side follows its root; half a step at a time, to settle.
            correction = (target_seconds / seconds) ** 0.25
            self.moving_scale = min(1.0, max(MIN_SCALE, self.moving_scale * min(1.5, max(0.5, correction))))

    def _is_at_rest(self) -> bool:
        return time.monotonic() - self.moved_at > REST_S
