"""Building the native kernels from nothing: CMake and Ninja, without nvcc and without PyTorch."""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tables import REPOSITORY, begin, goals, parser, skip


def tool(name: str) -> str:
    """A program beside this interpreter, or on PATH."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        skip(f"{name} is missing; pip install cmake ninja nanobind")
    return found


def build(folder: Path, threads: int) -> float:
    """Seconds from an empty folder to all modules."""
    nanobind = Path(importlib.util.find_spec("nanobind").origin).parent / "cmake"  # type: ignore[union-attr, arg-type]
    configure = [
        tool("cmake"), "-S", REPOSITORY, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}", f"-Dnanobind_DIR={nanobind}", f"-DPython_EXECUTABLE={sys.executable}",
    ]  # fmt: skip
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONNOUSERSITE": "1"}
    start = time.perf_counter()
    for command in (configure, [tool("cmake"), "--build", folder, "-j", str(threads)]):
        done = subprocess.run([str(word) for word in command], env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
    return time.perf_counter() - start


def processor_s() -> float:
    """Processor time of all finished children, which a busy machine does not lengthen much."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    arguments = parser(__doc__).parse_args()
    begin(__doc__, arguments)
    if importlib.util.find_spec("nanobind") is None:
        skip("nanobind is missing; pip install nanobind")
    with tempfile.TemporaryDirectory() as folder:
        before = processor_s()
        seconds = build(Path(folder), arguments.threads)
        processor = processor_s() - before
        modules = len(list(Path(folder).glob("kernels_*.so")))
        cache = (Path(folder) / "CMakeCache.txt").read_text("utf-8").lower()
    needs = [name for name in ("nvcc", "torch") if name in cache]
    needed = f"needs {' and '.join(needs)}" if needs else "neither nvcc nor torch"
    measured = f"{seconds:.0f} s ({processor:.0f} s of processor time) for {modules} instruction sets, {needed}"
    goals(("kernel build", measured, "≤ 60 s, neither nvcc nor torch"))


if __name__ == "__main__":
    main()
