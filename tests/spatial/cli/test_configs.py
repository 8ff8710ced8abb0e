"""Every configuration fits the constructors that it names, for every option of every group, and explains itself."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

from spatial.cli.arguments import Arguments
from spatial.cli.compose import compose_config, dotted_keys, resolved
from spatial.cli.help import overview, verb_help
from spatial.cli.main import main
from spatial.cli.signatures import _annotation, locate, mismatch, problems, takes
from spatial.cli.verbs import options, read_verb, verb_names


def choices() -> Iterator[tuple[str, list[str]]]:
    """Each verb as it is, and with each option of each of its groups."""
    for name in verb_names():
        yield name, []
        for group in read_verb(name).groups:
            for option in options(group):
                yield name, [f"{group}={option}"]


def settings(name: str, overrides: list[str]) -> dict[str, Any]:
    verb = read_verb(name)
    path = "x" if verb.path_key else None
    arguments = Arguments(name, path, None, overrides, frozenset())
    return resolved(compose_config(verb, arguments), verb)


def nodes(config: Any) -> Iterator[dict[str, Any]]:
    if isinstance(config, dict):
        if "_target_" in config:
            yield config
        for value in config.values():
            yield from nodes(value)
    elif isinstance(config, list):
        for value in config:
            yield from nodes(value)


@pytest.mark.parametrize(("name", "overrides"), list(choices()), ids=lambda value: "".join(value))
def test_every_target_takes_what_it_is_given(name: str, overrides: list[str]) -> None:
    config = settings(name, overrides)
    given = ["config"] if takes(locate(config["_target_"]), "config") else []
    assert list(problems(config, given=given)) == []
    for node in nodes(config):
        target = locate(node["_target_"])
        parameters = inspect.signature(target).parameters
        for key, value in node.items():
            if key in parameters and isinstance(value, int) and not isinstance(value, bool):
                wanted = _annotation(target, parameters[key])
                is_float = mismatch(1.5, wanted) is None and mismatch("", wanted) is not None
                assert not is_float, (
                    f"{name}: write {key}: {value}.0, so that a fraction is accepted on the command line"
                )


@pytest.mark.parametrize("name", verb_names())
def test_every_setting_is_explained(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    verb = read_verb(name)
    assert main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert verb.title.endswith(".") and len(verb.title) < 90
    assert f"  spatial {name} " in text, "an example"
    shown = re.findall(r"^  (?:\033\[1m)?([\w.]+)=\S+(.*)$\n?(^ {6,}\S.*)?", text, re.MULTILINE)
    bare = [key for key, comment, next_line in shown if not comment.strip() and not next_line]
    assert not bare, f"no comment trails {bare} in the YAML"
    keys = set(dotted_keys(compose_config(verb, Arguments(name, None, None, [], frozenset()))))
    assert {key for key, _, _ in shown} <= keys
    for group in verb.groups:
        for option, title in options(group).items():
            assert title, f"configs/{group}/{option}.yaml opens with no comment"
    assert max(map(len, text.splitlines())) <= 120


def test_examples_in_the_help_are_commands_that_work() -> None:
    """Each "spatial VERB PATH …" that the help shows composes; what follows two spaces is its explanation."""
    texts = [overview(), *(verb_help(read_verb(name)) for name in verb_names())]
    examples = {
        line.strip().split("   ")[0].strip()
        for text in texts
        for line in text.splitlines()
        if line.startswith("  spatial ")
    }
    assert len(examples) >= len(verb_names())
    for example in sorted(examples):
        words = [word for word in example.split()[1:] if word != "--resume"]
        assert main([*words, "--print-config"]) == 0, example


def test_work_comes_in_its_order() -> None:
    assert verb_names()[:5] == ["reconstruct", "evaluate", "render", "view", "export"]
    assert list(options("quality")) == ["draft", "standard", "high"]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("quality=drft", "quality=drft: no such option; did you mean draft? (draft, standard, high)"),
        ("max_step=3", "max_step: no such key; did you mean max_steps?"),
        ("max_steps=abc", "max_steps=abc: max_steps must be a whole number, as max_steps="),
    ],
)
def test_wrong_words_get_the_nearest_right_one(capsys: pytest.CaptureFixture[str], word: str, message: str) -> None:
    assert main(["reconstruct", "photos", word]) == 2
    assert capsys.readouterr().err.startswith(f"spatial: error: {message}")
