"""Our loader compared with other loaders, on the same records: in random order and in sequence.

    python benchmarks/loader_peers.py [--num-records 200000] [--write]

Records have 2,048 uint16 tokens (4 KiB), and a batch is a matrix of 64 records. All files are local and in the page
cache. Everything runs in one process. Each library reads its own files, which this script makes:

- **ours**: one record file. `token rows` do the same work as the others; `inputs` and `all six arrays` do more
  (int32, targets, segments, positions). In sequence means: records in the order of their file.
- **stock Grain**: `DataLoader` over `ArrayRecordDataSource` of the same file, the faster of two read options.
- **Megatron-style**: a sample index cuts the joined documents into samples, and a shuffle index gives their order.
  Every piece is a view of the memory map. A sample from several documents is put together from its pieces.
- **Hugging Face datasets**: a memory-mapped Arrow file with rows of one length, NumPy format; in random order,
  batches of `select` with the order; in sequence, batches of the whole.
- **MosaicML streaming**: local MDS shards of at most 16,384 records; with `shuffle=True` (its own order,
  which mixes neighbouring shards), or without.
- **WebDataset**: one tar with one file per record. It only reads forwards and has no random order; a
  shuffle buffer of 1,000 records is measured instead.

Slow libraries get fewer records (`--num-slow-records`). Their rates do not depend on the number, except stock Grain's,
which falls with it. Needs benchmarks/requirements.txt.
"""

from __future__ import annotations

import argparse
import importlib
import io
import logging
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import grain
import numpy as np
from loader import B, L, best_rates, make_files, memmap_gather, memmap_rows, ours, raw_rows, stock
from results_file import environment, write

MDS_RECORDS = 16_384
Readers = dict[str, Callable[[], Iterable[np.ndarray]]]


@dataclass(frozen=True)
class Files:
    """The same records in the formats of all libraries.

    Attributes:
        records: our record file.
        raw: bare tokens.
        folder: folder of the other libraries' files.
        tokens: tokens for the slow libraries, (record, token).
    """

    records: Path
    raw: Path
    folder: Path
    tokens: np.ndarray


def megatron_style(raw: Path, order: np.ndarray) -> Iterator[np.ndarray]:
    """A sample is L tokens of documents with 340 tokens on average; an index holds its begin."""
    buffer = np.memmap(raw, np.uint8, "r").data
    lengths = np.random.default_rng(2).integers(40, 640, len(order) * L // 320)
    ends = np.minimum(np.cumsum(lengths), len(order) * L)
    starts = np.concatenate([[0], ends[:-1]])
    first = np.searchsorted(ends, np.arange(len(order)) * L, side="right")  # the sample index

    def sample(index: int) -> np.ndarray:
        start, stop, document = index * L, (index + 1) * L, int(first[index])
        pieces = []
        while start < stop:
            end = min(int(ends[document]), stop)
            pieces.append(np.frombuffer(buffer, np.uint16, end - start, 2 * start))
            start, document = end, document + 1
        return np.concatenate(pieces)

    if starts[first[0]] != 0:
        raise ValueError("Expected the first sample at the first document's start.")
    for start in range(0, len(order) - B + 1, B):
        yield np.stack([sample(int(index)) for index in order[start : start + B]])


def write_arrow(path: Path, tokens: np.ndarray) -> None:
    import pyarrow

    flat = pyarrow.array(tokens.reshape(-1))
    table = pyarrow.table({"tokens": pyarrow.FixedSizeListArray.from_arrays(flat, L)})
    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)


def hugging_face(path: Path, order: np.ndarray | None) -> Iterator[np.ndarray]:
    rows = importlib.import_module("datasets").Dataset.from_file(str(path)).with_format("numpy")
    rows = rows if order is None else rows.select(order)
    for batch in rows.iter(B, drop_last_batch=True):
        yield batch["tokens"]


class _Absent(ModuleType):
    """Replaces a module whose classes are named at import but not used."""

    __all__: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def streaming() -> ModuleType:
    """Import MosaicML streaming without its ready-made datasets, which need torchvision and transformers."""
    if "streaming" not in sys.modules:
        names = ["streaming.vision", "streaming.text", "streaming.multimodal"]
        models = ["transformers", "transformers.feature_extraction_utils", "transformers.tokenization_utils_base"]
        absent = {name: _Absent(name) for name in names + models if name not in sys.modules}
        sys.modules.update(absent)
        path = sys.path[:]
        sys.path[:] = [entry for entry in path if Path(entry).resolve() != Path(__file__).resolve().parent]
        try:
            module = importlib.import_module("streaming")  # the library, not the benchmark of that name
        finally:
            sys.path[:] = path
        # An unfinished iterator leaves a thread, which looks for its files after they are removed at the end.
        logging.getLogger("concurrent.futures").setLevel(logging.CRITICAL)
        for name in set(models) & absent.keys():
            del sys.modules[name]
        module.base.util.clean_stale_shared_memory()
    return sys.modules["streaming"]


def write_mds(folder: Path, tokens: np.ndarray) -> None:
    size_limit = MDS_RECORDS * (2 * L + 64)
    with streaming().MDSWriter(out=str(folder), columns={"tokens": "bytes"}, size_limit=size_limit) as writer:
        for row in tokens:
            writer.write({"tokens": row.tobytes()})


def mosaic(folder: Path, shuffle: bool) -> Iterator[np.ndarray]:
    dataset = streaming().StreamingDataset(local=str(folder), shuffle=shuffle, batch_size=B)
    rows = (np.frombuffer(record["tokens"], np.uint16) for record in dataset)
    yield from _stacked(rows)


def write_tar(path: Path, tokens: np.ndarray) -> None:
    with tarfile.open(path, "w") as archive:
        for index, row in enumerate(tokens):
            entry = tarfile.TarInfo(f"{index:08d}.tokens")
            entry.size = row.nbytes
            archive.addfile(entry, io.BytesIO(row.tobytes()))


def web_dataset(path: Path, shuffle_buffer: int = 0) -> Iterator[np.ndarray]:
    records = importlib.import_module("webdataset").WebDataset(str(path), shardshuffle=False, empty_check=False)
    if shuffle_buffer:
        records = records.shuffle(shuffle_buffer)
    yield from _stacked(np.frombuffer(record["tokens"], np.uint16) for record in records)


def _stacked(rows: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    batch = []
    for row in rows:
        batch.append(row)
        if len(batch) == B:
            yield np.stack(batch)
            batch = []


def random_readers(files: Files, order: np.ndarray, slow_order: np.ndarray) -> Readers:
    return {
        "ours, token rows": lambda: raw_rows(files.records, order),
        "ours, inputs": lambda: ours(files.records, order, ("inputs",)),
        "ours, all six arrays": lambda: ours(files.records, order),
        "memory map, row by row": lambda: memmap_rows(files.raw, order),
        "memory map, gather": lambda: memmap_gather(files.raw, order),
        "Megatron-style": lambda: megatron_style(files.raw, order),
        "Hugging Face datasets": lambda: hugging_face(files.folder / "rows.arrow", slow_order),
        "MosaicML streaming": lambda: mosaic(files.folder / "mds", shuffle=True),
        "WebDataset, buffer of 1,000": lambda: web_dataset(files.folder / "rows.tar", 1000),
        "stock Grain": lambda: stock(files.records, order, grain.ReadOptions(num_threads=0)),
        "stock Grain, default options": lambda: stock(files.records, order, grain.ReadOptions()),
    }


def sequential_readers(files: Files, num_records: int) -> Readers:
    order = np.arange(num_records)
    return {
        "ours, token rows": lambda: raw_rows(files.records, order, in_sequence=True),
        "ours, inputs": lambda: ours(files.records, order, ("inputs",), in_sequence=True),
        "ours, all six arrays": lambda: ours(files.records, order, in_sequence=True),
        "memory map, row by row": lambda: memmap_rows(files.raw, order),
        "memory map, gather": lambda: memmap_gather(files.raw, order),
        "Megatron-style": lambda: megatron_style(files.raw, order),
        "Hugging Face datasets": lambda: hugging_face(files.folder / "rows.arrow", None),
        "MosaicML streaming": lambda: mosaic(files.folder / "mds", shuffle=False),
        "WebDataset": lambda: web_dataset(files.folder / "rows.tar"),
        "stock Grain": lambda: stock(files.records, order, grain.ReadOptions(num_threads=0)),
        "stock Grain, default options": lambda: stock(files.records, order, grain.ReadOptions()),
    }


def make_all(folder: Path, num_records: int, num_slow: int) -> Files:
    records, raw = make_files(folder, num_records)
    tokens = np.fromfile(raw, np.uint16, num_slow * L).reshape(-1, L)
    write_arrow(folder / "rows.arrow", tokens)
    write_mds(folder / "mds", tokens)
    write_tar(folder / "rows.tar", tokens)
    for path in (records, raw, folder / "rows.arrow", folder / "rows.tar"):
        path.read_bytes()  # into the page cache
    return Files(records, raw, folder, tokens)


def check(files: Files, in_order: Readers, in_sequence: Readers, order: np.ndarray, slow_order: np.ndarray) -> None:
    """Check the first batch of every library; if a library uses its own order, check only that the rows are records."""
    raw = np.memmap(files.raw, np.uint16, "r").reshape(-1, L)
    for readers, fast, slow in ((in_order, order, slow_order), (in_sequence, np.arange(B), np.arange(B))):
        for label, reader in readers.items():
            found = np.asarray(next(iter(reader())))
            if readers is in_order and label.startswith(("MosaicML", "WebDataset")):
                known = {row.tobytes() for row in files.tokens}
                if not all(row.tobytes() in known for row in found):
                    raise ValueError(f"Expected records from {label}, found something else.")
            else:
                expected = raw[(slow if label.startswith("Hugging") else fast)[:B]]
                np.testing.assert_array_equal(found, expected, err_msg=label)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-records", type=int, default=200_000)
    parser.add_argument("--num-slow-records", type=int, default=50_000, help="records for the other libraries")
    parser.add_argument("--seconds", type=float, default=6.0, help="seconds for each reader")
    parser.add_argument("--write", action="store_true", help="write results/loader-peers.json")
    arguments = parser.parse_args()
    packages = ("grain", "array_record", "numpy", "datasets", "mosaicml-streaming", "webdataset", "torch")
    before = environment(*packages)  # the load without this benchmark
    num_slow = min(arguments.num_slow_records, arguments.num_records)
    with tempfile.TemporaryDirectory() as name:
        files = make_all(Path(name), arguments.num_records, num_slow)
        order = np.random.default_rng(1).permutation(arguments.num_records)
        slow_order = np.random.default_rng(1).permutation(num_slow)
        in_order = random_readers(files, order, slow_order)
        in_sequence = sequential_readers(files, arguments.num_records)
        check(files, in_order, in_sequence, order, slow_order)
        rates = {
            "random": best_rates(in_order, arguments.seconds),
            "in sequence": best_rates(in_sequence, arguments.seconds),
        }
    for kind, measured in rates.items():
        mine = measured["ours, token rows"]
        print(f"\n{kind:<32}{'records/s':>12}{'ours / it':>12}")
        for label, value in measured.items():
            print(f"{label:<32}{value:>12,.0f}{mine / value:>12.2f}")
    if arguments.write:
        about = {
            "num_records": arguments.num_records,
            "num_slow_records": num_slow,
            "sequence_length": L,
            "batch_size": B,
            "records_per_second": {
                kind: {label: round(value) for label, value in measured.items()} for kind, measured in rates.items()
            },
            "token_rows_times_it": {
                kind: {label: round(measured["ours, token rows"] / value, 2) for label, value in measured.items()}
                for kind, measured in rates.items()
            },
        }
        write("loader-peers", {**before, **about})


if __name__ == "__main__":
    main()
