"""One folder a run: what was asked (``config.yaml``), what happened (``log.txt``), what came out (``metrics.json``).

Nothing of an earlier run is ever lost: a folder that holds one is resumed or refused.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from spatial.errors import SpatialError
from spatial.io.atomic import disk_errors, make_folder, write_json_atomic, write_text_atomic
from spatial.training.checkpoint_files import checkpoints

logger = logging.getLogger(__name__)

CONFIG, LOG, METRICS, CHECKPOINTS = "config.yaml", "log.txt", "metrics.json", "checkpoints"
MAY_GROW = "max_steps"
WHERE = ("out", "input", "resume")  # where things lie and how the command was given; compared otherwise or not at all


class RunFolder:
    """Creates or reopens a run's folder; as a context it also sends the log to ``log.txt``.

    Args:
        path: the folder; None takes ``runs/<input's name>-<n>``, a new one, or with ``resume`` the newest there is.
        input: what the run is made from; names the default folder and is stored as an absolute path.
        config: the resolved configuration, plain values; stored, and compared on resuming.
        resume: go on with the run that ``path`` holds. Where there is none yet, a new one starts.
        may_change: further keys, by their last name, that may differ on resuming (``max_steps`` may always grow).

    Raises:
        SpatialError: ``path`` is a file, a folder of something else, a run that would be overwritten, not writable,
            or a run that was made with other settings.
    """

    def __init__(
        self,
        path: str | Path | None,
        *,
        input: str | Path | None = None,
        config: Mapping[str, Any] | None = None,
        resume: bool = False,
        may_change: Sequence[str] = (),
    ) -> None:
        self.path = Path(path) if path is not None else default_path(input, resume=resume)
        wanted = dict(config or {}) | {"out": str(self.path)}
        if input is not None:
            wanted["input"] = str(Path(input).absolute())
        self._is_ours = not self.path.exists()
        self.is_resumed = resume and (self.path / CONFIG).is_file()
        if self.is_resumed:
            _check_same(read_config(self.path), wanted, self.path, may_change)
        else:
            _check_free(self.path)
        make_folder(self.path)
        _remove_leftovers(self.path)
        write_text_atomic(self.path / CONFIG, yaml.safe_dump(wanted, sort_keys=False, allow_unicode=True, width=120))
        self.config = wanted

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints, which comes into being with the first one."""
        return self.path / CHECKPOINTS

    @property
    def log(self) -> Path:
        return self.path / LOG

    @property
    def metrics(self) -> Path:
        return self.path / METRICS

    def write_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Writes ``metrics.json``, whole or not at all; NaN becomes null."""
        write_json_atomic(self.metrics, metrics)

    def __enter__(self) -> RunFolder:
        with disk_errors(self.log):
            self._handler = _LogFile(self.log, encoding="utf-8")
        root = logging.getLogger()
        self._level = root.level
        root.setLevel(min(root.level, logging.INFO))
        root.addHandler(self._handler)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None and error is not None:
            # To the file alone: whoever catches the error decides what the terminal shows.
            exc_info = (kind, error, traceback)
            self._handler.handle(logger.makeRecord(logger.name, logging.ERROR, "", 0, "stopped", (), exc_info))
        root = logging.getLogger()
        root.removeHandler(self._handler)
        root.setLevel(self._level)
        self._handler.close()
        if isinstance(error, SpatialError) and self._is_ours and self._is_bare():
            shutil.rmtree(self.path, ignore_errors=True)
        elif kind is not None and not isinstance(error, SpatialError):
            logger.error("the log is in %s", self.log)

    def _is_bare(self) -> bool:
        """Whether nothing worth keeping was made yet."""
        return all(not path.is_file() or path.name in (CONFIG, LOG) for path in self.path.rglob("*"))


def default_path(input: str | Path | None, *, resume: bool, parent: str | Path = "runs") -> Path:
    """``runs/<name>-<n>``: the first free number, or with ``resume`` the highest taken one."""
    name = Path(input).absolute() if input is not None else Path("run")
    stem = (name.name if name.is_dir() else name.stem) or "run"
    pattern = re.compile(re.escape(stem) + r"-(\d+)")
    taken = [int(match[1]) for path in Path(parent).glob("*") if (match := pattern.fullmatch(path.name))]
    number = max(taken, default=0)
    return Path(parent) / f"{stem}-{number if resume and taken else number + 1}"


def read_config(run: str | Path) -> dict[str, Any]:
    """The resolved configuration that a run was made with.

    Raises:
        SpatialError: ``run`` is not a run, or its config.yaml is damaged.
    """
    path = Path(run) / CONFIG
    if not path.is_file():
        raise SpatialError(
            f"{run} is not a run: it holds no {CONFIG}; give the folder that `spatial reconstruct` wrote"
        )
    try:
        config = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SpatialError(
            f"{path} is damaged ({str(error).splitlines()[0]}); start again with another --out"
        ) from error
    if not isinstance(config, dict):
        raise SpatialError(f"{path} is damaged (it holds no keys); start again with another --out")
    return config


def _check_free(path: Path) -> None:
    if path.is_file():
        raise SpatialError(f"{path} is a file; choose another --out")
    if not path.is_dir() or not any(path.iterdir()):
        return
    if not (path / CONFIG).is_file():
        raise SpatialError(f"{path} is not empty and not a run; choose another --out")
    if (path / METRICS).exists():
        raise SpatialError(f"{path} holds a finished run; go on with it by resume=true, or choose another --out")
    if checkpoints(path / CHECKPOINTS):
        raise SpatialError(f"{path} holds an unfinished run; go on with it by resume=true, or choose another --out")


def _check_same(old: Mapping[str, Any], new: Mapping[str, Any], path: Path, may_change: Sequence[str]) -> None:
    before, after = dict(_leaves(old)), dict(_leaves(new))
    if (given := after.get("input")) != (stored := before.get("input")):
        raise SpatialError(f"{path} was made from {stored}, not from {given}; give that, or choose another --out")
    for key in sorted({*before, *after}):
        name = key.rpartition(".")[2]
        was, now = before.get(key), after.get(key)
        if was == now or key in WHERE or name in may_change:
            continue
        if name != MAY_GROW:
            raise SpatialError(f"{path} was made with {key}={was}, not {now}; put it back, or choose another --out")
        if isinstance(was, int) and isinstance(now, int) and now < was:
            raise SpatialError(f"{path} was made with {key}={was}; it may grow but not shrink to {now}")


def _leaves(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(config, Mapping) and config:
        for key, value in config.items():
            yield from _leaves(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, config


def _remove_leftovers(path: Path) -> None:
    """Temporary files of a process that was killed while writing."""
    for folder in (path, path / CHECKPOINTS):
        for leftover in folder.glob(".*.tmp*"):
            shutil.rmtree(leftover, ignore_errors=True) if leftover.is_dir() else leftover.unlink(missing_ok=True)


class _LogFile(logging.FileHandler):
    """Appends lines with their time. A full disk must not turn each log line into a traceback: such lines are lost."""

    def __init__(self, path: Path, *, encoding: str) -> None:
        super().__init__(path, mode="a", encoding=encoding)
        self.setLevel(logging.INFO)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the base class's name
        return
