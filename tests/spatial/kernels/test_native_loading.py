"""Which compiled kernels are used, and what happens where none are built."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import torch

from spatial.kernels import native
from spatial.kernels.nearest import nearest_distances

WITHOUT_KERNELS = """
import sys, warnings

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("spatial.kernels.native.kernels_"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
import torch
from spatial.kernels import native, reference
from spatial.kernels.adam import adam_step
from spatial.kernels.image_loss import l1_ssim_loss
from spatial.kernels.intersection import intersect_tiles
from spatial.kernels.nearest import nearest_distances
from spatial.kernels.projection import project_gaussians
from spatial.kernels.rasterization import rasterize_gaussians
from spatial.kernels.relocation import relocate_gaussians
from spatial.kernels.spherical_harmonics import spherical_harmonics

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    torch.manual_seed(0)
    means = torch.randn(30, 3) + torch.tensor([0.0, 0, 4])
    means.requires_grad_()
    K = torch.tensor([[[30.0, 0, 16], [0, 30, 12], [0, 0, 1]]])
    opacities, scales = torch.rand(30), torch.rand(30, 3) * 0.2
    p = project_gaussians(means, torch.randn(30, 4), scales, opacities, torch.eye(4)[None], K, 32, 24)
    colors = spherical_harmonics(1, means, torch.randn(30, 4, 3))[None]
    tiles = intersect_tiles(p.means2d, p.conics, opacities[None], p.depths, p.radii, 32, 24)
    image = rasterize_gaussians(p.means2d, p.conics, colors, opacities[None], 32, 24, tiles).colors
    loss = l1_ssim_loss(image, torch.rand(1, 24, 32, 3))
    loss.backward()
    assert image.abs().max() > 0 and means.grad.isfinite().all() and means.grad.abs().max() > 0
    assert torch.equal(nearest_distances(means, 2), reference.nearest.nearest_distances(means.detach(), 2))
    relocate_gaussians(opacities, scales, torch.full((30,), 3))
    adam_step(means.data, means.grad, torch.zeros(30, 3), torch.zeros(30, 3), step=1, lr=0.1)
assert native.available() == [] and native.compiled() is None
ours = [w for w in caught if "spatial's compiled kernels" in str(w.message)]
assert len(ours) == 1 and ours[0].category is RuntimeWarning, caught
print(ours[0].message)
"""


def run_python(code: str, *flags: str) -> str:
    result = subprocess.run([sys.executable, *flags, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_without_kernels_operations_run_on_the_references_after_one_warning():
    message = run_python(WITHOUT_KERNELS)
    assert "apt install g++" in message and "pip install -e ." in message


def test_the_best_instruction_set_is_used(compiled):
    available = native.available()
    assert available == sorted(available, key=native.INSTRUCTION_SETS.index) and available[-1] == "baseline"
    native.compiled.cache_clear()
    assert native.compiled() is native.load(available[0])


def test_modules_live_side_by_side_without_warnings(compiled):
    """Each defines the same classes: one that takes another's would run the wrong instructions."""
    code = (
        "from spatial.kernels import native\n"
        "modules = [native.load(name) for name in native.available()]\n"
        "for name in ('Intersections_f32', 'Intersections_f64'):\n"
        "    assert len({getattr(module, name) for module in modules}) == len(modules)\n"
        "assert native.compiled()"
    )
    run_python(code, "-W", "error")


def test_unknown_instruction_sets_are_not_supported(compiled):
    baseline = native.load("baseline")
    assert baseline.supports("baseline") and not baseline.supports("avx1024") and not baseline.supports("")


def test_several_python_threads_at_once(compiled):
    """The pool serves one caller after the other."""
    clouds = [torch.randn(5000, 3, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    expected = [nearest_distances(points, 3) for points in clouds]
    with ThreadPoolExecutor(4) as executor:
        for _ in range(5):
            actual = list(executor.map(lambda points: nearest_distances(points, 3), clouds))
            assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
