"""Orders of several chunks: as good as those of one, the same for any source and threads, continued after a kill."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jax_diversity import Characteristics, Objective, Ordering, UserError, measure
from jax_diversity.counts import spool, token_counts
from jax_diversity.counts.stored import CountFiles
from jax_diversity.counts.targets import Targets
from jax_diversity.foundation.devices import first_devices
from jax_diversity.ordering import chunks, parts
from jax_diversity.ordering.base import order
from jax_diversity.ordering.features import Features
from jax_diversity.ordering.halving import halve, sort_by_group
from jax_diversity.ordering.shortages import UnmetTargets
from tests.support.synthetic import synthetic_characteristics

NUM = 1200
SMALL: dict[str, Any] = {"part_size": 150, "pool_size": 32}


def corpus(num_sequences: int = NUM) -> Characteristics:
    return synthetic_characteristics(num_sequences, num_clusters=60, documents=True)


def save(chars: Characteristics, folder: Path, num_files: int = 3) -> CountFiles:
    folder.mkdir(parents=True)
    bounds = [chars.num_sequences * number // num_files for number in range(num_files + 1)]
    for number, (first, stop) in enumerate(itertools.pairwise(bounds)):
        chars.take(np.arange(first, stop)).save(folder / f"part-{number:05}.parquet")
    return CountFiles.open(folder)


@pytest.fixture(autouse=True)
def chunks_of_300(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_counts, "MOST_ROWS", 300)


@pytest.fixture(scope="module")
def in_memory() -> Characteristics:
    return corpus()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, in_memory: Characteristics) -> CountFiles:
    return save(in_memory, tmp_path_factory.mktemp("made") / "counts")


@pytest.fixture(scope="module")
def ordered(files: CountFiles) -> Iterator[Ordering]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_counts, "MOST_ROWS", 300)
        yield order(files, **SMALL)


def in_one_chunk(chars: Characteristics, monkeypatch: pytest.MonkeyPatch, **given: Any) -> Ordering:
    with monkeypatch.context() as patch:
        patch.setattr(token_counts, "MOST_ROWS", 1 << 20)
        return order(chars, **SMALL, **given)


def test_it_is_as_balanced_as_an_order_of_one_chunk(
    in_memory: Characteristics, ordered: Ordering, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, whole = (
        measure(in_memory, each, windows=(64, 256), every_start=True)
        for each in (ordered, in_one_chunk(in_memory, monkeypatch))
    )
    for family in in_memory.families:
        assert own.prefix_l2[family].max() < 1.25 * whole.prefix_l2[family].max()
        for size in (64, 256):
            ours, theirs = own.window_tv_every_start[family][size], whole.window_tv_every_start[family][size]
            assert ours.mean < 1.03 * theirs.mean
            assert ours.worst < 1.15 * theirs.worst
    assert own.documents is not None
    assert whole.documents is not None
    assert own.documents.repeats[64].mean() < whole.documents.repeats[64].mean() + 0.3


def test_the_number_of_chunks_follows_from_rows_and_entries(
    in_memory: Characteristics, files: CountFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert in_memory.chunk_bounds == files.chunk_bounds == [0, 300, 600, 900, 1200]
    monkeypatch.setattr(token_counts, "MOST_ENTRIES", in_memory.num_entries // 7)
    assert len(files.chunk_bounds) == len(in_memory.chunk_bounds) == 9
    assert in_memory.rows(0, 5).chunk_bounds == [0, 5]
    assert in_memory.rows(5, 5).chunk_bounds == [0, 0]


def test_chunks_of_different_mixtures(in_memory: Characteristics, tmp_path: Path) -> None:
    """The excess of a chunk is spread over all parts: the last part would otherwise get all of it."""
    by_cluster = in_memory.take(np.argsort(in_memory.counts["cluster"].argmax(axis=1), kind="stable"))
    counts = save(by_cluster, tmp_path / "counts")
    own, shuffled = (
        measure(by_cluster, each, windows=(64,)).prefix_l2["cluster"].max()
        for each in (order(counts, **SMALL), order(by_cluster, "uniform_shuffle"))
    )
    assert own < shuffled / 2


@pytest.mark.parametrize(("source", "num_threads"), [("memory", 1), ("7 files", 3)])
def test_sources_and_threads_do_not_matter(
    source: str,
    num_threads: int,
    in_memory: Characteristics,
    ordered: Ordering,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parts, "num_cores", lambda: num_threads)
    counts = in_memory if source == "memory" else save(in_memory, tmp_path / "counts", 7)
    again = order(counts, **SMALL)
    np.testing.assert_array_equal(again.indices, ordered.indices)
    assert again.info == ordered.info
    assert again.info["characteristics"] == in_memory.fingerprint


def test_a_mesh_does_not_matter(in_memory: Characteristics, ordered: Ordering) -> None:
    again = order(in_memory, mesh=first_devices(1, "sequences"), **SMALL)
    np.testing.assert_array_equal(again.indices, ordered.indices)


def test_turns_hold_in_all_chunks(in_memory: Characteristics, tmp_path: Path) -> None:
    """Turns are saved with the counts, and a document's sequences are in their turn wherever its chunks are."""
    assert in_memory.documents is not None
    turns = np.where(in_memory.documents % 2, np.arange(NUM)[::-1], -1)
    given = {"documents": in_memory.documents, "turns": turns, "sequence_length": in_memory.sequence_length}
    chars = Characteristics.from_counts(in_memory.counts, **given)
    indices = order(save(chars, tmp_path / "counts"), **SMALL).indices
    np.testing.assert_array_equal(indices, order(chars, **SMALL).indices)
    for document in np.unique(in_memory.documents[(turns >= 0) & (in_memory.documents >= 0)]):
        own = indices[(in_memory.documents[indices] == document) & (turns[indices] >= 0)]
        assert (np.diff(turns[own]) > 0).all()


class Killed(BaseException):
    """As if the process ended."""


def fails_after(function: Callable, calls: int, error: BaseException) -> Callable:
    counted = itertools.count(1)

    def called(*arguments: Any, **named: Any) -> Any:
        result = function(*arguments, **named)
        if next(counted) == calls:
            raise error
        return result

    return called


def interrupted(
    counts: CountFiles, folder: Path, what: str, calls: int, monkeypatch: pytest.MonkeyPatch, **given: Any
) -> None:
    owner = spool.Spool if what == "append" else chunks.Checkpoint
    with monkeypatch.context() as patch:
        patch.setattr(owner, what, fails_after(getattr(owner, what), calls, Killed()))
        with pytest.raises(Killed):
            order(counts, folder=folder, **SMALL, **given)


# Calls of `Spool.append` and of `Checkpoint.save`, which end the totals, every chunk, cut and part.
STOPS = [("append", 1), ("append", 9), *(("save", calls) for calls in (1, 3, 5, 7, 9, 11))]


@pytest.mark.parametrize(("what", "calls"), STOPS)
def test_a_killed_run_continues_and_ends_with_the_same_order(
    what: str, calls: int, files: CountFiles, ordered: Ordering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(files, tmp_path, what, calls, monkeypatch)
    told: list[int] = []
    again = order(files, folder=tmp_path, advance=told.append, **SMALL)
    np.testing.assert_array_equal(again.indices, ordered.indices)
    assert again.info == ordered.info
    assert sum(told) == NUM
    assert not list(tmp_path.iterdir())


KILLED = """
import itertools, os, signal, sys
from jax_diversity.counts import token_counts
from jax_diversity.counts.stored import CountFiles
from jax_diversity.ordering.base import order

token_counts.MOST_ROWS = 300
replace, done = os.replace, itertools.count()

def replace_then_die(*names):  # every state is renamed to its place
    if next(done) == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    replace(*names)

os.replace = replace_then_die
order(CountFiles.open(sys.argv[1]), folder=sys.argv[2], part_size=150, pool_size=32)
"""


@pytest.mark.campaign
@pytest.mark.parametrize("place", [2, 6, 10])
def test_a_killed_process_continues(place: int, files: CountFiles, ordered: Ordering, tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    folder = files.files.paths[0].parent
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(folder), str(tmp_path), str(place)],
        env=environment,
        cwd=root,
        capture_output=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    np.testing.assert_array_equal(order(files, folder=tmp_path, **SMALL).indices, ordered.indices)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_one_sentence(
    files: CountFiles, ordered: Ordering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        full = OSError(28, "No space left on device")
        patch.setattr(spool.Spool, "append", fails_after(spool.Spool.append, 5, full))
        with pytest.raises(UserError, match="free some space and repeat the call"):
            order(files, folder=tmp_path, **SMALL)
    np.testing.assert_array_equal(order(files, folder=tmp_path, **SMALL).indices, ordered.indices)


def test_counts_that_change_between_the_passes(
    in_memory: Characteristics, files: CountFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, counts = tmp_path / "state", tmp_path / "counts"
    shutil.copytree(files.files.paths[0].parent, counts)
    interrupted(CountFiles.open(counts), state, "save", 2, monkeypatch)
    last = sorted(counts.iterdir())[-1]
    shuffled = np.random.default_rng(0).permutation(400) + 800
    in_memory.take(shuffled).save(last)
    with pytest.raises(UserError, match="found other counts of the sequences"):
        order(CountFiles.open(counts), folder=state, **SMALL)
    opened = CountFiles.open(counts)
    last.write_bytes(last.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"Parquet|to stay as it was when it was opened"):
        order(opened, folder=state, **SMALL)
    last.unlink()
    with pytest.raises(UserError, match="belongs to another run"):
        order(CountFiles.open(counts), folder=state, **SMALL)


@pytest.mark.parametrize(
    ("damage", "calls"), [("cut", 4), ("cut", 7), ("flip", 7), ("delete", 7), ("state", 7), ("no state", 12)]
)
def test_states_that_were_changed(
    damage: str, calls: int, files: CountFiles, ordered: Ordering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(files, tmp_path, "save", calls, monkeypatch)
    state = tmp_path / "chunks"
    path = state / "part-000003.spool"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-5])
    elif damage == "flip":
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes(bytes(content))
    elif damage == "delete":
        path.unlink()
    elif damage == "state":
        (state / "halved").write_bytes(b"x")
    else:
        (state / "cut-000002").unlink()  # the cut is repaired again
        np.testing.assert_array_equal(order(files, folder=tmp_path, **SMALL).indices, ordered.indices)
        return
    with pytest.raises(UserError, match="delete"):
        order(files, folder=tmp_path, **SMALL)


def test_another_order_in_the_same_folder(files: CountFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(files, tmp_path, "save", 3, monkeypatch)
    for other in ({"seed": 1}, {"objective": Objective.f1()}, {"pool_size": 33}, {"consumed": [1]}):
        with pytest.raises(UserError, match="belongs to another run"):
            order(files, folder=tmp_path, **{**SMALL, **other})


def planned(chars: Characteristics) -> dict[str, dict[str, Any]]:
    """Targets that the corpus can meet, and consumed sequences; the changing targets add up to the corpus's shares."""
    own, num = chars.target_share("cluster"), chars.num_sequences
    signs = np.where(np.arange(len(own)) % 2, 0.5, -0.5)
    difference = own * (signs - own @ signs)
    more, fewer = {"cluster": own + difference}, {"cluster": own - difference}
    largest = np.argsort(-chars.counts["cluster"].toarray()[:, 0], kind="stable")
    return {
        "phases": {"targets": Targets((0, num // 2), {"cluster": np.stack([more["cluster"], fewer["cluster"]])})},
        "linear": {"targets": Targets.linear(more, fewer, num, 16)},
        "consumed": {"consumed": largest[: num // 20]},
        "mapping": {"targets": {"cluster": own + 0.1 * difference}, "consumed": largest[: num // 20][::-1]},
        "windows": {"consumed": np.arange(0, 100), "objective": Objective(windows=(32,))},
    }


CASES = ("phases", "linear", "consumed", "mapping", "windows")


def against(chars: Characteristics, ordering: Ordering, targets: Any) -> tuple[float, float]:
    """The mean TV of windows of 64 and the largest prefix deviation of the clusters, against the targets."""
    balance = measure(chars, ordering, (64,), targets=targets)
    return float(balance.window_tv["cluster"][64].mean()), float(balance.prefix_l2["cluster"].max())


@pytest.mark.first(1)
@pytest.mark.parametrize("case", CASES)
def test_targets_and_consumed_sequences_as_in_one_chunk(
    case: str, in_memory: Characteristics, files: CountFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = planned(in_memory)[case]
    ours, theirs = order(files, **SMALL, **given), in_one_chunk(in_memory, monkeypatch, **given)
    num_consumed = len(given.get("consumed", ()))
    np.testing.assert_array_equal(ours.indices[:num_consumed], given.get("consumed", ())[:num_consumed])
    for name in ("replanned_at", "targets"):
        assert ours.info.get(name) == theirs.info.get(name)
    (own, prefix), (whole, whole_prefix), (shuffled, _) = (
        against(in_memory, each, given.get("targets")) for each in (ours, theirs, order(in_memory, "uniform_shuffle"))
    )
    assert own < 1.05 * whole
    assert prefix < 1.3 * whole_prefix + 1
    if not num_consumed:
        assert own < 0.75 * shuffled


@pytest.mark.filterwarnings("ignore::jax_diversity.ordering.shortages.UnmetTargets")
def test_targets_with_other_files_after_a_kill(
    in_memory: Characteristics, files: CountFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = planned(in_memory)
    given = {**cases["phases"], **cases["consumed"]}
    expected = order(save(in_memory, tmp_path / "counts", 7), **SMALL, **given)
    for calls in (1, 4, 7, 10):
        interrupted(files, tmp_path / "state", "save", calls, monkeypatch, **given)
        for other in (cases["phases"], cases["mapping"], {}):
            with pytest.raises(UserError, match="belongs to another run"):
                order(files, folder=tmp_path / "state", **SMALL, **other)
        told: list[int] = []
        again = order(files, folder=tmp_path / "state", advance=told.append, **SMALL, **given)
        assert sum(told) == NUM - len(given["consumed"])
        np.testing.assert_array_equal(again.indices, expected.indices)


def test_targets_that_cannot_be_met(in_memory: Characteristics, files: CountFiles) -> None:
    shares = np.zeros(60)
    shares[[0, 7]] = 0.5
    with pytest.warns(UnmetTargets, match=r"times the tokens of cluster '\d+', which are used up"):
        ordering = order(files, **SMALL, targets={"cluster": shares})
    first = in_memory.counts["cluster"][ordering.indices[:40]].toarray()
    assert first[:, [0, 7]].sum() > 0.6 * first.sum()


@pytest.mark.parametrize("num_sequences", [0, 1, 5])
def test_few_sequences(num_sequences: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = save(corpus(64).take(np.arange(num_sequences)), tmp_path / "counts", 1)
    for rows, consumed in itertools.product((1, 3), {0, num_sequences // 2, num_sequences}):
        monkeypatch.setattr(token_counts, "MOST_ROWS", rows)
        given = {"targets": {"cluster": np.eye(60)[3]}, "consumed": np.arange(consumed)[::-1]}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnmetTargets)
            ordering = order(counts, **given)
        assert ordering.indices[:consumed].tolist() == list(range(consumed))[::-1]
        assert len(order(counts)) == num_sequences  # an `Ordering` is a bijection


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"part_size": 0}, "part_size"),
        ({"pool_size": 0}, "pool_size"),
        ({"ties": "first"}, "ties"),
        ({"speed": 1}, "speed"),
        ({"mesh": 1}, "mesh"),
        ({"seed": -1}, "seed"),
        ({"objective": Objective.f3(form="norms")}, "norms"),
        ({"targets": {"topic": [1.0]}}, "unknown families"),
        ({"targets": {"cluster": [1.0]}}, "60 groups"),
        ({"targets": {"cluster": [-1.0] * 60}}, ">= 0"),
        ({"targets": {"cluster": ["many"] * 60}}, "as numbers"),
        ({"consumed": [1, 1]}, "once"),
        ({"consumed": [NUM]}, "consumed"),
        ({"previous": [1, 0]}, "previous epoch"),
        ({"folder": 5}, "folder"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_arguments(arguments: dict[str, Any], message: str, files: CountFiles) -> None:
    with pytest.raises(UserError, match=message):
        order(files, **arguments)


def test_a_chunk_makes_up_for_the_deviation_that_others_left() -> None:
    """The walks compensate the deviation that is carried to the cuts of a chunk."""
    chars = corpus(2048)
    features = Features.build(chars, Objective())
    arranged = sort_by_group(features, np.arange(2048), np.random.default_rng(0))
    others = np.random.default_rng(1).permutation(2048).reshape(4, 512)
    carried = np.stack([features.excess(others[:cut].ravel()) for cut in range(5)])

    def deviations(blocks: np.ndarray) -> list[float]:
        cuts = [features.excess(blocks[:cut][blocks[:cut] >= 0]) + carried[cut] for cut in (1, 2, 3)]
        return [float((features.column_weights * cut**2).sum()) for cut in cuts]

    knowing = deviations(halve(features, arranged, 2, True, carried))
    alone = deviations(halve(features, arranged, 2, True))
    assert all(a < b / 3 for a, b in zip(knowing, alone, strict=True))
