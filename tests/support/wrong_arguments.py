"""A program that calls the public functions with arguments of wrong types, and prints which are not refused as said.

It is not a test module, since tests check all types: users have no such checks.
"""

from __future__ import annotations

import itertools
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import coo_array

import jax_diversity as jd
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.methods import Methods
from jax_diversity.ordering.base import METHODS as ORDERING_METHODS
from jax_diversity.ordering.measures.duplicates import duplicate_gaps
from jax_diversity.sequences.packing.base import METHODS as PACKING_METHODS
from tests.support.tiny_dataset import write_tiny_dataset

TOPIC = np.array([[2, 0], [1, 1], [0, 2], [2, 0], [1, 1], [0, 2]])
CHARS = jd.Characteristics.from_counts({"topic": TOPIC, "source": TOPIC[:, ::-1]})
ORDERING = jd.Ordering(np.arange(6))
RAGGED: Any = [[1, 2], [3]]

NO_NUMBER = (4.7, "3", b"3", [1, 2], {}, 2j, object(), np.array([1, 2]), True)
NO_INTEGER = (*NO_NUMBER, None, float("nan"))
NO_MAPPING = (5, "abc", [1], {"a"}, np.zeros(3), 4.7, object(), {3: [1, 0]})
NO_FUNCTION = (5, "abc", None, [], object())
NO_TEXT = (5, None, ["balance"], {}, 4.7, b"balance", object())
NO_CHARACTERISTICS = (None, 5, "abc", {"topic": TOPIC}, TOPIC, ORDERING)
NO_ORDERING = (None, 5, "balance", {}, CHARS, 4.7, RAGGED, [0.5] * 6, [[0, 1], [2, 3]], object())
NO_INTEGERS = (5, "abc", {}, RAGGED, [0.5], [None], ["a"], 4.7, object(), [[1, 2], [3, 4]])
NO_MATRIX = (None, 5, "abc", {}, RAGGED, object(), TOPIC * 0.5, TOPIC + 0j, TOPIC > 1, TOPIC.astype(str))
NO_SHARES = ("abc", None, {}, RAGGED, ["a", "b"], object(), [0.5, float("nan")], [[1, 0, 0]])

# Function, the arguments with which it is called, and per argument: wrong values, and how the sentence names it.
Case = tuple[Callable[..., Any], dict[str, Any], dict[str, tuple[tuple[Any, ...], str]]]
CASES: list[Case] = [
    (
        jd.Characteristics.from_counts,
        {"counts": {"topic": TOPIC}},
        {
            "counts": ((5, "abc", {"a"}, np.zeros(3), 4.7, object(), {3: [1, 0]}, None), "counts"),
            "weights": (NO_MAPPING, "weights"),
            "sequence_length": ((*NO_NUMBER, 2.0), "sequence_length"),
        },
    ),
    (
        lambda matrix: jd.Characteristics.from_counts({"topic": matrix}),
        {"matrix": TOPIC},
        {"matrix": ((*NO_MATRIX, coo_array(TOPIC * 0.5), coo_array(TOPIC[0])), "Family 'topic'")},
    ),
    (
        lambda weight: jd.Characteristics.from_counts({"topic": TOPIC}, weights={"topic": weight}),
        {"weight": 1.0},
        {"weight": ((None, "1", [1], {}, object(), 2j, True), "weight of family 'topic'")},
    ),
    (CHARS.with_weights, {"weights": {"topic": 1.0}}, {"weights": (NO_MAPPING, "weights")}),
    (
        jd.order,
        {"counts": CHARS, "method": "greedy"},
        {
            "counts": (NO_CHARACTERISTICS, "(characteristics|dataset)"),
            "method": (NO_TEXT, "ordering method"),
            "seed": (NO_INTEGER, "seed"),
            "objective": ((5, b"f3", {}, (1.0,), object()), "objective"),
            "targets": ((5, "abc", [1, 0], {3: [1, 0]}, object()), "targets"),
            "consumed": (NO_INTEGERS, "consumed"),
            "checkpoint": ((5, [], {}, 4.7, object()), "checkpoint"),
            "advance": (NO_FUNCTION, "advance"),
            "mesh": ((5, "abc", [], {}, object()), "mesh"),
        },
    ),
    (
        lambda shares: jd.order(CHARS, "greedy", targets={"topic": shares}),
        {"shares": [1, 1]},
        {"shares": (NO_SHARES, "target shares of ('|.*')topic")},
    ),
    (
        jd.sample,
        {"source": CHARS, "size": 3},
        {
            "source": ((None, 5, [], {}, TOPIC, ORDERING, object()), "token counts"),
            "size": ((None, "3", b"3", [1, 2], {}, 2j, object(), np.array([1, 2]), True), "a sample's size"),
            "of": ((5, [], {}, object(), "rows"), "of"),
            "values": (NO_MAPPING, "values"),
            "num_samples": (NO_NUMBER, "num_samples"),
            "seed": (NO_INTEGER, "seed"),
            "objective": ((5, b"f3", {}, (1.0,), object()), "objective"),
            "advance": (NO_FUNCTION, "advance"),
        },
    ),
    (
        jd.estimate,
        {"losses": [1.0, 2.0, 4.0], "sample": jd.Sample.of(CHARS, [0, 1, 2])},
        {
            "losses": ((None, 5, "abc", {}, RAGGED, ["a"], object(), [[1, 2], [3, 4]]), "losses"),
            "sample": ((None, 5, "abc", {}, CHARS, [0, 1, 2], object()), "sample"),
            "reference": ((5, "abc", {}, RAGGED, object()), "reference"),
            "weights": ((5, "abc", {}, RAGGED, object()), "weights"),
            "groups": ((5, "abc", {}, RAGGED, object()), "(family|groups)"),
        },
    ),
    (
        jd.measure,
        {"counts": CHARS, "ordering": ORDERING, "windows": (2,)},
        {
            "counts": (NO_CHARACTERISTICS, "(characteristics|dataset)"),
            "ordering": (NO_ORDERING, "the ordering"),
            "windows": ((4.7, "2", {}, [2.0], ["a"], object(), RAGGED), "window size"),
            "advance": (NO_FUNCTION, "advance"),
            "targets": (NO_MAPPING, "targets"),
        },
    ),
    (
        lambda shares: jd.measure(CHARS, ORDERING, (2,), targets={"topic": shares}),
        {"shares": [0.5, 0.5]},
        {"shares": (NO_SHARES, "target shares of 'topic'")},
    ),
    (
        jd.compare,
        {"counts": CHARS, "orderings": {"a": ORDERING}},
        {
            "counts": (NO_CHARACTERISTICS, "(characteristics|dataset)"),
            "orderings": ((*NO_MAPPING, None), "order"),
            "windows": ((4.7, "2", {}, [2.0], object()), "window size"),
            "offsets": ((5, None, [1], "never", {}, object()), "offset"),
            "targets": (NO_MAPPING, "targets"),
            "advance": (NO_FUNCTION, "advance"),
            "keep": (NO_FUNCTION, "keep"),
        },
    ),
    (
        lambda ordering: jd.compare(CHARS, {"mine": ordering}),
        {"ordering": ORDERING},
        {"ordering": (NO_ORDERING, "order 'mine'")},
    ),
    (
        jd.window_profile,
        {"counts": CHARS, "ordering": ORDERING},
        {
            "counts": (NO_CHARACTERISTICS, "characteristics"),
            "ordering": (NO_ORDERING, "the ordering"),
            "advance": (NO_FUNCTION, "advance"),
            "targets": (NO_MAPPING, "targets"),
        },
    ),
    (
        jd.group_timeline,
        {"counts": CHARS, "family": "topic", "ordering": ORDERING},
        {
            "counts": (NO_CHARACTERISTICS, "characteristics"),
            "family": (NO_TEXT, "family"),
            "ordering": (NO_ORDERING, "the ordering"),
            "num_groups": (NO_INTEGER, "num_groups"),
            "num_bins": (NO_INTEGER, "num_bins"),
        },
    ),
    (
        duplicate_gaps,
        {"ordering": ORDERING, "groups": [0, 1, 0, 1, -1, -1]},
        {
            "ordering": (NO_ORDERING, "the ordering"),
            "groups": (NO_INTEGERS, "groups"),
            "segments": ((5, "abc", [], {}, object()), "segments"),
        },
    ),
    (
        jd.pack,
        {"document_lengths": [3, 2, 4], "sequence_length": 4},
        {
            "document_lengths": ((*NO_INTEGERS, None), "document_lengths"),
            "sequence_length": (NO_INTEGER, "sequence_length"),
            "method": (NO_TEXT, "packing method"),
            "document_order": (NO_INTEGERS, "document_order"),
            "seed": (NO_INTEGER, "seed"),
            "clusters": (NO_INTEGERS, "cluster"),
            "vectors": ((5, "abc", {}, RAGGED, [["a"], ["b"], ["c"]], object()), "vectors"),
            "advance": (NO_FUNCTION, "advance"),
        },
    ),
    (
        jd.Targets,
        {"starts": (0, 4), "shares": {"topic": [[1, 0], [0, 1]]}},
        {
            "starts": ((None, 5, "abc", [0.0, 1.5], {"a": 1}, object()), "starts"),
            "shares": ((*NO_MAPPING, None), "shares"),
        },
    ),
    (
        jd.Targets.linear,
        {"first": {"topic": [1, 0]}, "last": {"topic": [0, 1]}, "num_positions": 6, "num_phases": 2},
        {
            "first": ((*NO_MAPPING, None), "first"),
            "last": ((*NO_MAPPING, None), "last"),
            "num_positions": (NO_INTEGER, "num_positions"),
            "num_phases": (NO_INTEGER, "num_phases"),
        },
    ),
    (
        jd.Objective,
        {},
        {
            **{
                name: ((None, "1", [1], {}, object(), 2j, True), name)
                for name in ("norm_weight", "self_weight", "window_weight")
            },
            "windows": ((None, "64", [4.7], ["a"], {}, object(), RAGGED, True), "windows"),
            "family_weights": (("1", b"1", ["a"], [None], {"a": None}, object(), RAGGED), "family_weights"),
        },
    ),
    (jd.Ordering, {"indices": [0, 1]}, {"indices": (NO_ORDERING, "ordering's indices")}),
]


def options_of(table: Methods, call: Callable[..., Any]) -> Iterator[Case]:
    """Every option of every method that settings can give, with values of other types."""
    for method in sorted(table):
        known = table.parameters(method)
        for option in table.describe(method)[1]:
            number = known[option].kinds in (("int",), ("int", "None"))
            wrong = (4.7, "many", [1], {}, object()) if number else ([1], {}, object(), 4.7j)
            if set(known[option].kinds) == {"bool"}:
                continue  # any value is true or false
            yield (
                lambda method=method, **given: call(method=method, **given),
                {},
                {option: (wrong, option.removeprefix("num_"))},
            )


CASES += options_of(ORDERING_METHODS, lambda **given: jd.order(CHARS, **given))
CASES += options_of(
    PACKING_METHODS,
    lambda **given: jd.pack([3, 2, 4] * 8, 4, clusters=[0, 1, 0] * 8, vectors=np.eye(24), **given),
)


def of_schedules(root: Path) -> Iterator[Case]:
    """The functions that make and change the schedule of a run."""
    write_tiny_dataset(root / "dataset", num_documents=8)
    jd.create_schedule(root / "run", root / "dataset")
    names = itertools.count()
    what_follows = {
        "num_epochs": ((*NO_NUMBER[1:], float("nan"), -1), "num_epochs"),
        "num_positions": (NO_NUMBER, "num_positions"),
        "weights": ((5, "abc", [], {}, RAGGED, ["a"], object(), [-1], [0]), "weight"),
        "method": (NO_TEXT, "ordering method"),
        "objective": ((5, b"f3", {}, (1.0,), object()), "objective"),
        "targets": ((5, "abc", [1, 0], {3: [1, 0]}, object()), "targets"),
        "advance": (NO_FUNCTION, "advance"),
    }
    no_datasets = ((5, {}, object(), [5], [[root]], CHARS), "dataset")
    yield (
        # Another folder at every call: one that holds a schedule is refused before all else.
        lambda **given: jd.create_schedule(root / f"new-{next(names)}", **given),
        {"datasets": root / "dataset"},
        what_follows
        | {
            "datasets": ((*no_datasets[0], None, []), "dataset"),
            "seed": (NO_INTEGER, "seed"),
            "ordering": ((5, {}, CHARS, RAGGED, [0, 0], object()), "ordering"),
        },
    )
    yield (jd.create_schedule, {"datasets": root / "dataset"}, {"path": ((5, None, [], {}, object()), "path")})
    yield (
        # Opened again at every call, so that one that is taken by mistake does not change the answer to the next.
        lambda **given: jd.extend_schedule(**{"schedule": jd.open_schedule(root / "run"), **given}),
        {},
        what_follows
        | {
            "schedule": ((None, 5, "run", {}, ORDERING, root), "StoredRun"),
            "position": (NO_NUMBER, "position"),
            "datasets": no_datasets,
            "seed": (NO_NUMBER, "seed"),
        },
    )
    yield (
        lambda **given: jd.skip_positions(
            **{"schedule": jd.open_schedule(root / "run"), "start": 0, "stop": 1} | given
        ),
        {},
        {
            "schedule": ((None, 5, "run", {}, ORDERING), "StoredRun"),
            "start": (NO_INTEGER, "start"),
            "stop": (NO_INTEGER, "stop"),
        },
    )
    yield (
        jd.open_schedule,
        {"path": root / "run"},
        {
            "path": ((5, None, [], {}, object()), "path"),
            "version": (NO_NUMBER, "version"),
            "datasets": ((5, [5], object(), [CHARS]), "dataset"),
        },
    )
    log = jd.TrainingLog(root / "dataset", "balance")
    numbers = ((*NO_MAPPING, None, {"loss": "high"}), "value")
    yield log, {"step": 0, "values": {}}, {"step": (NO_INTEGER, "step"), "values": numbers}
    loader = jd.make_loader(root / "dataset", ordering="balance", global_batch_size=2)
    evaluate = jd.Evaluator(loader)
    yield (
        lambda by: jd.Evaluator(loader, by=by),
        {"by": ()},
        {"by": (("topic", ("length", "topic"), 5, [None]), "family")},
    )
    wrong = {"losses_of": (NO_FUNCTION, "losses_of"), "num_batches": (NO_NUMBER, "num_batches")}
    yield evaluate, {"losses_of": lambda batch: batch["inputs"]}, wrong
    yield (
        lambda loader: jd.Evaluator(loader, by=()),
        {"loader": loader},
        {"loader": ((None, 5, "abc", [loader]), "loader")},
    )
    dataset = jd.open_dataset(root / "dataset")
    yield (
        jd.compare,
        {"counts": dataset},
        {"orderings": (([jd.order(dataset)],), r"give orderings as \{'name'")},
    )
    yield jd.build, {"out": root / "unmade"}, {"paths": (([{"text": "A record."}], [None]), "to_parquet")}
    records = dataset.records
    for read in (records.read_segments, records.read_batch, records.read_tokens):
        yield read, {"places": [1, 0]}, {"places": ((*NO_INTEGERS, -1), "places")}
    for read in (records.read_sequences, records.places_of):
        yield read, {"sequences": [1, 0]}, {"sequences": ((*NO_INTEGERS, -1), "sequences")}


def answer(function: Callable[..., Any], arguments: dict[str, Any], word: str) -> str:
    """What is wrong with the answer to a call; nothing where it is one sentence that names the argument."""
    try:
        function(**arguments)
    except UserError as error:
        sentence = str(error)
        if re.search(word, sentence) and len(sentence) < 1000 and "\n" not in sentence and "pickle" not in sentence:
            return ""
        return sentence
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def main() -> None:
    """Make all calls; print their number and the wrong answers."""
    num_calls, wrong_answers = 0, []
    with tempfile.TemporaryDirectory() as folder:
        for number, (function, arguments, wrong) in enumerate(itertools.chain(CASES, of_schedules(Path(folder)))):
            for name, (values, word) in wrong.items():
                for value in values:
                    num_calls += 1
                    if what := answer(function, {**arguments, name: value}, word):
                        wrong_answers.append(f"case {number}, {name}={str(value)[:60]}: {what[:300]}")
    print(json.dumps({"num_calls": num_calls, "wrong_answers": wrong_answers}))


if __name__ == "__main__":
    main()
