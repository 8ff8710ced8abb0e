"""Tile lists: nothing visible is missing, little else is there, nearest first."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spatial.kernels import reference
from spatial.kernels.intersection import TILE_SIZE, intersect_tiles

MIN_ALPHA = 1 / 255


def tile_members(tiles, flat):
    """[tiles, C·N] bool: which Gaussian is in which (camera, tile row, tile column)'s list."""
    num_tiles = len(tiles.tile_offsets) - 1
    members = torch.zeros(num_tiles, flat.depths.numel(), dtype=torch.bool)
    lengths = tiles.tile_offsets.long().diff()
    members[torch.arange(num_tiles).repeat_interleave(lengths), tiles.flatten_ids.long()] = True
    assert members.sum() == len(tiles.flatten_ids), "a Gaussian is listed twice in a tile"
    return members


def largest_alphas(flat):
    """[tiles, C·N] the largest alpha of each Gaussian at any pixel of each tile, from all pixels, in float64."""
    columns, rows = -(-flat.width // TILE_SIZE), -(-flat.height // TILE_SIZE)
    y, x = torch.meshgrid(
        torch.arange(rows * TILE_SIZE).double() + 0.5, torch.arange(columns * TILE_SIZE).double() + 0.5, indexing="ij"
    )
    per_camera = []
    for means, conics, opacities, radii in zip(flat.means2d, flat.conics, flat.opacities, flat.radii, strict=True):
        dx, dy = x - means[:, 0, None, None].double(), y - means[:, 1, None, None].double()
        A, B, C = (conics[:, i, None, None].double() for i in range(3))
        alphas = opacities[:, None, None].double() * torch.exp(-0.5 * (A * dx**2 + C * dy**2) - B * dx * dy)
        alphas = alphas * ((x < flat.width) & (y < flat.height)) * (radii > 0).all(-1)[:, None, None]
        blocks = alphas.reshape(len(means), rows, TILE_SIZE, columns, TILE_SIZE)
        per_camera.append(blocks.amax(dim=(2, 4)).reshape(len(means), -1).T)  # [tiles, N]
    return torch.block_diag(*per_camera)


def check_lists(tiles, flat):
    """Everything that the docstring of TileIntersections promises."""
    total = flat.depths.numel()
    ids, places = tiles.flatten_ids.long(), tiles.places.long()
    assert tiles.tile_offsets[0] == 0 and tiles.tile_offsets[-1] == len(ids)
    depths = flat.depths.reshape(-1)
    for begin, end in zip(tiles.tile_offsets[:-1].tolist(), tiles.tile_offsets[1:].tolist(), strict=True):
        keys = [(depths[i].item(), i) for i in ids[begin:end].tolist()]
        assert keys == sorted(keys), "nearest first, equal depths by index"
    assert torch.equal(places.sort().values, torch.arange(len(ids)))
    owners = torch.arange(total).repeat_interleave(tiles.gaussian_offsets.long().diff())
    assert torch.equal(ids[places], owners), "places are of the Gaussian's own intersections"


def test_hand_example(instruction_set, dtype):
    """A round Gaussian of sigma 2 and opacity 1 reaches 2·sqrt(2 ln 255) = 6.66 px: over one border of two."""
    means2d = torch.tensor([[[10.0, 8.0], [24.0, 24.0], [40.0, 8.0]]], dtype=dtype)
    conics = torch.tensor([0.25, 0, 0.25], dtype=dtype).expand(1, 3, 3)
    opacities, depths = torch.tensor([[1.0, 1.0, 1.0]], dtype=dtype), torch.tensor([[3.0, 2.0, 1.0]], dtype=dtype)
    radii = torch.tensor([[[7, 7], [7, 7], [0, 0]]], dtype=torch.int32)
    tiles = intersect_tiles(means2d, conics, opacities, depths, radii, 48, 32)
    # tiles 0 and 1 of the first row hold Gaussian 0 (10 + 6.66 > 16.5), tile 4 is the middle of the second row
    assert tiles.flatten_ids.tolist() == [0, 0, 1]
    assert tiles.tile_offsets.tolist() == [0, 1, 2, 2, 2, 3, 3]
    assert tiles.places.tolist() == [0, 1, 2] and tiles.gaussian_offsets.tolist() == [0, 2, 3, 3]


@given(
    seed=st.integers(0, 2**31), longest=st.sampled_from([1.0, 5.0, 40.0]), faintest=st.sampled_from([0.004, 0.05]),
    size=st.sampled_from([(1, 1), (16, 16), (17, 33), (70, 50)]), cameras=st.integers(1, 2),
)  # fmt: skip
@settings(
    max_examples=15, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
def test_nothing_visible_is_missing(instruction_set, dtype, make_flat, seed, longest, faintest, size, cameras):
    flat = make_flat(
        30, seed=seed, cameras=cameras, width=size[0], height=size[1], sizes=(0.55, longest), opacities=(faintest, 1.0)
    ).to(dtype)
    tiles = intersect_tiles(*flat.for_tiles())
    check_lists(tiles, flat)
    band = 1e-3 if dtype == torch.float32 else 1e-9  # float32 cannot tell alphas that near to 1/255 apart
    visible = largest_alphas(flat) >= MIN_ALPHA * (1 + band)
    missing = visible & ~tile_members(tiles, flat)
    assert not missing.any()


def test_lists_are_much_shorter_than_bounding_boxes(instruction_set, make_flat):
    flat = make_flat(100, width=256, height=192, sizes=(0.6, 40.0))
    tiles = intersect_tiles(*flat.for_tiles())
    boxes = reference.intersection.intersect_tiles(*flat.for_tiles())
    assert len(tiles.flatten_ids) < 0.6 * len(boxes[0])
    members = tile_members(tiles, flat)
    assert not (members & ~tile_members(tiles._make(boxes), flat)).any()
    # Listed, but no pixel reaches 1/255: the ellipse passes between pixel centres of a row.
    needless = members & (largest_alphas(flat) < MIN_ALPHA)
    assert needless.sum() < 0.05 * members.sum()


def test_reference_lists_are_gsplats(gsplat, make_flat):
    flat = make_flat(80, cameras=2)
    ours = reference.intersection.intersect_tiles(*flat.for_tiles())
    columns, rows = -(-flat.width // TILE_SIZE), -(-flat.height // TILE_SIZE)
    counts, _, _ = gsplat._isect_tiles(flat.means2d, flat.radii, flat.depths.float(), TILE_SIZE, columns, rows)
    differs = ours[3].diff() != counts.reshape(-1)
    # gsplat leaves out a tile that a box touches at its very edge
    assert (ours[3].diff() - counts.reshape(-1)).abs().max() <= rows + columns and differs.float().mean() < 0.1


@pytest.mark.parametrize("function", [intersect_tiles, reference.intersection.intersect_tiles])
def test_equal_depths_keep_their_order(instruction_set, make_flat, function):
    flat = make_flat(300, sizes=(2.0, 6.0))
    flat = flat._replace(depths=(flat.depths * 3).floor())
    assert len(flat.depths.unique()) < 5
    tiles = intersect_tiles(*flat.for_tiles())
    check_lists(tiles._make(function(*flat.for_tiles())), flat)


def test_depths_over_many_magnitudes(instruction_set, dtype, make_flat):
    """The radix sort looks at every bit of a float: exponents and mantissas alike."""
    flat = make_flat(2000)
    depths = 10 ** (torch.rand(1, 2000, generator=torch.Generator().manual_seed(0)) * 14 - 4)
    flat = flat._replace(depths=depths).to(dtype)
    check_lists(intersect_tiles(*flat.for_tiles()), flat)


def test_invisible_gaussians_are_in_no_list(instruction_set, dtype, make_flat):
    flat = make_flat(30).to(dtype)
    radii, opacities, means2d = flat.radii.clone(), flat.opacities.clone(), flat.means2d.clone()
    radii[0, :10] = 0
    opacities[0, 10:15], opacities[0, 15:20] = 0.0, 0.0039
    means2d[0, 20:25] = torch.tensor([-1e6, 1e6], dtype=dtype)
    tiles = intersect_tiles(*flat._replace(radii=radii, opacities=opacities, means2d=means2d).for_tiles())
    assert set(tiles.flatten_ids.tolist()) <= set(range(25, 30))


def test_a_huge_gaussian_is_everywhere(instruction_set, dtype):
    means2d, depths = torch.tensor([[[-4e4, 3e4]]], dtype=dtype), torch.ones(1, 1, dtype=dtype)
    conics, opacities = torch.tensor([[[1e-12, 0, 1e-12]]], dtype=dtype), torch.full((1, 1), 0.9, dtype=dtype)
    radii = torch.full((1, 1, 2), 1 << 24, dtype=torch.int32)
    tiles = intersect_tiles(means2d, conics, opacities, depths, radii, 100, 50)
    assert tiles.tile_offsets.tolist() == list(range(7 * 4 + 1))


def test_no_gaussians(instruction_set, dtype, make_flat):
    tiles = intersect_tiles(*make_flat(0, cameras=2).to(dtype).for_tiles())
    assert len(tiles.flatten_ids) == len(tiles.places) == 0
    assert tiles.tile_offsets.tolist() == [0] * (2 * 4 * 3 + 1) and tiles.gaussian_offsets.tolist() == [0]


def test_inputs_need_not_be_contiguous(instruction_set, make_flat):
    flat = make_flat(50)
    strided = flat._make(torch.stack([t, t], dim=-1)[..., 0] if isinstance(t, torch.Tensor) else t for t in flat)
    tiles, expected = intersect_tiles(*strided.for_tiles()), intersect_tiles(*flat.for_tiles())
    assert all(torch.equal(a, b) for a, b in zip(tiles, expected, strict=True))


def test_same_lists_for_any_number_of_threads(instruction_set, dtype, make_flat, each_thread_count):
    flat = make_flat(20000, cameras=2).to(dtype)
    each_thread_count(lambda: list(intersect_tiles(*flat.for_tiles())))


def test_operator_registration(compiled, make_flat):
    torch.library.opcheck(torch.ops.spatial.intersect_tiles.default, make_flat(20).for_tiles())
