"""Measure batches per second from one file, for us, for Grain and for NumPy's memory map, and the waits of training.

    python benchmarks/loader.py [--num-records 200000] [--dataset OUT] [--write]

All readers read one file of records with 2,048 uint16 tokens (4 KiB), in batches of 64, in one process and in the same
order. All data are in the page cache. "Stock Grain" is `grain.DataLoader` over `ArrayRecordDataSource`, with its
default read options or none, whichever is faster; it stacks token rows and decodes nothing else.

`for decoding on devices` is the host's part of `decode="device"`: records are read and checked, tokens and bits are
copied (4.4 KB a record), and nothing is decoded. JAX's first device then makes the arrays; its time is printed
separately.

Two of our rows do the same work: token rows (as stored; the checksum, number and build of every record are checked) and
`inputs` (the whole loader, int32). All six arrays have 48 KiB per record, 12 times as much as is read: making them
takes three times as long as reading. The targets in random order are 60 times the rate of stock Grain and 0.4 of the
memory map row by row. For records in the order of reading, the target is 0.5 of a gather of whole batches from the
memory map.

Prefetching only costs time if the consumer does nothing else on few cores. Its benefit appears if the consumer
computes. So the share of waiting time is measured for a consumer that is busy for some milliseconds per batch, for the
lab's small GPT, and for a simulated accelerator of a million tokens per second (see loader_waits.py).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grain
import jax
import numpy as np
from loader_waits import small_dataset, waits_of_training
from results_file import environment, write

from jax_diversity.schema import Ordering, Segments
from jax_diversity.streaming.loader.loader import Loader
from jax_diversity.streaming.loader.settings import LoaderSettings
from jax_diversity.streaming.records.codec import HEADER_BYTES
from jax_diversity.streaming.records.decoding import FIELDS
from jax_diversity.streaming.records.device_decoding import expand
from jax_diversity.streaming.records.reading import RecordReader
from jax_diversity.streaming.records.writing import record_paths, write_records
from jax_diversity.streaming.run.run import OrderedRun
from jax_diversity.streaming.run.source import SequenceSource

L = 2048
B = 64
BUSY_SECONDS = 3e-3  # time per batch of a consumer that computes
STOCK = "stock, default options", "stock, no read threads"
ROW_BY_ROW = "memmap, row by row"
GATHER = "in sequence: memmap, gather"
TOKEN_ROWS = "in sequence: ours, token rows only"
DEVICE = "in sequence: ours, for decoding on devices"


def make_files(folder: Path, num_records: int) -> tuple[Path, Path]:
    """Make records of about six segments each, and the same tokens as one raw matrix."""
    rng = np.random.default_rng(0)
    starts = np.arange(6) * 340 + rng.integers(0, 300, (num_records, 6))
    starts[:, 0] = 0
    position = starts.reshape(-1)
    length = np.diff(starts, axis=1, append=L).reshape(-1)
    sequence_index = np.repeat(np.arange(num_records), 6)
    rows = np.zeros(len(position), np.int64)
    segments = Segments(sequence_index, position, rows, rows, length, np.ones(len(rows), bool), num_records, L)
    raw = folder / "tokens.bin"
    with raw.open("wb") as file:

        def gather(document_index: np.ndarray, document_offset: np.ndarray, length: np.ndarray) -> np.ndarray:
            tokens = rng.integers(1, 60_000, int(length.sum()), np.uint16)
            file.write(tokens.tobytes())
            return tokens

        order = np.arange(num_records)
        write_records(segments, gather, "uint16", order, folder, "train", sequences_per_file=num_records)
    return record_paths(folder, "train", 1)[0], raw


def ours(
    path: Path,
    order: np.ndarray,
    fields: tuple[str, ...] = FIELDS,
    *,
    in_sequence: bool = False,
    num_prefetch: int = 0,
    num_threads: int = 1,
) -> Iterator[np.ndarray]:
    records = opened(path, len(order), in_sequence)
    dataset: Any = SimpleNamespace(
        records=records, num_sequences=len(order), sequence_length=L, fingerprint="", layout_ordering=None
    )
    run = OrderedRun((dataset,), Ordering(order), "order", {})
    settings = LoaderSettings.checked(
        global_batch_size=B, fields=fields, num_prefetch=num_prefetch, num_threads=num_threads
    )
    for batch in Loader(run, SequenceSource(run, **settings.of_arrays), settings):
        yield batch["inputs"]


def raw_rows(path: Path, order: np.ndarray, *, in_sequence: bool = False) -> Iterator[np.ndarray]:
    """Use only the reader: the tokens of whole records as a matrix, checked, as the other readers give them."""
    reader = opened(path, len(order), in_sequence)
    for start in range(0, len(order) - B + 1, B):
        rows = order[start : start + B]
        yield reader.read_tokens(rows, expected=rows)


def stored(path: Path, order: np.ndarray) -> Iterator[np.ndarray]:
    """Do the host's part of `decode="device"` before the transfer: read, check and copy tokens and bits."""
    reader = opened(path, len(order), in_sequence=True)
    for start in range(0, len(order) - B + 1, B):
        rows = order[start : start + B]
        yield reader.read_stored(rows, expected=rows, dtype=np.dtype("uint16"))["tokens"][:, :L]


def expansion_seconds(path: Path, num_records: int) -> float:
    """Return the seconds that JAX's first device needs for 1,000 records, without transfer and compilation."""
    batch = opened(path, num_records, in_sequence=True).read_stored(np.arange(B), dtype=np.dtype("uint16"))
    rows, best = jax.device_put(batch, jax.devices()[0]), float("inf")
    jax.block_until_ready(expand(**rows))
    for _ in range(20):
        start = time.perf_counter()
        jax.block_until_ready(expand(**rows))
        best = min(best, time.perf_counter() - start)
    return best / B * 1000


def opened(path: Path, num_records: int, in_sequence: bool) -> RecordReader:
    """Open records as a loader does: if the order is that of the records, it reads ahead."""
    reader = RecordReader([path], [num_records], sequence_length=L, dtype="uint16")
    return reader.forward() if in_sequence else reader


class FixedOrder:
    """A Grain sampler that follows an order."""

    def __init__(self, order: np.ndarray) -> None:
        self.order = order

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> grain.RecordMetadata:
        return grain.RecordMetadata(index=index, record_key=int(self.order[index]))


class Tokens(grain.transforms.Map):
    """A record's tokens."""

    def map(self, element: bytes) -> np.ndarray:
        return np.frombuffer(element, np.uint16, L, HEADER_BYTES)


def stock(path: Path, order: np.ndarray, options: grain.ReadOptions) -> Iterator[np.ndarray]:
    yield from grain.DataLoader(
        data_source=grain.sources.ArrayRecordDataSource([str(path)]),
        sampler=FixedOrder(order),
        shard_options=grain.sharding.NoSharding(),
        operations=[Tokens(), grain.transforms.Batch(B, drop_remainder=True)],
        worker_count=0,
        read_options=options,
    )


def memmap_rows(path: Path, order: np.ndarray) -> Iterator[np.ndarray]:
    """Read row by row into a new batch: the simplest loader."""
    tokens = np.memmap(path, np.uint16, "r").reshape(-1, L)
    for start in range(0, len(order) - B + 1, B):
        yield np.stack([tokens[index] for index in order[start : start + B]])


def memmap_gather(path: Path, order: np.ndarray) -> Iterator[np.ndarray]:
    """Gather a whole batch at once, NumPy's fastest way."""
    tokens = np.memmap(path, np.uint16, "r").reshape(-1, L)
    for start in range(0, len(order) - B + 1, B):
        yield tokens[order[start : start + B]]


def rate(batches: Callable[[], Iterable[np.ndarray]], seconds: float) -> float:
    """Return records per second, measured for about `seconds` seconds, without the first batch."""
    iterator = iter(batches())
    next(iterator)
    start, done = time.perf_counter(), 0
    while time.perf_counter() - start < seconds and (part := sum(1 for _ in islice(iterator, 8))):
        done += part
    return done * B / (time.perf_counter() - start)


def best_rates(
    readers: dict[str, Callable[[], Iterable[np.ndarray]]], seconds: float, turns: int = 6
) -> dict[str, float]:
    """The best rate of every reader over some turns, so that other work on the machine affects all of them."""
    best = dict.fromkeys(readers, 0.0)
    for _ in range(turns):
        for label, reader in readers.items():
            best[label] = max(best[label], rate(reader, seconds / turns))
    return best


def wait_share(batches: Iterable[np.ndarray], seconds: float) -> float:
    """Share of waiting time of a consumer that computes between batches, without the first batch."""
    iterator = iter(batches)
    next(iterator)
    matrix = np.ones((512, 512), np.float32)
    start, waited = time.perf_counter(), 0.0
    while (asked := time.perf_counter()) - start < seconds:
        next(iterator)
        arrived = time.perf_counter()
        waited += arrived - asked
        while time.perf_counter() - arrived < BUSY_SECONDS:
            _ = matrix @ matrix
    return waited / (asked - start)


def random_readers(path: Path, raw: Path, order: np.ndarray) -> dict[str, Callable[[], Iterable[np.ndarray]]]:
    return {
        STOCK[0]: lambda: stock(path, order, grain.ReadOptions()),
        STOCK[1]: lambda: stock(path, order, grain.ReadOptions(num_threads=0)),
        ROW_BY_ROW: lambda: memmap_rows(raw, order),
        "memmap, gather": lambda: memmap_gather(raw, order),
        "ours, token rows only": lambda: raw_rows(path, order),
        "ours, inputs": lambda: ours(path, order, ("inputs",)),
        "ours, all six arrays": lambda: ours(path, order),
        "ours, all six, prefetched": lambda: ours(path, order, FIELDS, num_prefetch=2),
        "ours, all six, two threads": lambda: ours(path, order, FIELDS, num_prefetch=4, num_threads=2),
    }


def sequential_readers(path: Path, raw: Path, num_records: int) -> dict[str, Callable[[], Iterable[np.ndarray]]]:
    """Rates for records that are stored in the order of reading."""
    order = np.arange(num_records)
    return {
        GATHER: lambda: memmap_gather(raw, order),
        TOKEN_ROWS: lambda: raw_rows(path, order, in_sequence=True),
        "in sequence: ours, inputs": lambda: ours(path, order, ("inputs",), in_sequence=True),
        "in sequence: ours, all six arrays": lambda: ours(path, order, in_sequence=True),
        DEVICE: lambda: stored(path, order),
    }


def measure(num_records: int, seconds: float) -> tuple[dict[str, float], dict[str, float], float]:
    with tempfile.TemporaryDirectory() as name:
        path, raw = make_files(Path(name), num_records)
        order = np.random.default_rng(1).permutation(num_records)
        for file in (path, raw):
            file.read_bytes()  # into the page cache
        first = next(ours(path, order))
        for other in (memmap_rows(raw, order), raw_rows(path, order), stock(path, order, grain.ReadOptions(0, 1))):
            np.testing.assert_array_equal(next(other), first)
        rates = best_rates(random_readers(path, raw, order) | sequential_readers(path, raw, num_records), seconds)
        waits = {
            "all six": wait_share(ours(path, order), seconds),
            "all six, prefetched": wait_share(ours(path, order, FIELDS, num_prefetch=2), seconds),
        }
        return rates, waits, expansion_seconds(path, num_records)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-records", type=int, default=200_000)
    parser.add_argument("--seconds", type=float, default=6.0, help="seconds for each reader")
    parser.add_argument("--dataset", help="a built dataset to train on; without it a small one is built")
    parser.add_argument("--write", action="store_true", help="write results/loader.json")
    arguments = parser.parse_args()
    before = environment("grain", "array_record", "numpy")  # the load without this benchmark
    rates, waits, expansion = measure(arguments.num_records, arguments.seconds)
    best_stock = max(rates[label] for label in STOCK)
    memmap, gather = rates[ROW_BY_ROW], rates[GATHER]
    print(f"{'reader':<36}{'records/s':>12}{'x stock':>10}{'x memmap':>10}{'x gather in sequence':>22}")
    for label, value in rates.items():
        ratios = f"{value / best_stock:>10.1f}{value / memmap:>10.2f}{value / gather:>22.2f}"
        print(f"{label:<36}{value:>12,.0f}{ratios}")
    print("\nmilliseconds for 1,000 records in sequence, on the host")
    costs = {label: 1e6 / rates[label] for label in (GATHER, TOKEN_ROWS, DEVICE, "in sequence: ours, all six arrays")}
    for label, value in costs.items():
        print(f"{label:<46}{value:>8.2f}{value / costs[GATHER]:>8.1f} x gather{value / costs[TOKEN_ROWS]:>8.2f} x rows")
    print(f"making the arrays on {jax.devices()[0].device_kind}: {expansion * 1e3:.2f} ms for 1,000 records\n")
    for label, value in waits.items():
        print(f"a consumer that computes {BUSY_SECONDS * 1e3:.0f} ms a batch waits {value:6.1%}   ({label})")
    with small_dataset(arguments.dataset) as root, tempfile.TemporaryDirectory() as name:
        path = make_files(Path(name), 20_000)[0]
        order = np.random.default_rng(1).permutation(20_000)
        training = waits_of_training(root, lambda: ours(path, order, FIELDS, num_prefetch=2), B * L)
    for sentence in training.sentences():
        print(sentence)
    if arguments.write:
        about = {
            "num_records": arguments.num_records,
            "sequence_length": L,
            "batch_size": B,
            "records_per_second": {label: round(value) for label, value in rates.items()},
            "times_stock": {label: round(value / best_stock, 2) for label, value in rates.items()},
            "times_memmap": {label: round(value / memmap, 3) for label, value in rates.items()},
            "milliseconds_for_1000_records": {label: round(value, 2) for label, value in costs.items()},
            "times_token_rows": {label: round(value / costs[TOKEN_ROWS], 2) for label, value in costs.items()},
            "device": jax.devices()[0].device_kind,
            "device_milliseconds_for_1000_records": round(expansion * 1e3, 2),
            "busy_seconds_a_batch": BUSY_SECONDS,
            "times_gather_in_sequence": {
                label: round(value / gather, 3) for label, value in rates.items() if label.startswith("in sequence")
            },
            "training": asdict(training),
            "share_of_time_waited": {label: round(value, 4) for label, value in waits.items()},
        }
        write("loader", {**before, **about})


if __name__ == "__main__":
    main()
