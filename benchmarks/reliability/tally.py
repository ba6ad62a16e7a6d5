"""Counts of attacks: successes, and every fault with the values that reproduce it."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

FAULTS = (
    *("silent", "unnamed", "tracebacks", "crashes", "hangs", "unclear", "written", "lost"),
    *("stopped", "growth", "memory", "leaks", "false_finds", "ran", "outside", "ignored"),
)
"""What must not happen: other data used or returned without a word; damage that `verify` does not name; a traceback;
an end by a signal; no end; a refusal that is not one plain sentence that names what is wrong; files that a refused
command leaves; a run after the attack that does not end as one that was never attacked, or a document that is neither
kept nor removed. Then: a run that one document stops; time that grows faster than the text; memory without limit; a
secret in a written file; a text that is masked although it is not a secret; code of another's folder that ran; a file
outside the folder that changed; an option that is accepted and has no effect."""
_ROOT = f"{Path(__file__).resolve().parents[2]}/"
_MOST_FAILURES = 200
_SECONDS_OF_SILENCE = 60


class Tally:
    """Counts of one kind of attacks; faults, and sometimes the counts, are also printed during the run."""

    def __init__(self, seed: int) -> None:
        self._seed, self._attacks, self._told = seed, 0, time.monotonic()
        self._counts: Counter[str] = Counter()
        self._failures: list[dict[str, Any]] = []

    def begin(self, number: int = 1) -> None:
        """Count attacks."""
        self._attacks += number
        if time.monotonic() - self._told > _SECONDS_OF_SILENCE:
            self._told = time.monotonic()
            print(f"  {self._attacks} attacks: {dict(self._counts)}", file=sys.stderr, flush=True)

    def add(self, outcome: str, number: int = 1) -> None:
        """Count an event that is not a fault, such as `refused`."""
        self._counts[outcome] += number

    def fail(self, fault: str, **about: Any) -> None:
        """Count a fault; `about` is its place."""
        if fault not in FAULTS:
            raise KeyError(fault)
        self._counts[fault] += 1
        # Tracebacks contain paths, which must not depend on the project's folder.
        told = {name: value.replace(_ROOT, "") if isinstance(value, str) else value for name, value in about.items()}
        failure = {"fault": fault, **told}
        print(f"  {json.dumps(failure)}", file=sys.stderr, flush=True)
        if len(self._failures) < _MOST_FAILURES:
            self._failures.append(failure)

    @property
    def result(self) -> dict[str, Any]:
        """All counts, including faults with count 0, and the first failures."""
        held = {name: number for name, number in sorted(self._counts.items()) if name not in FAULTS}
        faults = {name: self._counts[name] for name in FAULTS}
        return {"attacks": self._attacks, "seed": self._seed, **held, **faults, "failures": self._failures}


def num_faults(result: dict[str, Any]) -> int:
    """All faults of one kind of attacks."""
    return sum(result[name] for name in FAULTS)
