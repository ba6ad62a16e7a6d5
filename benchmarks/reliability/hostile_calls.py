"""Bad calls of the API: every public function, each argument in turn is replaced by invalid values.

The answer must be a `UserError`, `TypeError` or `ValueError` whose message names the argument.
"""

from __future__ import annotations

import math
import os
import resource
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import coo_array, csc_array, csr_array

import jax_diversity as jd
from benchmarks.reliability.forks import in_fork
from benchmarks.reliability.small import Place
from benchmarks.reliability.tally import Tally
from jax_diversity.ordering.composition.hosts import merge_orderings, partition_sequences, select_sequences
from jax_diversity.ordering.measures.duplicates import duplicate_gaps

_HUGE = 10**30
_RED = "\x1b[31mred"
_PATIENCE = 60.0
_MEMORY = 6 * 2**30


@dataclass(frozen=True)
class _Maybe:
    """A value that a function may take or refuse."""

    value: Any


class _Odd:
    """An object that no function accepts."""

    def __repr__(self) -> str:
        return "_Odd()"


def _bad_counts() -> dict[str, Any]:
    """Matrices that SciPy makes without an error, though some of their entries are out of range."""

    def raw(data: Any, indices: Any, indptr: Any, shape: tuple[int, int], kind: type = np.int32) -> csr_array:
        matrix = csr_array(shape, dtype=np.int64)
        matrix.data = np.array(data)
        matrix.indices, matrix.indptr = np.array(indices, kind), np.array(indptr, kind)
        return matrix

    triplets = coo_array(([4, 4], ([0, 1], [0, 2])), shape=(2, 3))
    triplets.coords = (np.array([0, 9]), np.array([0, 2]))
    columns = csc_array(np.full((2, 3), 4))
    columns.indices = np.array([0, 7, 0, 1, 0, 1], np.int32)
    good = np.full((6, 3), 4)
    matrices = {
        "a column beyond the end": raw([4, 4], [0, 7], [0, 1, 2], (2, 3)),
        "a column beyond the end, 64 bits": raw([4, 4], [0, 2**40], [0, 1, 2], (2, 3), np.int64),
        "a negative column": raw([4, 4], [0, -1], [0, 1, 2], (2, 3)),
        "rows that go back": raw([4, 4, 4], [0, 1, 2], [0, 3, 1, 3], (3, 3)),
        "rows beyond the data": raw([4], [0], [0, 1, 9], (2, 3)),
        "a row start below 0": raw([4, 4], [0, 1], [-3, 1, 2], (2, 3)),
        "too few row starts": raw([4, 4], [0, 1], [0, 2], (5, 3)),
        "triplets beyond the end": triplets,
        "a row beyond the end, by columns": columns,
        "negative counts": -good,
        "counts with fractions": good / 3,
        "counts that are not numbers": good * math.nan,
        "infinite counts": good * math.inf,
        "complex counts": good * 1j,
        "counts of text": good.astype(str),
        "counts of objects": np.array([[_Odd()]], object),
        "one dimension": good[0],
        "three dimensions": good[None],
        "a list of rows of two lengths": [[1, 2], [3]],
        "huge counts": good.astype(object) * _HUGE,
        "a text": "counts",
        "nothing": None,
        "other rows": good[:5],
    }
    return {
        about: {"cluster": matrix, **({"length": good} if about == "other rows" else {})}
        for about, matrix in matrices.items()
    }


def _values(*values: Any) -> dict[str, Any]:
    return {repr(value): value for value in values}


_WHOLE = _values(_Odd(), "four", 2.5, math.nan, math.inf, -1, [1], {}, b"4", 1j)
_SEED = _WHOLE | _values(_Maybe(_HUGE), _Maybe(2**63), _Maybe(2**32), None)
_COUNT = _WHOLE | _values(0, _HUGE, None)
_UNBOUNDED = _WHOLE | _values(0, None, _Maybe(_HUGE))
_NUMBER = _values(_Odd(), "x", math.nan, -1.0, math.inf, [1], {}, None)
_NAME = _values(_Odd(), 5, "", "no such name", _RED, [], {}, b"balance", 2.5)
_CHARS = _values(_Odd(), None, "chars", 5, [], {}, np.zeros((3, 3)))
_MAPPING = _values(_Odd(), 5, "text", 2.5, True)
_PATH = _values(_Odd(), 5, 2.5, [], {}, "a\0b", "n" * 300, "/nowhere/at/all.npy", _RED)
_ORDER = _values(_Odd(), None, 5, 2.5, {}, "text", [[0, 1], [2, 3]], [0.5, 1.5], [-1, 0], [_HUGE], b"order", ["a"])
_LENGTHS = _values(_Odd(), 5, "text", None, [-1, 4], [1.5], [[1], [2]], [math.nan], {}, ["a"], [_HUGE], [2**63])
_WINDOWS = _values(_Odd(), "text", [0], [-4], [2.5], [math.nan], ["a"], _Maybe([_HUGE]), _Maybe(5), [[4]], {4.5: 1})
_FIELDS = _values(_Odd(), 5, ["nothing"], [5], [], {"a": 1}, [_RED], None)
_SWITCH = _values(_Odd(), "yes", 2, None, [], 0.5)

_ALSO = {
    "counts": ("family", "families"),
    "ordering": ("order", "indices"),
    "indices": ("ordering",),
    "family": ("families",),
    "path": ("pathlike", "file name"),
    "checkpoint": ("pathlike",),
    "run": ("dataset",),
    "first": ("target",),
    "last": ("target",),
}
"""Other names of an argument that a sentence may use."""


@dataclass(frozen=True)
class Call:
    """A function with valid arguments, and replacements for each."""

    name: str
    function: Callable[..., Any]
    arguments: Mapping[str, Any]
    wrong: Mapping[str, Mapping[str, Any]]


def calls(place: Place) -> list[Call]:
    """All public functions that users call with their own values."""
    counts = np.random.default_rng(0).integers(0, 9, (40, 3)) + 1
    chars = jd.Characteristics.from_counts({"cluster": counts})
    ordering = jd.Ordering(np.random.default_rng(1).permutation(40))
    root = place.dataset
    loader = {
        **dict.fromkeys(("global_batch_size", "num_hosts"), _COUNT),
        "num_threads": _UNBOUNDED,
        **dict.fromkeys(("start_position", "host_index", "num_prefetch"), _WHOLE | _values(_Maybe(_HUGE))),
        "num_epochs": _WHOLE | _values(0, _Maybe(_HUGE)),
        "dataset": _PATH | _values(None, True),
        "fields": _FIELDS,
        "names": _MAPPING | _values({"nothing": "a"}, _Maybe({"inputs": 5}), {"inputs": "targets"}),
        "dtype": _values(_Odd(), 5, "float16", "nothing", [], {}, object, complex),
        "drop_remainder": _SWITCH,
        "merge_segments": _SWITCH,
        "sharding": _values(_Odd(), 5, "data", []),
    }
    whole_loader = {
        **loader,
        "ordering": _ORDER | _values("no such name", _RED),
        "num_workers": _WHOLE | _values(_HUGE),
    }
    whole_loader["datasets"] = whole_loader.pop("dataset")
    whole_loader["sequence_length"] = {name: value for name, value in _COUNT.items() if value is not None}
    ordered = {"counts": chars, "ordering": ordering}
    return [
        Call(
            "Characteristics.from_counts",
            jd.Characteristics.from_counts,
            {"counts": {"cluster": counts}},
            {
                "counts": _bad_counts() | _MAPPING | _values([], {}, {5: counts}, _Maybe({"": counts})),
                "weights": _MAPPING | _values({"nothing": 1}, {"cluster": -1}, {"cluster": math.nan}, {"cluster": "x"}),
                "sequence_length": _WHOLE | _values(0, 100.5, _Maybe(_HUGE)),
            },
        ),
        Call(
            "order",
            jd.order,
            {"counts": chars},
            {
                "counts": _CHARS,
                "method": _NAME | _values(None),
                "seed": _SEED,
                "objective": _values(_Odd(), 5, "f1", [], {}),
                "targets": _MAPPING
                | _values({"nothing": [1]}, {"cluster": [1]}, {"cluster": "x"}, {"cluster": [-1, 1, 1]}),
                "consumed": _values(_Odd(), 5, "x", [[0]], [0, 0], [-1], [400], [0.5], ["a"]),
                "checkpoint": _values(_Odd(), 5, [], 2.5),
                "no_such_option": _values(1),
            },
        ),
        Call("Ordering", jd.Ordering, {"indices": ordering.indices}, {"indices": _ORDER | _values([0, 0], [1, 2])}),
        Call("Ordering.load", jd.Ordering.load, {"path": "x.npy"}, {"path": _PATH | _values(None)}),
        Call("Ordering.save", ordering.save, {}, {"path": _PATH | _values(None, "")}),
        Call(
            "make_run",
            jd.make_run,
            {"datasets": chars, "positions": np.arange(4)},
            {"datasets": _values(_Odd(), 5, None), "positions": _ORDER},
        ),
        Call(
            "Objective",
            jd.Objective,
            {},
            {
                "norm_weight": _NUMBER,
                "self_weight": _NUMBER,
                "window_weight": _NUMBER,
                "windows": _WINDOWS,
                "family_weights": _values(_Odd(), 5, "x", [-1], [math.nan], ["a"]),
            },
        ),
        Call(
            "measure",
            jd.measure,
            {**ordered, "windows": (8,)},
            {
                "counts": _CHARS,
                "ordering": _ORDER,
                "windows": _WINDOWS,
                "targets": _MAPPING,
                "every_start": _SWITCH,
            },
        ),
        Call(
            "compare",
            jd.compare,
            {"counts": chars, "orderings": {"a": ordering}, "windows": (8,)},
            {
                "counts": _CHARS,
                "orderings": _MAPPING | _values({}, {"a": 5}, {5: ordering}, {"a": [0, 0]}),
                "windows": _WINDOWS,
                "offsets": _values(_Odd(), 5, ["x"], [5], _Maybe([])),
                "targets": _MAPPING,
            },
        ),
        Call(
            "window_profile",
            jd.window_profile,
            ordered,
            {"counts": _CHARS, "ordering": _ORDER, "targets": _MAPPING},
        ),
        Call(
            "group_timeline",
            jd.group_timeline,
            {**ordered, "family": "cluster"},
            {
                "counts": _CHARS,
                "ordering": _ORDER,
                "family": _NAME,
                "num_groups": _WHOLE | _values(0, None, _Maybe(_HUGE)),
                "num_bins": _UNBOUNDED,
            },
        ),
        Call(
            "pack",
            jd.pack,
            {"document_lengths": [30, 20, 50], "sequence_length": 16},
            {
                "document_lengths": _LENGTHS,
                "sequence_length": _COUNT,
                "method": _NAME | _values(None),
                "document_order": _values(_Odd(), 5, "x", [[0]], [0, 0], [-1], [9], [0.5], ["a"]),
                "seed": _SEED,
                "no_such_option": _values(1),
            },
        ),
        Call("make_loader", jd.make_loader, {"datasets": root, "global_batch_size": 4}, whole_loader),
        Call(
            "stream_batches",
            jd.stream_batches,
            {"dataset": root, "global_batch_size": 4},
            {
                **loader,
                "seed": _SEED,
                "shuffle_buffer": _WHOLE,
                "read_ahead_files": _WHOLE,
            },
        ),
        Call("open_dataset", jd.open_dataset, {}, {"path": _PATH | _values(None, b"out", True)}),
        Call(
            "concatenate",
            jd.concatenate,
            {"orderings": [ordering]},
            {
                "orderings": _values(_Odd(), 5, [], [5], "x", None, [[0, 0]]),
                "offsets": _values(_Odd(), 5, [1], ["a"], [-1], []),
            },
        ),
        Call("reverse", jd.reverse, {}, {"ordering": _ORDER}),
        Call(
            "shuffle_blocks",
            jd.shuffle_blocks,
            {"ordering": ordering, "batch_size": 8},
            {"ordering": _ORDER, "batch_size": _COUNT, "seed": _SEED},
        ),
        Call(
            "partition_sequences",
            partition_sequences,
            {"characteristics": chars, "num_parts": 3},
            {"characteristics": _CHARS, "num_parts": _COUNT, "seed": _SEED},
        ),
        Call(
            "select_sequences",
            select_sequences,
            {"characteristics": chars, "sequences": np.arange(8)},
            {"characteristics": _CHARS, "sequences": _ORDER | _values([400], _Maybe([0, 0]))},
        ),
        Call("merge_orderings", merge_orderings, {}, {"parts": _values(_Odd(), 5, [], [5], "x", [(1, 2)], None)}),
        Call(
            "Targets.linear",
            jd.Targets.linear,
            {"first": {"cluster": [1, 1, 1]}, "last": {"cluster": [1, 2, 3]}, "num_positions": 40, "num_phases": 4},
            {
                "first": _MAPPING | _values({"cluster": [-1, 1, 1]}, {"cluster": "x"}, {"other": [1]}),
                "last": _MAPPING | _values({"cluster": [1]}, {"cluster": [math.nan, 1, 1]}),
                "num_positions": _UNBOUNDED,
                "num_phases": _COUNT,
            },
        ),
        Call(
            "duplicate_gaps",
            duplicate_gaps,
            {"ordering": ordering, "groups": np.arange(40) // 2},
            {"ordering": _ORDER, "groups": _LENGTHS, "segments": _values(_Odd(), 5, "x", [])},
        ),
        Call(
            "BatchMetrics",
            jd.BatchMetrics,
            {"run": chars, "ordering": ordering, "global_batch_size": 4},
            {"run": _PATH | _values(None), "ordering": _ORDER, "global_batch_size": _UNBOUNDED},
        ),
    ]


def attack_calls(tally: Tally, place: Place, count: int, rng: np.random.Generator) -> None:
    """`count` calls, every argument of every function at least once if there are enough."""
    arguments = [(call, name) for call in calls(place) for name in call.wrong]
    left = [(call, name, list(rng.permutation(np.array(list(call.wrong[name]), object)))) for call, name in arguments]
    chosen: list[tuple[Call, str, str]] = []
    while len(chosen) < count and left:
        chosen += [(call, name, values.pop()) for call, name, values in left]
        left = [each for each in left if each[2]]
    for call, name, about in chosen[:count]:
        tally.begin()
        outcome = in_fork(_work(call, name, call.wrong[name][about], str(place.root)), _PATIENCE)
        where = {"call": f"{call.name}({name}={ascii(about)[:200]})"}
        if outcome.status is None:
            tally.fail("hangs", **where)
        elif outcome.status != 0:
            tally.fail("crashes" if outcome.status < 0 else "tracebacks", **where, said=outcome.said)
        elif outcome.value[0] in ("refused", "accepted"):
            tally.add(outcome.value[0])
        else:
            tally.fail(outcome.value[0], **where, said=ascii(outcome.value[1])[:300])


def _work(call: Call, name: str, value: Any, folder: str) -> Callable[[], tuple[str, str]]:
    """The call, for a fork: `refused`, or the fault in the answer and its text."""

    def work() -> tuple[str, str]:
        os.chdir(tempfile.mkdtemp(dir=folder))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        try:
            answer = call.function(**{**call.arguments, name: value.value if isinstance(value, _Maybe) else value})
            if hasattr(answer, "batches"):  # a loader reads when batches are requested
                next(iter(answer))
        except (TypeError, ValueError, OSError) as error:
            text = str(error)
            is_named = any(word in text.lower() for word in _words(name))
            # What was found says enough where the message is one of the package's own sentences, or a path's.
            is_shown = isinstance(error, jd.UserError | OSError) and str(value) in text
            is_clear = (is_named or is_shown) and "\n" not in text
            return "refused" if is_clear else "unclear", f"{type(error).__name__}: {text}"
        except BaseException as error:
            return "tracebacks", f"{type(error).__name__}: {error}"
        return "accepted" if isinstance(value, _Maybe) else "silent", f"gave {type(answer).__name__}"

    return work


def _words(argument: str) -> list[str]:
    """An argument's name, and what a sentence may call it."""
    words = [word.rstrip("s") for word in argument.lower().split("_") if len(word) > 3]
    return [argument.lower(), argument.lower().rstrip("s"), *words, *_ALSO.get(argument, ())]
