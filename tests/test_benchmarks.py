"""The training step stays fast, judged against the machine it runs on; and the benchmarks' own helpers work."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from data.synthetic.gaussians import orbit_cameras, random_gaussians
from representations.gaussians.rendering import rasterization
from spatial.kernels import native
from spatial.kernels.image_loss import l1_ssim_loss

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"

# A step's time over that of the yardstick below, one thread, by instruction set, with how far it may grow. Measured
# where the kernels were last made faster (see docs/performance.md); lower them when they become faster again.
STEP_IN_YARDSTICKS = {"avx512": 2.5, "avx2": 2.5, "baseline": 4.1}  # avx512: not measured yet, AVX2's
ALLOWED = 2.0


@pytest.fixture
def one_thread():
    """Other processes then disturb the step and the yardstick alike."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def yardstick() -> Callable[[], object]:
    """Work of the same kind (exponentials and products on 16 MB, in cache-sized pieces) that none of our code does."""
    pieces = torch.rand(64, 64 * 1024)
    return lambda: [piece.neg().exp().mul(piece).sum() for piece in pieces]


def small_step() -> Callable[[], object]:
    """Forward, loss and backward of 10,000 Gaussians at 240×180, all kernels but Adam."""
    scene = random_gaussians(10_000, extent=1.0, generator=torch.Generator().manual_seed(0), sh_degree=3)
    camera = orbit_cameras(1, radius=3.0, altitude=0.5, width=240, height=180)[0]
    parameters = [
        t.clone().requires_grad_() for t in (scene.means, scene.quats, scene.scales, scene.opacities, scene.sh)
    ]
    viewmats, Ks = camera.camera_from_world[None].float(), camera.K[None].float()
    target = torch.full((1, 180, 240, 3), 0.5)

    def step() -> None:
        image, _, _ = rasterization(*parameters, viewmats, Ks, 240, 180, sh_degree=3)
        torch.autograd.grad(l1_ssim_loss(image, target), parameters)

    return step


def ratio(step: Callable[[], object], stick: Callable[[], object], *, rounds: int = 9) -> float:
    """Least processor time of a step over least of the yardstick, run in turns: what disturbs, only ever adds."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for function, kept in zip((step, stick), times, strict=True):
            start = time.process_time()  # not the wall's: other processes wait in it
            function()
            kept.append(time.process_time() - start)
    return min(times[0][1:]) / min(times[1][1:])


def test_a_training_step_has_not_become_twice_as_slow(one_thread: None) -> None:
    sets = native.available()
    if not sets or sets[0] not in STEP_IN_YARDSTICKS:
        pytest.skip(f"no stored ratio for kernels {sets[:1] or 'missing'}; add it to STEP_IN_YARDSTICKS")
    stored = STEP_IN_YARDSTICKS[sets[0]]
    measured = min(ratio(small_step(), yardstick()) for _ in range(4))
    assert measured < ALLOWED * stored, (
        f"a step takes {measured:.2f} yardsticks, {stored} when last measured: something became much slower; "
        "python benchmarks/training_step.py shows which operation"
    )


def test_split_scenes_look_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the benchmark calls 100 k and 500 k Gaussians is the same picture, not a fog."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import steps

    scene = random_gaussians(2_000, extent=1.0, generator=torch.Generator().manual_seed(1), sh_degree=0)
    many = steps.multiplied(scene, 16_000)
    camera = orbit_cameras(1, radius=3.0, altitude=0.5, width=96, height=64)[0]

    def alphas(gaussians) -> torch.Tensor:
        return rasterization(
            gaussians.means, gaussians.quats, gaussians.scales, gaussians.opacities, gaussians.sh,
            camera.camera_from_world[None].float(), camera.K[None].float(), 96, 64, sh_degree=0,
        )[1]  # fmt: skip

    assert len(many) == 16_000
    assert (alphas(many) - alphas(scene)).abs().mean() < 0.1


def test_all_goals_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import run_all

    goals = "| what | measured | to reach |\n|---|---|---|\n| step | 9 ms | ≤ 15 ms |"
    text = "| a | b |\n|---|---|\n| 1 | 2 |\n\n" + goals + "\n\nend"
    assert run_all.goal_rows(text.splitlines()) == [["step", "9 ms", "≤ 15 ms"]]
    scripts = {path.stem for path in BENCHMARKS.glob("*.py")} - {"tables", "steps", "run_all"}
    assert scripts <= set(run_all.LIMITS_S), "make bench leaves a benchmark out"


@pytest.mark.parametrize("name", ["training_step", "draft_report"])
def test_without_data_a_benchmark_says_why_it_is_skipped(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--data", str(tmp_path)]
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    assert "skipped: " in done.stdout and "--data" in done.stdout
