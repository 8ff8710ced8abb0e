"""Poses from photos by structure from motion: `reconstruct_poses`."""

from data.captures.sfm.poses import SfmResult, reconstruct_poses

__all__ = ["SfmResult", "reconstruct_poses"]
