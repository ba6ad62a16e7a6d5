"""Stored schedules of runs: epochs, mixtures, additions and skips, against counting; batches over every change."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import shutil
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jax_diversity as jd
from jax_diversity.cli.main import main
from jax_diversity.foundation.locks import locked
from jax_diversity.streaming.run.interleaving import interleave
from jax_diversity.streaming.run.weights import phases_of
from tests.support.runs import assert_equal_batches, batches, whole
from tests.support.tiny_dataset import write_tiny_dataset


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two datasets, and a schedule of three epochs of the first."""
    root = tmp_path_factory.mktemp("runs")
    write_tiny_dataset(root / "web", num_documents=60)
    write_tiny_dataset(root / "code", num_documents=25, seed=1)
    jd.create_schedule(root / "three", root / "web", num_epochs=3)
    return root


@pytest.fixture
def web(folder: Path) -> jd.Dataset:
    return jd.open_dataset(folder / "web")


def of_dataset(run: jd.Run, index: int, numbers: np.ndarray | None = None) -> np.ndarray:
    """The sequences of one dataset in the order in which they come."""
    numbers = whole(run) if numbers is None else numbers
    first, last = run.offsets[index : index + 2]
    return numbers[(numbers >= first) & (numbers < last)] - first


def assert_epochs(sequences: np.ndarray, size: int) -> None:
    """Each sequence once in every whole epoch, and at most once in the last."""
    for start in range(0, len(sequences), size):
        epoch = sequences[start : start + size]
        assert len(np.unique(epoch)) == len(epoch)


@pytest.mark.parametrize(
    ("settings", "share"),
    [
        ({"weights": {"a": 1}}, "0"),
        ({"weights": [1, 1e-6]}, "1e-06"),
        ({"weights": ["1", "a", "1e-9", "b"]}, "1e-09"),
        ({"weights": {"a": 1, "b": 1e-6}, "joint": True}, "1e-06"),
        ({"consecutive": True, "num_positions": 3}, None),
    ],
)
def test_a_dataset_that_no_position_reads_is_named(tmp_path: Path, settings: dict, share: str | None) -> None:
    roots = [write_tiny_dataset(tmp_path / name, seed=seed, features="one").root for seed, name in enumerate("ab")]
    options = {"num_positions": 40, "method": "uniform_shuffle", **settings}
    with pytest.warns(UserWarning, match="No position of the run at .*run reads the dataset 'b'") as caught:
        run = jd.create_schedule(tmp_path / "run", roots, **options)
    assert [warning.filename for warning in caught] == [__file__]
    assert "a dataset that the weights do not name has weight 0" in str(caught[0].message)
    text = "no position reads 'b'" + ("" if share is None else f" (share {share})")
    assert run.content.versions[-1].change.endswith(text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = jd.extend_schedule(run, weights=[1, 1], num_positions=8)
        jd.extend_schedule(run, weights=[1, 0], num_positions=8)


def test_every_epoch_has_a_fresh_order(folder: Path, web: jd.Dataset) -> None:
    run = jd.open_schedule(folder / "three")
    size = web.num_sequences
    assert len(run) == 3 * size
    epochs = whole(run).reshape(3, size)
    for epoch in epochs:
        assert sorted(epoch.tolist()) == list(range(size))
    assert not (epochs[0] == epochs[1]).all()
    chars = web.characteristics
    first = jd.order(chars, "balance", seed=0)
    np.testing.assert_array_equal(epochs[0], first.indices)
    np.testing.assert_array_equal(epochs[1], jd.order(chars, "balance", seed=1, previous=first).indices)


def test_a_loader_follows_a_schedule(folder: Path, web: jd.Dataset) -> None:
    run = jd.open_schedule(folder / "three")
    found = batches(run)
    expected = list(jd.make_loader(jd.make_run(web, positions=run.indices), global_batch_size=8))
    assert len(found) == len(run) // 8
    for batch, other in zip(found, expected, strict=True):
        for name, rows in other.items():
            np.testing.assert_array_equal(batch[name], rows)
        assert (batch["dataset_index"] == 0).all()
    np.testing.assert_array_equal(np.concatenate([b["sequence_index"] for b in found]), whole(run)[: 8 * len(found)])
    # Worker processes open the schedule again by its folder.
    assert_equal_batches(batches(run, num_workers=1), found)
    again = pickle.loads(pickle.dumps(run))
    assert again.fingerprint == run.fingerprint


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_changes_keep_what_came_and_epochs_whole(folder: Path, tmp_path_factory: Any, data: st.DataObject) -> None:
    root = tmp_path_factory.mktemp("changed")
    run = jd.create_schedule(root / "run", folder / "web", num_epochs=data.draw(st.sampled_from([0.5, 1, 1.7])))
    names = ["web"]
    for _ in range(data.draw(st.integers(1, 3))):
        before, place = whole(run), data.draw(st.integers(0, len(run)))
        kept = run.fingerprint
        if len(names) == 1 and data.draw(st.booleans()):
            names.append("code")
            added: Any = folder / "code"
        else:
            added = ()
        weights = data.draw(st.lists(st.integers(1, 5), min_size=len(names), max_size=len(names)))
        length = data.draw(st.integers(1, 120))
        run = jd.extend_schedule(
            run, position=place, datasets=added, weights=weights, num_positions=length, method="greedy"
        )
        numbers = whole(run)
        assert len(run) == place + length
        np.testing.assert_array_equal(numbers[:place], before[:place])
        for index, dataset in enumerate(run.datasets):
            assert_epochs(of_dataset(run, index), dataset.num_sequences)
        # The mixture after the change is that of the rule.
        dataset, _ = run.places(np.arange(place, place + length))
        np.testing.assert_array_equal(dataset, interleave(*phases_of(weights), length))
        assert run.continues(place, kept)
        assert run.with_version(run.version - 1).fingerprint == kept
        np.testing.assert_array_equal(whole(run.with_version(run.version - 1)), before)


def test_a_run_goes_on_over_an_addition_on_any_number_of_hosts(folder: Path, tmp_path: Path) -> None:
    """Three epochs over two datasets, the second added in the second epoch, interrupted five times."""
    run = jd.create_schedule(tmp_path / "run", folder / "web", num_epochs=1)
    first = jd.open_schedule(tmp_path / "run")
    place = 8 * (len(run) // 8)
    run = jd.extend_schedule(run, position=place, datasets=folder / "code", weights=[1, 2], num_epochs=2)
    expected = batches(run)
    number = len(expected)
    stops = sorted({1, place // 8, place // 8 + 1, number // 2, number - 1})
    for num_hosts in (1, 2, 4):
        rows: list[list[dict]] = []
        for host in range(num_hosts):
            where = {"global_batch_size": 8, "num_hosts": num_hosts, "host_index": host}
            iterator, seen = iter(jd.make_loader(first, **where)), []
            for step in range(number):
                if step in stops:
                    state = json.loads(json.dumps(iterator.get_state()))
                    iterator.close()
                    # Up to the addition the first version is followed, from then on the second one.
                    version = first if step < place // 8 else jd.open_schedule(tmp_path / "run")
                    iterator = iter(jd.make_loader(version, **where))
                    iterator.set_state(state)
                seen.append(next(iterator))
            rows.append(seen)
        for step, batch in enumerate(expected):
            shared = [name for name in batch if name in rows[0][step]]
            assert shared == list(batch)
            for name in shared:
                parts = [rows[host][step][name] for host in range(num_hosts)]
                np.testing.assert_array_equal(np.concatenate(parts), batch[name])


def test_a_version_that_differs_before_the_position_is_refused(folder: Path, tmp_path: Path) -> None:
    run = jd.create_schedule(tmp_path / "run", folder / "web")
    iterator = iter(jd.make_loader(run, global_batch_size=4))
    for _ in range(5):
        next(iterator)
    state = iterator.get_state()
    later = jd.extend_schedule(run, position=12, method="greedy", seed=9)
    with pytest.raises(jd.UserError, match="ordering of fingerprint"):
        iter(jd.make_loader(later, global_batch_size=4)).set_state(state)
    # From the version that it was made with it goes on.
    iter(jd.make_loader(later.with_version(1), global_batch_size=4)).set_state(state)
    other = jd.create_schedule(tmp_path / "other", folder / "web")
    with pytest.raises(jd.UserError, match="dataset of fingerprint"):
        iter(jd.make_loader(other, global_batch_size=4)).set_state(state)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_skipped_positions_are_left_out_and_their_sequences_do_not_come_back(
    folder: Path, tmp_path_factory: Any, data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("skipped")
    shutil.copytree(folder / "three", root / "run")
    run = jd.open_schedule(root / "run", datasets=[folder / "web"])
    left = whole(run).tolist()
    skipped: Counter[int] = Counter()
    for _ in range(data.draw(st.integers(1, 3))):
        start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(left))] * 2)))
        run = jd.skip_positions(run, start, stop)
        skipped.update(left[start:stop])
        del left[start:stop]
        assert whole(run).tolist() == left
    assert Counter(left) + skipped == Counter(whole(jd.open_schedule(root / "run", 1)).tolist())
    size = run.datasets[0].num_sequences
    place = data.draw(st.integers(0, len(left)))
    longer = jd.extend_schedule(run, position=place, num_positions=size, method="greedy")
    assert whole(longer)[:place].tolist() == left[:place]
    assert_epochs(longer.history(len(longer)), size)


def slow_seen(run: jd.Run, stop: int) -> dict[tuple[int, str], tuple[int, int, int, int]]:
    """Tokens, sequences, first and last position of every document that was met."""
    met: dict[tuple[int, str], tuple[int, int, int, int]] = {}
    for position in range(stop):
        (dataset,), (sequence,) = run.places(np.array([position]))
        held = run.datasets[dataset]
        ids = list(held.document_store.ids())
        rows = np.flatnonzero(held.segments.sequence_index == sequence)
        for document in np.unique(held.segments.document_index[rows]).tolist():
            own = rows[held.segments.document_index[rows] == document]
            tokens = int(held.segments.length[own].sum())
            before = met.get((int(dataset), ids[document]), (0, 0, position, position))
            met[int(dataset), ids[document]] = (before[0] + tokens, before[1] + 1, before[2], position)
    return met


def test_documents_that_were_seen(folder: Path, tmp_path: Path) -> None:
    run = jd.create_schedule(tmp_path / "run", [folder / "web", folder / "code"], weights=[1, 3], num_positions=90)
    for stop in (0, 1, 37, 90):
        table = run.seen(stop, tmp_path / "seen.parquet")
        assert pq.read_table(tmp_path / "seen.parquet").equals(table)
        columns = ("tokens", "sequences", "first_position", "last_position")
        found = {(row["dataset"], row["id"]): tuple(row[name] for name in columns) for row in table.to_pylist()}
        assert found == slow_seen(run, stop)


def test_weights_that_change_and_other_methods(folder: Path, tmp_path: Path) -> None:
    later = jd.Targets((0, 30), {"dataset": np.array([[1.0, 0.0], [1.0, 1.0]])})
    pair = [folder / "web", folder / "code"]
    run = jd.create_schedule(tmp_path / "phases", pair, weights=later, num_positions=60)
    dataset, _ = run.places(np.arange(60))
    np.testing.assert_array_equal(dataset, interleave(*phases_of(later), 60))
    shuffled = jd.create_schedule(tmp_path / "shuffled", pair, method="uniform_shuffle", num_epochs=2)
    for index, member in enumerate(shuffled.datasets):
        assert_epochs(of_dataset(shuffled, index), member.num_sequences)
        assert len(of_dataset(shuffled, index)) == pytest.approx(2 * member.num_sequences, abs=1)


def test_a_version_says_in_which_families_it_leaves_the_mixture(folder: Path, tmp_path: Path) -> None:
    """Moving weights leave it in all families, as do other weights in an extension, and weights within one dataset."""
    pair = [folder / "web", folder / "code"]
    targets = {"length": jd.open_dataset(folder / "web").characteristics.target_share("length")}

    def made(name: str, datasets: Any, **settings: Any) -> Any:
        return jd.create_schedule(tmp_path / name, datasets, **settings)

    moving = jd.Targets.linear({"dataset": [1, 0]}, {"dataset": [0, 1]}, 60, 4)
    assert made("moving", pair, weights=moving, num_positions=60).info["targeted"] == ["dataset"]
    assert made("targets", folder / "web", targets=targets).info["targeted"] == ["length"]
    constant = made("constant", pair, weights=[3, 1], num_positions=400)
    again = jd.extend_schedule(constant, weights=[3, 1], num_positions=100)
    other = jd.extend_schedule(again, weights=[1, 3], num_positions=100)
    assert [run.info["targeted"] for run in (constant, again, other)] == [[], [], ["dataset"]]
    assert other.with_version(2).info["targeted"] == []
    assert made("turns", pair, consecutive=True).info["targeted"] == []
    groups = {"family": "length", "weights": {"short": 1, "*": 1}, "num_positions": 40}
    assert made("groups", folder / "web", **groups).info["targeted"] == ["dataset"]


def test_a_schedule_moves_with_its_datasets(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "moved")
    moved = jd.open_schedule(tmp_path / "moved" / "three")
    assert moved.datasets[0].root == tmp_path / "moved" / "web"
    shutil.rmtree(tmp_path / "moved" / "web")
    gone = jd.open_schedule(tmp_path / "moved" / "three")
    with pytest.raises(jd.UserError, match=r"not at its stored path.*datasets=\[...\]"):
        jd.make_loader(gone, global_batch_size=4)
    found = jd.open_schedule(tmp_path / "moved" / "three", datasets=[folder / "web"])
    assert_equal_batches(batches(found), batches(jd.open_schedule(folder / "three")))
    with pytest.raises(jd.UserError, match="built again with other sequences"):
        jd.make_loader(jd.open_schedule(folder / "three", datasets=[folder / "code"]), global_batch_size=4)


def test_bad_input(folder: Path, tmp_path: Path) -> None:
    web = folder / "web"
    for wrong, said in (
        ({"num_epochs": 0}, "num_epochs above zero"),
        ({"num_epochs": 1, "num_positions": 5}, "found both"),
        ({"num_positions": 0}, "num_positions"),
        ({"weights": [1, 2]}, "one weight for each dataset, 1 in total"),
        ({"weights": [0]}, "weight above zero"),
        ({"weights": [-1]}, "weight of dataset 0"),
        ({"method": "ballance"}, "did you mean 'balance'"),
        ({"seed": -1}, "seed"),
        ({"pool_size": 0}, "pool_size"),
    ):
        with pytest.raises(jd.UserError, match=said):
            jd.create_schedule(tmp_path / "bad", web, **wrong)
        assert not (tmp_path / "bad" / "schedule.json").exists()
    with pytest.raises(jd.UserError, match="at least one dataset"):
        jd.create_schedule(tmp_path / "bad", [])
    with pytest.raises(jd.UserError, match="without a schedule"):
        jd.create_schedule(folder / "three", web)
    write_tiny_dataset(tmp_path / "wide", sequence_length=32)
    with pytest.raises(jd.UserError, match=r"sequences of one length, found lengths \[16, 32\].*weight 0"):
        jd.create_schedule(tmp_path / "bad", [web, tmp_path / "wide"])
    run = jd.open_schedule(folder / "three")
    for position in (-1, len(run) + 1):
        with pytest.raises(jd.UserError, match="position"):
            jd.extend_schedule(run, position=position)
    with pytest.raises(jd.UserError, match="stop"):
        jd.skip_positions(run, 0, len(run) + 1)
    with pytest.raises(jd.UserError, match="version"):
        jd.open_schedule(folder / "three", 2)
    with pytest.raises(jd.UserError, match="leave it out"):
        jd.make_loader(run, ordering="uniform_shuffle", global_batch_size=4)
    with pytest.raises(jd.UserError, match=r"found no schedule\.json"):
        jd.open_schedule(folder / "web")


def test_files_that_were_damaged(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "three", tmp_path / "run")
    path = tmp_path / "run" / "schedule.json"
    good = path.read_text()
    for bad in (good.replace('"start": 0', '"start": 1'), good.replace("skipped", "skippd"), "[]", "{", good[:-40]):
        if bad != good:
            path.write_text(bad)
            with pytest.raises(jd.UserError, match="found a file that cannot be followed"):
                jd.open_schedule(tmp_path / "run")
    plain = json.loads(good)
    path.write_text(json.dumps({**plain, "format": 9}))
    with pytest.raises(jd.UserError, match="it has the format 9"):
        jd.open_schedule(tmp_path / "run")
    path.write_text(good)
    part = next((tmp_path / "run").glob("part-*.npy"))
    content = bytearray(part.read_bytes())
    content[-3] ^= 1
    part.write_bytes(content)
    run = jd.open_schedule(tmp_path / "run", datasets=[folder / "web"])
    with pytest.raises(jd.UserError, match="was changed"):
        next(iter(jd.make_loader(run, global_batch_size=4)))


def test_two_writers_and_old_versions(folder: Path, tmp_path: Path) -> None:
    run = jd.create_schedule(tmp_path / "run", folder / "web")
    with locked(tmp_path / "run"), pytest.raises(jd.UserError, match="this process"):
        _in_thread(lambda: jd.skip_positions(run, 0, 1))
    jd.skip_positions(run, 0, 1)
    with pytest.raises(jd.UserError, match="version 1 to be the last of the schedule"):
        jd.skip_positions(run, 0, 1)


def _in_thread(function: Any) -> None:
    import threading

    failed: list[BaseException] = []

    def called() -> None:
        try:
            function()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=called)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def _extend_and_die(path: str, where: str) -> None:
    import os

    from jax_diversity.streaming.run import content, making

    def die(*_: Any, **__: Any) -> None:
        os._exit(9)

    target = {"part": (making, "write_array"), "file": (content, "write_json")}[where]
    setattr(*target, die)
    jd.extend_schedule(jd.open_schedule(path), num_epochs=1)


@pytest.mark.campaign
@pytest.mark.parametrize("where", ["part", "file"])
def test_a_kill_in_mid_write_loses_nothing(folder: Path, tmp_path: Path, where: str) -> None:
    run = jd.create_schedule(tmp_path / "run", folder / "web")
    before = run.fingerprint
    process = multiprocessing.get_context("spawn").Process(target=_extend_and_die, args=(str(tmp_path / "run"), where))
    process.start()
    process.join()
    assert process.exitcode == 9
    again = jd.open_schedule(tmp_path / "run")
    assert (again.version, again.fingerprint) == (1, before)
    longer = jd.extend_schedule(again, num_epochs=1)
    other = jd.create_schedule(tmp_path / "other", folder / "web")
    expected = jd.extend_schedule(other, num_epochs=1)
    np.testing.assert_array_equal(whole(longer), whole(expected))


def test_batches_of_a_schedule_are_watched(folder: Path, web: jd.Dataset) -> None:
    run = jd.open_schedule(folder / "three")
    written: list[tuple[int, dict]] = []
    loader = jd.make_loader(run, global_batch_size=8)
    for _ in jd.watch_batches(loader, lambda step, values: written.append((step, dict(values)))):
        pass
    plain: list[tuple[int, dict]] = []
    same = jd.make_loader(jd.make_run(web, positions=run.indices), global_batch_size=8)
    for _ in jd.watch_batches(same, lambda step, values: plain.append((step, dict(values)))):
        pass
    assert [step for step, _ in written] == [step for step, _ in plain]
    for (_, found), (_, expected) in zip(written, plain, strict=True):
        for name in (name for name in expected if not name.startswith("input_wait")):
            assert found[name] == pytest.approx(expected[name])


def test_the_command_line_makes_and_measures_a_run(
    tiny_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    dataset, path = jd.open_dataset(tiny_dataset), tmp_path / "run"
    made = ["schedule", "--path", str(path), "--datasets", str(tiny_dataset), "--num-epochs", "1.5", "--quiet"]
    assert main(made) == 0
    assert "1.50" in capsys.readouterr().out
    run = jd.open_schedule(path)
    assert main(["measure", "--out", str(path), "--json", "--quiet"]) == 0
    figures = json.loads(capsys.readouterr().out)["run"]
    expected = jd.measure(dataset.characteristics, run, windows=(16,))
    assert figures["families"]["cluster"]["prefix_l2_max"] == pytest.approx(expected.prefix_l2["cluster"].max())


def test_the_command_line_changes_a_schedule_and_reads_a_file(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / "run"
    (tmp_path / "run.yaml").write_text(
        f"path: {path}\ndatasets: [{folder / 'web'}, {folder / 'code'}]\n"
        "mixture: {weights: [3, 1], num_positions: 80}\norder: {method: greedy}\n"
    )
    assert main(["schedule", "--config", str(tmp_path / "run.yaml"), "--quiet"]) == 0
    expected = jd.create_schedule(
        tmp_path / "same", [folder / "web", folder / "code"], weights=[3, 1], num_positions=80, method="greedy"
    )
    np.testing.assert_array_equal(whole(jd.open_schedule(path)), whole(expected))
    assert main(["schedule", "--path", str(path), "--position", "40", "--weights", "1", "1", "--quiet"]) == 0
    expected = jd.extend_schedule(expected, position=40, weights=[1, 1])
    np.testing.assert_array_equal(whole(jd.open_schedule(path)), whole(expected))
    assert main(["schedule", "--path", str(path), "--skip", "8", "16", "--quiet"]) == 0
    expected = jd.skip_positions(expected, 8, 16)
    seen = ["--seen", "30", "--out", str(tmp_path / "seen.parquet")]
    assert main(["schedule", "--path", str(path), *seen]) == 0
    assert pq.read_table(tmp_path / "seen.parquet").equals(expected.seen(30))
    out = capsys.readouterr().out
    assert "positions 8 to 16 skipped" in out
    for wrong, said in (
        (["--skip", "3"], "--skip with two positions"),
        (["--skip", "3", "5", "--position", "2"], "without --position"),
        (["--position", "99999"], "position"),
        (["--position", "-2"], "-1 for the end"),
        (["--position", "3", "--weights", "1"], "one weight for each dataset, 2 in total"),
        (["--weights", "1", "1"], "--position with settings that change the schedule"),
        (["--seen", "-1"], "--seen >= 0"),
    ):
        assert main(["schedule", "--path", str(path), "--quiet", *wrong]) == 2
        assert said in capsys.readouterr().err
    assert main(["schedule", "--path", str(tmp_path / "none"), "--position", "3"]) == 2
    # The command that made it, given again, changes nothing.
    before = jd.open_schedule(path).fingerprint
    assert main(["schedule", "--config", str(tmp_path / "run.yaml"), "--quiet"]) == 2
    assert "--path alone to show this" in capsys.readouterr().err
    assert jd.open_schedule(path).fingerprint == before
    assert main(["schedule", "--path", str(path), "--position", "-1", "--num-positions", "5", "--quiet"]) == 0
    assert len(jd.open_schedule(path)) == len(expected) + 5


def test_a_skip_of_a_whole_part_is_another_schedule(folder: Path, tmp_path: Path) -> None:
    run = jd.create_schedule(tmp_path / "run", folder / "web", num_positions=32)
    run = jd.extend_schedule(run, num_positions=20)
    state = iter(jd.make_loader(run, global_batch_size=4, start_position=40)).get_state()
    skipped = jd.skip_positions(run, 0, 32)
    assert skipped.fingerprint != run.fingerprint
    with pytest.raises(jd.UserError, match=r"ordering of fingerprint|position in 0"):
        iter(jd.make_loader(skipped, global_batch_size=4)).set_state({**state, "position": 4})


def test_versions_of_fewer_datasets_and_seeds_that_go_on(folder: Path, tmp_path: Path) -> None:
    run = jd.create_schedule(tmp_path / "run", folder / "web", seed=1, method="uniform_shuffle")
    longer = jd.extend_schedule(run, num_epochs=1, method="uniform_shuffle")
    size = len(run)
    assert not (whole(longer)[:size] == whole(longer)[size:]).all()
    added = jd.extend_schedule(longer, datasets=folder / "code", weights=[0, 1], num_positions=9)
    assert (added.places(np.arange(2 * size, 2 * size + 9))[0] == 1).all()
    assert [dataset.root.name for dataset in added.with_version(1).datasets] == ["web"]
    assert len(batches(added.with_version(1))) == size // 8
    only_first = jd.open_schedule(tmp_path / "run", datasets=[folder / "web"])
    assert [dataset.root.name for dataset in only_first.datasets] == ["web", "code"]
    # No dataset is opened to skip: it may be elsewhere at the moment.
    gone = jd.open_schedule(tmp_path / "run", datasets=["nowhere"])
    assert len(jd.skip_positions(gone, 0, 4)) == len(added) - 4


def test_small_mistakes(folder: Path, tmp_path: Path) -> None:
    run = jd.open_schedule(folder / "three")
    with pytest.raises(jd.UserError, match="leave it out"):
        jd.make_loader(run, ordering=np.arange(3), global_batch_size=4)
    with pytest.raises(jd.UserError, match="no cache_folder"):
        jd.make_loader(run, cache_folder=tmp_path, global_batch_size=4)
    with pytest.raises(jd.UserError, match="at least one of"):
        jd.create_schedule(tmp_path / "run", folder / "web", num_epochs=1e-4)
    with pytest.raises(jd.UserError, match=r"one family, 'dataset', found \['topic'\]"):
        jd.create_schedule(tmp_path / "run", folder / "web", weights=jd.Targets((0,), {"topic": np.ones((1, 1))}))
