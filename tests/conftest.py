"""Shared fixtures: where the real captures lie, and shape annotations that are checked while tests run."""

from collections.abc import Callable, Iterator
from pathlib import Path

import jaxtyping
import pytest
from jaxtyping import install_import_hook

# Before anything imports the packages. A whole number is a number, so an int fits an annotation of float.
install_import_hook(
    ["spatial", "representations", "data"],
    "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))",
)

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


@pytest.fixture
def without_shape_checks() -> Iterator[None]:
    """As users run: our own messages, where tests would stop at the annotations already."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def tiny_capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine PNGs of 96 × 64 pixels around a cloud of Gaussians, with true poses and points: trained in a second.

    A folder with ``transforms.json``, ``points.ply`` and ``images/``; copy it before changing it.
    """
    import numpy as np
    import torch
    from plyfile import PlyData, PlyElement

    from data.synthetic.gaussians import orbit_cameras, random_gaussians
    from representations.gaussians.rendering import render
    from spatial.io.images import write_image
    from spatial.io.transforms_json import write_transforms_json
    from spatial.structures import View

    folder = tmp_path_factory.mktemp("captures") / "tiny"
    (folder / "images").mkdir(parents=True)
    scene = random_gaussians(300, extent=0.8, generator=torch.Generator().manual_seed(1), sh_degree=0)
    views = []
    for index, camera in enumerate(orbit_cameras(9, radius=2.6, altitude=0.9, width=96, height=64)):
        picture = (render(scene, camera).colors * 255).round().byte().numpy()
        write_image(folder / "images" / f"{index}.png", picture)
        views.append(View(f"{index}.png", camera, lambda scale, picture=picture: (picture, None)))
    write_transforms_json(folder / "transforms.json", views, ply_file_path="points.ply")
    colors = ((scene.sh[:, 0] * 0.28209479 + 0.5).clamp(0, 1) * 255).byte().numpy()
    points = np.zeros(len(scene), [*((axis, "f4") for axis in "xyz"), *((c, "u1") for c in ("red", "green", "blue"))])
    for names, values in (("xyz", scene.means.numpy()), (("red", "green", "blue"), colors)):
        for column, name in enumerate(names):
            points[name] = values[:, column]
    PlyData([PlyElement.describe(points, "vertex")]).write(str(folder / "points.ply"))
    return folder
