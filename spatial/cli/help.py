"""What ``--help`` says, made from the comments in the YAML files."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator

from spatial.cli.verbs import Verb, config_folder, key_comments, options, package_of, read_verb, verb_names

INTRODUCTION = "Photos in, a scene out: 3D Gaussians on a laptop, from the pictures of an ordinary camera."


def overview() -> str:
    """The text of ``spatial --help``."""
    verbs = {name: read_verb(name).title for name in verb_names()}
    return "\n".join(
        [
            INTRODUCTION,
            "",
            f"{heading('Usage')}  spatial VERB [PATH] [--out RUN] [key=value …]",
            "",
            heading("Verbs"),
            *table(verbs),
            "",
            heading("Start with"),
            "  spatial reconstruct photos/ --out run quality=draft",
            "  spatial view run",
            "",
            heading("Options"),
            *table(OPTIONS),
            "",
            "Each verb explains its settings: spatial VERB --help",
            "",
        ]
    )


OPTIONS = {
    "--out RUN": "the folder or file that is written",
    "--resume": "go on with the run in --out (the same as resume=true)",
    "--dry-run": "check the command, show the settings it would run with, run nothing",
    "--print-config": "show these settings without the check",
    "-v, --verbose": "say more, and show where an error came from",
    "--version": "the version",
    "-h, --help": "this text, or a verb's",
}


def verb_help(verb: Verb) -> str:
    """The text of ``spatial VERB --help``: usage, story, choices with what they cost, and every key."""
    from spatial.cli.arguments import Arguments
    from spatial.cli.compose import compose_config

    config = compose_config(verb, Arguments(verb.name, None, None, [], frozenset()))
    comments = _comments(verb)
    path_label, path_help = split_label(comments.get(verb.path_key or "", ""))
    usage = ["spatial", verb.name, path_label if verb.path_key else ""]
    usage += ["[--out RUN]" if "out" in config else "", "[--resume]" if "resume" in config else "", "[key=value …]"]
    lines = [verb.title, "", f"{heading('Usage')}  {' '.join(word for word in usage if word)}"]
    if path_help:
        lines += ["", *table({path_label: path_help})]
    story = "\n".join(verb.text).strip("\n").splitlines()
    lines += ["", *(heading(line[:-1]) if line == "Examples:" else line for line in story)]
    for group, default in verb.groups.items():
        lines += ["", f"{heading(group)}=…  ({default} unless you say otherwise)", *table(options(group))]
    for title, rows in _sections(config, comments, verb):
        lines += ["", heading(title), *table(rows)]
    return "\n".join([*lines, ""])


def table(rows: dict[str, str]) -> Iterator[str]:
    """Two columns, the second wrapped to the terminal; a first column that is too long gets a line of its own."""
    total = max(60, min(shutil.get_terminal_size((110, 24)).columns, 120))
    width = min(max((len(name) for name in rows), default=0), 44)
    for name, text in rows.items():
        wrapped = textwrap.wrap(text, total - width - 4) or [""]
        if len(name) > width:
            yield f"  {name}"
            name = ""
        yield f"  {name:<{width}}  {wrapped[0]}".rstrip()
        yield from (f"  {'':<{width}}  {line}" for line in wrapped[1:])


def heading(text: str) -> str:
    """Bold on a terminal, plain elsewhere."""
    return f"\033[1m{text}\033[0m" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else text


def split_label(comment: str) -> tuple[str, str]:
    """("INPUT", "a folder …") from "INPUT: a folder …"; ("PATH", comment) where no capital label leads."""
    label, colon, rest = comment.partition(": ")
    return (label, rest) if colon and label.replace("|", "").replace(".", "")[:2].isupper() else ("PATH", comment)


def _comments(verb: Verb) -> dict[str, str]:
    """Comments by dotted key: the verb's own file over those of the options that it takes by default."""
    comments: dict[str, str] = {}
    for group in verb.groups:
        for name in options(group):
            path = config_folder() / group / f"{name}.yaml"
            prefix = package_of(path)
            for key, text in key_comments(path).items():
                dotted = f"{prefix}.{key}" if prefix else key
                comments[dotted] = comments.get(dotted) or text
    own = key_comments(config_folder() / f"{verb.name}.yaml")
    return comments | {key: text for key, text in own.items() if text or key not in comments}


def _sections(config: object, comments: dict[str, str], verb: Verb) -> Iterator[tuple[str, dict[str, str]]]:
    """Settings by the node that they belong to, the root's first; a node's own comment is the section's title."""
    from omegaconf import DictConfig, OmegaConf

    from spatial.cli.compose import dotted_keys

    sections: dict[str, dict[str, str]] = {}
    for key in dotted_keys(config):
        parent = key.rpartition(".")[0]
        missing = OmegaConf.is_missing(config if not parent else OmegaConf.select(config, parent), key.split(".")[-1])  # type: ignore[arg-type]
        value = "???" if missing else OmegaConf.select(config, key)  # type: ignore[arg-type]
        if isinstance(value, DictConfig) or key == verb.path_key:
            continue
        sections.setdefault(parent, {})[f"{key}={plain(value)}"] = comments.get(key, "")
    for parent, rows in sections.items():
        comment = comments.get(parent, "")
        yield ("Settings" if not parent else f"{parent}: {comment}" if comment else parent), rows


def plain(value: object) -> str:
    """A value as one would type it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Iterable) and not isinstance(value, str):
        return "[" + ",".join(map(plain, value)) + "]"
    return str(value)
