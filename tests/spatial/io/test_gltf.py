"""glTF with KHR_gaussian_splatting: writing follows the extension's text, and scene graphs of others are read."""

import json
import struct

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from spatial.errors import SpatialError
from spatial.geometry.sh_rotation import transform_gaussians
from spatial.io.gltf import read_gltf, write_gltf
from spatial.structures import Gaussians

PREFIX = "KHR_gaussian_splatting:"


def scene(count: int = 6) -> Gaussians:
    generator = torch.Generator().manual_seed(0)
    sizes = {"means": (3,), "quats": (4,), "log_scales": (3,), "logit_opacities": (), "sh": (4, 3)}
    return Gaussians(**{name: torch.randn(count, *size, generator=generator) for name, size in sizes.items()})


def glb_parts(path):
    content = path.read_bytes()
    assert content[:4] == b"glTF"
    version, length, json_length = struct.unpack_from("<III", content, 4)
    assert (version, length, json_length % 4) == (2, len(content), 0)
    return json.loads(content[20 : 20 + json_length]), content[28 + json_length :]


def values(document, binary, semantic):
    """An accessor read by hand."""
    primitive = document["meshes"][0]["primitives"][0]
    accessor = document["accessors"][primitive["attributes"][semantic]]
    view = document["bufferViews"][accessor["bufferView"]]
    assert view["byteOffset"] % 4 == 0
    dtype = {5126: np.float32, 5121: np.uint8}[accessor["componentType"]]
    data = np.frombuffer(binary[view["byteOffset"] : view["byteOffset"] + view["byteLength"]], dtype)
    return data.reshape(accessor["count"], -1), accessor


def edit(path, change):
    document, binary = glb_parts(path)
    change(document)
    text = json.dumps(document).encode()
    text += b" " * (-len(text) % 4)
    chunks = struct.pack("<I4s", len(text), b"JSON") + text + struct.pack("<I4s", len(binary), b"BIN\0") + binary
    path.write_bytes(struct.pack("<4sII", b"glTF", 2, 12 + len(chunks)) + chunks)


def test_attributes_are_those_of_the_extension(tmp_path):
    g = scene()
    write_gltf(g, tmp_path / "a.glb")
    document, binary = glb_parts(tmp_path / "a.glb")
    primitive = document["meshes"][0]["primitives"][0]
    assert document["extensionsUsed"] == ["KHR_gaussian_splatting"]
    assert primitive["mode"] == 0
    extension = primitive["extensions"]["KHR_gaussian_splatting"]
    assert (extension["kernel"], extension["colorSpace"]) == ("ellipse", "srgb_rec709_display")
    position, accessor = values(document, binary, "POSITION")
    np.testing.assert_array_equal(position, g.means)
    np.testing.assert_array_equal(accessor["min"], g.means.min(dim=0).values)
    quats, accessor = values(document, binary, PREFIX + "ROTATION")
    assert accessor["type"] == "VEC4"
    np.testing.assert_allclose(np.linalg.norm(quats, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(quats, torch.nn.functional.normalize(g.quats, dim=1)[:, [1, 2, 3, 0]], atol=1e-6)
    np.testing.assert_allclose(values(document, binary, PREFIX + "SCALE")[0], g.log_scales.exp(), rtol=1e-6)  # linear
    opacity, accessor = values(document, binary, PREFIX + "OPACITY")
    assert accessor["type"] == "SCALAR"
    np.testing.assert_allclose(opacity[:, 0], g.opacities, rtol=1e-6)
    for index, name in enumerate(["0_COEF_0", "1_COEF_0", "1_COEF_1", "1_COEF_2"]):
        np.testing.assert_array_equal(values(document, binary, f"{PREFIX}SH_DEGREE_{name}")[0], g.sh[:, index])


def test_fallback_colour_is_linear(tmp_path):
    g = scene()
    g.sh[:] = 0  # sRGB 0.5 is 0.214 in linear light
    write_gltf(g, tmp_path / "a.glb")
    color, accessor = values(*glb_parts(tmp_path / "a.glb"), "COLOR_0")
    assert accessor["normalized"] is True
    np.testing.assert_array_equal(color[:, :3], 55)


def test_the_node_stands_the_capture_upright(tmp_path):
    """glTF has y up, captures y down: a point above the origin (0, -1, 0) must lie at y = +1 in the glTF world."""
    write_gltf(scene(), tmp_path / "a.glb")
    document, _ = glb_parts(tmp_path / "a.glb")
    matrix = np.array(document["nodes"][0]["matrix"]).reshape(4, 4).T
    np.testing.assert_array_equal(matrix @ [0, -1, 0, 1], [0, 1, 0, 1])
    assert np.linalg.det(matrix) == 1


def test_nested_nodes_with_rotation_and_scale_are_applied(tmp_path):
    g, path = scene(), tmp_path / "a.glb"
    write_gltf(g, path)
    parent, child = Rotation.random(random_state=1), Rotation.random(random_state=2)

    def nest(document):
        document["nodes"] = [
            {"children": [1], "rotation": parent.as_quat().tolist(), "scale": [2, 2, 2], "translation": [1, 2, 3]},
            {"mesh": 0, "rotation": child.as_quat().tolist(), "translation": [0, 5, 0]},
        ]

    edit(path, nest)
    world_from_node = np.diag([1.0, -1.0, -1.0, 1.0])
    for turn, scale, shift in [(parent, 2.0, [1, 2, 3]), (child, 1.0, [0, 5, 0])]:
        local = np.eye(4)
        local[:3, :3], local[:3, 3] = scale * turn.as_matrix(), shift
        world_from_node = world_from_node @ local
    wanted, found = transform_gaussians(g, torch.from_numpy(world_from_node)), read_gltf(path)
    torch.testing.assert_close(found.means, wanted.means, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.log_scales, wanted.log_scales, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.sh, wanted.sh, rtol=1e-5, atol=1e-5)


def test_two_instances_are_joined(tmp_path):
    g, path = scene(), tmp_path / "a.glb"
    write_gltf(g, path)
    half_turn = [1, 0, 0, 0, 0, -1, 0, 0, 0, 0, -1, 0, 0, 0, 0, 1]

    def twice(document):
        document["nodes"] += [{"mesh": 0, "matrix": [*half_turn[:12], 10, 0, 0, 1]}]
        document["scenes"][0]["nodes"] = [0, 1]

    edit(path, twice)
    found = read_gltf(path)
    torch.testing.assert_close(found.means, torch.cat([g.means, g.means + torch.tensor([10.0, 0, 0])]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda d: d["meshes"][0]["primitives"][0]["attributes"].pop(PREFIX + "SCALE"),
            "SCALE' of the Gaussians is missing",
        ),
        (lambda d: d["meshes"][0]["primitives"][0].pop("extensions"), "no primitive carries KHR_gaussian_splatting"),
        (lambda d: d["nodes"][0].update(matrix=np.diag([1.0, 1, -1, 1]).ravel().tolist()), "mirrors its Gaussians"),
        (lambda d: d["nodes"][0].update(matrix=np.diag([1.0, 2, 1, 1]).ravel().tolist()), "stretches them unevenly"),
        (lambda d: d["accessors"][0].update(count=10**6), "contradicts itself"),
        (lambda d: d.pop("nodes"), "contradicts itself"),
        (
            lambda d: d["meshes"][0]["primitives"][0]["extensions"]["KHR_gaussian_splatting"].update(
                extensions={"KHR_gaussian_splatting_compression_spz_2": {}}
            ),
            "compression_spz_2; export without it",
        ),
    ],
    ids=["attribute", "extension", "mirror", "stretch", "count", "nodes", "compressed"],
)
def test_bad_documents_are_refused(tmp_path, change, message):
    path = tmp_path / "bad.glb"
    write_gltf(scene(), path)
    edit(path, change)
    with pytest.raises(SpatialError, match=f"bad.glb.*{message}"):
        read_gltf(path)
