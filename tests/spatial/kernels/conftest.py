"""Kernels under test: every compiled instruction set in turn, tolerances by dtype, scenes with awkward cameras."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from spatial.kernels import native

ROOT = Path(__file__).resolve().parents[3]
WIDE = "wide"  # AVX-512's register width, lowered to what this processor has

# Error allowed relative to the largest entry of what is expected. Float32 kernels are compared with float64 references,
# so theirs is rounding (6e-8) times the length of sums and the conditioning of inverses.
TOLERANCES = {torch.float32: 5e-5, torch.float64: 1e-10}


@pytest.fixture(params=[*native.available(), pytest.param(WIDE, marks=pytest.mark.slow)])
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Operations run on the kernels compiled for this instruction set."""
    module = request.getfixturevalue("wide_kernels") if request.param == WIDE else native.load(request.param)
    monkeypatch.setattr(native, "compiled", lambda: module)
    return request.param


@pytest.fixture
def compiled() -> None:
    """For what does not depend on the instruction set: any compiled kernels."""
    if not native.available():
        pytest.skip("no kernels are compiled: install a C++20 compiler, then pip install -e .")


@pytest.fixture(scope="session")
def wide_kernels(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The code that AVX-512 runs (16 floats a register), compiled for the best set that this processor has."""
    if shutil.which("cmake") is None or shutil.which("c++") is None:
        pytest.skip("compiling the kernels needs cmake and a C++20 compiler")
    best = native.available()[0]
    folder = tmp_path_factory.mktemp("wide")
    nanobind = subprocess.check_output([sys.executable, "-m", "nanobind", "--cmake_dir"], text=True).strip()
    flags = ["-DCMAKE_CXX_FLAGS=-DSPATIAL_REGISTER_BYTES=64 -Wno-psabi", "-DCMAKE_BUILD_TYPE=Release"]
    paths = [f"-Dnanobind_DIR={nanobind}", f"-DPython_EXECUTABLE={sys.executable}"]
    subprocess.run(["cmake", "-S", ROOT, "-B", folder, *flags, *paths], check=True, stdout=subprocess.DEVNULL)
    target = f"kernels_{best}"
    subprocess.run(["cmake", "--build", folder, "--target", target, "-j", "2"], check=True, stdout=subprocess.DEVNULL)
    spec = importlib.util.spec_from_file_location(target, next(folder.glob(f"{target}*")))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=[torch.float32, torch.float64], ids=["f32", "f64"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture
def assert_near() -> Callable[..., None]:
    """Returns a function (actual, expected, what, tolerance factor) that compares by the table of tolerances."""

    def check(actual: Tensor, expected: Tensor, what: str = "", *, factor: float = 1.0) -> None:
        assert actual.shape == expected.shape, f"{what}: {list(actual.shape)} for {list(expected.shape)}"
        assert actual.isfinite().all(), f"{what}: not finite"
        if not expected.numel():
            return
        allowed = factor * TOLERANCES[actual.dtype] * max(expected.abs().max().item(), 1e-12)
        error = (actual.double() - expected.double()).abs().max().item()
        assert error <= allowed, f"{what}: off by {error:.3g}, allowed {allowed:.3g}"

    return check


@pytest.fixture
def each_thread_count() -> Callable[[Callable[[], list[Tensor]]], None]:
    """Returns a function that runs another with 1, 2, 3 and again 2 threads and wants the same bits each time."""

    def check(run: Callable[[], list[Tensor]]) -> None:
        before = torch.get_num_threads()
        try:
            results = []
            for threads in (1, 2, 3, 2):
                torch.set_num_threads(threads)
                results.append(run())
        finally:
            torch.set_num_threads(before)
        for other in results[1:]:
            assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))

    return check


class Scene(NamedTuple):
    """Gaussians and cameras as ``project_gaussians`` takes them."""

    means: Tensor
    quats: Tensor
    scales: Tensor
    opacities: Tensor
    viewmats: Tensor
    Ks: Tensor
    width: int
    height: int

    def to(self, dtype: torch.dtype) -> Scene:
        return Scene(*(t.to(dtype) if isinstance(t, Tensor) else t for t in self))


@pytest.fixture(scope="session")
def make_scene() -> Callable[..., Scene]:
    """Returns a function (num, seed, num_cameras) that makes a scene of float32-exact numbers in float64.

    Off-centre principal points, non-square pixels, an image size that is no multiple of 16; some Gaussians lie outside
    the image and behind the camera.
    """

    def make(num: int = 100, *, seed: int = 0, num_cameras: int = 2) -> Scene:
        g = torch.Generator().manual_seed(seed)
        depths = 1 + 5 * torch.rand(num, 1, generator=g)
        means = torch.cat([(torch.rand(num, 2, generator=g) - 0.5) * 1.6 * depths, depths], dim=-1)
        means[num - num // 10 :, 2] *= -1
        scales = torch.exp(torch.rand(num, 3, generator=g) * 3 - 4)
        viewmats, Ks = torch.eye(4).repeat(num_cameras, 1, 1), torch.zeros(num_cameras, 3, 3)
        for c in range(num_cameras):
            turn = torch.linalg.matrix_exp(torch.linalg.cross(torch.eye(3), 0.1 * torch.randn(1, 3, generator=g)))
            viewmats[c, :3, :3], viewmats[c, :3, 3] = turn, 0.2 * torch.randn(3, generator=g)
            Ks[c] = torch.tensor([[45.0 + c, 0, 22.5], [0, 51, 20.25 + c], [0, 0, 1]])
        opacities = 0.05 + 0.9 * torch.rand(num, generator=g)
        quats = torch.randn(num, 4, generator=g)
        return Scene(means, quats, scales, opacities, viewmats, Ks, 53, 37).to(torch.float64)

    return make


class Flat(NamedTuple):
    """Projected Gaussians: what intersection and rasterisation take."""

    means2d: Tensor
    conics: Tensor
    colors: Tensor
    opacities: Tensor
    depths: Tensor
    radii: Tensor
    width: int
    height: int

    def to(self, dtype: torch.dtype) -> Flat:
        return Flat(*(t.to(dtype) if isinstance(t, Tensor) and t.is_floating_point() else t for t in self))

    def for_tiles(self) -> tuple:
        return self.means2d, self.conics, self.opacities, self.depths, self.radii, self.width, self.height


@pytest.fixture(scope="session")
def make_flat() -> Callable[..., Flat]:
    """Returns a function that makes projected Gaussians, thin and round, of float32-exact numbers in float64."""

    def make(
        num: int = 60, *, seed: int = 0, cameras: int = 1, channels: int = 3, width: int = 53, height: int = 37,
        sizes: tuple[float, float] = (0.5, 6.0), opacities: tuple[float, float] = (0.02, 0.95),
    ) -> Flat:  # fmt: skip
        g = torch.Generator().manual_seed(seed)
        shape = (cameras, num)
        means2d = torch.rand(*shape, 2, generator=g) * torch.tensor([width + 20.0, height + 20.0]) - 10
        low, high = (torch.tensor(size).log() for size in sizes)
        sigmas = torch.exp(low + (high - low) * torch.rand(*shape, 2, generator=g))
        angles = 3.14159 * torch.rand(shape, generator=g)
        turn = torch.stack([angles.cos(), -angles.sin(), angles.sin(), angles.cos()], -1).reshape(*shape, 2, 2)
        covariances = (turn * sigmas[..., None, :] ** 2) @ turn.mT
        inverses = covariances.double().inverse().float()
        conics = torch.stack([inverses[..., 0, 0], inverses[..., 0, 1], inverses[..., 1, 1]], dim=-1)
        low_opacity, high_opacity = opacities
        opacity = low_opacity + (high_opacity - low_opacity) * torch.rand(shape, generator=g)
        radii = (3.33 * covariances.diagonal(dim1=-2, dim2=-1).sqrt()).ceil().int()
        colors, depths = torch.rand(*shape, channels, generator=g), 1 + torch.rand(shape, generator=g)
        return Flat(means2d, conics, colors, opacity, depths, radii, width, height).to(torch.float64)

    return make


@pytest.fixture(scope="session")
def gsplat() -> ModuleType:
    """gsplat's operations in PyTorch, an oracle that others wrote."""
    return pytest.importorskip(
        "gsplat.cuda._torch_impl", reason="gsplat, the oracle, is not installed: pip install 'spatial-ai[gsplat]'"
    )
