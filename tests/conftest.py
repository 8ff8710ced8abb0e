"""Shared fixtures: where the real captures lie, and shape annotations that are checked while tests run."""

from collections.abc import Callable
from pathlib import Path

import pytest

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """Returns a function from a path under ``../shared/data`` to the real file; the test skips where it is absent."""

    def locate(relative: str) -> Path:
        path = SHARED_DATA / relative
        if not path.exists():
            pytest.skip(f"real data ../shared/data/{relative} is not on this machine")
        return path

    return locate
