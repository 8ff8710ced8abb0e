"""A verb and its settings made into one configuration, with each mistake named before anything heavy is imported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from spatial.cli.arguments import Arguments
from spatial.cli.signatures import mismatch
from spatial.cli.suggestions import did_you_mean
from spatial.cli.verbs import Verb, config_folder, options
from spatial.errors import SpatialError


def compose_config(verb: Verb, arguments: Arguments) -> DictConfig:
    """The verb's configuration with the command line's settings in it.

    Raises:
        SpatialError: an unknown key, group option or unreadable value, or a value of another kind than the default;
            the nearest right one is named. Or PATH is missing.
    """
    texts = _texts(verb, arguments)
    choices, settings = [], []
    for word in arguments.overrides:
        key, _, value = word.partition("=")
        if key in verb.groups:
            _check_option(key, value)
            choices.append(word)
        elif override := _parse(word, texts):
            settings.append((word, override))
    base = _compose(verb.name, choices)
    known = list(dotted_keys(base))
    for word, override in settings:
        _check_setting(word, override, base, known, verb)
    config = _compose(verb.name, [*choices, *(word for word, _ in settings)])
    for key, text in texts.items():
        if key not in known:
            raise SpatialError(f"{key}: {verb.name} has no such key{did_you_mean(key, [*known, *verb.groups])}")
        _check_kind(f"{key}={text}", key, text, base)
        OmegaConf.update(config, key, text.replace("${", r"\${"))
    return config


def resolved(config: DictConfig, verb: Verb) -> dict[str, Any]:
    """Plain values, every reference filled in.

    Raises:
        SpatialError: a key without a value, or a reference that leads nowhere.
    """
    missing = sorted(OmegaConf.missing_keys(config))
    if verb.path_key in missing:
        raise SpatialError(f"{verb.name} needs a path: spatial {verb.name} PATH; see spatial {verb.name} --help")
    if missing:
        raise SpatialError(f"{verb.name} needs {missing[0]}=…; see spatial {verb.name} --help")
    try:
        plain = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise SpatialError(f"the configuration refers to something that is not there: {_first_line(error)}") from error
    assert isinstance(plain, dict)
    return plain  # type: ignore[return-value]


def dotted_keys(config: Any, prefix: str = "") -> Iterator[str]:
    """All keys, those of nested nodes dotted, without Hydra's own (``_target_`` and the like)."""
    for key in config:
        if str(key).startswith("_"):
            continue
        yield f"{prefix}{key}"
        child = None if OmegaConf.is_missing(config, key) else config._get_node(key)
        if isinstance(child, DictConfig) and not child._is_none() and not child._is_interpolation():
            yield from dotted_keys(child, f"{prefix}{key}.")


def _texts(verb: Verb, arguments: Arguments) -> dict[str, str]:
    """Values that are taken letter by letter, since paths hold spaces, commas and any language."""
    texts = {}
    if arguments.path is not None:
        if verb.path_key is None:
            raise SpatialError(f"{verb.name} takes no path, got {arguments.path}")
        texts[verb.path_key] = arguments.path
    if arguments.out is not None:
        texts["out"] = arguments.out
    return texts


def _parse(word: str, texts: dict[str, str]) -> Override | None:
    """Hydra's reading of ``key=value``. What Hydra cannot read (non-ASCII words, say) is kept as text, in ``texts``."""
    key, equals, value = word.partition("=")
    if equals and key in ("input", "out"):
        texts[key] = value
        return None
    try:
        return OverridesParser.create().parse_override(word)
    except (OverrideParseException, HydraException) as error:
        if not equals or not key.replace(".", "").replace("_", "").isalnum() or value[:1] in "[{'\"":
            example = "key=[a,b]" if value[:1] == "[" else "key=value"
            raise SpatialError(f"{word}: cannot be read; write {example}, in quotes if it has spaces") from error
        texts[key] = value
        return None


def _check_option(group: str, option: str) -> None:
    known = options(group)
    if option not in known:
        raise SpatialError(f"{group}={option}: no such option{did_you_mean(option, known)} ({', '.join(known)})")


def _check_setting(word: str, override: Override, base: DictConfig, known: list[str], verb: Verb) -> None:
    key = override.key_or_group
    if override.is_add() or override.is_force_add():
        return
    if key not in known:
        raise SpatialError(f"{key}: no such key{did_you_mean(key, [*known, *verb.groups])}")
    if override.is_delete():
        return
    default, value = _default(base, key), override.value()
    if isinstance(default, DictConfig) and not isinstance(value, dict):
        inner = next((name for name in known if name.startswith(f"{key}.")), None)
        group = next((name for name in verb.groups if name == key.rpartition(".")[2]), None)
        remedy = f"choose it by {group}=…" if group else f"set one of them, as {inner}=…"
        raise SpatialError(f"{word}: {key} holds further keys; {remedy}")
    _check_kind(word, key, value, base)


def _check_kind(word: str, key: str, value: Any, base: DictConfig) -> None:
    """The default's kind is what the signature asks for (a test sees to that), and needs no import to be known."""
    default = _default(base, key)
    if default is None or isinstance(default, DictConfig) or value is None:
        return
    kind: Any = list if OmegaConf.is_list(default) else type(default)
    if expected := mismatch(value, kind):
        raise SpatialError(f"{word}: {key} must be {expected}, as {key}={_shown(default)}")


def _default(base: DictConfig, key: str) -> Any:
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(base, parent) if parent else base
    return None if OmegaConf.is_missing(node, name) else OmegaConf.select(base, key)


def _compose(name: str, overrides: list[str]) -> DictConfig:
    try:
        with initialize_config_dir(str(config_folder()), version_base="1.3"):
            return compose(name, overrides)
    except (HydraException, OmegaConfBaseException) as error:
        raise SpatialError(_first_line(error)) from error


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    return "[" + ",".join(map(str, default)) + "]" if OmegaConf.is_list(default) else str(default)
