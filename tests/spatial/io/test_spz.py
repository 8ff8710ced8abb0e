"""SPZ byte by byte: old versions, axes, extensions, and an independent reader where it is installed."""

import gzip
import struct

import numpy as np
import pytest
import torch

from spatial.errors import SpatialError
from spatial.geometry.sh_rotation import half_turn_about_x
from spatial.io.spz import read_spz, write_spz
from spatial.structures import Gaussians

MAGIC = 0x5053474E


def legacy_file(path, *, version, rotation, extension=b"", degree=1, position=(1.5, -2.0, 3.25)):
    """One Gaussian packed by hand from the format's description, 12 fractional bits."""
    fixed = b"".join(int(value * 4096).to_bytes(3, "little", signed=True) for value in position)
    sh = bytes([128 + 64, 128, 128 - 32] * 3) if degree else b""
    head = struct.pack("<IIIBBBB", MAGIC, version, 1, degree, 12, 0x1 | (0x2 if extension else 0), 0)
    body = fixed + bytes([204]) + bytes([0, 128, 255]) + bytes([80, 96, 112]) + rotation + sh
    path.write_bytes(gzip.compress(head + body + extension))


def assert_is_the_gaussian(g: Gaussians, flip):
    torch.testing.assert_close(g.means, torch.tensor([[1.5, -2.0, 3.25]]) * torch.tensor(flip))
    torch.testing.assert_close(g.opacities, torch.tensor([0.8]))
    torch.testing.assert_close(g.sh[0, 0], (torch.tensor([0, 128, 255]) / 255 - 0.5) / 0.15)
    torch.testing.assert_close(g.log_scales, torch.tensor([[-5.0, -4.0, -3.0]]))
    assert g.antialiased


def test_version_2_with_its_rotation_of_three_bytes(tmp_path):
    legacy_file(tmp_path / "a.spz", version=2, rotation=bytes([204, 128, 128]))  # x = 0.6, w = 0.8
    g = read_spz(tmp_path / "a.spz")
    assert_is_the_gaussian(g, [1, -1, -1])
    torch.testing.assert_close(g.quats, torch.tensor([[0.8, 0.6, 0, 0]]), atol=0.01, rtol=0)


def test_version_3_with_the_smallest_three(tmp_path):
    x = round(0.6 / np.sqrt(0.5) * 511)
    word = 3 << 30 | x << 20 | (1 << 9 | 100) << 10  # w largest, y negative
    legacy_file(tmp_path / "a.spz", version=3, rotation=struct.pack("<I", word))
    g = read_spz(tmp_path / "a.spz")
    assert_is_the_gaussian(g, [1, -1, -1])
    y = -100 / 511 * np.sqrt(0.5)
    w = np.sqrt(1 - 0.36 - y * y)
    torch.testing.assert_close(g.quats, torch.tensor([[w, 0.6, -y, 0.0]], dtype=torch.float32), atol=2e-3, rtol=0)


def test_harmonics_change_sign_with_the_axes(tmp_path):
    """Degree 1 is −y, z, −x: turning y and z about negates the first two coefficients."""
    legacy_file(tmp_path / "a.spz", version=2, rotation=bytes([128, 128, 128]))
    sh = torch.tensor([0.5, 0.0, -0.25])
    torch.testing.assert_close(read_spz(tmp_path / "a.spz").sh[0, 1:], torch.stack([-sh, -sh, sh]))


def test_a_file_that_declares_our_axes_is_not_turned(tmp_path):
    extension = struct.pack("<IIf", 0xADBE0002, 4, 1.0) + struct.pack("<III", 0xADBE0003, 4, 6)
    legacy_file(tmp_path / "a.spz", version=2, rotation=bytes([128, 128, 128]), extension=extension)
    assert_is_the_gaussian(read_spz(tmp_path / "a.spz"), [1, 1, 1])


def test_mirrored_axes_are_refused(tmp_path):
    extension = struct.pack("<III", 0xADBE0003, 4, 8)
    legacy_file(tmp_path / "a.spz", version=2, rotation=bytes([128, 128, 128]), extension=extension)
    with pytest.raises(SpatialError, match=r"a.spz: declares SPZ coordinate system 8; only RUB"):
        read_spz(tmp_path / "a.spz")


@pytest.mark.parametrize("version", [1, 5, 77])
def test_unknown_versions_are_named(tmp_path, version):
    legacy_file(tmp_path / "a.spz", version=version, rotation=bytes(4))
    with pytest.raises(SpatialError, match=rf"a.spz: .*version {version}; versions 2, 3 and 4 are known"):
        read_spz(tmp_path / "a.spz")


def test_a_scene_too_wide_for_the_format_is_refused(tmp_path):
    g = Gaussians(torch.full((1, 3), 1e7), torch.ones(1, 4), torch.zeros(1, 3), torch.zeros(1), torch.zeros(1, 1, 3))
    with pytest.raises(SpatialError, match=r"a.spz: SPZ holds coordinates up to 8388606"):
        write_spz(g, tmp_path / "a.spz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bits", [5, 8])
def test_sh_precision_can_be_chosen(tmp_path, bits):
    g = Gaussians(
        torch.zeros(99, 3), torch.ones(99, 4), torch.zeros(99, 3), torch.zeros(99), torch.rand(99, 9, 3) - 0.5
    )
    write_spz(g, tmp_path / "a.spz", sh1_bits=bits, sh_rest_bits=bits)
    error = (read_spz(tmp_path / "a.spz").sh - g.sh)[:, 1:].abs().max()
    assert error <= 2.0**-bits + 0.5 / 128 + 1e-6
    assert error > 2.0**-bits / 4


@pytest.mark.parametrize("version", [3, 4])
def test_an_independent_reader_sees_the_same(tmp_path, version):
    gsply = pytest.importorskip("gsply", reason="the independent reader is not installed: pip install gsply")
    generator = torch.Generator().manual_seed(0)
    sizes = {"means": (3,), "quats": (4,), "log_scales": (3,), "logit_opacities": (), "sh": (16, 3)}
    g = Gaussians(**{name: 0.3 * torch.randn(500, *size, generator=generator) for name, size in sizes.items()})
    write_spz(g, tmp_path / "a.spz", version=version)
    theirs, ours = gsply.read_spz(str(tmp_path / "a.spz")), half_turn_about_x(read_spz(tmp_path / "a.spz"))
    np.testing.assert_allclose(theirs.means, ours.means, atol=1e-6)
    np.testing.assert_allclose(theirs.scales, ours.log_scales, atol=1e-6)
    np.testing.assert_allclose(theirs.shN, ours.sh[:, 1:], atol=1e-6)
    same = np.abs((np.asarray(theirs.quats) * ours.quats.numpy()).sum(axis=1))
    np.testing.assert_allclose(same, 1, atol=1e-5)
