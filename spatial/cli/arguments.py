"""``VERB [PATH] [key=value …]`` taken apart, without knowing what the verbs are."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from spatial.cli.suggestions import did_you_mean
from spatial.errors import SpatialError

FLAGS = {
    "--help": "help",
    "-h": "help",
    "--version": "version",
    "--verbose": "verbose",
    "-v": "verbose",
    "--dry-run": "dry_run",
    "--print-config": "print_config",
}

OVERRIDE = re.compile(r"\+{0,2}[A-Za-z_][\w.@/-]*=|~[A-Za-z_][\w.@-]*(=|$)")


class Arguments(NamedTuple):
    """A command line. ``texts`` are values taken as they stand, by key: no quoting, no YAML."""

    verb: str | None
    path: str | None
    out: str | None
    overrides: list[str]
    flags: frozenset[str]


def parse_arguments(argv: list[str]) -> Arguments:
    """Splits the words of a command line.

    Raises:
        SpatialError: an unknown option, an option without its value, or two paths.
    """
    positional: list[str] = []
    overrides: list[str] = []
    flags: set[str] = set()
    out: str | None = None
    words = iter(argv)
    for word in words:
        if word == "--":
            positional.extend(words)
        elif word in FLAGS:
            flags.add(FLAGS[word])
        elif word == "--resume":
            overrides.append("resume=true")
        elif word == "--out" or word.startswith("--out="):
            out = word[len("--out=") :] if "=" in word else next(words, None)
            if not out:
                raise SpatialError("--out needs a folder: --out RUN")
        elif word.startswith("-") and len(word) > 1:
            raise _unknown_option(word)
        elif _is_override(word) and positional:
            overrides.append(word)
        else:
            positional.append(word)
    if len(positional) > 2:
        raise SpatialError(
            f"{positional[1]} and {positional[2]} were both given, but a verb takes one path; "
            "quote a path with spaces, and write settings as key=value"
        )
    verb, path = [*positional, None, None][:2]
    return Arguments(verb, _expand(path), _expand(out), overrides, frozenset(flags))


def _is_override(word: str) -> bool:
    """key=value, ++key=value, ~key; what exists on disk, or has no key's form before its '=', is a path."""
    return OVERRIDE.match(word) is not None and not os.path.exists(word)


def _unknown_option(word: str) -> SpatialError:
    name, _, value = word.lstrip("-").partition("=")
    key = name.replace("-", "_")
    hint = did_you_mean(word, [*FLAGS, "--out", "--resume"]) or f"; settings are written {key}={value or '…'}"
    return SpatialError(f"{word}: no such option{hint}")


def _expand(path: str | None) -> str | None:
    return None if path is None else os.path.expanduser(path)
