"""Pictures of the synthetic scene: sphere tracing of its solids (Hart 1996), vectorised over rays.

Rays are written ``origin + depth * direction`` with directions whose camera z is 1, so that the parameter along a ray
is the z-depth itself.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from data.synthetic.lighting import Lighting
from data.synthetic.scene import FLOOR_Z_M, ROOM_HALF_M, Scene
from data.synthetic.shapes import Points, Solid
from data.synthetic.textures import srgb_from_linear

MAX_STEPS = 96
HIT_DISTANCE_M = 2e-5
RAYS_AT_ONCE = 1 << 16
HIGHLIGHT_EXPONENT = 60.0
EXPOSURE = 1.25


class Hits(NamedTuple):
    """First surface along each ray: z-depth, and the solid's index, -1 for the room."""

    depths: Float[Tensor, "N"]
    solids: Int64[Tensor, "N"]


def render_colors(
    scene: Scene,
    lighting: Lighting,
    camera_from_world: Float[Tensor, "4 4"],
    directions: Float[Tensor, "3 H W"],
    *,
    supersampling: int,
) -> Float[Tensor, "h w 3"]:
    """Display sRGB in [0, 1] on a grid ``supersampling`` times coarser than ``directions``, averaged in linear light.

    Args:
        directions: camera-frame rays with z = 1 through the sub-pixels.
    """
    rotation, origin = _pose(camera_from_world)
    rays = directions.flatten(1)
    parts = [_radiance(scene, lighting, origin, rotation.T @ part) for part in rays.split(RAYS_AT_ONCE, 1)]
    linear = torch.cat(parts, 1).reshape(directions.shape)
    averaged = torch.nn.functional.avg_pool2d(linear, supersampling)
    return srgb_from_linear(averaged).permute(1, 2, 0)


def render_depth(
    scene: Scene, camera_from_world: Float[Tensor, "4 4"], directions: Float[Tensor, "3 H W"]
) -> Float[Tensor, "H W"]:
    """z-depth along each ray, in metres."""
    rotation, origin = _pose(camera_from_world)
    rays = directions.flatten(1)
    depths = [trace(scene, origin, rotation.T @ part).depths for part in rays.split(RAYS_AT_ONCE, 1)]
    return torch.cat(depths).reshape(directions.shape[1:])


def trace(scene: Scene, origin: Float[Tensor, "3"], directions: Points) -> Hits:
    """The first surface along each ray from a point inside the room."""
    depths = _room_exit(origin, directions)
    solids = torch.full(depths.shape, -1, dtype=torch.int64)
    squared = (directions * directions).sum(0)
    for index, solid in enumerate(scene.solids):
        candidates = _near_sphere(solid, origin, directions, squared)
        if candidates.numel() == 0:
            continue
        own = solid.own_from_world(directions[:, candidates])
        start = solid.own_points(origin[:, None])
        found = _march(solid, start, own, squared[candidates].rsqrt(), depths[candidates])
        is_hit = found < depths[candidates]
        depths[candidates[is_hit]] = found[is_hit]
        solids[candidates[is_hit]] = index
    return Hits(depths, solids)


def _pose(camera_from_world: Tensor) -> tuple[Tensor, Tensor]:
    rotation = camera_from_world[:3, :3]
    return rotation.float(), (-rotation.T @ camera_from_world[:3, 3]).float()


def _room_exit(origin: Tensor, directions: Points) -> Float[Tensor, "N"]:
    """Depth at which a ray leaves the room; the room has no ceiling, its walls never end."""
    walls = (torch.copysign(torch.tensor(ROOM_HALF_M), directions[:2]) - origin[:2, None]) / directions[:2]
    floor = (FLOOR_Z_M - origin[2]) / directions[2]
    return torch.minimum(walls.amin(0), torch.where(directions[2] < 0, floor, torch.inf))


def _near_sphere(solid: Solid, origin: Tensor, directions: Points, squared: Tensor) -> Int64[Tensor, "M"]:
    """Rays that meet the solid's bounding sphere."""
    to_center = origin.new_tensor(solid.center) - origin
    along = to_center @ directions
    gap = float(to_center @ to_center) - solid.bounding_radius**2
    return ((along > 0) & (along * along > gap * squared)).nonzero()[:, 0]


def _march(solid: Solid, start: Points, directions: Points, inverse_length: Tensor, limit: Tensor) -> Tensor:
    """Depth of the first hit inside the solid's box, infinite where there is none before ``limit``."""
    half = directions.new_tensor(solid.half_size)[:, None] + 1e-3
    sides = torch.stack([(-half - start) / directions, (half - start) / directions])
    enter, leave = sides.amin(0).amax(0).clamp_min(0), torch.minimum(sides.amax(0).amin(0), limit)
    depths = torch.full_like(limit, torch.inf)
    active = (enter < leave).nonzero()[:, 0]
    t, leave, rays, inverse_length = enter[active], leave[active], directions[:, active], inverse_length[active]
    for step in range(MAX_STEPS):
        free = solid.distance(start + t * rays)
        is_hit = free < HIT_DISTANCE_M if step < MAX_STEPS - 1 else free < 1e-3
        t = t + free * inverse_length
        alive = ~is_hit & (t < leave)
        if step % 3 == 2 or step == MAX_STEPS - 1 or is_hit.all():
            depths[active[is_hit]] = t[is_hit]
            if not alive.any():
                break
            active, t, leave, rays = active[alive], t[alive], leave[alive], rays[:, alive]
            inverse_length = inverse_length[alive]
    return depths


def _radiance(scene: Scene, lighting: Lighting, origin: Tensor, directions: Points) -> Float[Tensor, "3 N"]:
    """Tone-mapped linear RGB along each ray."""
    hits = trace(scene, origin, directions)
    points = origin[:, None] + hits.depths * directions
    albedo, normals = torch.empty_like(points), torch.empty_like(points)
    highlight = torch.zeros_like(points[0])
    is_room = hits.solids < 0
    albedo[:, is_room] = scene.room_albedo(points[:, is_room])
    normals[:, is_room] = _room_normals(points[:, is_room])
    for index, solid in enumerate(scene.solids):
        chosen = (hits.solids == index).nonzero()[:, 0]
        if chosen.numel() == 0:
            continue
        own = solid.own_points(points[:, chosen])
        albedo[:, chosen] = solid.albedo(own)
        normals[:, chosen] = solid.world_from_own(_normals(solid, own))
        if solid.gloss > 0:
            highlight[chosen] = solid.gloss * _highlight(
                lighting, points[:, chosen], normals[:, chosen], directions[:, chosen]
            )
    radiance = albedo * lighting.irradiance(points, normals) + highlight
    return 1 - torch.exp(-EXPOSURE * radiance)


def _normals(solid: Solid, points: Points) -> Points:
    """Gradient of the distance by four evaluations at a tetrahedron's corners."""
    step = 4e-4
    gradient = torch.zeros_like(points)
    for corner in ((1, -1, -1), (-1, -1, 1), (-1, 1, -1), (1, 1, 1)):
        direction = points.new_tensor(corner)[:, None]
        gradient += direction * solid.distance(points + step * direction)
    return torch.nn.functional.normalize(gradient, dim=0)


def _room_normals(points: Points) -> Points:
    """Inward normals of the floor and the walls."""
    x, y, z = points
    is_floor = z < FLOOR_Z_M + 1e-3
    on_x = x.abs() > y.abs()
    zero = torch.zeros_like(x)
    return torch.stack(
        [
            torch.where(is_floor | ~on_x, zero, -x.sign()),
            torch.where(is_floor | on_x, zero, -y.sign()),
            is_floor.to(x.dtype),
        ]
    )


def _highlight(lighting: Lighting, points: Points, normals: Points, directions: Points) -> Float[Tensor, "N"]:
    """Blinn and Phong's highlight of the sun: the one thing in the scene that moves with the viewer."""
    halfway = torch.nn.functional.normalize(
        lighting.sun[:, None] - torch.nn.functional.normalize(directions, dim=0), dim=0
    )
    visible = (lighting.sunlight(points, normals) > 0).to(points.dtype) * lighting.sunlight(points, normals).clamp(0, 1)
    return visible.sqrt() * (normals * halfway).sum(0).clamp_min(0) ** HIGHLIGHT_EXPONENT
