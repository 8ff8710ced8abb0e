"""Memory with a thousand photos of 12 megapixels: loaded through the users' data module, peak resident memory.

Twenty distinct JPEGs are made and linked under a thousand names; poses come from a transforms.json. Each size is a
process of its own, so that its peak is its own.
"""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image
from tables import begin, goals, parser, show, table

from data.captures.datamodule import CaptureDataModule
from data.captures.load import load_capture

WIDTH, HEIGHT = 4000, 3000
SIZES = {"draft": 480, "high": 1600}  # longest side by preset


def write_photos(folder: Path, num: int, distinct: int) -> Path:
    """``num`` photos of smooth colours and grain (about 4 MB each), in a ring about the origin."""
    (folder / "images").mkdir()
    random = np.random.default_rng(0)
    frames = []
    for index in range(num):
        path = folder / "images" / f"{index:04d}.jpg"
        if index < distinct:
            coarse = Image.fromarray(random.integers(0, 255, (30, 40, 3), dtype=np.uint8)).resize((WIDTH, HEIGHT))
            grain = random.integers(0, 24, (HEIGHT, WIDTH, 1), dtype=np.uint8)
            Image.fromarray(np.asarray(coarse) // 2 + grain).save(path, quality=90)
        else:
            _link(folder / "images" / f"{index % distinct:04d}.jpg", path)
        frames.append({"file_path": f"images/{path.name}", "transform_matrix": _on_a_ring(2 * math.pi * index / num)})
    lens = {"w": WIDTH, "h": HEIGHT, "fl_x": 3200.0, "fl_y": 3200.0, "cx": WIDTH / 2, "cy": HEIGHT / 2, "k1": -0.03}
    transforms = folder / "transforms.json"
    transforms.write_text(json.dumps({**lens, "frames": frames}))
    return transforms


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)


def _on_a_ring(angle: float) -> list[list[float]]:
    """world_from_camera as transforms.json has it (y up, z backward), looking at the origin."""
    c, s = math.cos(angle), math.sin(angle)
    return [[-s, 0, c, 4 * c], [c, 0, s, 4 * s], [0, 1, 0, 0], [0, 0, 0, 1]]


def load_steps(transforms: Path, longest_side: int, steps: int) -> dict[str, float]:
    """Loads as training does, one photo a step; what it took."""
    start = time.perf_counter()
    capture = load_capture(transforms, work_dir=transforms.parent / "work", max_image_size=longest_side, check=False)
    opened = time.perf_counter()
    data = CaptureDataModule(capture.views)
    for batch in islice(data.train_dataloader(), steps):
        batch.image.float().mean()
    done = time.perf_counter()
    data.teardown("fit")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {
        "peak": peak,
        "open_s": opened - start,
        "steps_per_s": steps / (done - opened),
        "photos": len(capture.views),
    }


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--photos", type=int, default=1000)
    options.add_argument("--distinct", type=int, default=20)
    options.add_argument("--steps", type=int, default=1000, help="photos asked for, at each size")
    options.add_argument("--child", nargs=2, metavar=("TRANSFORMS", "SIZE"), help="one size, as JSON")
    arguments = options.parse_args()
    if arguments.child:
        show(json.dumps(load_steps(Path(arguments.child[0]), int(arguments.child[1]), arguments.steps)))
        return
    begin(__doc__, arguments)
    rows, peaks = [], []
    with tempfile.TemporaryDirectory() as folder:
        transforms = write_photos(Path(folder), arguments.photos, min(arguments.distinct, arguments.photos))
        for preset, size in SIZES.items():
            command = [sys.executable, __file__, "--steps", str(arguments.steps), "--child", transforms, str(size)]
            result = json.loads(
                subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout
            )
            peaks.append(result["peak"] / 1e9)
            rows.append(
                [f"{preset} ({size} px)", f"{peaks[-1]:.2f}", f"{result['open_s']:.1f}", f"{result['steps_per_s']:.1f}"]
            )
    table([f"{arguments.photos} photos of 12 MP", "peak, GB", "opening, s", "photos/s, first pass"], rows)
    goals((f"memory, {arguments.photos} photos of 12 megapixels", f"{max(peaks):.2f} GB", "≤ 4 GB"))


if __name__ == "__main__":
    main()
