"""Pictures of the synthetic scene: sphere tracing of its solids (Hart 1996), vectorised over rays.

Rays are written ``origin + depth * direction`` with directions whose camera z is 1, so that the parameter along a ray
is the z-depth itself. Each pixel is traced once; its texture is averaged over sub-pixels on the tangent plane, and only
pixels on an outline or a crease are traced again, several times over.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn import functional

from data.synthetic.lighting import Lighting
from data.synthetic.scene import FLOOR_Z_M, ROOM_HALF_M, Scene
from data.synthetic.shapes import Points, Solid, unit
from data.synthetic.textures import srgb_from_linear

MAX_STEPS = 64
HIT_DISTANCE_M = 1e-4
LEAST_STEP_M = 5e-4  # may end below the surface by as much, from where one Newton step leads back
RAYS_AT_ONCE = 1 << 19
HIGHLIGHT_EXPONENT = 70.0
EXPOSURE = 1.15
TEXTURE_SAMPLES = ((-0.3, -0.12), (0.3, 0.12))  # of a pixel that sees one smooth surface, from its centre
OUTLINE_SAMPLES = ((-0.125, -0.375), (0.375, -0.125), (-0.375, 0.125), (0.125, 0.375))  # of any other (rotated grid)


class Hits(NamedTuple):
    """First surface along each ray: z-depth, and the solid's index, -1 for the room."""

    depths: Float[Tensor, "N"]
    solids: Int64[Tensor, "N"]


class Shaded(NamedTuple):
    """Linear, tone-mapped RGB along each ray, and what tells one surface from the next."""

    colors: Float[Tensor, "3 N"]
    normals: Float[Tensor, "3 N"]
    hits: Hits


def render_colors(
    scene: Scene,
    lighting: Lighting,
    camera_from_world: Float[Tensor, "4 4"],
    directions: Float[Tensor, "3 H W"],
    *,
    pixel_size: float,
) -> Float[Tensor, "H W 3"]:
    """Display sRGB in [0, 1], averaged over each pixel in linear light.

    Args:
        directions: camera-frame rays with z = 1 through the pixels' centres.
        pixel_size: distance between neighbouring rays on the plane z = 1 (1 / focal length in pixels).
    """
    height, width = directions.shape[1:]
    rotation, origin = _pose(camera_from_world)
    rays = directions.flatten(1)
    inside = torch.tensor(TEXTURE_SAMPLES) * pixel_size
    shaded = [_shade(scene, lighting, origin, rotation, part, inside) for part in rays.split(RAYS_AT_ONCE, 1)]
    colors = torch.cat([part.colors for part in shaded], 1)
    outline = _outlines(shaded, height, width)
    colors[:, outline] = _supersampled(scene, lighting, origin, rotation, rays[:, outline], pixel_size)
    return srgb_from_linear(colors).T.reshape(height, width, 3)


def render_depth(
    scene: Scene, camera_from_world: Float[Tensor, "4 4"], directions: Float[Tensor, "3 H W"]
) -> Float[Tensor, "H W"]:
    """z-depth along each ray, in metres."""
    rotation, origin = _pose(camera_from_world)
    rays = directions.flatten(1)
    depths = [trace(scene, origin, rotation.T @ part).depths for part in rays.split(RAYS_AT_ONCE, 1)]
    return torch.cat(depths).reshape(directions.shape[1:])


def trace(scene: Scene, origin: Float[Tensor, "3"], directions: Points) -> Hits:
    """The first surface along each world-frame ray from a point inside the room."""
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


def _outlines(shaded: list[Shaded], height: int, width: int) -> Bool[Tensor, "N"]:
    """Pixels whose neighbours (3 × 3) see another solid, a bent surface or another depth."""
    solids = torch.cat([part.hits.solids for part in shaded]).to(torch.float32)
    inverse_depth = 1 / torch.cat([part.hits.depths for part in shaded])
    features = torch.cat([solids[None], torch.cat([part.normals for part in shaded], 1), inverse_depth.log()[None]])
    grid = features.reshape(1, 5, height, width)
    high = functional.max_pool2d(grid, 3, stride=1, padding=1)
    low = -functional.max_pool2d(-grid, 3, stride=1, padding=1)
    limits = torch.tensor([0.5, 0.5, 0.5, 0.5, 0.08])[:, None, None]
    return ((high - low)[0] > limits).any(0).flatten()


def _supersampled(
    scene: Scene, lighting: Lighting, origin: Tensor, rotation: Tensor, rays: Points, pixel_size: float
) -> Float[Tensor, "3 N"]:
    offsets = functional.pad(torch.tensor(OUTLINE_SAMPLES) * pixel_size, (0, 1)).T  # [3, S]
    spread = (rays[:, None] + offsets[:, :, None]).flatten(1)
    single = torch.zeros(1, 2)
    colors = [_shade(scene, lighting, origin, rotation, p, single).colors for p in spread.split(RAYS_AT_ONCE, 1)]
    return torch.cat(colors, 1).reshape(3, offsets.shape[1], -1).mean(1)


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


def _march(
    solid: Solid, start: Float[Tensor, "3 1"], directions: Points, inverse_length: Tensor, limit: Tensor
) -> Tensor:
    """Depth of the first hit inside the solid's box, infinite where there is none before ``limit``."""
    half = directions.new_tensor(solid.half_size)[:, None] + 1e-5
    sides = torch.stack([(-half - start) / directions, (half - start) / directions])
    enter, leave = sides.amin(0).amax(0).clamp_min(0), torch.minimum(sides.amax(0).amin(0), limit)
    depths = torch.full_like(limit, torch.inf)
    active = (enter < leave).nonzero()[:, 0]
    t, leave, rays, inverse_length = enter[active], leave[active], directions[:, active], inverse_length[active]
    for step in range(MAX_STEPS):
        if active.numel() == 0:
            break
        free = solid.distance(start + t * rays)
        # A grazing ray may crawl along a surface: the last step takes what is near enough.
        is_hit = free < (HIT_DISTANCE_M if step < MAX_STEPS - 1 else 2e-3)
        t = torch.where(is_hit, t, t + free.clamp_min(LEAST_STEP_M) * inverse_length)
        if step % 3 != 0 and step < MAX_STEPS - 1:
            continue  # thinning out the rays costs as much as a step
        depths[active[is_hit]] = t[is_hit]
        kept = (~is_hit & (t < leave)).nonzero()[:, 0]
        active, t, leave, rays = active[kept], t[kept], leave[kept], rays[:, kept]
        inverse_length = inverse_length[kept]
    return _refined(solid, start, directions, depths)


def _refined(solid: Solid, start: Float[Tensor, "3 1"], directions: Points, depths: Tensor) -> Tensor:
    """One Newton step along the rays that hit something: from a tenth of a millimetre to the limits of float32."""
    hit = depths.isfinite().nonzero()[:, 0]
    t, rays, step = depths[hit], directions[:, hit], 4e-4
    free = solid.distance(start + t * rays)
    slope = (free - solid.distance(start + (t - step) * rays)) / step
    depths[hit] = t - (free / slope.clamp_max(-0.05)).clamp(-1.5e-3, 1.5e-3)
    return depths


def _shade(
    scene: Scene, lighting: Lighting, origin: Tensor, rotation: Tensor, rays: Points, offsets: Float[Tensor, "S 2"]
) -> Shaded:
    """Colour along camera-frame rays, the texture averaged over ``offsets`` of the ray on the tangent plane."""
    directions = rotation.T @ rays
    hits = trace(scene, origin, directions)
    points = origin[:, None] + hits.depths * directions
    order = hits.solids.argsort(stable=True)
    counts = torch.bincount(hits.solids + 1, minlength=len(scene.solids) + 1).tolist()
    albedo, normals, gloss = torch.empty_like(points), torch.empty_like(points), torch.zeros_like(points[0])
    for solid, chosen in zip([None, *scene.solids], order.split(counts), strict=True):
        if chosen.numel() == 0:
            continue
        on_surface = points[:, chosen]
        normal = _room_normals(on_surface) if solid is None else _normals(solid, on_surface)
        normals[:, chosen] = normal
        albedo[:, chosen] = torch.zeros_like(normal)
        for offset in offsets:
            shifted = directions[:, chosen] + (rotation[:2].T @ offset)[:, None]
            beside = _on_tangent_plane(origin, shifted, hits.depths[chosen], on_surface, normal)
            color = scene.room_albedo(beside) if solid is None else solid.albedo(solid.own_points(beside))
            albedo[:, chosen] += color / len(offsets)
        gloss[chosen] = 0.0 if solid is None else solid.gloss
    irradiance, sunlight = lighting.irradiance(points, normals)
    radiance = albedo * irradiance + gloss * _highlight(lighting, sunlight, normals, directions)
    return Shaded(1 - torch.exp(-EXPOSURE * radiance), normals, hits)


def _on_tangent_plane(origin: Tensor, directions: Points, depths: Tensor, points: Points, normals: Points) -> Points:
    """Where slightly turned rays meet the tangent planes of the surfaces that the original rays hit."""
    to_surface = ((points - origin[:, None]) * normals).sum(0)
    facing = (directions * normals).sum(0)
    # Seen edge-on the plane is no guide: stay within 1 % of the depth.
    ratio = (to_surface / facing / depths).nan_to_num(1.0).clamp(0.99, 1.01)
    return origin[:, None] + directions * (depths * ratio)


def _normals(solid: Solid, points: Points) -> Points:
    """Gradient of the distance by four evaluations at a tetrahedron's corners; world frame in and out."""
    own, step = solid.own_points(points), 4e-4
    gradient = torch.zeros_like(points)
    for corner in ((1, -1, -1), (-1, -1, 1), (-1, 1, -1), (1, 1, 1)):
        direction = points.new_tensor(corner)[:, None]
        gradient += direction * solid.distance(own + step * direction)
    return solid.world_from_own(unit(gradient))


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


def _highlight(lighting: Lighting, sunlight: Tensor, normals: Points, directions: Points) -> Float[Tensor, "N"]:
    """Blinn and Phong's highlight of the sun: the one thing in the scene that moves with the viewer."""
    halfway = unit(lighting.sun[:, None] - unit(directions))
    return sunlight.sqrt() * (normals * halfway).sum(0).clamp_min(0) ** HIGHLIGHT_EXPONENT
