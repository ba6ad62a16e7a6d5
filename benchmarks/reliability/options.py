"""Every option of every ordering method: it changes the order, or the command refuses it in a sentence.

The sequences differ in their numbers of tokens, since some options act only on those. `count` is the number of pairs of
a method and an option.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.reliability import small
from benchmarks.reliability.forks import Outcome, in_fork
from benchmarks.reliability.small import Place, Task
from benchmarks.reliability.tally import Tally
from jax_diversity.ordering.base import METHODS

_OPTIONS = {
    "seed": ("5", "77"),
    "objective": ("f1", "f2", "f3"),
    "family-weights": ("cluster 7 length 0", "source 9"),
    "windows": ("4", "64"),
    "window-weight": ("0.01", "20"),
    "norm-weight": ("40", "0"),
    "self-weight": ("0", "4"),
    "document-weight": ("0", "40"),
    "form": ("norms",),
    "reverse": ("",),
    **{f"options {name}": ("2", "7", "0.2") for method in METHODS for name in METHODS.describe(method)[1]},
}
"""Values of which at least one should give another order."""
_NEEDED = {
    "windows": ("--window-weight", "0.5"),
    "window-weight": ("--windows", "16"),
    "form": ("--objective", "f3"),
    "options batch_size": ("--options", "num_workers", "3"),
}
"""Options without which another one has no meaning."""
_PADDED = Task("build", (*small.BUILD.options, "--packing.method", "pad"))


def attack(folder: Path, count: int, seed: int, dataset: Place | None = None) -> dict[str, object]:
    """`count` pairs, drawn by the seed."""
    sound = small.build(folder / "sound") if dataset is None else dataset
    place, tally = sound.copied_to(folder / "place"), Tally(seed)
    if in_fork(_PADDED.run(place)).status != 0:
        raise RuntimeError("The small dataset cannot be packed with padding.")
    pairs = list(itertools.product(sorted(METHODS), _OPTIONS))
    for number in np.random.default_rng(seed).permutation(len(pairs))[:count]:
        method, option = pairs[number]
        tally.begin()
        given = _NEEDED.get(option, ())
        _, expected = _ordered(place, method, given)
        if expected is None:
            given, (_, expected) = (), _ordered(place, method, ())
        fail = partial(tally.fail, method=method, option=option)
        ends = [_ordered(place, method, (*given, *_words(option, value, given))) for value in _OPTIONS[option]]
        if faulty := next((outcome for outcome, _ in ends if outcome.fault is not None), None):
            fail(str(faulty.fault), said=faulty.said)
        elif all(order is None for _, order in ends):
            tally.add("refused")
        elif all(order in (None, expected) for _, order in ends):
            fail("ignored", values=", ".join(_OPTIONS[option]))
        else:
            tally.add("used")
    return tally.result


def _words(option: str, value: str, given: Sequence[str]) -> list[str]:
    words = [*f"--{option}".split(), *value.split()]
    return words[1:] if words[0] in given else words  # one `--options` takes them all


def _ordered(place: Place, method: str, given: tuple[str, ...]) -> tuple[Outcome, bytes | None]:
    """The order that a command makes, or None if it is refused."""
    words = ["order", "--out", str(place.dataset), "--quiet", "--method", method, "--name", "tried", *given]
    path = place.dataset / "orderings" / "tried.npy"
    path.unlink(missing_ok=True)
    outcome = in_fork(small.command(words))
    return outcome, path.read_bytes() if outcome.status == 0 else None
