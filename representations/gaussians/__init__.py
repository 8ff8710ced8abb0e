"""Scenes as anisotropic 3D Gaussians (Kerbl 2023): rendering, training, densification, pruning, meshes."""
