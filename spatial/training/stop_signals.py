"""Ctrl-C and SIGTERM as a request that a loop reads between two steps, instead of an exception in the middle of one."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class StopSignals:
    """Between `install` and `restore`, ``received`` holds "Ctrl-C" or "SIGTERM" once one has come, else None.

    A second Ctrl-C raises KeyboardInterrupt as usual. In a thread other than the main one, where Python allows no
    handlers, nothing is installed.
    """

    def __init__(self) -> None:
        self.received: str | None = None
        self._previous: dict[int, Any] = {}

    def install(self) -> None:
        self.received = None
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._receive)

    def restore(self) -> None:
        while self._previous:
            number, handler = self._previous.popitem()
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
