"""The maths headers compile for CUDA as they are: one source for the CPU kernels and for device code."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

INCLUDE = Path(__file__).resolve().parents[3] / "spatial" / "kernels" / "native" / "include"

KERNEL = """
#include "spatial/blending.h"
#include "spatial/projection.h"
#include "spatial/spherical_harmonics.h"
#include "spatial/ssim.h"

using namespace spatial;

__global__ void use_everything(PinholeCamera<float> camera, const float* in, float* out) {
    const ProjectedGaussian<float> g = project(camera, in, in + 3, in + 7, 0.3f);
    const ProjectionGradients<float> v = project_vjp(camera, in, in + 3, in + 7, 0.3f, g.mean, 0.0f, g.conic, 0.0f);
    float basis[25], direction[3], transmittance = 1.0f;
    sh_basis(4, in[0], in[1], in[2], basis);
    sh_basis_vjp(4, in[0], in[1], in[2], basis, direction);
    const Falloff<float> falloff = falloff_from_conic(g.conic, -1.0f);
    const Contribution<float> c = blend(falloff.log2_alpha(0.5f, 0.5f), 0.999f, transmittance);
    const Ssim<float> s = ssim_of_moments(in[0], in[1], in[2], in[3]);
    out[0] = v.mean[0] + direction[0] + c.weight + blend_vjp(c, 0.999f, 1.0f, 0.1f, 0.2f) + s.value;
}
"""


def test_headers_compile_for_cuda(tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not installed")
    source = tmp_path / "headers.cu"
    source.write_text(KERNEL)
    command = [nvcc, "-std=c++17", "-I", str(INCLUDE), "--ptx", "-o", str(tmp_path / "headers.ptx"), str(source)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "use_everything" in (tmp_path / "headers.ptx").read_text()
