"""What a loader is given by mistake is a sentence, and a run goes on when only its files were written anew."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity import OrderSampler, SequenceSource
from jax_diversity.foundation.artifacts import signed
from jax_diversity.foundation.errors import UserError
from jax_diversity.streaming.export.pytorch import OrderedBatchSampler
from jax_diversity.streaming.run.inspection import Inspector
from tests.support.tiny_dataset import TinyDataset, write_tiny_dataset

make_loader = jd.make_loader
pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyDataset:
    return write_tiny_dataset(tmp_path_factory.mktemp("tiny") / "out")


def edit_manifest(root: Path, stage: str, **changes: Any) -> None:
    manifest = json.loads((root / "manifest.json").read_text())
    for name, value in changes.items():
        entry = manifest["stages"][stage]
        (entry if name == "fingerprint" else entry["counts"])[name] = value
    (root / "manifest.json").write_text(json.dumps(signed(manifest)))


@pytest.mark.first(1)
@pytest.mark.parametrize("layout", ["packed", "ordered"])
def test_a_state_goes_on_when_the_records_were_written_in_other_files(
    tiny: TinyDataset, tmp_path: Path, layout
) -> None:
    iterator = iter(jd.make_loader(tiny.root, global_batch_size=4))
    next(iterator)
    state, expected = iterator.get_state(), [batch["inputs"].tolist() for batch in iterator]
    anew = write_tiny_dataset(tmp_path / "anew", sequences_per_file=3, layout=layout)
    again = iter(jd.make_loader(anew.root, global_batch_size=4))
    again.set_state(state)
    assert [batch["inputs"].tolist() for batch in again] == expected
    other = write_tiny_dataset(tmp_path / "other", seed=5)
    with pytest.raises(UserError, match="made with the dataset of fingerprint"):
        iter(jd.make_loader(other.root, global_batch_size=4)).set_state(state)


def test_an_ordering_that_lies_in_another_dataset_is_refused(tiny: TinyDataset, tmp_path: Path) -> None:
    other = write_tiny_dataset(tmp_path / "other").root
    path = other / "orderings" / "balance.npy"
    make_loader(tiny.root, ordering=path, global_batch_size=4)  # packed alike: a copy
    edit_manifest(other, "pack", fingerprint="ab" * 32)
    sentence = rf"of this dataset's sequences .* found {re.escape(str(path))} of a dataset with another packing \(abab"
    for use in (
        lambda: make_loader(tiny.root, ordering=path, global_batch_size=4),
        lambda: make_loader(tiny.root, ordering=str(path), global_batch_size=4),
        lambda: Inspector(jd.make_run(tiny.root, str(path)), 4),
        lambda: OrderedBatchSampler(tiny.root, str(path), 4),
    ):
        with pytest.raises(UserError, match=sentence):
            use()
    meant = make_loader(tiny.root, ordering=jd.Ordering.load(path), global_batch_size=4)
    assert len(meant.run) == tiny.segments.num_sequences
    shutil.copy(path, tmp_path / "mine.npy")
    make_loader(tiny.root, ordering=tmp_path / "mine.npy", global_batch_size=4)


def test_an_ordering_of_other_token_counts_is_warned_of(tmp_path: Path) -> None:
    root = write_tiny_dataset(tmp_path / "out").root
    for name in ("balance", "uniform_shuffle"):
        edit_manifest(root, f"order/{name}", characteristics="cd" * 32)
    dataset = jd.open_dataset(root)
    foreign = jd.Ordering(np.arange(dataset.num_sequences), {"characteristics": "ef" * 32})
    foreign.save(tmp_path / "foreign.npy")
    for given in (foreign, tmp_path / "foreign.npy"):
        with pytest.warns(UserWarning, match=r"counts \(efefefefefefefef\) than the .* \(cdcdcdcdcdcdcdcd\)"):
            make_loader(root, ordering=given, global_batch_size=4)
    own = jd.order(dataset.characteristics, "uniform_shuffle")
    known = jd.Ordering(foreign.indices, {"characteristics": "cd" * 32})
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for given in (known, own, foreign.indices, "balance"):
            make_loader(dataset, ordering=given, global_batch_size=4)


@pytest.mark.parametrize("fields", [("input",), "inputs", None, (), 3, ("inputs", "dataset_index")])
def test_fields_that_there_are_not(tiny: TinyDataset, fields: Any) -> None:
    with pytest.raises(UserError, match="Expected a list of fields among inputs, targets"):
        SequenceSource(tiny.root, fields)
    with pytest.raises(UserError, match="Expected a list of fields among inputs, targets"):
        make_loader(tiny.root, global_batch_size=4, fields=fields)


def test_rows_by_number(tiny: TinyDataset) -> None:
    rows = SequenceSource(tiny.root, ["inputs"])
    assert set(rows[np.int64(1)]) == {"inputs"}
    for index in (1.5, "1", None):
        with pytest.raises(UserError, match="index to be a whole number"):
            rows[index]
    for index in (-1, len(rows)):
        with pytest.raises(IndexError, match=f"found {index}"):
            rows[index]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"global_batch_size": 10**6}, "global batch size in 1"),
        ({"global_batch_size": 0}, "global_batch_size to be a whole number >= 1"),
        ({"global_batch_size": 4.0}, "global_batch_size to be a whole number"),
        ({"worker_count": 500}, "worker_count in 0 .. .*found 500"),
        ({"worker_count": -1}, "worker_count to be a whole number >= 0"),
        ({"worker_count": 1.0}, "worker_count to be a whole number"),
        ({"num_hosts": 3}, "divides the global batch of 4, found 3"),
        ({"num_epochs": 0}, "num_epochs to be a whole number >= 1"),
        ({"num_epochs": "2"}, "num_epochs to be a whole number"),
    ],
)
def test_samplers_that_cannot_be(tiny: TinyDataset, settings: dict, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        OrderSampler(tiny.root, "balance", **{"global_batch_size": 4, **settings})


@pytest.mark.parametrize("name", ["global_batch_size", "num_epochs", "rank", "num_ranks"])
def test_torch_samplers_counts_are_whole(tiny: TinyDataset, name: str) -> None:
    with pytest.raises(UserError, match=f"Expected {name} to be a whole number >= .*, found 1.0"):
        OrderedBatchSampler(tiny.root, "balance", **{"global_batch_size": 4, name: 1.0})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"drop_remainder": "no"}, "drop_remainder to be True or False, found 'no'"),
        ({"merge_segments": 1}, "merge_segments to be True or False, found 1"),
        ({"names": 5}, "names as a mapping of fields to names, .*, found 5"),
        ({"names": "inputs"}, "names as a mapping of fields to names"),
        ({"names": {"inputs": ["tokens"]}}, "names as a mapping of fields to names"),
        ({"names": {5: "tokens", "words": "x"}}, r"names of fields .*, found \[5, 'words'\]"),
        ({"cache_folder": 5}, "cache_folder to be a folder's path, found 5"),
        ({"dtype": {}}, "dtype to be int32, int64, uint32 or float32, found {}"),
        ({"dtype": None}, "dtype to be int32, int64, uint32 or float32, found None"),
        ({"dtype": np.int8}, "dtype to be int32"),
        ({"dtype": ">i4"}, "dtype to be int32"),
        ({"ordering": 5}, "indices to be one axis of integers, found int64 of shape"),
    ],
)
def test_settings_that_cannot_be(tiny: TinyDataset, settings: dict, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        make_loader(tiny.root, global_batch_size=4, **settings)


def test_types_by_whatever_names_them(tiny: TinyDataset) -> None:
    for dtype in (np.int64, np.dtype("int64"), "int64"):
        assert next(iter(make_loader(tiny.root, global_batch_size=4, dtype=dtype)))["inputs"].dtype == np.int64


def test_a_type_that_jax_would_narrow_is_refused(tiny: TinyDataset) -> None:
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    settings = {"global_batch_size": 4, "sharding": sharding}
    with pytest.raises(UserError, match="found int64, which JAX converts to int32; use int32, or call"):
        make_loader(tiny.root, dtype="int64", **settings)
    assert next(iter(make_loader(tiny.root, dtype="float32", **settings)))["inputs"].dtype == np.float32


def test_datasets_that_are_none(tiny: TinyDataset) -> None:
    for given in (5, None):
        with pytest.raises(UserError, match=f"a dataset, its folder or address, or several of them, found {given}"):
            make_loader(given, global_batch_size=4)
    with pytest.raises(UserError, match="a dataset, or its folder or address, found 5"):
        make_loader([tiny.root, 5], global_batch_size=4)


def test_a_function_is_not_an_ordering(tiny: TinyDataset) -> None:
    with pytest.raises(UserError, match=r"found the function.*create_schedule\(path, dataset, num_epochs=...\)"):
        make_loader(tiny.root, ordering=lambda epoch: np.arange(3), global_batch_size=4)


@pytest.mark.parametrize("dtype", ["float32", "nothing", 4, None])
def test_a_manifest_of_another_type_of_tokens(tmp_path: Path, dtype: Any) -> None:
    root = write_tiny_dataset(tmp_path / "out").root
    edit_manifest(root, "write", dtype=dtype)
    with pytest.raises(UserError, match=f"records of uint16 or int32 tokens in .*manifest.json, found {dtype!r}"):
        make_loader(root, global_batch_size=4)
