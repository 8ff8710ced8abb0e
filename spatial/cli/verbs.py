"""The verbs, read from ``configs/*.yaml`` as text: a verb is a YAML file, its comments are its help."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from spatial.cli.suggestions import did_you_mean
from spatial.errors import SpatialError

KEY = re.compile(r"^(?P<indent> *)(?P<key>\w+):(?P<value>.*?)(?:(?:^|\s)#\s*(?P<comment>.*))?$")


class Verb(NamedTuple):
    """What a root YAML says about itself.

    Args:
        name: the file's name.
        title: first comment line.
        text: the comment lines after it.
        groups: config groups that its defaults list names, with the option taken by default.
        path_key: the first key without a value (``???``), which PATH fills; None where all have one.
    """

    name: str
    title: str
    text: list[str]
    groups: dict[str, str]
    path_key: str | None


def config_folder() -> Path:
    """The folder of the ``configs`` package, found without importing it."""
    spec = find_spec("configs")
    if spec is None or not spec.submodule_search_locations:
        raise SpatialError("the package configs is missing; install again: pip install -e .")
    return Path(next(iter(spec.submodule_search_locations)))


def verb_names() -> list[str]:
    """All verbs, in the order that their ``# @order`` lines ask for, then by name."""
    return [path.stem for path in _ordered(config_folder())]


def read_verb(name: str) -> Verb:
    """Reads what a verb's file says about itself.

    Raises:
        SpatialError: there is no such verb; the nearest is named.
    """
    path = config_folder() / f"{name}.yaml"
    if not re.fullmatch(r"[\w-]+", name) or not path.is_file():
        known = verb_names()
        if Path(name).exists():
            raise SpatialError(f"{name} is a path, and a verb comes first, as in: spatial {known[0]} {name}")
        raise SpatialError(f"{name}: no such verb{did_you_mean(name, known)} ({', '.join(known)})")
    lines = path.read_text("utf-8").splitlines()
    header = header_comment(lines)
    path_key = next((key for key, value in _root_values(lines) if value == "???"), None)
    return Verb(name, header[0] if header else "", header[1:], dict(_groups(lines)), path_key)


def header_comment(lines: list[str]) -> list[str]:
    """The comment lines that open a file, without their marks and without Hydra's ``@package``."""
    header = []
    for line in lines:
        if not line.startswith("#"):
            break
        text = line[1:].removeprefix(" ").rstrip()
        if not text.startswith("@"):
            header.append(text)
    return header


def options(group: str) -> dict[str, str]:
    """A group's options, each with the first comment line of its file, ordered as verbs are."""
    found = {}
    for path in _ordered(config_folder() / group):
        header = header_comment(path.read_text("utf-8").splitlines())
        found[path.stem] = header[0] if header else ""
    return found


def key_comments(path: Path) -> dict[str, str]:
    """Dotted keys of a YAML file with the comment that trails each, or "" where none does."""
    comments: dict[str, str] = {}
    stack: list[tuple[int, str]] = []
    for line in path.read_text("utf-8").splitlines():
        match = KEY.match(line)
        if match is None or line.lstrip().startswith("#"):
            continue
        indent = len(match["indent"])
        while stack and stack[-1][0] >= indent:
            stack.pop()
        stack.append((indent, match["key"]))
        comments[".".join(key for _, key in stack)] = (match["comment"] or "").strip()
    return comments


def package_of(path: Path) -> str:
    """The dotted key under which an option file's keys land: "" for the root."""
    package = _marks(path).get("package", path.parent.name)
    return "" if package == "_global_" else package


def _ordered(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.yaml"), key=lambda path: (int(_marks(path).get("order", 99)), path.stem))


def _marks(path: Path) -> dict[str, str]:
    """The ``# @name value`` lines at the top of a file: Hydra's own, and ``@order``, a number to sort by."""
    marks = {}
    for line in path.read_text("utf-8").splitlines():
        if not line.startswith("#"):
            break
        if match := re.match(r"#\s*@(\w+)\s+(\S+)", line):
            marks[match[1]] = match[2]
    return marks


def _root_values(lines: list[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        match = KEY.match(line)
        if match and not match["indent"] and not line.startswith("#"):
            yield match["key"], match["value"].strip()


def _groups(lines: list[str]) -> Iterator[tuple[str, str]]:
    inside = False
    for line in lines:
        if inside and (match := re.match(r"\s*-\s*(?:override\s+)?([\w/]+)(?:@\S+)?:\s*(\w+)", line)):
            yield match[1], match[2]
        elif re.match(r"\s*-|\s*#|\s*$", line) is None:
            inside = line.startswith("defaults:")
