"""Global arrays: the same batches on any number of devices and processes; each process reads its rows alone."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

import jax_diversity as jd
from jax_diversity.foundation.errors import UserError
from jax_diversity.streaming.loader.device_placement import DevicePlacement
from tests.support.loader_devices import BATCH_SIZE, SPECS, batch_hash, mixed
from tests.support.programs import answers, free_port, start
from tests.support.tiny_dataset import TinyDataset, write_tiny_dataset


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyDataset:
    return write_tiny_dataset(tmp_path_factory.mktemp("tiny") / "out", sequence_length=16)


@pytest.fixture(scope="module")
def expected(tiny: TinyDataset) -> list[str]:
    """Hashes of the batches as NumPy gives them on one host."""
    loader = jd.make_loader(tiny.root, global_batch_size=BATCH_SIZE, drop_remainder=False)
    return [batch_hash(batch["inputs"], batch["targets"]) for batch in loader]


@pytest.fixture(scope="module")
def run(tiny: TinyDataset) -> jd.Run:
    """A schedule that goes on with sequences of twice the length, and ends with a batch that is not full."""
    longer = write_tiny_dataset(tiny.root.parent / "longer", sequence_length=32)
    short = jd.create_schedule(tiny.root.parent / "run", tiny.root, num_positions=2 * BATCH_SIZE)
    return jd.extend_schedule(short, datasets=longer.root, weights=[0, 1], num_positions=BATCH_SIZE + 3)


@pytest.fixture(scope="module")
def longer(run: jd.Run) -> list[str]:
    """Hashes of its batches as NumPy gives them on one host."""
    batches = list(jd.make_loader(run, global_batch_size=BATCH_SIZE, drop_remainder=False))
    assert [batch["inputs"].shape for batch in batches] == [(BATCH_SIZE, length) for length in (16, 16, 32, 32)]
    return [batch_hash(batch["inputs"], batch["targets"]) for batch in batches]


@pytest.fixture(scope="module")
def origins(tiny: TinyDataset) -> list[list[list[int]]]:
    """Datasets and sequences of a blend's rows as NumPy gives them on one host."""
    batches = [[batch["dataset_index"].tolist(), batch["sequence_index"].tolist()] for batch in mixed(str(tiny.root))]
    assert batches[-1][0][3:] == batches[-1][1][3:] == [-1] * (BATCH_SIZE - 3)
    return batches


@pytest.mark.campaign
@pytest.mark.parametrize("num_devices", [2, 8])
def test_devices_of_one_process_hold_the_global_batches(
    tiny: TinyDataset,
    expected: list[str],
    run: jd.Run,
    longer: list[str],
    origins: list[list[list[int]]],
    num_devices: int,
) -> None:
    (found,) = answers(start("loader_devices", str(tiny.root), str(run.root), "0", "1", "", num_devices=num_devices))
    assert found["num_devices"] == num_devices
    assert found["hashes"] == found["expanded"] == dict.fromkeys(SPECS, expected)
    assert found["longer"] == dict.fromkeys(SPECS, longer)
    assert found["rows"] == {name: list(range(BATCH_SIZE)) for name in SPECS}
    assert found["origins"] == dict.fromkeys(SPECS, origins)


@pytest.mark.campaign
def test_two_processes_hold_the_global_batches_of_one(
    tiny: TinyDataset,
    expected: list[str],
    run: jd.Run,
    longer: list[str],
    origins: list[list[list[int]]],
) -> None:
    coordinator = f"127.0.0.1:{free_port()}"
    programs = [
        start("loader_devices", str(tiny.root), str(run.root), str(process), "2", coordinator, num_devices=2)
        for process in range(2)
    ]
    first, second = answers(*programs)
    for found in (first, second):
        assert found["num_devices"] == 4
        assert found["hashes"] == found["expanded"] == dict.fromkeys(SPECS, expected)
        assert found["longer"] == dict.fromkeys(SPECS, longer)
        assert found["origins"] == dict.fromkeys(SPECS, origins)
    # A process reads what its own devices hold, and no more.
    for name in ("rows", "rows and tokens", "rows over both"):
        assert sorted(first["rows"][name] + second["rows"][name]) == list(range(BATCH_SIZE))
        assert len(first["rows"][name]) == BATCH_SIZE // 2
    assert first["rows"]["tokens"] == second["rows"]["replicated"] == list(range(BATCH_SIZE))


def test_states_of_placed_and_plain_batches_are_the_same(tiny: TinyDataset) -> None:
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    placed = iter(jd.make_loader(tiny.root, global_batch_size=4, sharding=sharding))
    next(placed)
    plain = iter(jd.make_loader(tiny.root, global_batch_size=4))
    plain.set_state(placed.get_state())
    for _ in range(2):
        batch, other = next(placed), next(plain)
        assert all(isinstance(array, jax.Array) for array in batch.values())
        for field, rows in other.items():
            np.testing.assert_array_equal(batch[field], rows)
    placed.close()


def test_buffers_are_not_reused_while_a_device_holds_them(tiny: TinyDataset) -> None:
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    settings = {"global_batch_size": 4, "num_epochs": 3, "num_prefetch": 3}
    batches = list(jd.make_loader(tiny.root, sharding=sharding, **settings))
    for batch, other in zip(batches, jd.make_loader(tiny.root, **settings), strict=True):
        np.testing.assert_array_equal(batch["inputs"], other["inputs"])


def test_a_sharding_that_does_not_fit_is_refused(tiny: TinyDataset) -> None:
    mesh = jax.sharding.AbstractMesh((3,), ("data",))
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    with pytest.raises(UserError, match="sharding= without num_hosts, found num_hosts=2"):
        jd.make_loader(tiny.root, global_batch_size=4, sharding=sharding, num_hosts=2)
    with pytest.raises(UserError, match="Expected a sharding"):
        jd.make_loader(tiny.root, global_batch_size=4, sharding=NamedSharding(mesh, PartitionSpec("data")))
    with pytest.raises(UserError, match="found 'data'"):
        jd.make_loader(tiny.root, global_batch_size=4, sharding="data")
    mesh = jax.make_mesh((1,), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec(None, None, "data"))
    with pytest.raises(UserError, match=r"arrays \(row, token\).* for 3 axes"):
        jd.make_loader(tiny.root, global_batch_size=4, sharding=sharding)


def test_sequence_numbers_that_jax_would_cut_are_refused() -> None:
    placement = DevicePlacement(SingleDeviceSharding(jax.devices()[0]), 2, [16])
    small, large = ({"sequence_index": np.array([-1, most])} for most in (2**31 - 1, 2**31))
    assert placement.place(small)["sequence_index"].dtype == np.int32
    with pytest.raises(UserError, match="up to 2147483647 in sequence_index, found 2147483648"):
        placement.place(large)
    with jax.enable_x64(True):
        assert placement.place(large)["sequence_index"].tolist() == [-1, 2**31]
