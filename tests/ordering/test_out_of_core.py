"""Orders of counts in files: balanced at the joints, the same for any division and threads, continued after a kill."""

from __future__ import annotations

import itertools
import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jax_diversity import Characteristics, Objective, Ordering, UserError, measure, order
from jax_diversity.measures.followed import FollowedBalance, follow
from jax_diversity.measures.windows import place
from jax_diversity.ordering import out_of_core, parts
from jax_diversity.ordering.halving import halve, sort_by_group
from jax_diversity.ordering.objective import Features
from jax_diversity.ordering.out_of_core import order_files
from jax_diversity.ordering.plan import Targets
from jax_diversity.ordering.shortages import UnmetTargets
from jax_diversity.schema import spool
from tests.support.synthetic import synthetic_characteristics

NUM = 1200
SMALL: dict[str, Any] = {"sequences_in_memory": 300, "part_size": 150, "pool_size": 32}
FOUND = "order.npy"


def corpus(num_sequences: int = NUM) -> Characteristics:
    return synthetic_characteristics(num_sequences, num_clusters=60, documents=True)


def save(chars: Characteristics, folder: Path, num_files: int = 3) -> Path:
    folder.mkdir(parents=True)
    bounds = [chars.num_sequences * number // num_files for number in range(num_files + 1)]
    for number, (first, stop) in enumerate(itertools.pairwise(bounds)):
        chars.take(np.arange(first, stop)).save(folder / f"part-{number:05}.parquet")
    return folder


def content(folder: Path) -> tuple[bytes, str]:
    return (folder / FOUND).read_bytes(), (folder / "order.json").read_text()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Characteristics, Path]:
    """Counts in three files, and their order."""
    folder = tmp_path_factory.mktemp("made")
    chars = corpus()
    save(chars, folder / "counts")
    order_files(folder / "counts", folder / FOUND, **SMALL)
    return chars, folder


def test_the_order_is_a_bijection_that_is_loaded(made: tuple[Characteristics, Path]) -> None:
    chars, folder = made
    ordering = Ordering.load(folder / FOUND)
    assert sorted(ordering) == list(range(chars.num_sequences))
    assert ordering.info["options"]["sequences_in_memory"] == 300
    assert not (folder / "order.npy.unfinished").exists()
    assert not list(folder.glob("*.tmp"))


def test_it_is_as_balanced_as_the_order_in_memory(made: tuple[Characteristics, Path]) -> None:
    chars, folder = made
    options = {name: value for name, value in SMALL.items() if name != "sequences_in_memory"}
    own, whole = (
        measure(chars, each, windows=(64, 256), every_start=True)
        for each in (Ordering.load(folder / FOUND), order(chars, **options))
    )
    for family in chars.families:
        assert own.prefix_l2[family].max() < 1.25 * whole.prefix_l2[family].max()
        for size in (64, 256):
            ours, theirs = own.window_tv_every_start[family][size], whole.window_tv_every_start[family][size]
            assert ours.mean < 1.03 * theirs.mean
            assert ours.worst < 1.15 * theirs.worst
    assert own.documents is not None
    assert whole.documents is not None
    assert own.documents.repeats[64].mean() < whole.documents.repeats[64].mean() + 0.3


def test_files_of_different_mixtures(tmp_path: Path) -> None:
    """The excess of a file is spread over all parts: the last part would otherwise get all of it."""
    chars = corpus()
    chars = chars.take(np.argsort(chars.counts["cluster"].argmax(axis=1), kind="stable"))
    order_files(save(chars, tmp_path / "counts"), tmp_path / FOUND, **SMALL)
    own, shuffled = (
        measure(chars, each, windows=(64,)).prefix_l2["cluster"].max()
        for each in (Ordering.load(tmp_path / FOUND), order(chars, "uniform_shuffle"))
    )
    assert own < shuffled / 2


@pytest.mark.parametrize(("num_files", "num_threads"), [(1, 1), (7, 3)])
def test_files_and_threads_do_not_matter(
    num_files: int,
    num_threads: int,
    made: tuple[Characteristics, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chars, folder = made
    monkeypatch.setattr(parts, "num_cores", lambda: num_threads)
    order_files(save(chars, tmp_path / "counts", num_files), tmp_path / FOUND, **SMALL)
    assert content(tmp_path) == content(folder)


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


# Calls of `Spool.append` and of `Checkpoint.save`, which end every chunk, cut and part.
STOPS = [("append", 1), ("append", 9), *(("save", calls) for calls in (1, 3, 5, 7, 9, 11))]


@pytest.mark.parametrize(("what", "calls"), STOPS)
def test_a_killed_run_continues_and_ends_with_the_same_bytes(
    what: str, calls: int, made: tuple[Characteristics, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = made
    owner = spool.Spool if what == "append" else out_of_core.Checkpoint
    with monkeypatch.context() as patch:
        patch.setattr(owner, what, fails_after(getattr(owner, what), calls, Killed()))
        with pytest.raises(Killed):
            order_files(folder / "counts", tmp_path / FOUND, **SMALL)
    told: list[int] = []
    order_files(folder / "counts", tmp_path / FOUND, advance=told.append, **SMALL)
    assert content(tmp_path) == content(folder)
    assert sum(told) == NUM


def test_killed_while_it_is_published(
    made: tuple[Characteristics, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = made
    for name in ("write_text", "rmtree"):
        owner = out_of_core if name == "write_text" else shutil
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fails_after(lambda *_, **__: None, 1, Killed()))
            with pytest.raises(Killed):
                order_files(folder / "counts", tmp_path / FOUND, **SMALL)
        about = order_files(folder / "counts", tmp_path / FOUND, **SMALL)
        assert content(tmp_path) == content(folder)
        assert about == json.loads((folder / "order.json").read_text())


def interrupted(folder: Path, path: Path, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(out_of_core.Checkpoint, "save", fails_after(out_of_core.Checkpoint.save, calls, Killed()))
        with pytest.raises(Killed):
            order_files(folder, path, **SMALL)


def test_a_full_disk_is_one_sentence(
    made: tuple[Characteristics, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = made
    with monkeypatch.context() as patch:
        full = OSError(28, "No space left on device")
        patch.setattr(spool.Spool, "append", fails_after(spool.Spool.append, 5, full))
        with pytest.raises(UserError, match="free some space and repeat the call"):
            order_files(folder / "counts", tmp_path / FOUND, **SMALL)
    order_files(folder / "counts", tmp_path / FOUND, **SMALL)
    assert content(tmp_path) == content(folder)


def test_files_that_change_between_the_passes(
    made: tuple[Characteristics, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chars, folder = made
    counts = tmp_path / "counts"
    shutil.copytree(folder / "counts", counts)
    interrupted(counts, tmp_path / FOUND, 2, monkeypatch)
    last = sorted(counts.iterdir())[-1]
    shuffled = np.random.default_rng(0).permutation(400) + 800
    chars.take(shuffled).save(last)
    with pytest.raises(UserError, match="found other counts of the sequences"):
        order_files(counts, tmp_path / FOUND, **SMALL)
    last.write_bytes(last.read_bytes()[:-100])
    with pytest.raises(UserError, match="Parquet"):
        order_files(counts, tmp_path / FOUND, **SMALL)
    last.unlink()
    with pytest.raises(UserError, match="belongs to another run"):
        order_files(counts, tmp_path / FOUND, **SMALL)


@pytest.mark.parametrize(
    ("damage", "calls"),
    [("cut", 4), ("cut", 7), ("flip", 7), ("delete", 7), ("cut array", 11), ("state", 7), ("no state", 12)],
)
def test_parts_that_were_changed(
    damage: str, calls: int, made: tuple[Characteristics, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = made
    interrupted(folder / "counts", tmp_path / FOUND, calls, monkeypatch)
    unfinished = tmp_path / "order.npy.unfinished"
    path = unfinished / "part-000003.spool"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-5])
    elif damage == "flip":
        whole = bytearray(path.read_bytes())
        whole[len(whole) // 2] ^= 4
        path.write_bytes(bytes(whole))
    elif damage == "delete":
        path.unlink()
    elif damage == "cut array":
        (unfinished / "order.npy").write_bytes((unfinished / "order.npy").read_bytes()[:-8])
    elif damage == "state":
        (unfinished / "halved").write_bytes(b"x")
    else:
        (unfinished / "cut-000002").unlink()
    if damage == "no state":  # the cut is repaired again
        order_files(folder / "counts", tmp_path / FOUND, **SMALL)
        assert content(tmp_path) == content(folder)
        return
    with pytest.raises(UserError, match="delete"):
        order_files(folder / "counts", tmp_path / FOUND, **SMALL)


def test_another_order_in_the_same_place(
    made: tuple[Characteristics, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = made
    interrupted(folder / "counts", tmp_path / FOUND, 3, monkeypatch)
    for other in ({"seed": 1}, {"objective": Objective.f1()}, {"pool_size": 33}, {"sequences_in_memory": 310}):
        with pytest.raises(UserError, match="belongs to another run"):
            order_files(folder / "counts", tmp_path / FOUND, **{**SMALL, **other})


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


def followed(chars: Characteristics, ordering: Ordering, targets: Any) -> FollowedBalance:
    """The cluster's balance against the targets of every position."""
    if not isinstance(targets, Targets):
        shares = (targets or {}).get("cluster", chars.target_share("cluster"))
        targets = Targets((0,), {"cluster": shares[None]})
    placed = place(chars.counts["cluster"], ordering.indices)
    return follow(placed, targets.starts, targets.shares["cluster"], (64,), chars.sequence_length)


@pytest.mark.first(1)
@pytest.mark.parametrize("case", CASES)
def test_targets_and_consumed_sequences_as_in_memory(
    case: str, made: tuple[Characteristics, Path], tmp_path: Path
) -> None:
    chars, folder = made
    given = planned(chars)[case]
    about = order_files(folder / "counts", tmp_path / FOUND, **SMALL, **given)
    ours = Ordering.load(tmp_path / FOUND)
    theirs = order(chars, **{name: SMALL[name] for name in ("part_size", "pool_size")}, **given)
    num_consumed = len(given.get("consumed", ()))
    assert sorted(ours) == list(range(NUM))
    np.testing.assert_array_equal(ours.indices[:num_consumed], given.get("consumed", ())[:num_consumed])
    assert about.get("replanned_at") == theirs.info.get("replanned_at")
    assert about.get("targets") == theirs.info.get("targets")
    own, whole, shuffled = (
        followed(chars, each, given.get("targets")) for each in (ours, theirs, order(chars, "uniform_shuffle"))
    )
    assert own.windows[64].tv_mean < 1.05 * whole.windows[64].tv_mean
    assert own.prefix_l2_max < 1.3 * whole.prefix_l2_max + 1
    if not num_consumed:
        assert own.windows[64].tv_mean < 0.75 * shuffled.windows[64].tv_mean


def test_targets_with_other_files_after_a_kill(
    made: tuple[Characteristics, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chars, folder = made
    cases = planned(chars)
    given = {**cases["phases"], **cases["consumed"]}
    order_files(save(chars, tmp_path / "counts", 7), tmp_path / "expected.npy", **SMALL, **given)
    for calls in (1, 4, 7, 10):
        with monkeypatch.context() as patch:
            patch.setattr(out_of_core.Checkpoint, "save", fails_after(out_of_core.Checkpoint.save, calls, Killed()))
            with pytest.raises(Killed):
                order_files(folder / "counts", tmp_path / FOUND, **SMALL, **given)
        for other in (cases["phases"], cases["mapping"], {}):
            with pytest.raises(UserError, match="belongs to another run"):
                order_files(folder / "counts", tmp_path / FOUND, **SMALL, **other)
        told: list[int] = []
        order_files(folder / "counts", tmp_path / FOUND, advance=told.append, **SMALL, **given)
        assert sum(told) == NUM - len(given["consumed"])
        assert (tmp_path / FOUND).read_bytes() == (tmp_path / "expected.npy").read_bytes()


def test_targets_that_cannot_be_met(made: tuple[Characteristics, Path], tmp_path: Path) -> None:
    chars, folder = made
    shares = np.zeros(60)
    shares[[0, 7]] = 0.5
    with pytest.warns(UnmetTargets, match=r"times the tokens of cluster '\d+', which are used up"):
        order_files(folder / "counts", tmp_path / FOUND, **SMALL, targets={"cluster": shares})
    assert sorted(Ordering.load(tmp_path / FOUND)) == list(range(NUM))
    first = chars.counts["cluster"][Ordering.load(tmp_path / FOUND).indices[:40]].toarray()
    assert first[:, [0, 7]].sum() > 0.6 * first.sum()


@pytest.mark.parametrize("num_sequences", [0, 1, 5])
def test_plans_of_few_sequences(num_sequences: int, tmp_path: Path) -> None:
    chars = corpus(64).take(np.arange(num_sequences))
    save(chars, tmp_path / "counts", 1)
    for size, consumed in itertools.product((1, 3), {0, num_sequences // 2, num_sequences}):
        given = {"targets": {"cluster": np.eye(60)[3]}, "consumed": np.arange(consumed)[::-1]}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnmetTargets)
            order_files(tmp_path / "counts", tmp_path / FOUND, sequences_in_memory=size, **given)
        assert sorted(Ordering.load(tmp_path / FOUND)) == list(range(num_sequences))
        assert Ordering.load(tmp_path / FOUND).indices[:consumed].tolist() == list(range(consumed))[::-1]


@pytest.mark.parametrize(("num_sequences", "size"), [(0, 1), (1, 3), (5, 1), (5, 3)])
def test_few_sequences(num_sequences: int, size: int, tmp_path: Path) -> None:
    chars = corpus(64).take(np.arange(num_sequences))
    save(chars, tmp_path / "counts", 1)
    order_files(tmp_path / "counts", tmp_path / FOUND, sequences_in_memory=size)
    assert sorted(Ordering.load(tmp_path / FOUND)) == list(range(num_sequences))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sequences_in_memory": 0}, "sequences_in_memory"),
        ({"part_size": 0}, "part_size"),
        ({"pool_size": 0}, "pool_size"),
        ({"ties": "first"}, "ties"),
        ({"speed": 1}, "speed"),
        ({"mesh": 1}, "no mesh"),
        ({"seed": -1}, "seed"),
        ({"objective": Objective.f3(form="norms")}, "norms"),
        ({"targets": {"topic": [1.0]}}, "unknown families"),
        ({"targets": {"cluster": [1.0]}}, "60 groups"),
        ({"targets": {"cluster": [-1.0] * 60}}, ">= 0"),
        ({"targets": {"cluster": ["many"] * 60}}, "as numbers"),
        ({"consumed": [1, 1]}, "once"),
        ({"consumed": [NUM]}, "consumed"),
        ({"path": "order.npz"}, r"end in \.npy"),
        ({"path": "absent.npy/order.npy"}, "folder"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str, made: Any, tmp_path: Path) -> None:
    (tmp_path / "absent.npy").write_text("")
    path = tmp_path / arguments.pop("path", FOUND) if "path" in arguments else tmp_path / FOUND
    with pytest.raises(UserError, match=message):
        order_files(made[1] / "counts", path, **arguments)


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
