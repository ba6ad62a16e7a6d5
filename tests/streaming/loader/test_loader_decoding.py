"""`decode="device"`: the loader's batches have the same values, names and types, on the devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grain
import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import jax_diversity as jd
from jax_diversity.foundation.errors import UserError
from tests.support.remote_datasets import upload
from tests.support.tiny_dataset import TinyDataset, write_tiny_dataset


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyDataset:
    return write_tiny_dataset(tmp_path_factory.mktemp("tiny") / "out", layout="ordered")


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> TinyDataset:
    return write_tiny_dataset(tmp_path_factory.mktemp("wide") / "out", dtype="int32", vocab_size=100_000, seed=1)


def assert_same(found: Any, expected: Any) -> None:
    found, expected = list(found), list(expected)
    assert len(found) == len(expected) > 0
    for mine, other in zip(found, expected, strict=True):
        assert mine.keys() == other.keys()
        for field, rows in other.items():
            assert isinstance(mine[field], jax.Array)
            assert mine[field].dtype == jax.dtypes.canonicalize_dtype(rows.dtype)
            np.testing.assert_array_equal(mine[field], rows, err_msg=field)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"merge_segments": True, "num_prefetch": 0},
        {"drop_remainder": False, "num_epochs": 2, "num_threads": 3},
        {"num_workers": 1},
        {"host_index": 1, "num_hosts": 5},
        {"host_index": 4, "num_hosts": 5, "drop_remainder": False},
        {"fields": ("targets", "inputs_position"), "names": {"targets": "tokens"}, "dtype": "float32"},
    ],
)
def test_batches_have_the_values_of_the_host(tiny: TinyDataset, settings: Mapping[str, Any]) -> None:
    device = jd.make_loader(tiny.root, global_batch_size=5, **settings, decode="device")
    host = jd.make_loader(tiny.root, global_batch_size=5, **{**settings, "num_workers": 0})
    assert_same(device, host)
    (found, expected) = map(grain.experimental.get_element_spec, (device, host))
    assert {field: (spec.shape, spec.dtype) for field, spec in found.items()} == {
        field: (spec.shape, spec.dtype) for field, spec in expected.items()
    }


def test_batches_of_datasets_of_different_types_and_origins_are_the_same(tiny: TinyDataset, wide: TinyDataset) -> None:
    positions = np.random.default_rng(0).permutation(tiny.segments.num_sequences + wide.segments.num_sequences)
    run = jd.make_run([tiny.root, wide.root], positions=positions)
    settings = {"global_batch_size": 6, "drop_remainder": False, "names": {"dataset_index": "tokens"}}
    assert_same(jd.make_loader(run, **settings, decode="device"), jd.make_loader(run, **settings))


def test_streams_and_shardings_too(tiny: TinyDataset, tmp_path: Any) -> None:
    sharding = NamedSharding(jax.make_mesh((1,), ("data",)), PartitionSpec("data"))
    settings = {"global_batch_size": 4, "drop_remainder": False}
    expected = list(jd.make_loader(tiny.root, **settings))
    address = upload(tiny.root, "memory://decoding/out")
    assert_same(jd.stream_batches(address, **settings, decode="device", cache_folder=tmp_path), expected)
    placed = jd.make_loader(tiny.root, **settings, decode="device", sharding=sharding)
    assert_same(placed, expected)
    assert all(array.sharding == sharding for batch in placed for array in batch.values())


def test_states_pass_between_host_and_device(tiny: TinyDataset) -> None:
    first, second = (iter(jd.make_loader(tiny.root, global_batch_size=4, decode=each)) for each in ("device", "host"))
    next(first)
    second.set_state(first.get_state())
    assert_same([next(first)], [next(second)])


def test_wrong_values_are_refused(tiny: TinyDataset) -> None:
    with pytest.raises(UserError, match="decode"):
        jd.make_loader(tiny.root, global_batch_size=4, decode="tpu")
    with pytest.raises(UserError, match="JAX keeps on devices, found int64"):
        jd.make_loader(tiny.root, global_batch_size=4, decode="device", dtype="int64")
    loader = jd.make_loader(tiny.root, global_batch_size=4, decode="device")
    with pytest.raises(UserError, match="NumPy arrays before mp_prefetch"):
        loader.set_slice(slice(0, None, 2))
