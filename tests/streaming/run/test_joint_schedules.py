"""Schedules whose datasets, or groups, are ordered jointly: shares of tokens, copies apart, limits, changes."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jax_diversity as jd
from jax_diversity.cli.main import main
from jax_diversity.streaming.run.joining import joined_characteristics, joined_groups
from tests.support.runs import assert_equal_batches, batches, whole
from tests.support.tiny_dataset import write_tiny_dataset

# What is tested here does not depend on how parts are ordered; `balance` would be compiled for parts of all sizes.
SHUFFLED: Any = {"method": "uniform_shuffle"}
CLUSTERS = {"cluster": tuple("01234"), "length": ("short", "middle", "long")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("joint")
    write_tiny_dataset(root / "web", num_documents=60, features="space")
    write_tiny_dataset(root / "code", num_documents=25, seed=1, features="space")
    write_tiny_dataset(root / "strange", num_documents=10, seed=2, features="other space")
    write_tiny_dataset(root / "long", num_documents=10, seed=3, sequence_length=32, features="space")
    return root


def pair(folder: Path) -> list[jd.Dataset]:
    return [jd.open_dataset(folder / name) for name in ("web", "code")]


def tokens_of(run: jd.Run, numbers: np.ndarray | None = None) -> np.ndarray:
    """Tokens of every dataset in a run."""
    numbers = whole(run) if numbers is None else numbers
    tokens = joined_characteristics(run.datasets).tokens[numbers]
    return np.bincount(np.searchsorted(run.offsets, numbers, side="right") - 1, tokens, minlength=len(run.members))


def assert_in_turn(times: np.ndarray, offsets: np.ndarray) -> None:
    """No sequence of a dataset comes a second time more often than another."""
    for first, end in itertools.pairwise(offsets):
        assert np.ptp(times[first:end], axis=0) <= 1


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_shares_copies_and_changes(folder: Path, tmp_path_factory: Any, data: st.DataObject) -> None:
    root, datasets = tmp_path_factory.mktemp("run"), pair(folder)
    weights = [data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2))]
    positions = data.draw(st.integers(150, 400))
    run = jd.create_schedule(root / "run", datasets, weights=weights, num_positions=positions, joint=True, **SHUFFLED)
    assert len(run) == positions
    found = tokens_of(run) / tokens_of(run).sum()
    np.testing.assert_allclose(found, np.array(weights) / sum(weights), atol=0.015)
    numbers, size = whole(run), int(run.offsets[-1])
    times = np.bincount(numbers, minlength=size)
    assert_in_turn(times, run.offsets)
    # A quarter of an even spacing is left where parts are as short as these; without the rule copies may be neighbours.
    for sequence in np.flatnonzero(times > 1):
        assert np.diff(np.flatnonzero(numbers == sequence)).min() > positions / times.max() / 4
    place = data.draw(st.integers(1, positions))
    changed = jd.extend_schedule(run, position=place, weights=weights[::-1], num_positions=120, joint=True, **SHUFFLED)
    np.testing.assert_array_equal(whole(changed)[:place], numbers[:place])
    assert_in_turn(np.bincount(whole(changed), minlength=size), run.offsets)
    found = tokens_of(changed, whole(changed)[place:])
    np.testing.assert_allclose(found / found.sum(), np.array(weights[::-1]) / sum(weights), atol=0.02)
    kept = jd.skip_positions(changed, 3, 11)
    again = jd.extend_schedule(kept, weights=weights, num_positions=150, joint=True, **SHUFFLED)
    # What was skipped counts as come.
    all_came = np.concatenate([whole(changed), whole(again)[len(kept) :]])
    assert_in_turn(np.bincount(all_came, minlength=size), run.offsets)


def test_the_joint_order_holds_every_window_to_the_mixture(folder: Path, tmp_path: Path) -> None:
    datasets = pair(folder)
    chars = joined_characteristics(datasets)
    run = jd.create_schedule(tmp_path / "run", datasets, joint=True)
    in_turn = jd.create_schedule(tmp_path / "in-turn", datasets)
    assert sorted(whole(run).tolist()) == list(range(chars.num_sequences))

    def tv(orders: Any, family: str) -> float:
        return float(jd.measure(chars, orders, windows=(16,)).window_tv[family][16].mean())

    assert tv(run, "cluster") + tv(run, "length") < (tv(in_turn, "cluster") + tv(in_turn, "length"))
    of_web = (whole(run) < datasets[0].num_sequences).reshape(-1)[: len(run) // 16 * 16].reshape(-1, 16).sum(axis=1)
    assert np.ptp(of_web) <= 4


def test_a_group_is_repeated_up_to_its_share(folder: Path, tmp_path: Path) -> None:
    web = jd.open_dataset(folder / "web")
    tokens = web.characteristics.counts["cluster"]
    held = np.asarray(tokens.sum(axis=0)).ravel()
    weights = {"0": 3, "1": 1, "*": 4}
    run = jd.create_schedule(tmp_path / "run", web, weights=weights, family="cluster", num_epochs=2, **SHUFFLED)
    came = np.bincount(whole(run), minlength=web.num_sequences) @ tokens
    asked = np.array([3, 1, *(4 * held[2:] / held[2:].sum())])
    np.testing.assert_allclose(came / came.sum(), asked / asked.sum(), atol=0.02)
    with pytest.raises(
        jd.UserError, match=r"at most 2 times, found a share of cluster '0' that needs each .* too many"
    ):
        jd.create_schedule(tmp_path / "x", web, weights=weights, family="cluster", num_epochs=2, max_repeats=2)
    assert not (tmp_path / "x" / "schedule.json").exists()
    moving = jd.Targets((0, 60), {"cluster": np.array([[1.0, 1, 1, 1, 1], [2, 1, 1, 1, 1]])})
    phases = jd.create_schedule(
        tmp_path / "moving", web, weights=moving, family="cluster", num_positions=120, **SHUFFLED
    )
    for numbers, share in ((whole(phases)[:60], 0.2), (whole(phases)[60:], 1 / 3)):
        came = tokens[numbers].sum(axis=0)
        assert abs(came[0] / came.sum() - share) < 0.03


def test_a_megatron_list_weighs_the_sources_of_its_prefixes(tmp_path: Path) -> None:
    names = ("books_text_document", "web_text_document")
    write_tiny_dataset(tmp_path / "out", num_documents=60, group_names={"source": names, "length": ("short", "long")})
    settings: Any = {"family": "source", "num_positions": 60, **SHUFFLED}
    weights = ["45", "tokens/web_text_document", "55", "tokens/books_text_document"]
    run = jd.create_schedule(tmp_path / "run", tmp_path / "out", weights=weights, **settings)
    by_name = {"books_text_document": 55, "web_text_document": 45}
    same = jd.create_schedule(tmp_path / "same", tmp_path / "out", weights=by_name, **settings)
    np.testing.assert_array_equal(whole(run), whole(same))
    came = jd.open_dataset(tmp_path / "out").characteristics.counts["source"][whole(run)].sum(axis=0)
    np.testing.assert_allclose(came / came.sum(), [0.55, 0.45], atol=0.03)


def test_a_megatron_list_weighs_the_folders_of_numbered_files(tmp_path: Path) -> None:
    write_tiny_dataset(
        tmp_path / "out", num_documents=60, group_names={"source": ("code", "web"), "length": ("short", "long")}
    )
    settings: Any = {"family": "source", "num_positions": 60, **SHUFFLED}
    weights = ["45", "tokens/web/00000_tokens", "55", "tokens/code/00000_tokens"]
    run = jd.create_schedule(tmp_path / "run", tmp_path / "out", weights=weights, **settings)
    same = jd.create_schedule(tmp_path / "same", tmp_path / "out", weights={"code": 55, "web": 45}, **settings)
    np.testing.assert_array_equal(whole(run), whole(same))


@pytest.mark.parametrize("joint", [False, True])
def test_limits_and_temperature(folder: Path, tmp_path: Path, joint: bool) -> None:
    datasets, made = pair(folder), SHUFFLED if joint else {}
    sizes = np.array([each.num_sequences for each in datasets])
    count = 300
    assert count / 2 > 3 * sizes[1]
    run = jd.create_schedule(
        tmp_path / "run", datasets, temperature=1e6, max_repeats=3, num_positions=count, joint=joint, **made
    )
    times = np.bincount(whole(run), minlength=sizes.sum())
    assert times.max() == 3
    assert times[sizes[0] :].tolist() == [3] * sizes[1]  # what it may have; the rest is of the other
    # With 350 positions, the limits of both leave 43 of 393.
    longer = jd.extend_schedule(run, temperature=2, max_repeats=3, num_positions=50, joint=joint, **made)
    times = np.bincount(whole(longer), minlength=sizes.sum())
    assert times.max() == 3
    assert times[: sizes[0]].sum() == 350 - 3 * sizes[1]
    with pytest.raises(jd.UserError, match=r"times too long; raise the limit or shorten the run"):
        jd.extend_schedule(longer, max_repeats=3, num_epochs=3, joint=joint, **made)
    with pytest.raises(
        jd.UserError, match=r"at most 2 times, found a share of dataset 'code' that needs each sequence 3\.\d\d"
    ):
        jd.extend_schedule(longer, weights={"code": 1}, max_repeats=2, num_positions=20, joint=joint, **made)
    assert len(jd.open_schedule(tmp_path / "run").content.versions) == 2
    heated = jd.create_schedule(tmp_path / "hot", datasets, temperature=2, num_positions=100, joint=joint, **made)
    of_web = (whole(heated) < sizes[0]).mean()
    assert of_web == pytest.approx(np.sqrt(sizes[0]) / np.sqrt(sizes).sum(), abs=0.04)


@pytest.mark.campaign
def test_weights_by_name_and_in_megatron_lists(folder: Path, tmp_path: Path) -> None:
    datasets = pair(folder)
    expected = jd.create_schedule(tmp_path / "numbers", datasets, weights=[1, 3], num_positions=80)
    lists = (["3", "code", "1", "web"], ["1", str(folder / "web"), "3", str(folder / "code")], {"w*": 1, "code": 3})
    for index, weights in enumerate(lists):
        run = jd.create_schedule(tmp_path / str(index), datasets, weights=weights, num_positions=80)
        np.testing.assert_array_equal(whole(run), whole(expected))
    shared = jd.create_schedule(tmp_path / "shared", datasets, weights={"*": 1}, num_positions=80)
    np.testing.assert_array_equal(
        whole(shared), whole(jd.create_schedule(tmp_path / "sizes", datasets, num_positions=80))
    )
    arguments = ["schedule", "--path", str(tmp_path / "line"), "--num-positions", "80", "--quiet"]
    arguments += ["--datasets", str(folder / "web"), str(folder / "code"), "--weights", "3", "code", "1", "web"]
    assert main(arguments) == 0
    np.testing.assert_array_equal(whole(jd.open_schedule(tmp_path / "line")), whole(expected))
    config = tmp_path / "run.yaml"
    config.write_text(
        f"path: {tmp_path / 'file'}\ndatasets: [{folder / 'web'}, {folder / 'code'}]\n"
        "mixture: {weights: [3, code, 1, web], joint: true, num_positions: 80, max_repeats: 2}\n"
    )
    assert main(["schedule", "--config", str(config), "--quiet"]) == 0
    joint = jd.create_schedule(tmp_path / "joint", datasets, weights=[1, 3], num_positions=80, joint=True)
    np.testing.assert_array_equal(whole(jd.open_schedule(tmp_path / "file")), whole(joint))


def test_a_dataset_added_jointly_is_read_on_any_number_of_hosts(folder: Path, tmp_path: Path) -> None:
    web, code = pair(folder)
    run = jd.create_schedule(tmp_path / "run", web, num_epochs=1)
    iterator = iter(jd.make_loader(run, global_batch_size=8))
    first = [next(iterator) for _ in range(4)]
    state = iterator.get_state()
    joined = jd.extend_schedule(run, position=32, datasets=code, weights=[1, 2], num_positions=88, joint=True)
    expected = batches(joined)
    assert_equal_batches(first, expected[:4])
    resumed = iter(jd.make_loader(joined, global_batch_size=8))
    resumed.set_state(state)
    assert_equal_batches(list(resumed), expected[4:])
    for num_hosts in (2, 4):
        parts = [batches(joined, num_hosts=num_hosts, host_index=host) for host in range(num_hosts)]
        together = [
            {name: np.concatenate([rows[name] for rows in step]) for name in step[0]}
            for step in zip(*parts, strict=True)
        ]
        assert_equal_batches(together, expected)
    # Of the first dataset comes what did not come yet.
    rest = whole(joined)[32:]
    of_web = rest[rest < web.num_sequences]
    assert not set(of_web[: web.num_sequences - 32].tolist()) & set(whole(run)[:32].tolist())


@pytest.mark.parametrize("place", [70, 311])
def test_a_joint_run_goes_on_with_datasets_in_turn(folder: Path, tmp_path: Path, place: int) -> None:
    """And the other way round: what came less often comes first, whatever made it come."""
    datasets = pair(folder)
    run = jd.create_schedule(tmp_path / "run", datasets, weights=[1, 2], joint=True, num_positions=320, **SHUFFLED)
    size = int(run.offsets[-1])
    for joint in (False, True):
        run = jd.extend_schedule(run, position=place, weights=[2, 1], num_positions=90, joint=joint)
        assert_in_turn(np.bincount(whole(run), minlength=size), run.offsets)


def test_methods_without_a_plan(folder: Path, tmp_path: Path) -> None:
    datasets = pair(folder)
    for method in ("uniform_shuffle", "greedy", "stratified"):
        run = jd.create_schedule(
            tmp_path / method, datasets, weights=[1, 2], joint=True, method=method, num_positions=300
        )
        times = np.bincount(whole(run), minlength=int(run.offsets[-1]))
        assert_in_turn(times, run.offsets)


def test_refusals(folder: Path, tmp_path: Path) -> None:
    web, code = pair(folder)
    run = jd.create_schedule(tmp_path / "run", web)
    strange, long = folder / "strange", folder / "long"
    targets = {"cluster": np.ones((1, 5))}

    def refused(sentence: str, datasets: Any = (web, code), **given: Any) -> None:
        with pytest.raises(jd.UserError, match=sentence):
            jd.create_schedule(tmp_path / "new", list(datasets), **given)
        assert not (tmp_path / "new" / "schedule.json").exists()

    refused(
        "one feature space for a joint order, found another in .*strange.*features_from", (web, strange), joint=True
    )
    refused(r"sequences of one length, found lengths \[16, 32\]", (web, long), joint=True)
    refused("a joint order without targets", joint=True, targets=targets)
    refused("one dataset that is not joint, found a joint order", (web,), joint=True, ordering="balance")
    refused("family to be one of dataset, cluster, length, found 'source'", family="source", weights={"a": 1})
    refused("weights of cluster by name, such as {'0': 1}", family="cluster", weights=[1, 2, 3, 4, 5])
    refused("weights to name groups of cluster, found '7'; there are 0, 1, 2, 3, 4", family="cluster", weights={"7": 1})
    refused("weights to name groups of dataset, found 'books'; there are web, code", weights={"books": 1})
    refused("weights or a temperature, found both", weights=[1, 1], temperature=2)
    refused("temperature above zero", temperature=0)
    refused("max_repeats to be a whole number >= 1", max_repeats=0)
    refused(
        "of one family, 'cluster'", family="cluster", weights=jd.Targets((0,), targets | {"length": np.ones((1, 3))})
    )
    with pytest.raises(jd.UserError, match="one feature space"):
        jd.extend_schedule(run, datasets=strange, joint=True)
    assert len(jd.open_schedule(tmp_path / "run").content.versions) == 1
    assert (
        len(jd.extend_schedule(run, datasets=strange)) == 2 * web.num_sequences + jd.open_dataset(strange).num_sequences
    )


def test_groups_of_joined_datasets(folder: Path) -> None:
    datasets = pair(folder)
    chars = joined_characteristics(datasets)
    assert joined_groups(datasets, "cluster") == CLUSTERS["cluster"]
    assert chars.take(np.array([3, 1])).tokens.tolist() == chars.tokens[[3, 1]].tolist()
