"""``spatial VERB [PATH] [key=value …]``: composes a configuration, builds what it names once, and runs it.

Exit codes: 0 done, 1 our mistake (with a traceback), 2 something the user can mend (one line), 130 Ctrl-C.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from spatial import __version__
from spatial.cli.arguments import Arguments, parse_arguments
from spatial.cli.verbs import Verb, read_verb
from spatial.errors import SpatialError
from spatial.io.atomic import write_error

logger = logging.getLogger("spatial")

DONE, BUG, MISTAKE, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line (``sys.argv`` by default) and returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        arguments = parse_arguments(words)
        _set_up_logging("verbose" in arguments.flags)
        return _run(arguments)
    except SpatialError as error:
        return _mistake(error)
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # `spatial --help | head` is no error
        return DONE
    except OSError as error:
        translated = _disk_error(error)
        return _mistake(translated) if translated else _bug(error)
    except SystemExit as error:
        # Lightning turns a Ctrl-C that reaches it into exit(1).
        return INTERRUPTED if isinstance(error.__context__, KeyboardInterrupt) else int(error.code or 0)
    except Exception as error:
        return _bug(error)


def _run(arguments: Arguments) -> int:
    if "version" in arguments.flags:
        return _print(f"spatial {__version__}")
    if arguments.verb is None:
        from spatial.cli.help import overview

        return _print(overview())
    verb = read_verb(arguments.verb)
    if "help" in arguments.flags:
        from spatial.cli.help import verb_help

        return _print(verb_help(verb))
    return _run_verb(verb, arguments)


def _run_verb(verb: Verb, arguments: Arguments) -> int:
    from spatial.cli.compose import compose_config, resolved

    config = compose_config(verb, arguments)
    if "print_config" in arguments.flags:
        return _print_config(config)
    plain = resolved(config, verb)
    # Our kernels have a pool of threads of their own. Idle workers of torch's OpenMP would spin for the same cores;
    # soon asleep they cost nothing. Only read when torch is first imported, hence here, and only where nobody chose.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    from spatial.cli.signatures import locate, problems, takes

    # A root function with a parameter `config` is handed the settings as plain values, to keep beside its results.
    given = ["config"] if takes(locate(plain["_target_"]), "config") else []
    for problem in problems(plain, given=given):
        raise SpatialError(problem)
    if "dry_run" in arguments.flags:
        return _print_config(config)
    result = _build(plain)(**({"config": plain} if given else {}))
    return _print(os.fspath(result)) if isinstance(result, str | os.PathLike) else DONE


def _build(plain: dict[str, Any]) -> Callable[..., Any]:
    """Everything that the configuration names, built; the root itself is not called yet, so its errors stay bare."""
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate

    # Hydra would read a path with "${" in it as a reference: the root's own texts go around it.
    texts = {key: value for key, value in plain.items() if isinstance(value, str) and not key.startswith("_")}
    nodes = {key: value for key, value in plain.items() if key not in texts}
    try:
        return partial(instantiate(nodes, _convert_="all", _partial_=True), **texts)
    except InstantiationException as error:
        raise (error.__cause__ or error) from None


def _print_config(config: Any) -> int:
    from omegaconf import OmegaConf

    return _print(OmegaConf.to_yaml(config, resolve=not OmegaConf.missing_keys(config)))


def _print(text: str) -> int:
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
    sys.stdout.flush()
    return DONE


def _say(text: str, code: int) -> int:
    sys.stderr.write(f"spatial: {text}\n")
    return code


def _mistake(error: SpatialError) -> int:
    if logger.isEnabledFor(logging.DEBUG):
        traceback.print_exception(error)
    return _say(f"error: {error}", MISTAKE)


def _bug(error: BaseException) -> int:
    traceback.print_exception(error)
    return _say(f"this is a mistake of ours, not yours ({type(error).__name__}); please report the lines above", BUG)


def _disk_error(error: OSError) -> SpatialError | None:
    """A disk's refusal that no writer translated: the file's name is then all that we know."""
    if error.filename is None:
        return write_error(error, "the output") if error.errno not in (errno.EACCES, errno.EPERM) else None
    if error.errno in (errno.EACCES, errno.EPERM):
        return SpatialError(f"no access to {error.filename}: permission denied; change its rights or choose another")
    return write_error(error, error.filename)


def _set_up_logging(verbose: bool) -> None:
    handler = _StderrHandler()
    handler.setFormatter(_Formatter())
    handler.setLevel(logging.DEBUG if verbose else logging.INFO)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # its first start tells of fonts
    logging.captureWarnings(True)
    warnings.formatwarning = lambda message, *_, **__: str(message)
    if not verbose:
        # Other libraries' notes to their programmers are no use to whoever runs a command.
        for category in (DeprecationWarning, FutureWarning, PendingDeprecationWarning):
            warnings.simplefilter("ignore", category)


class _StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to whatever ``sys.stderr`` is at the time, since a progress bar puts itself in between."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr  # setStream would flush the old one, which may be closed
        super().emit(record)


class _Formatter(logging.Formatter):
    """Messages as they are; warnings and errors say so."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record).rstrip()
        return text if record.levelno < logging.WARNING else f"spatial: {record.levelname.lower()}: {text}"
