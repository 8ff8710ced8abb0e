"""Fused operations: checks, documentation and PyTorch registration; maths in ``native``, meaning in ``reference``.

Every operation of ``spatial.kernels`` has a twin of the same name and signature in ``spatial.kernels.reference``.
"""
