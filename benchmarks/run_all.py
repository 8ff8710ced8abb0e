"""All benchmarks one after another, then every number beside its goal: `make bench`.

Give settings of one script after its name, as in: run_all.py training_step --opensplat-binary ~/opensplat
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tables import GOAL_HEADER, child_environment, machine, show, table

HERE = Path(__file__).resolve().parent
LIMITS_S = {
    "kernel_build": 300, "training_step": 600, "threads": 300, "lightning_overhead": 120, "lightning_share": 300,
    "time_to_quality": 1200, "draft_report": 900, "sfm": 1200, "memory": 900,
}  # fmt: skip


def run(name: str, options: list[str], limit_s: float) -> tuple[list[list[str]], str]:
    """Shows a script's output as it comes; returns its rows of goals, and what went wrong."""
    show(f"== {name}.py")
    command = [sys.executable, str(HERE / f"{name}.py"), *options]
    start, lines = time.perf_counter(), []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=child_environment())
    try:
        output, _ = process.communicate(timeout=limit_s)
        problem = "" if process.returncode == 0 else f"ended with code {process.returncode}"
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        problem = f"did not end within {limit_s:.0f} s"
    show(output)
    lines = output.splitlines()
    show(f"{name}: {time.perf_counter() - start:.0f} s {problem}\n")
    skipped = next((line for line in lines if line.startswith("skipped:")), "")
    return goal_rows(lines), problem or skipped


def goal_rows(lines: list[str]) -> list[list[str]]:
    """The rows of the tables whose columns are those of `tables.goals`."""
    rows, inside = [], False
    for line in lines:
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif tuple(cells) == GOAL_HEADER:
            inside = True
        elif inside and not line.startswith("|-"):
            rows.append(cells)
    return rows


def main() -> int:
    words = sys.argv[1:]
    names = [name for name in LIMITS_S if (HERE / f"{name}.py").exists()]
    if words and words[0] in names:
        names, words = [words[0]], words[1:]
    rows, failed = [], False
    for name in names:
        found, problem = run(name, words if len(names) == 1 else [], LIMITS_S[name])
        rows += found
        if problem:
            rows.append([f"({name}.py)", problem, "–"])
            failed |= not problem.startswith("skipped")
    show(machine(2))
    table(GOAL_HEADER, rows)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
