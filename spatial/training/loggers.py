"""Curves on disk without cost a step: a CSV that survives a resume, and TensorBoard's event files.

Lightning's CSVLogger deletes the earlier file when a run goes on; this one keeps it up to where the run resumes.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, TensorBoardLogger

from spatial.io.atomic import disk_errors, write_text_atomic


class CsvLogger(Logger):
    """One row a logged step, one column a metric, empty where a metric was not logged at that step.

    "step" counts the steps done. A ``training_step`` logs straight to its loggers, now and then, which costs nothing
    in between, where a single ``self.log`` makes Lightning keep books at each step::

        if self.global_step % 25 == 0:
            for logger in self.loggers:
                logger.log_metrics({"train/loss": float(loss)}, self.global_step)

    Args:
        path: the file; rows already in it stay, except those after ``first_step``, which will come again.
        first_step: steps done when the run goes on; 0 for a new run.
        flush_rows: rows gathered before the file is touched.
    """

    def __init__(self, path: str | Path, *, first_step: int = 0, flush_rows: int = 20) -> None:
        super().__init__()
        self.path = Path(path)
        self.flush_rows = flush_rows
        self._columns: list[str] = ["step"]
        self._pending: list[dict[str, float]] = []
        if self.path.exists():
            self._keep_until(first_step)

    @property
    def name(self) -> str:
        return "csv"

    @property
    def version(self) -> str:
        return ""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        row = {name: float(value) for name, value in metrics.items() if name != "epoch"}
        if not row:
            return
        if self._pending and self._pending[-1]["step"] == step:
            self._pending[-1].update(row)
        else:
            self._pending.append({"step": step or 0, **row})
        if len(self._pending) >= self.flush_rows:
            self.save()

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Nothing: the run's config.yaml holds them."""

    def save(self) -> None:
        """Appends the gathered rows; rewrites the file where a metric appears for the first time."""
        new = [name for row in self._pending for name in row if name not in self._columns]
        if new:
            rows = read_rows(self.path) if self.path.exists() else []
            self._columns += dict.fromkeys(new)
            write_text_atomic(self.path, self._text([*rows, *self._pending], header=True))
        elif self._pending:
            with disk_errors(self.path), self.path.open("a", encoding="utf-8", newline="") as file:
                file.write(self._text(self._pending, header=False))
        self._pending = []

    def finalize(self, status: str) -> None:
        self.save()

    def _keep_until(self, step: int) -> None:
        rows = read_rows(self.path)
        self._columns += [name for name in (rows[0] if rows else {}) if name != "step"]
        kept = [row for row in rows if int(row["step"] or 0) <= step]
        write_text_atomic(self.path, self._text(kept, header=True))

    def _text(self, rows: list[Any], *, header: bool) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, restval="", extrasaction="ignore", lineterminator="\n")
        if header:
            writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()


def read_rows(path: str | Path) -> list[dict[str, str]]:
    """The rows of a metrics CSV, as text; a last line that a killed process left incomplete is dropped."""
    text = Path(path).read_text("utf-8")
    whole = text[: text.rfind("\n") + 1]
    return list(csv.DictReader(io.StringIO(whole)))


def tensorboard_logger(folder: str | Path, *, first_step: int = 0) -> TensorBoardLogger:
    """TensorBoard's event files in ``folder``, flushed twice a minute; steps that come again replace the old ones."""
    purge: dict[str, Any] = {"purge_step": first_step} if first_step else {}
    return TensorBoardLogger(save_dir=folder, name="", version="", flush_secs=30, default_hp_metric=False, **purge)
