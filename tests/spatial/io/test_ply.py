"""PLY in the INRIA layout: the header that others rely on, foreign variants, and damaged files."""

import numpy as np
import pytest
import torch
from plyfile import PlyData, PlyElement

from spatial.errors import SpatialError
from spatial.io.compressed_ply import write_compressed_ply
from spatial.io.gaussian_files import load_gaussians
from spatial.io.ply import read_ply, write_ply
from spatial.structures import Gaussians

NAMES = ["x", "y", "z", "f_dc_0", "f_dc_1", "f_dc_2", *[f"f_rest_{i}" for i in range(9)], "opacity"]
NAMES += ["scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3"]


def columns(count: int = 5) -> dict[str, np.ndarray]:
    """Value = 100 · property's number + row, so that a mix-up shows."""
    return {name: 100.0 * i + np.arange(count) for i, name in enumerate(NAMES)}


def write_columns(path, values, *, dtype="<f4", text=False, byte_order="<", comments=()):
    rows = np.empty(len(next(iter(values.values()))), dtype=[(name, dtype) for name in values])
    for name, column in values.items():
        rows[name] = column
    PlyData([PlyElement.describe(rows, "vertex")], text=text, byte_order=byte_order, comments=list(comments)).write(
        path
    )


def assert_is_the_table(g: Gaussians):
    row = torch.arange(5.0)
    assert torch.equal(g.means, torch.stack([row, 100 + row, 200 + row], dim=1))
    assert torch.equal(g.sh[:, 0], torch.stack([300 + row, 400 + row, 500 + row], dim=1))
    # f_rest is channel by channel: coefficient 1 is f_rest_0 (red), f_rest_3 (green), f_rest_6 (blue)
    assert torch.equal(g.sh[:, 1], torch.stack([600 + row, 900 + row, 1200 + row], dim=1))
    assert torch.equal(g.sh[:, 3], torch.stack([800 + row, 1100 + row, 1400 + row], dim=1))
    assert torch.equal(g.logit_opacities, 1500 + row)
    assert torch.equal(g.log_scales[:, 2], 1800 + row)
    assert torch.equal(g.quats[:, 0], 1900 + row)  # rot_0 is w


def test_every_property_lands_where_it_belongs(tmp_path):
    write_columns(tmp_path / "a.ply", columns())
    assert_is_the_table(read_ply(tmp_path / "a.ply"))


@pytest.mark.parametrize("variant", ["reordered", "double", "ascii", "big endian", "extra properties"])
def test_foreign_variants_are_read_alike(tmp_path, variant):
    values, kwargs = columns(), {}
    if variant == "reordered":
        values = dict(sorted(values.items(), reverse=True))
    elif variant == "double":
        kwargs["dtype"] = "<f8"
    elif variant == "ascii":
        kwargs["text"] = True
    elif variant == "big endian":
        kwargs["byte_order"] = ">"
    else:
        values = {"nx": np.full(5, np.nan), "ny": np.zeros(5), "nz": np.zeros(5), **values, "segment": np.ones(5)}
    write_columns(tmp_path / "a.ply", values, **kwargs)
    assert_is_the_table(read_ply(tmp_path / "a.ply"))


def test_header_is_what_the_reference_code_writes(tmp_path):
    g = Gaussians(*(torch.zeros(3, n) for n in (3, 4, 3)), torch.zeros(3), torch.zeros(3, 4, 3), antialiased=True)
    write_ply(g, tmp_path / "a.ply")
    header = (tmp_path / "a.ply").read_bytes().partition(b"end_header\n")[0].decode().splitlines()
    assert header[:4] == ["ply", "format binary_little_endian 1.0", "comment SplatRenderMode: mip", "element vertex 3"]
    wanted = [*NAMES[:3], "nx", "ny", "nz", *NAMES[3:]]
    assert header[4:] == [f"property float {name}" for name in wanted]


@pytest.mark.parametrize(
    ("comments", "antialiased"),
    [((), False), (("SplatRenderMode: default",), False), (("Exported from Brush", "SplatRenderMode: mip"), True)],
)
def test_render_mode_comment(tmp_path, comments, antialiased):
    write_columns(tmp_path / "a.ply", columns(), comments=comments)
    assert read_ply(tmp_path / "a.ply").antialiased is antialiased


@pytest.mark.parametrize("degree", [0, 1, 3])
def test_degree_can_be_asked_for(tmp_path, degree):
    write_columns(tmp_path / "a.ply", columns())
    as_stored, asked = read_ply(tmp_path / "a.ply"), read_ply(tmp_path / "a.ply", sh_degree=degree)
    assert asked.sh_degree == degree
    shared = min(asked.sh.shape[1], as_stored.sh.shape[1])
    assert torch.equal(asked.sh[:, :shared], as_stored.sh[:, :shared])
    assert not asked.sh[:, shared:].any()


@pytest.mark.parametrize("name", ["z", "f_dc_1", "opacity", "scale_2", "rot_3", "f_rest_4"])
def test_a_missing_property_is_named(tmp_path, name):
    values = columns()
    del values[name]
    if name == "f_rest_4":
        values["f_rest_9"] = np.zeros(5)
    write_columns(tmp_path / "bad.ply", values)
    with pytest.raises(SpatialError, match=f"bad.ply: property '{name}' is missing"):
        read_ply(tmp_path / "bad.ply")


def test_half_an_sh_degree_is_refused(tmp_path):
    values = columns()
    del values["f_rest_8"]
    write_columns(tmp_path / "bad.ply", values)
    with pytest.raises(SpatialError, match=r"bad.ply: has 8 properties f_rest"):
        read_ply(tmp_path / "bad.ply")


def test_a_point_cloud_is_told_apart(tmp_path):
    write_columns(tmp_path / "points.ply", {name: np.zeros(5) for name in ("x", "y", "z", "red", "green", "blue")})
    with pytest.raises(
        SpatialError, match=r"points.ply: property 'f_dc_0' is missing, so this PLY is no Gaussian scene"
    ):
        load_gaussians(tmp_path / "points.ply")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["y", "f_dc_2", "f_rest_4", "scale_1", "rot_2"])
def test_nan_and_infinity_are_counted_and_located(tmp_path, name, value):
    values = columns()
    values[name][[2, 4]] = value
    write_columns(tmp_path / "bad.ply", values)
    with pytest.raises(SpatialError, match=f"bad.ply: 2 of 5 Gaussians.*first in row 2, property '{name}'"):
        read_ply(tmp_path / "bad.ply")


def test_nan_opacity_is_refused_but_infinite_opacity_means_opaque(tmp_path):
    values = columns()
    values["opacity"][:2] = [np.inf, -np.inf]
    write_columns(tmp_path / "opaque.ply", values)
    torch.testing.assert_close(
        read_ply(tmp_path / "opaque.ply").opacities[:2], torch.tensor([1.0, 0.0]), rtol=0, atol=2e-6
    )
    values["opacity"][3] = np.nan
    write_columns(tmp_path / "bad.ply", values)
    with pytest.raises(SpatialError, match=r"1 of 5 Gaussians.*row 3, property 'opacity'"):
        read_ply(tmp_path / "bad.ply")


def test_without_gaussians_or_vertices(tmp_path):
    write_columns(tmp_path / "none.ply", columns(0))
    with pytest.raises(SpatialError, match=r"none.ply: holds no Gaussians"):
        read_ply(tmp_path / "none.ply")
    face = PlyElement.describe(np.zeros(3, dtype=[("quality", "<f4")]), "face")
    PlyData([face]).write(tmp_path / "mesh.ply")
    with pytest.raises(SpatialError, match=r"mesh.ply: the PLY has no 'vertex' element"):
        read_ply(tmp_path / "mesh.ply")


def test_a_compressed_ply_is_known_by_its_content(tmp_path):
    g = Gaussians(torch.rand(300, 3), torch.rand(300, 4), -torch.rand(300, 3), torch.rand(300), torch.rand(300, 9, 3))
    write_compressed_ply(g, tmp_path / "any name.ply")
    assert len(load_gaussians(tmp_path / "any name.ply")) == 300


@pytest.mark.parametrize(("element", "name"), [("vertex", "packed_scale"), ("chunk", "max_y")])
def test_a_compressed_ply_without_a_property_is_refused(tmp_path, element, name):
    g = Gaussians(torch.rand(9, 3), torch.rand(9, 4), -torch.rand(9, 3), torch.rand(9), torch.rand(9, 1, 3))
    write_compressed_ply(g, tmp_path / "good.ply")
    ply = PlyData.read(tmp_path / "good.ply")
    rows = ply[element].data
    kept = np.empty(len(rows), dtype=[(column, rows.dtype[column]) for column in rows.dtype.names if column != name])
    for column in kept.dtype.names:
        kept[column] = rows[column]
    elements = [PlyElement.describe(kept, element) if e.name == element else e for e in ply.elements]
    PlyData(elements, byte_order="<").write(tmp_path / "bad.ply")
    with pytest.raises(SpatialError, match=f"bad.ply: property '{name}' of element '{element}' is missing"):
        load_gaussians(tmp_path / "bad.ply")
