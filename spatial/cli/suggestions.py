"""The nearest right word for a wrong one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word most like ``word``. A dotted key's last name counts as much as the whole: lr finds model.lr."""
    candidates = list(known)
    last = [name for name in candidates if name.rpartition(".")[2] == word.rpartition(".")[2]]
    if last:
        return min(last, key=len)
    names = {name.rpartition(".")[2].lower(): name for name in reversed(candidates)}
    names |= {name.lower(): name for name in candidates}
    found = difflib.get_close_matches(word.lower(), names, n=1, cutoff=0.6)
    return names[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """ "; did you mean X?", or nothing where no known word is near."""
    found = nearest(word, known)
    return f"; did you mean {found}?" if found else ""
