"""Who may import whom: the contracts in pyproject.toml, and what must not be imported before it is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_import_contracts_are_kept(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from importlinter.cli import lint_imports

    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT))
    code = lint_imports(config_filename="pyproject.toml", no_cache=True)
    assert code == 0, capsys.readouterr().out


def test_each_package_imports_only_what_it_may() -> None:
    """Read from the sources, so that an import inside a function counts too."""
    import ast

    allowed_beside_itself = {"spatial": set(), "data": {"spatial"}, "representations": {"spatial"}}
    ours = set(allowed_beside_itself)
    for package, allowed in allowed_beside_itself.items():
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom):
                    assert node.level == 0, f"{path}: relative import"
                    names = [node.module or ""]
                found = {name.partition(".")[0] for name in names} & ours - {package} - allowed
                assert not found, f"{path}:{getattr(node, 'lineno', 0)} imports {found}"


OPTIONAL = ["gsplat", "open3d", "lightglue", "pillow_heif", "lpips", "hydra", "omegaconf"]


def test_a_model_needs_neither_trainer_nor_hydra_nor_an_extra() -> None:
    """A notebook that draws Gaussians imports no Lightning; training imports no optional package."""
    script = (
        "import sys\n"
        "import representations.gaussians.rendering, representations.gaussians.model, spatial.io.gaussian_files\n"
        "assert 'lightning' not in sys.modules, 'lightning for a picture'\n"
        "import representations.gaussians.reconstruction, representations.gaussians.commands, data.captures.load\n"
        f"found = [name for name in {OPTIONAL} if name in sys.modules]\n"
        "assert not found, found\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
