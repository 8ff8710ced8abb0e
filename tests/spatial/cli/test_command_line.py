"""The command line, tried on a tree of configurations made here: a new verb is a YAML file and a function."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import textwrap
from itertools import pairwise
from pathlib import Path

import pytest

from spatial.cli.main import main

ROOT = Path(__file__).parents[3]

TOY = """
from __future__ import annotations
import json, logging, os, sys, time
from typing import Literal
from spatial.errors import SpatialError
from spatial.training.run_folder import RunFolder

class Oven:
    def __init__(self, *, degrees: float, mode: Literal["fan", "grill"] = "fan", shelf: int | None = None) -> None:
        if degrees > 300:
            raise SpatialError(f"degrees={degrees}: the oven ends at 300")
        self.degrees, self.mode, self.shelf = degrees, mode, shelf

def bake(
    *, input: str, out: str | None, loaves: int, toppings: list[str], oven: Oven, sliced: bool, config: dict
) -> str:
    logging.getLogger("toy").info("baking")
    logging.getLogger("toy").warning("hot")
    return json.dumps([input, out, loaves, toppings, oven.degrees, oven.shelf, sliced, config["oven"]["degrees"]])

def fail(*, how: str, out: str | None) -> None:
    error = {"mistake": SpatialError("loaf.ply: no crumbs; bake it first"), "bug": ZeroDivisionError("oops"),
             "interrupt": KeyboardInterrupt(), "full": OSError(28, "No space left on device", "run/a.ply"),
             "closed": PermissionError(13, "Permission denied", "photos/a.jpg"),
             "missing": FileNotFoundError(2, "x", "y")}
    if out is None:
        raise error[how]
    with RunFolder(out):
        raise error[how]

def environment() -> str:
    return json.dumps(sorted(key for key in os.environ if key.startswith("OMP_")))
"""

FILES = {
    "toy.py": TOY,
    "configs/__init__.py": "",
    "configs/bake.yaml": """
        # Bakes bread.
        # @order 1
        #
        # It takes an hour.
        #
        # Examples:
        #   spatial bake flour/
        defaults:
          - _self_
          - crust: soft

        _target_: toy.bake
        input: ???          # FLOUR: a bag of it
        out: null           # where the bread goes
        loaves: 2           # how many
        toppings: [seeds]   # on top
        sliced: false       # with a knife
        oven:               # the hot place
          _target_: toy.Oven
          degrees: 220.0    # Celsius
          shelf: null       # from below
        """,
    "configs/fail.yaml": """
        # Fails.
        _target_: toy.fail
        how: ???
        out: null
        """,
    "configs/environment.yaml": """
        # Shows.
        _target_: toy.environment
        """,
    "configs/crust/soft.yaml": """
        # @package _global_
        # chewable, 1 minute
        oven:
          degrees: 180.0
        """,
    "configs/crust/hard.yaml": """
        # @package _global_
        # @order 1
        # for strong teeth, 9 minutes
        oven:
          degrees: 250.0
        """,
}


@pytest.fixture(autouse=True)
def toy_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package ``configs`` and a module ``toy`` that come before the real ones."""
    tree = tmp_path / "tree"
    for name, text in FILES.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(textwrap.dedent(text).lstrip(), "utf-8")
    # An editable install may find packages by a hook that comes before all paths.
    paths_only = [finder for finder in sys.meta_path if not type(finder).__module__.startswith("_editable")]
    monkeypatch.setattr(sys, "meta_path", paths_only)
    monkeypatch.syspath_prepend(tree)
    monkeypatch.delitem(sys.modules, "configs", raising=False)
    monkeypatch.delitem(sys.modules, "toy", raising=False)
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    code = main(words)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_settings_reach_the_function(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bake", "my flour/ü, 1=2 ${x}", "loaves=3", "--out", "Brot 1", "toppings=[salt,oil]", "oven.shelf=2"]
    code, out, err = run(capsys, *words, "sliced=true", "crust=hard", "oven.degrees=199")
    assert code == 0, err
    assert json.loads(out) == ["my flour/ü, 1=2 ${x}", "Brot 1", 3, ["salt", "oil"], 199, 2, True, 199]
    assert err == "baking\nspatial: warning: hot\n"


def test_defaults_come_from_the_group_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(run(capsys, "bake", "x")[1])[4] == 180.0
    assert json.loads(run(capsys, "bake", "x", "crust=hard")[1])[4] == 250.0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("bak x", "bak: no such verb; did you mean bake? (bake, environment, fail)"),
        ("bake x loafs=3", "loafs: no such key; did you mean loaves?"),
        ("bake x degrees=3.0", "degrees: no such key; did you mean oven.degrees?"),
        ("bake x oven.degree=3.0", "oven.degree: no such key; did you mean oven.degrees?"),
        ("bake x zzz=1", "zzz: no such key"),
        ("bake x crst=hard", "crst: no such key; did you mean crust?"),
        ("bake x crust=hart", "crust=hart: no such option; did you mean hard? (hard, soft)"),
        ("bake x crust=härt", "crust=härt: no such option (hard, soft)"),
        ("bake x loaves=abc", "loaves=abc: loaves must be a whole number, as loaves=2"),
        ("bake x loaves=äbc", "loaves=äbc: loaves must be a whole number, as loaves=2"),
        ("bake x loaves=2.5", "loaves=2.5: loaves must be a whole number, as loaves=2"),
        ("bake x loaves=true", "loaves=true: loaves must be a whole number, as loaves=2"),
        ("bake x sliced=1", "sliced=1: sliced must be true or false, as sliced=false"),
        ("bake x oven.degrees=hot", "oven.degrees=hot: oven.degrees must be a number, as oven.degrees=180.0"),
        ("bake x oven.shelf=top", "oven.shelf=top: must be a whole number or null"),
        ("bake x toppings=salt", "toppings=salt: toppings must be a list, written [a,b], as toppings=[seeds]"),
        ("bake x toppings=[salt", "toppings=[salt: cannot be read; write key=[a,b], in quotes if it has spaces"),
        ("bake x toppings=[1]", "toppings=[1]: must be a list in which each is text"),
        ("bake x oven=big", "oven=big: oven holds further keys; set one of them, as oven.degrees=…"),
        ("bake x +oven.mode=steam", "oven.mode=steam: must be one of fan, grill"),
        ("bake x +oven.mood=fan", "oven.mood: toy.Oven takes no mood; did you mean mode?"),
        ("bake x oven.degrees=400.0", "degrees=400.0: the oven ends at 300"),
        ("bake", "bake needs a path: spatial bake PATH; see spatial bake --help"),
        ("bake a b", "a and b were both given, but a verb takes one path; quote a path with spaces, and write "),
        ("environment x", "environment takes no path, got x"),
        ("environment --out x", "out: environment has no such key"),
        ("bake x --outt y", "--outt: no such option; did you mean --out?"),
        ("bake x --loaves=3", "--loaves=3: no such option; settings are written loaves=3"),
        ("bake x --resume", "resume: no such key"),
        ("bake x --out", "--out needs a folder: --out RUN"),
    ],
)
def test_mistakes_name_the_remedy(capsys: pytest.CaptureFixture[str], words: str, message: str) -> None:
    code, out, err = run(capsys, *words.split())
    assert err.startswith(f"spatial: error: {message}"), err
    assert err.count("\n") == 1
    assert (code, out) == (2, "")


def test_a_path_where_a_verb_should_be(capsys: pytest.CaptureFixture[str]) -> None:
    Path("photos").mkdir()
    assert run(capsys, "photos")[2] == (
        "spatial: error: photos is a path, and a verb comes first, as in: spatial bake photos\n"
    )


@pytest.mark.parametrize(
    ("how", "code", "line"),
    [
        ("mistake", 2, "spatial: error: loaf.ply: no crumbs; bake it first\n"),
        ("full", 2, "spatial: error: cannot write run/a.ply: no space left on the disk; free some, or write to "),
        ("closed", 2, "spatial: error: no access to photos/a.jpg: permission denied; "),
        ("interrupt", 130, "spatial: interrupted\n"),
        ("bug", 1, "Traceback (most recent call last):\n"),
        ("missing", 1, "Traceback (most recent call last):\n"),
    ],
)
def test_exit_codes(capsys: pytest.CaptureFixture[str], how: str, code: int, line: str) -> None:
    got, out, err = run(capsys, "fail", how)
    assert (got, out) == (code, "")
    assert err.startswith(line)
    assert ("Traceback" in err) == (code == 1)


def test_verbose_shows_where_a_mistake_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "fail", "mistake", "-v")
    assert code == 2 and "Traceback" in err and err.endswith("bake it first\n")


def test_a_bug_in_a_run_says_where_its_log_is(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "fail", "bug", "--out", "run")
    assert code == 1 and "the log is in run/log.txt" in err
    assert "ZeroDivisionError: oops" in Path("run/log.txt").read_text()
    code, _, err = run(capsys, "fail", "mistake", "--out", "other")
    assert code == 2 and not Path("other").exists()


def test_dry_run_checks_and_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "bake", "x", "--dry-run", "crust=hard")
    assert (code, err) == (0, "")
    assert "degrees: 250.0" in out and "input: x" in out
    assert run(capsys, "bake", "x", "--dry-run", "+oven.mood=1")[0] == 2
    assert "input: ???" in run(capsys, "bake", "--print-config")[1]


def test_overview(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0, err
    assert "  bake         Bakes bread.\n  environment  Shows.\n  fail         Fails.\n" in out
    assert run(capsys)[1] == out
    assert run(capsys, "--version")[1].startswith("spatial 0.")


def test_help_of_a_verb(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    expected = """
        Bakes bread.

        Usage  spatial bake FLOUR [--out RUN] [key=value …]

          FLOUR  a bag of it

        It takes an hour.

        Examples
          spatial bake flour/

        crust=…  (soft unless you say otherwise)
          hard  for strong teeth, 9 minutes
          soft  chewable, 1 minute

        Settings
          out=null          where the bread goes
          loaves=2          how many
          toppings=[seeds]  on top
          sliced=false      with a knife

        oven: the hot place
          oven.degrees=180.0  Celsius
          oven.shelf=null     from below
        """
    assert run(capsys, "bake", "--help")[1] == textwrap.dedent(expected).lstrip()


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("OMP_")}
    words = [sys.executable, "-c", code]
    return subprocess.run(words, env=clean | environment, cwd=ROOT, capture_output=True, text=True, check=True)


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = "import sys; from spatial.cli.main import main; main(['--help'])\n"
    seconds = [sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])]  # of the processor: other work does not count
    for _ in range(3):
        python(code)
        seconds.append(sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]))
    assert min(after - before for before, after in pairwise(seconds)) < 0.5
    shown = python(code + "sys.stderr.write(' '.join(sys.modules))").stderr.split()
    assert not {"torch", "hydra", "omegaconf", "rich", "numpy", "lightning"} & set(shown)


def test_idle_threads_sleep_unless_the_user_chose(tmp_path: Path) -> None:
    code = "from spatial.cli.main import main; import os; main(['environment']); print(os.environ['OMP_WAIT_POLICY'])"
    path = f"{tmp_path / 'tree'}{os.pathsep}{ROOT}"
    paths_only = "sys.meta_path[:] = [f for f in sys.meta_path if '_editable' not in type(f).__module__]"
    code = f"import sys; {paths_only}; sys.path[:0] = {path.split(os.pathsep)!r}\n" + code
    assert python(code).stdout.split()[-1] == "PASSIVE"
    assert python(code, OMP_WAIT_POLICY="ACTIVE").stdout.split()[-1] == "ACTIVE"
