"""What is written while training runs is what measuring says afterwards, whatever cuts the run or feeds it."""

from __future__ import annotations

import inspect
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import vstack

import jax_diversity as jd
from jax_diversity.foundation.errors import UserError
from jax_diversity.streaming.loader.iteration import BatchIterator
from jax_diversity.streaming.loader.watching import Writers
from tests.support.batch_values import assert_same_values, expected_values
from tests.support.tiny_dataset import write_tiny_dataset

FAMILIES = {"topic": 7, "length": 3}
NUM_SEQUENCES = 53
TIMES = {"input_wait_seconds", "input_wait_share"}


class Written(list):
    """A writer that keeps what it is given."""

    def __call__(self, step: int, values: Mapping[str, float]) -> None:
        self.append((step, dict(values)))

    def balance(self) -> list[tuple[int, dict[str, float]]]:
        """The same without what a clock decides."""
        return [(step, {name: values[name] for name in values.keys() - TIMES}) for step, values in self]


def random_counts(seed: int = 0, num_sequences: int = NUM_SEQUENCES) -> jd.Characteristics:
    """Sequences of unequal token counts, one of them empty."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(1, 33, num_sequences)
    tokens[rng.integers(num_sequences)] = 0
    counts = {
        name: np.array([rng.multinomial(number, rng.dirichlet(np.full(groups, 0.3))) for number in tokens])
        for name, groups in FAMILIES.items()
    }
    return jd.Characteristics.from_counts(counts, sequence_length=32)


def repeated(chars: jd.Characteristics, order: Any, times: int) -> jd.Run:
    """The run of an order that comes several times."""
    return jd.make_run(chars, positions=np.tile(order.indices, times))


def metrics_of(chars: jd.Characteristics, order: Any, size: int) -> jd.BatchMetrics:
    return jd.BatchMetrics(order if isinstance(order, jd.Run) else jd.make_run(chars, order), global_batch_size=size)


@pytest.fixture(scope="module")
def chars() -> jd.Characteristics:
    return random_counts()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> jd.Dataset:
    return jd.open_dataset(write_tiny_dataset(tmp_path_factory.mktemp("tiny") / "out", features="one").root)


def test_the_expected_loss_is_that_of_the_tokens_of_a_batch(chars) -> None:
    """Token by token: by the groups of a family, some of them unknown, and by the sequences."""
    rng = np.random.default_rng(0)
    run = jd.make_run(chars, rng.permutation(NUM_SEQUENCES))
    losses = np.array([3.0, np.nan, 1.0, 2.5, 4.0, np.nan, 2.0])
    of_sequences = rng.normal(3, 1, NUM_SEQUENCES)
    by_group = jd.BatchMetrics(run, global_batch_size=8, reference={"topic": losses})
    by_sequence = jd.BatchMetrics(run, global_batch_size=8, reference=of_sequences)
    for position in range(0, NUM_SEQUENCES, 8):
        found: list[float] = []
        weighted: list[float] = []
        for sequence in run.at(np.arange(position, position + 8)):  # the last batch ends in the next epoch
            row = chars.counts["topic"][[int(sequence)]].toarray()[0]
            for group, number in enumerate(row):
                found += [float(losses[group])] * int(number)
                weighted += [float(of_sequences[int(sequence)])] * int(number)
        assert by_group.values(position)["loss_expected"] == pytest.approx(np.nanmean(found))
        assert by_sequence.values(position)["loss_expected"] == pytest.approx(np.mean(weighted))
    assert "loss_expected" not in jd.BatchMetrics(run, global_batch_size=8).values(0)


@pytest.mark.parametrize(
    ("reference", "sentence"),
    [
        (np.ones(5), r"Expected reference to have the losses of 53 sequences, found an array \(5,\)"),
        (np.full(53, np.nan), "Expected finite reference losses, found 53 sequences without one"),
        ("high", "Expected reference to be numbers, found 'high'"),
        ({"topic": np.ones(3)}, r"Expected reference\['topic'\] to have the losses of 7 groups, found an array \(3,\)"),
        ({"topic": np.full(7, np.nan)}, "Expected finite reference losses of 'topic'"),
        ({"topic": [np.inf, *np.ones(6)]}, "Expected finite reference losses of 'topic'"),
        ({"subject": np.ones(7)}, "reference losses of one family of topic, length, found 'subject'"),
        ({}, "reference losses of one family of topic, length, found none"),
        ({"topic": np.ones(7), "length": np.ones(3)}, "of one family of topic, length, found 'topic', 'length'"),
    ],
)
def test_references_that_do_not_fit_are_a_sentence(chars, reference, sentence) -> None:
    run = jd.make_run(chars, np.arange(NUM_SEQUENCES))
    with pytest.raises(UserError, match=sentence):
        jd.BatchMetrics(run, global_batch_size=8, reference=reference)


@pytest.mark.parametrize("size", [1, 8, 53])
@pytest.mark.parametrize("name", ["ordering", "array", "positions", "repeats"])
def test_values_are_those_of_measure(chars, name, size):
    rng = np.random.default_rng(3)
    ordering = jd.Ordering(rng.permutation(NUM_SEQUENCES))
    order = {
        "ordering": ordering,
        "array": ordering,
        "positions": jd.make_run(chars, positions=rng.integers(0, NUM_SEQUENCES, 90)),
        "repeats": repeated(chars, ordering, 2),
    }[name]
    metrics = metrics_of(chars, ordering.indices if name == "array" else order, size)
    for position in range(0, len(order) - size + 1, size):
        assert_same_values(metrics.values(position), expected_values(chars, order, position, size))


def test_epochs_count_on(chars):
    """A batch across two epochs; a run of positions that keeps its deviation."""
    ordering = jd.Ordering(np.random.default_rng(0).permutation(NUM_SEQUENCES))
    uneven = jd.make_run(chars, positions=np.arange(NUM_SEQUENCES) // 2)
    for given_order in (ordering, uneven):
        metrics, whole = metrics_of(chars, given_order, 10), repeated(chars, given_order, 3)
        for position in range(0, 3 * NUM_SEQUENCES - 10, 10):
            assert_same_values(metrics.values(position), expected_values(chars, whole, position, 10))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 4 * NUM_SEQUENCES), min_size=1, max_size=6), st.integers(1, 60), st.booleans())
def test_the_way_to_a_position_changes_nothing(positions, size, repeats):
    chars = random_counts(1)
    rng = np.random.default_rng(size)
    order = (
        jd.make_run(chars, positions=rng.integers(0, NUM_SEQUENCES, NUM_SEQUENCES + 7))
        if repeats
        else jd.Ordering(rng.permutation(NUM_SEQUENCES))
    )
    walked = metrics_of(chars, order, size)
    for position in positions:
        assert walked.values(position) == metrics_of(chars, order, size).values(position)


def test_sequences_without_tokens_have_no_mixture():
    chars = jd.Characteristics.from_counts({"topic": [[0, 0], [2, 2], [0, 0]]})
    values = metrics_of(chars, np.arange(3), 1).values(0)
    assert values == {"batch_tv/topic": 0.0, "groups_per_batch/topic": 0.0, "prefix_l2/topic": 0.0}


@pytest.mark.parametrize("drop", [False, True])
def test_a_watched_run_is_the_run(tiny, drop):
    chars, ordering = tiny.characteristics, tiny.orderings["balance"]
    whole = repeated(chars, ordering, 2)
    choices = {"ordering": "balance", "global_batch_size": 6, "num_epochs": 2, "drop_remainder": drop}
    written = Written()
    batches = list(jd.watch_batches(jd.make_loader(tiny, **choices), written))
    plain = list(jd.make_loader(tiny, **choices))
    assert len(batches) == len(plain) > 5
    for found, expected in zip(batches, plain, strict=True):
        assert all(np.array_equal(found[field], expected[field]) for field in expected)
    assert [step for step, _ in written] == list(range(len(plain)))
    for step, values in written.balance():
        assert_same_values(values, expected_values(chars, whole, step * 6, 6))


@pytest.mark.parametrize("batch_size", [4, 3])
def test_a_resumed_run_writes_what_one_without_a_break_writes(tiny, batch_size):
    def loader(size: int):
        return jd.make_loader(tiny, global_batch_size=size, num_epochs=3)

    whole, rest = Written(), Written()
    list(jd.watch_batches(loader(batch_size), whole))
    first = jd.watch_batches(loader(4), Written())
    for _ in range(9):
        next(first)
    state = first.get_state()
    first.close()
    with pytest.raises(ValueError, match="closed"):
        next(first)
    second = jd.watch_batches(loader(batch_size), rest)
    second.set_state(state)
    assert len(list(second)) == len(rest) > 3
    assert rest.balance() == whole.balance()[36 // batch_size :]


def test_only_the_first_host_writes_and_of_the_global_batch(tiny):
    written = [Written(), Written()]
    for host, write in enumerate(written):
        loader = jd.make_loader(tiny, global_batch_size=6, host_index=host, num_hosts=2)
        rows = [batch["inputs"].shape[0] for batch in jd.watch_batches(loader, write)]
        assert set(rows) == {3}
    assert written[1] == []
    for step, values in written[0].balance():
        expected = expected_values(tiny.characteristics, tiny.orderings["balance"], step * 6, 6)
        assert_same_values(values, expected)


def test_global_arrays_are_watched_too(tiny):
    sharding = jax.sharding.NamedSharding(jax.make_mesh((1,), ("data",)), jax.sharding.PartitionSpec("data"))
    plain, placed = Written(), Written()
    list(jd.watch_batches(jd.make_loader(tiny, global_batch_size=5), plain))
    loader = jd.make_loader(tiny, global_batch_size=5, sharding=sharding)
    assert all(isinstance(batch["inputs"], jax.Array) for batch in jd.watch_batches(loader, placed))
    assert placed.balance() == plain.balance()


@pytest.mark.parametrize(("layout", "shuffle_buffer"), [("ordered", 0), ("packed", 0), ("packed", 9)])
def test_streams_are_watched_too(tmp_path, layout, shuffle_buffer):
    dataset = jd.open_dataset(write_tiny_dataset(tmp_path / "out", layout=layout).root)
    stream = jd.stream_batches(dataset, global_batch_size=4, num_epochs=2, shuffle_buffer=shuffle_buffer, seed=5)
    written = Written()
    batches = list(jd.watch_batches(stream, written))
    assert len(batches) == len(written)
    # What the batches hold tells which sequences came, independently of the order that the stream claims.
    rows = jd.make_loader(dataset, ordering=np.arange(dataset.num_sequences), global_batch_size=1)
    number = {row["inputs"].tobytes(): index for index, row in enumerate(rows)}
    seen = [number[row.tobytes()] for batch in batches for row in batch["inputs"]]
    trained = jd.make_run(dataset, positions=np.array(seen))
    for step, values in written.balance():
        assert_same_values(values, expected_values(dataset.characteristics, trained, step * 4, 4))


def test_several_datasets_are_watched_by_the_counts_of_all(tiny, tmp_path):
    datasets = [tiny, jd.open_dataset(write_tiny_dataset(tmp_path / "other", seed=4, features="one").root)]
    run = jd.create_schedule(tmp_path / "run", datasets, weights=[3, 1], num_positions=70)
    families = {
        family: vstack([each.characteristics.counts[family] for each in datasets])
        for family in tiny.characteristics.families
    }
    counts = jd.Characteristics.from_counts(families, sequence_length=tiny.sequence_length)
    written, together = Written(), Written()
    loader = jd.make_loader(run, global_batch_size=7)
    list(jd.watch_batches(loader, written, characteristics=counts))
    assert len(written) == 10
    for step, values in written.balance():
        assert_same_values(values, expected_values(counts, run, step * 7, 7))
    list(jd.watch_batches(loader, together))
    assert len(together) == 10
    for step, values in together.balance():
        for name, value in written.balance()[step][1].items():
            assert values[name] == pytest.approx(value, abs=1e-9), name


GROUPS = {
    "web": {"source": ("forum", "news"), "topic": ("a", "b", "c")},
    "books": {"topic": ("c", "d"), "mood": ("good", "bad"), "source": ("shop", "news", "library")},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> jd.Run:
    """Two datasets with other groups, then one with sequences of another length."""
    root = tmp_path_factory.mktemp("watched")
    for seed, (name, groups) in enumerate([*GROUPS.items(), ("long", GROUPS["books"])]):
        length = 32 if name == "long" else 16
        write_tiny_dataset(root / name, sequence_length=length, group_names=groups, seed=seed, features="one")
    run = jd.create_schedule(root / "run", [root / "web", root / "books"], weights=[3, 1], num_positions=60)
    return jd.extend_schedule(run, datasets=root / "long", weights=[0, 0, 1], num_positions=40)


def counted_values(run: jd.Run, batches: list[dict[str, np.ndarray]]) -> list[dict[str, float]]:
    """Of every batch, by what its rows say of themselves: one sequence and one name at a time."""
    corpus, prefix = ({family: Counter() for family in ("source", "topic")} for _ in range(2))
    for dataset in run.datasets:
        for sequence in range(dataset.num_sequences):
            add_tokens(corpus, dataset, sequence)
    values = []
    for batch in batches:
        own = {family: Counter() for family in corpus}
        met: dict[str, list] = {"document": [], "copy": []}
        for index, sequence in zip(batch["dataset_index"].tolist(), batch["sequence_index"].tolist(), strict=True):
            dataset = run.datasets[index]
            for counter in (own, prefix):
                add_tokens(counter, dataset, sequence)
            if (document := dataset.sequence_documents[sequence]) >= 0:
                met["document"].append((index, document))
            met["copy"] += [(index, group) for group in dataset.sequence_copies[sequence] if group >= 0]
        found = {f"repeats/{name}": float(len(parts) - len(set(parts))) for name, parts in met.items()}
        for family, counter in own.items():
            total, every = counter.total(), corpus[family].total()
            target = {name: tokens / every for name, tokens in corpus[family].items()}
            found[f"batch_tv/{family}"] = sum(abs(counter[name] / total - share) for name, share in target.items()) / 2
            found[f"groups_per_batch/{family}"] = float(len(+counter))
            sums = prefix[family]
            excess = [sums[name] - sums.total() * share for name, share in target.items()]
            found[f"prefix_l2/{family}"] = float(np.linalg.norm(excess)) / 32
        values.append(found)
    return values


def add_tokens(counters: Mapping[str, Counter], dataset: jd.Dataset, sequence: int) -> None:
    for family, counter in counters.items():
        row = dataset.characteristics.counts[family][[sequence]].toarray()[0]
        for name, tokens in zip(dataset.group_names[family], row.tolist(), strict=True):
            counter[name] += tokens


@pytest.mark.campaign
def test_a_run_of_several_datasets_is_watched_by_the_groups_names(run):
    written = Written()
    batches = list(jd.watch_batches(jd.make_loader(run, global_batch_size=10), written))
    assert len(batches) == len(written) == 10
    assert [batch["inputs"].shape[1] for batch in batches] == [16] * 6 + [32] * 4
    for (_, values), expected in zip(written.balance(), counted_values(run, batches), strict=True):
        assert_same_values(values, expected)
    last = jd.BatchMetrics(run, global_batch_size=10).values(90)
    assert_same_values(last, written.balance()[-1][1])


def test_a_watched_run_goes_on_in_a_later_version(run):
    whole, rest = Written(), Written()
    list(jd.watch_batches(jd.make_loader(run, global_batch_size=10), whole))
    before = run.with_version(1)
    first = jd.watch_batches(jd.make_loader(before, global_batch_size=10), Written())
    for _ in range(4):
        next(first)
    second = jd.watch_batches(jd.make_loader(run, global_batch_size=10), rest)
    second.set_state(first.get_state())
    assert len(list(second)) == 6
    assert rest.balance() == whole.balance()[4:]


def test_clusters_of_several_feature_spaces_are_left_out(tiny, tmp_path):
    """Their numbers mean other things; lengths, sources ... mean the same."""
    other = jd.open_dataset(write_tiny_dataset(tmp_path / "other", seed=4, features="another").root)
    order = np.arange(tiny.num_sequences + other.num_sequences)
    named = {name.partition("/")[2] for name in jd.BatchMetrics([tiny, other], order, global_batch_size=7).values(0)}
    assert named == {"length", "document", "copy"}
    lengths = vstack([each.characteristics.counts["length"] for each in (tiny, other)])
    counts = jd.Characteristics.from_counts({"length": lengths}, sequence_length=16)
    expected = metrics_of(counts, order, 7).values(7)
    found = jd.BatchMetrics([tiny, other], order, global_batch_size=7).values(7)
    assert {name: found[name] for name in expected} == expected
    for place, features in enumerate(("one", "another")):
        write_tiny_dataset(tmp_path / features, group_names={"cluster": "ab"}, seed=place, features=features)
    size = sum(jd.open_dataset(tmp_path / features).num_sequences for features in ("one", "another"))
    with pytest.raises(UserError, match=r"a common family that is not a clustering, found only cluster"):
        jd.BatchMetrics([tmp_path / "one", tmp_path / "another"], np.arange(size), global_batch_size=7)


def test_datasets_without_a_common_family_are_a_sentence(run, tmp_path):
    write_tiny_dataset(tmp_path / "other", group_names={"mood": ("good",)})
    mixed = jd.create_schedule(tmp_path / "run", [run.datasets[0], tmp_path / "other"])
    with pytest.raises(UserError, match=r"a family that all datasets balance, found none \(source, topic; mood\)"):
        jd.watch_batches(jd.make_loader(mixed, global_batch_size=4), print)


def test_waits_add_up_between_what_is_written(tiny, monkeypatch):
    """A clock of its own: batches take 3 s and 1 s in turn, the loop 2 s a step."""
    now = [0.0]
    taken = BatchIterator.__next__
    waits = iter([3.0, 1.0] * 10)

    def slow(self):
        now[0] += next(waits)
        return taken(self)

    monkeypatch.setattr(BatchIterator, "__next__", slow)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    written = Written()
    batches = jd.watch_batches(jd.make_loader(tiny, global_batch_size=4, num_epochs=2), written, every=3)
    for _, _batch in zip(range(6), batches, strict=False):
        now[0] += 2.0
    assert [step for step, _ in written] == [2, 5]
    assert [values["input_wait_seconds"] for _, values in written] == [7.0, 5.0]
    # The first batches' 7 s and two steps; then three steps and 5 s.
    assert [values["input_wait_share"] for _, values in written] == [7 / 11, 5 / 11]


def test_a_writer_that_fails_is_named_and_left_out(tiny):
    calls, written = [], Written()

    def failing(step, values):
        calls.append(step)
        raise OSError("no route")

    loader = jd.make_loader(tiny, global_batch_size=4)
    with pytest.warns(UserWarning, match=r"failing.* failed at step 0 \(OSError: no route\).* the run continues"):
        batches = list(jd.watch_batches(loader, Writers(failing, written)))
    assert calls == [0]
    assert len(written) == len(batches) == loader.num_batches
    with pytest.warns(UserWarning, match="not called again"):
        assert len(list(jd.watch_batches(loader, failing))) == loader.num_batches
    assert calls == [0, 0]


def test_values_are_plain_numbers(tiny):
    written = Written()
    list(jd.watch_batches(jd.make_loader(tiny, global_batch_size=4), written))
    assert written
    assert {type(value) for _, values in written for value in values.values()} == {float}


def test_what_cannot_be_watched_is_a_sentence(tiny):
    loader = jd.make_loader(tiny, global_batch_size=4)
    with pytest.raises(UserError, match=f"run's {tiny.num_sequences} sequences, found the counts of {NUM_SEQUENCES}"):
        jd.watch_batches(loader, print, characteristics=random_counts())
    with pytest.raises(UserError, match="every to be a whole number >= 1, found 0"):
        jd.watch_batches(loader, print, every=0)
    watch: Any = inspect.unwrap(jd.watch_batches)  # without the type checker of the tests, as users have it
    with pytest.raises(UserError, match="loader of make_loader or stream_batches, found"):
        watch(iter(loader), print)
    with pytest.raises(UserError, match="every to be a whole number"):
        watch(loader, print, every=1.5)


def test_impossible_batches_are_a_sentence(tiny, chars):
    with pytest.raises(UserError, match="global_batch_size to be a whole number >= 1, found 0"):
        metrics_of(chars, np.arange(NUM_SEQUENCES), 0)
    with pytest.raises(UserError, match=f"ordering of the dataset's {NUM_SEQUENCES} sequences, found 3"):
        metrics_of(chars, np.arange(3), 2)
    with pytest.raises(UserError, match="Unknown ordering 'best'"):
        jd.BatchMetrics(tiny, "best", global_batch_size=2)
    metrics = jd.BatchMetrics.of_loader(jd.make_loader(tiny, global_batch_size=4))
    for position in (-1, tiny.num_sequences):
        with pytest.raises(UserError, match=f">= 0 and <= {tiny.num_sequences - 1}, found {position}"):
            metrics.values(position)
