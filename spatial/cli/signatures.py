"""Does a configuration fit the constructors that it names? Asked of their signatures, without building anything."""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from spatial.cli.suggestions import did_you_mean

HYDRA_KEYS = ("_target_", "_partial_", "_recursive_", "_convert_", "_args_")
WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path", list: "a list"}


def problems(config: Any, path: str = "", *, given: Sequence[str] = ()) -> Iterator[str]:
    """Sentences, one for each key of a resolved configuration that its ``_target_`` would not take.

    Args:
        config: plain values, as `compose.resolved` returns.
        path: the dotted key of ``config``, for the sentences.
        given: arguments of the root that are passed beside the configuration.
    """
    if isinstance(config, Mapping):
        if "_target_" in config:
            yield from _call_problems(config, path, given)
        for key, value in config.items():
            yield from problems(value, f"{path}.{key}" if path else str(key))
    elif isinstance(config, list):
        for index, value in enumerate(config):
            yield from problems(value, f"{path}[{index}]")


def locate(target: str) -> Any:
    """The object at a dotted path.

    Raises:
        ImportError: there is none; the sentence says which part is missing.
    """
    parts = target.split(".")
    for length in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:length])
        try:
            found: Any = import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            continue
        for part in parts[length:]:
            if not hasattr(found, part):
                raise ImportError(f"{target}: {name} has no {part}")
            found = getattr(found, part)
        return found
    raise ImportError(f"{target}: there is no module {parts[0]}")


def takes(function: Any, name: str) -> bool:
    """Whether ``function`` has a parameter of that name."""
    return name in inspect.signature(function).parameters


def mismatch(value: Any, annotation: Any) -> str | None:
    """What ``value`` should have been, in words, or None where it fits or where only running it can tell."""
    if annotation is None or annotation is type(None):
        return None if value is None else "null"
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        expected = [mismatch(value, argument) for argument in arguments]
        return None if None in expected else " or ".join(dict.fromkeys(word for word in expected if word))
    if origin is typing.Literal:
        return None if value in arguments else "one of " + ", ".join(map(str, arguments))
    if origin in (list, Sequence, tuple) or annotation in (list, tuple):
        return _list_mismatch(value, [argument for argument in arguments if argument is not Ellipsis])
    if annotation not in WORDS:
        return None
    accepted: tuple[type, ...] = {float: (int, float), Path: (str,)}.get(annotation, (annotation,))
    fits = isinstance(value, accepted) and (annotation is bool or not isinstance(value, bool))
    return None if fits else WORDS[annotation]


def _list_mismatch(value: Any, arguments: list[Any]) -> str | None:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        return "a list, written [a,b]"
    if not arguments:
        return None
    found = next((word for item in value if (word := mismatch(item, arguments[0]))), None)
    return f"a list in which each is {found}" if found else None


def _call_problems(node: Mapping[str, Any], path: str, given: Sequence[str]) -> Iterator[str]:
    where = f"{path}: " if path else ""
    try:
        target = locate(node["_target_"])
        signature = inspect.signature(target)
    except ImportError as error:
        yield f"{where}{error}"
        return
    values = {key: value for key, value in node.items() if key not in HYDRA_KEYS}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    for key in values:
        if key not in signature.parameters and not takes_any:
            name = f"{path}.{key}" if path else key
            hint = did_you_mean(key, signature.parameters)
            yield f"{name}: {node['_target_']} takes no {key}{hint}"
    known = {key: value for key, value in values.items() if key in signature.parameters}
    bind = signature.bind_partial if node.get("_partial_") else signature.bind
    try:
        bind(*node.get("_args_", ()), **known, **dict.fromkeys(given))
    except TypeError as error:
        yield f"{where}{node['_target_']}: {error}"
    for key, value in known.items():
        expected = mismatch(value, _annotation(target, signature.parameters[key]))
        if expected and not (isinstance(value, Mapping) and "_target_" in value):
            yield f"{path + '.' if path else ''}{key}={value}: must be {expected}"


def _annotation(target: Any, parameter: inspect.Parameter) -> Any:
    """The annotation as an object; ``Any`` where it names something that is imported for type checkers alone."""
    if parameter.annotation is inspect.Parameter.empty:
        return Any
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    module = sys.modules[inspect.unwrap(target).__module__]
    try:
        return eval(parameter.annotation, vars(module))  # the annotations of our own source, as typing evaluates them
    except NameError:
        return Any
