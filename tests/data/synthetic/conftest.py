"""One small synthetic capture, written once for all tests of this folder."""

from pathlib import Path

import pytest

from data.synthetic.capture import write_capture
from data.synthetic.scene import Scene, still_life
from data.synthetic.textures import make_noise

SMALL = {"num_photos": 6, "width": 128, "height": 96}


@pytest.fixture(scope="session")
def small_capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("synthetic") / "capture"
    write_capture(folder, **SMALL)
    return folder


@pytest.fixture(scope="session")
def scene() -> Scene:
    return still_life(make_noise(0))
