"""Poses from photos: the plain pycolmap recipe against ours, on the same photos, in one run.

    python benchmarks/sfm.py [PHOTOS] [--rounds 2] [--reference MODEL]

The rounds alternate, so that a busy machine slows both. Wall and CPU seconds are printed: on a shared machine only the
latter compare. With ``--reference`` both are compared with a given COLMAP model, else ours with the plain recipe's.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tables import begin, goals, parser, require_data

SIDE_PX = 960


def main() -> None:
    arguments = _arguments()
    if arguments.recipe:
        _run_recipe(arguments.recipe, arguments.photos, arguments.out)
        return
    with tempfile.TemporaryDirectory() as folder:
        folders: dict[str, Path] = {}
        print(f"{arguments.photos.name}, {os.cpu_count()} cores, longer side {SIDE_PX} px")
        results: dict[str, list[tuple[float, int]]] = {"plain": [], "ours": []}
        print(f"{'recipe':8} {'wall s':>8} {'CPU s':>8}  result")
        for round_number in range(arguments.rounds):
            for recipe in ("plain", "ours"):
                folders[recipe] = Path(folder) / f"{recipe}{round_number}"
                results[recipe].append(_report(recipe, arguments.photos, folders[recipe]))
        if arguments.reference:
            for recipe, path in folders.items():
                print(f"{recipe} against the reference: {_difference(path / 'model', arguments.reference)}")
        else:
            print(f"ours against plain: {_difference(folders['ours'] / 'model', folders['plain'] / 'model')}")
        (plain_s, plain_photos), (ours_s, ours_photos) = (min(results[recipe]) for recipe in ("plain", "ours"))
        goals(
            (
                f"poses of {arguments.photos.parent.name}: ours against the plain recipe",
                f"{ours_s:.1f} s, {ours_photos} photos against {plain_s:.1f} s, {plain_photos} photos",
                "faster, same photos",
            )
        )


def _report(recipe: str, photos: Path, out: Path) -> tuple[float, int]:
    """Runs one recipe in a process of its own, so that its CPU time is its own, and prints its row.

    Returns its wall seconds and how many photos it placed.
    """
    out.mkdir()
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, __file__, str(photos), "--recipe", recipe, "--out", str(out)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    wall_s = time.perf_counter() - start
    print(f"{recipe:8} {wall_s:8.1f} {cpu_s:8.1f}  {printed}", flush=True)
    return wall_s, int(printed.split()[0])


def _run_recipe(recipe: str, photos: Path, out: Path) -> None:
    if recipe == "plain":
        model, stages = _plain(photos, out)
    else:
        model, stages = _ours(photos, out)
    (out / "model").mkdir()
    model.write(out / "model")
    times = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in stages.items())
    error = model.compute_mean_reprojection_error()
    print(f"{model.num_reg_images()} photos, {model.num_points3D():,} points, {error:.2f} px ({times})")


def _plain(photos: Path, out: Path):
    import pycolmap

    pycolmap.logging.minloglevel = pycolmap.logging.ERROR
    extraction = pycolmap.FeatureExtractionOptions()
    extraction.max_image_size = SIDE_PX
    mapping = pycolmap.IncrementalPipelineOptions()
    mapping.random_seed = 0
    database, models = out / "database.db", {}
    camera_mode = pycolmap.CameraMode.SINGLE if _one_size(photos) else pycolmap.CameraMode.AUTO
    stages = {}
    for name, run in {
        "features": lambda: pycolmap.extract_features(
            database, photos, camera_mode=camera_mode, extraction_options=extraction
        ),
        "matching": lambda: pycolmap.match_exhaustive(database),
        "mapping": lambda: models.update(pycolmap.incremental_mapping(database, photos, out / "models", mapping)),
    }.items():
        start = time.perf_counter()
        run()
        stages[name] = time.perf_counter() - start
    return max(models.values(), key=lambda model: model.num_reg_images()), stages


def _ours(photos: Path, out: Path):
    from data.captures.photos import find_photos
    from data.captures.sfm import reconstruct_poses

    result = reconstruct_poses(find_photos(photos)[0], photos, out / "work", max_side_px=SIDE_PX)
    return result.reconstruction, result.seconds


def _one_size(photos: Path) -> bool:
    from data.captures.photos import find_photos

    return len({(photo.width, photo.height) for photo in find_photos(photos)[0]}) == 1


def _difference(model_path: Path, reference_path: Path) -> str:
    """Errors after a Sim(3) alignment: rotation in degrees, position in per cent of the cameras' extent."""
    import numpy as np
    import pycolmap

    model, reference = pycolmap.Reconstruction(model_path), pycolmap.Reconstruction(reference_path)
    found = pycolmap.compare_reconstructions(model, reference, alignment_error="proj_center")
    if found is None:
        return "cannot be aligned"
    centers = np.array([image.projection_center() for image in reference.images.values() if image.has_pose])
    extent = 2 * np.linalg.norm(centers - centers.mean(0), axis=1).max()
    rotations = np.array([error.rotation_error_deg for error in found["errors"]])
    positions = 100 * np.array([error.proj_center_error for error in found["errors"]]) / extent
    return (
        f"{len(rotations)} photos, rotation median {np.median(rotations):.3f}° max {rotations.max():.3f}°, "
        f"position median {np.median(positions):.3f} % max {positions.max():.3f} %"
    )


def _arguments() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("photos", type=Path, nargs="?", help="folder of photos; the fox's by default")
    options.add_argument("--rounds", type=int, default=1, help="runs of each recipe, alternating")
    options.add_argument("--reference", type=Path, help="COLMAP model folder to compare poses with")
    options.add_argument("--recipe", choices=["plain", "ours"], help=argparse.SUPPRESS)
    options.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if not arguments.recipe:
        begin(__doc__, arguments)
    arguments.photos = arguments.photos or require_data(arguments, "fox/images")
    return arguments


if __name__ == "__main__":
    main()
