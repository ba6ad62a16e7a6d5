"""Exports are read here as the other stacks read them, by readers written from their formats."""

from __future__ import annotations

import asyncio
import glob
import itertools
import json
import os
import pickle
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example as case
from hypothesis import given
from hypothesis import strategies as st

import jax_diversity as jd
from jax_diversity.cli.main import main
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.locks import hold
from jax_diversity.schema import Ordering
from jax_diversity.streaming.export.levanter import LevanterDataset
from jax_diversity.streaming.export.maxtext import encode_examples, write_maxtext
from jax_diversity.streaming.export.olmo import indices_name, write_olmo, write_olmo_tokens
from jax_diversity.streaming.export.permutation import document_order, write_permutation
from jax_diversity.streaming.export.pytorch import OrderedBatchSampler
from jax_diversity.streaming.export.settings import OlmoExportConfig
from tests.support.maxtext import parse_example, read_as_maxtext
from tests.support.tiny_dataset import TinyDataset, reference_row, write_tiny_dataset


@pytest.fixture(scope="module", params=["packed", "ordered"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyDataset:
    folder = tmp_path_factory.mktemp("tiny") / "dataset"
    return write_tiny_dataset(folder, layout=request.param, dtype="int32", vocab_size=50_000)


def tokens_of(tiny: TinyDataset, sequence: int) -> list[int]:
    row = reference_row(tiny.segments, tiny.store, int(sequence))
    return row["inputs"][row["inputs_segmentation"] > 0].tolist()


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Rows


def test_pickles_carry_names_and_refuse_what_changed(tmp_path: Path) -> None:
    tiny = write_tiny_dataset(tmp_path / "dataset")
    np.save(tmp_path / "own.npy", np.arange(tiny.segments.num_sequences))
    dataset = LevanterDataset(tiny.root, tmp_path / "own.npy")
    expected = asyncio.run(dataset.get_batch([4]))[0]["tokens"]
    pickled = pickle.dumps(dataset)
    assert len(pickled) < 5000
    assert np.array_equal(asyncio.run(pickle.loads(pickled).get_batch([4]))[0]["tokens"], expected)
    np.save(tmp_path / "own.npy", np.arange(tiny.segments.num_sequences)[::-1])
    with pytest.raises(UserError, match=r"ordering of fingerprint .*own\.npy, found"):
        pickle.loads(pickled)
    pickled = pickle.dumps(jd.SequenceSource(tiny.root))
    shutil.rmtree(tiny.root)
    write_tiny_dataset(tiny.root, seed=1)
    with pytest.raises(UserError):
        pickle.loads(pickled)[0]


def test_an_ordering_that_is_written_to_in_place_is_not_followed(tmp_path: Path) -> None:
    tiny = write_tiny_dataset(tmp_path / "dataset")
    order, path = tiny.orders["balance"], tmp_path / "own.npy"
    np.save(path, order)
    stored = tiny.root / "orderings" / "balance.npy"
    named, owned = jd.make_run(tiny.root), jd.make_run(tiny.root, path)
    sampler, levanter = OrderedBatchSampler(tiny.root, "balance", 4), LevanterDataset(tiny.root)
    positions = np.arange(len(order))
    for file in (stored, path):
        with file.open("r+b") as opened:
            opened.seek(-8 * len(order), os.SEEK_END)
            opened.write(order[::-1].astype("<i8").tobytes())
    for follow in (
        lambda: named.at(positions),
        lambda: next(iter(sampler)),
        lambda: asyncio.run(levanter.get_batch([0])),
        lambda: write_maxtext(named, tmp_path / "m"),
    ):
        with pytest.raises(UserError, match=r"balance\.npy to be unchanged since it was opened, found"):
            follow()
    with pytest.raises(UserError, match=r"own\.npy to be unchanged since it was opened"):
        owned.at(positions)
    with pytest.raises(UserError, match=r"ordering of fingerprint .*own\.npy, found"):
        pickle.loads(pickle.dumps(owned))


def test_a_worker_in_another_folder_finds_what_was_named_by_relative_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = write_tiny_dataset(tmp_path / "here" / "dataset")
    monkeypatch.chdir(tmp_path / "here")
    np.save("own.npy", tiny.orders["uniform_shuffle"])
    pickled = pickle.dumps([LevanterDataset("dataset", "own.npy"), jd.SequenceSource(Path("dataset"))])
    monkeypatch.chdir(tmp_path)
    ordered, plain = pickle.loads(pickled)
    sequence = tiny.orders["uniform_shuffle"][0]
    assert np.array_equal(asyncio.run(ordered.get_batch([0]))[0]["tokens"], plain[sequence]["inputs"])


def read_first(source: jd.SequenceSource, results: Any) -> None:
    results.put(source[1]["inputs"])


def test_a_forked_process_opens_the_records_itself(tiny: TinyDataset) -> None:
    source = jd.SequenceSource(tiny.root)
    expected = source[1]["inputs"]
    context = get_context("fork")
    results = context.Queue()
    process = context.Process(target=read_first, args=(source, results))
    process.start()
    assert np.array_equal(results.get(timeout=60), expected)
    process.join()
    assert process.exitcode == 0


# Indices alone


def test_permutations_are_plain_arrays_and_others_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "order.npy"
    written = write_permutation(np.array([2, 0, 1]), path)
    assert np.load(path).dtype == np.int64
    assert np.load(path).tolist() == [2, 0, 1]
    assert str(path) in written.line
    write_permutation(np.array([2, 0, 1]), path)
    with pytest.raises(UserError, match=r"found another file; .* --overwrite"):
        write_permutation(np.array([0, 1, 2]), path)
    assert np.load(path).tolist() == [2, 0, 1]
    write_permutation(np.array([0, 1, 2]), path, overwrite=True)
    assert np.load(path).tolist() == [0, 1, 2]
    assert [file.name for file in path.parent.iterdir()] == ["order.npy"]
    with pytest.raises(UserError, match="Expected a folder that can be written"):
        write_permutation(np.array([0]), path / "below.npy")


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_documents_come_when_training_first_meets_them(sequences: list[list[int]], random: Any) -> None:
    order = list(range(len(sequences)))
    random.shuffle(order)
    met = itertools.chain.from_iterable(sequences[sequence] for sequence in order)
    sizes = [len(documents) for documents in sequences]
    found = document_order(
        np.repeat(np.arange(len(sequences)), sizes),
        np.array([document for documents in sequences for document in documents], np.int64),
        Ordering(np.array(order)),
    )
    assert found.tolist() == list(dict.fromkeys(met))


# tf.train.Example


ROWS = st.lists(st.lists(st.one_of(st.integers(0, 300), st.integers(0, 2**31 - 1)), max_size=9), min_size=1, max_size=6)


@given(ROWS, st.text(min_size=1, max_size=200))
@case([[2**bits - 1, 2**bits] for bits in (7, 14, 21, 28)], "each number of bytes")
def test_examples_parse_back(rows: list[list[int]], name: str) -> None:
    assert [parse_example(example) for example in encoded(rows, name)] == [{name: row} for row in rows]


@pytest.mark.campaign
@given(ROWS)
def test_examples_are_byte_for_byte_tensorflow_s(rows: list[list[int]]) -> None:
    tensorflow = pytest.importorskip("tensorflow", reason="TensorFlow's own parser is an extra")
    for row, example in zip(rows, encoded(rows, "tokens"), strict=True):
        parsed = tensorflow.train.Example.FromString(example)
        assert list(parsed.features.feature["tokens"].int64_list.value) == row
        assert parsed.SerializeToString(deterministic=True) == example


def encoded(rows: list[list[int]], name: str) -> list[bytes]:
    width = max(map(len, rows)) + 1
    tokens = np.full((len(rows), width), 7, np.int32)  # what is behind a row's end must not show
    for index, row in enumerate(rows):
        tokens[index, : len(row)] = row
    return encode_examples(tokens, np.array([len(row) for row in rows]), name)


def test_negative_tokens_are_no_examples() -> None:
    with pytest.raises(ValueError, match="found -3"):
        encode_examples(np.array([[1, -3]], np.int32), np.array([2]))


# MaxText


@pytest.mark.parametrize("per_file", [None, 5])
def test_maxtext_reads_the_tokens_in_our_order(tiny: TinyDataset, tmp_path: Path, per_file: int | None) -> None:
    done: list[int] = []
    run = jd.make_run(tiny.root, "uniform_shuffle")
    written = write_maxtext(run, tmp_path / "m", sequences_per_file=per_file, advance=done.append)
    order = tiny.orders["uniform_shuffle"]
    assert read_as_maxtext(written.files[-1]) == [tokens_of(tiny, sequence) for sequence in order]
    assert sum(done) == len(order)
    assert len(written.files) == 1 + (1 if per_file is None else -(-len(order) // per_file))
    assert f"max_target_length: {tiny.segments.sequence_length}\n" in written.files[-1].read_text()


def test_a_maxtext_export_goes_on_where_it_was_cut_off(tmp_path: Path) -> None:
    tiny = write_tiny_dataset(tmp_path / "dataset")
    balanced, folder = jd.make_run(tiny.root), tmp_path / "m"

    def stop(amount: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_maxtext(balanced, folder, sequences_per_file=5, advance=stop)
    assert not list(folder.glob("*.array_record*"))
    write_maxtext(balanced, folder, sequences_per_file=5)
    whole = snapshot(folder)
    kept, cut_short, *_, gone = sorted(folder.glob("*.array_record"))
    gone.unlink()
    cut_short.write_bytes(cut_short.read_bytes()[:-100])
    (folder / "maxtext.yml").unlink()
    stamp = kept.stat().st_mtime_ns
    write_maxtext(balanced, folder, sequences_per_file=5)
    assert snapshot(folder) == whole
    assert kept.stat().st_mtime_ns == stamp


def test_another_ordering_s_records_stay(tiny: TinyDataset, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    write_maxtext(jd.make_run(tiny.root, "balance"), folder, sequences_per_file=5)
    before = snapshot(folder)
    other = jd.make_run(tiny.root, "uniform_shuffle")
    with pytest.raises(UserError, match="array_record of another"):
        write_maxtext(other, folder)
    assert snapshot(folder) == before
    written = write_maxtext(other, folder, overwrite=True)
    assert len(list(folder.glob("*.array_record"))) == 1
    assert len(read_as_maxtext(written.files[-1])) == len(other)
    (folder / "order.json").write_text("no JSON")
    with pytest.raises(UserError, match="of another"):
        write_maxtext(other, folder)
    with pytest.raises(UserError, match="sequences_per_file to be a whole number >= 1, found 0"):
        write_maxtext(other, folder, sequences_per_file=0)


def test_exports_to_one_folder_come_one_after_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = write_tiny_dataset(tmp_path / "dataset")
    orders = {name: jd.make_run(tiny.root, name) for name in ("balance", "uniform_shuffle")}
    names = {order.fingerprint: name for name, order in orders.items()}
    folder = tmp_path / "m"
    with ThreadPoolExecutor(2) as writers:
        for _ in range(5):
            both = [
                writers.submit(write_maxtext, order, folder, sequences_per_file=7, overwrite=True)
                for order in orders.values()
            ]
            refused = [error for writer in both if (error := writer.exception()) is not None]
            assert all("is being written by this process" in str(error) for error in refused)
            assert len(refused) < 2
            name = names[json.loads((folder / "order.json").read_text())["ordering"]]
            found = read_as_maxtext(folder / "maxtext.yml")
            assert found == [tokens_of(tiny, sequence) for sequence in tiny.orders[name]]
        before = snapshot(folder)
        with hold(folder):
            out = ("--out", str(tiny.root), "--target", str(folder))
            for to in ("npy", "olmo", "maxtext"):
                status, shown = writers.submit(run_verb, capsys, *out, "--to", to).result()
                assert (status, len(shown.splitlines())) == (2, 1)
                assert "is being written by this process" in shown
            writer = writers.submit(write_permutation, np.arange(3), folder / "order.npy")
            with pytest.raises(UserError, match="is being written by this process"):
                writer.result()
    assert snapshot(folder) == before


def test_what_killed_exports_left_is_removed(tmp_path: Path) -> None:
    tiny = write_tiny_dataset(tmp_path / "dataset")
    mine, left = tmp_path / "notes.txt.tmp", [tmp_path / f"{name}.01234567.tmp" for name in ("order.npy", "x")]
    for path in (mine, *left):
        path.write_text("half")
    write_permutation(np.arange(3), tmp_path / "order.npy")
    assert [path.exists() for path in (mine, *left)] == [True, False, True]
    record = tmp_path / "m" / "train-00000-of-00001.array_record.01234567.tmp"
    record.parent.mkdir()
    record.write_text("half")
    write_maxtext(jd.make_run(tiny.root), tmp_path / "m")
    assert not record.exists()


def test_files_that_the_disk_lists_in_another_order_are_told(
    tiny: TinyDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backwards = glob.glob
    monkeypatch.setattr(glob, "glob", lambda pattern: sorted(backwards(pattern), reverse=True))
    assert "in another order" in write_maxtext(jd.make_run(tiny.root), tmp_path / "a", sequences_per_file=5).line
    assert "in another order" not in write_maxtext(jd.make_run(tiny.root), tmp_path / "b").line


# OLMo-core


@pytest.mark.parametrize(
    ("loader", "name"),
    [
        ("numpy", "global_indices_dataset_size50_epoch2_seed34_v1.npy"),
        ("numpy_2024", "global_indices_epoch2_seed34_size48.npy"),
        (
            "composable",
            "global_indices_epoch2_max_seq_len16_seed34_seq_len16_shuffleinter_source_size50_v1.npy",
        ),
    ],
)
def test_olmo_finds_the_indices_under_its_name(tmp_path: Path, loader: Any, name: str) -> None:
    order = np.random.default_rng(0).permutation(50)
    config = OlmoExportConfig(loader, seed=34, num_epochs=2, global_batch_size=8)
    written = write_olmo(Ordering(order), tmp_path, config, sequence_length=16)
    assert len(written.files) == len(list(tmp_path.iterdir())) == 2
    found = np.memmap(tmp_path / name, mode="r", dtype=np.uint32)  # as the loader maps it
    assert found[:48].tolist() == order[:48].tolist()
    assert len(found) == (48 if loader == "numpy_2024" else 50)
    with pytest.raises(UserError, match="found another file"):
        write_olmo(Ordering(order[::-1].copy()), tmp_path, config, sequence_length=16)


def test_olmo_s_instances_are_the_sequences_as_packed(tmp_path: Path) -> None:
    tiny = write_tiny_dataset(tmp_path / "padded", vocab_size=50_000, dtype="int32")
    last = tiny.segments.num_sequences - 1
    with pytest.raises(UserError, match=f"found padding in sequence {last}"):
        write_olmo_tokens(jd.make_run(tiny.root), tmp_path / "sequences.npy")
    assert not (tmp_path / "sequences.npy").exists()
    full = next(
        made
        for seed in itertools.count()
        if (made := write_tiny_dataset(tmp_path / f"full{seed}", num_documents=9, sequence_length=8, seed=seed))
        and made.segments.length.sum() == 8 * made.segments.num_sequences
    )
    written = write_olmo_tokens(jd.make_run(full.root), tmp_path / "sequences.npy")
    instances = np.memmap(written.files[0], mode="r", dtype=np.uint16).reshape(-1, 8)
    for sequence, instance in enumerate(instances):
        assert instance.tolist() == tokens_of(full, sequence)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_epochs": 0}, r"olmo\.num_epochs >= 1, found 0"),
        ({"seed": -1}, r"olmo\.seed >= 0, found -1"),
        ({"loader": "numpy_2024"}, "Expected a global batch size .* found None"),
        ({"loader": "numpy_2024", "global_batch_size": 5}, r"in 1 \.\. 4 .* found 5"),
    ],
)
def test_what_olmo_cannot_take_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        write_olmo(Ordering(np.arange(4)), tmp_path, OlmoExportConfig(**options), sequence_length=2)
    assert not list(tmp_path.iterdir())


def test_names_do_not_depend_on_what_their_loader_does_not_ask() -> None:
    names = {indices_name(OlmoExportConfig(global_batch_size=size), 9, 4, 1) for size in (None, 2, 3)}
    assert len(names) == 1


# Levanter


def test_levanter_gets_examples_by_position(tiny: TinyDataset) -> None:
    dataset = LevanterDataset(tiny.root, "uniform_shuffle")
    assert dataset.is_finite()
    assert asyncio.run(dataset.async_len()) == asyncio.run(dataset.current_len()) == tiny.segments.num_sequences
    assert asyncio.run(dataset.final_length_is_known())
    for position, example in zip([5, 0, 5], asyncio.run(dataset.get_batch([5, 0, 5])), strict=True):
        row = reference_row(tiny.segments, tiny.store, int(tiny.orders["uniform_shuffle"][position]))
        assert example["tokens"].tolist() == row["inputs"].tolist()
        assert example["segment_ids"].tolist() == (row["inputs_segmentation"] - 1).tolist()
        # Levanter's loss at t is that of token t + 1, where the weight at t is above zero.
        weighted = np.flatnonzero(example["loss_weight"])
        assert np.array_equal(row["inputs"][weighted + 1], row["targets"][weighted])
        assert np.array_equal(weighted, np.flatnonzero(row["targets_segmentation"]))
        assert example["loss_weight"].dtype == np.float32
    assert asyncio.run(dataset.getitem_async(3))["tokens"].shape == (16,)
    assert asyncio.run(dataset.get_batch([])) == []
    with pytest.raises(IndexError):
        asyncio.run(dataset.get_batch([10_000]))


def test_levanter_s_examples_are_made_by_the_given_function(tiny: TinyDataset) -> None:
    dataset = LevanterDataset(tiny.root, make_example=lambda tokens, loss_weight, segment_ids: tokens.sum())
    assert pickle.loads(pickle.dumps(LevanterDataset(tiny.root))).is_finite()
    expected = [sum(tokens_of(tiny, sequence)) for sequence in tiny.orders["balance"][:4]]
    assert [int(total) for total in asyncio.run(dataset.get_batch(range(4)))] == expected


# The verb


def run_verb(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = main(["export", "--quiet", *arguments])
    shown = capsys.readouterr()
    return status, shown.out + shown.err


def test_the_verb_writes_and_says_what(tiny: TinyDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ("--out", str(tiny.root), "--target", str(tmp_path / "a"))
    status, shown = run_verb(capsys, *out, "--documents")
    assert status == 0
    assert np.array_equal(np.load(tmp_path / "a" / "balance.npy"), tiny.orders["balance"])
    assert len(shown.splitlines()) == 2
    documents = np.load(tmp_path / "a" / "balance-documents.npy")
    assert sorted(documents.tolist()) == sorted(set(tiny.segments.document_index.tolist()))
    status, shown = run_verb(capsys, *out, "--to", "olmo")
    assert status == 0
    assert "uint32" in shown
    status, shown = run_verb(capsys, *out, "--to", "maxtext", "--maxtext.sequences-per-file", "9")
    assert status == 0
    assert "grain_file_type: arrayrecord" in shown
    assert len(read_as_maxtext(tmp_path / "a" / "maxtext.yml")) == tiny.segments.num_sequences


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--ordering", "absent"), "Unknown ordering 'absent'"),
        (("--ordering", "absent.npy"), "absent.npy, found no such file"),
        (("--to", "olmo", "--olmo.loader", "numpy_2024"), "global batch size"),
        (("--to", "olmo", "--olmo.tokens"), "found padding in sequence"),
    ],
)
def test_the_verb_refuses_in_one_sentence(
    tiny: TinyDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    target = tmp_path / "target"
    status, shown = run_verb(capsys, "--out", str(tiny.root), "--target", str(target), *arguments)
    assert status == 2
    assert len(shown.splitlines()) == 1
    assert re.search(message, shown), shown
    assert not list(target.glob("*.npy"))
