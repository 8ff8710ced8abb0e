"""The command line owns its process; these tests share theirs, so what it sets is put back."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("spatial")
    handlers, levels, formatwarning = root.handlers[:], (root.level, ours.level), warnings.formatwarning
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])
    logging.captureWarnings(False)
    warnings.formatwarning = formatwarning
