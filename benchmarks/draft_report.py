"""Fifty photos to a finished report: `spatial reconstruct fox/images quality=draft`, poses included."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tables import begin, child_environment, goals, parser, require_data, table


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--out", type=Path, help="keep the run in this folder")
    options.add_argument("settings", nargs="*", help="further key=value")
    arguments = options.parse_args()
    begin(__doc__, arguments)
    photos = require_data(arguments, "fox/images")
    with tempfile.TemporaryDirectory() as folder:
        run = arguments.out or Path(folder) / "run"
        command = [sys.executable, "-m", "spatial.cli", "reconstruct", photos, "--out", run, "quality=draft"]
        start = time.perf_counter()
        subprocess.run(
            [*map(str, command), *arguments.settings], check=True, env=child_environment(), stdout=subprocess.DEVNULL
        )
        wall = time.perf_counter() - start
        metrics = json.loads((run / "metrics.json").read_text("utf-8"))
        report = (run / "report.html").stat().st_size
    stages = metrics["seconds"]
    rows = [[name, f"{seconds:.1f}"] for name, seconds in stages.items()]
    table(
        ["stage", "s"],
        [*rows, ["start, report, the rest", f"{wall - sum(stages.values()):.1f}"], ["in all", f"{wall:.1f}"]],
    )
    quality = f"PSNR {metrics['psnr']:.2f} dB, {metrics['num_gaussians']:,} Gaussians, report {report / 1e6:.1f} MB"
    goals((f"{metrics['num_photos']} photos to a finished report", f"{wall:.0f} s ({quality})", "≤ 180 s"))


if __name__ == "__main__":
    main()
