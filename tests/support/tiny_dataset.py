"""A tiny dataset folder, whole and valid, written by hand for tests of what reads one."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
from scipy.sparse import csr_array, save_npz

from jax_diversity.foundation.artifacts import OutputFolder, write_json
from jax_diversity.schema import Ordering, Segments
from jax_diversity.sequences.characteristics.counts import sequence_copies, sequence_documents
from jax_diversity.sequences.clustering.stored import clusters_name
from jax_diversity.streaming.dataset import Dataset
from jax_diversity.streaming.records.codec import VERSION
from jax_diversity.streaming.records.writing import write_records

GROUP_NAMES: Mapping[str, Sequence[str]] = {"cluster": tuple("01234"), "length": ("short", "middle", "long")}


@dataclass
class ListStore:
    """Documents' tokens in a list, with a token store's `gather`."""

    documents: list[np.ndarray]

    def gather(self, document_index: np.ndarray, document_offset: np.ndarray, length: np.ndarray) -> np.ndarray:
        rows = zip(document_index, document_offset, length, strict=True)
        parts = [self.documents[document][offset : offset + size] for document, offset, size in rows]
        return np.concatenate(parts) if parts else np.zeros(0, np.uint16)


def pack(lengths: list[int], sequence_length: int, first_document: int = 0) -> Segments:
    """Documents end to end, cut every `sequence_length` tokens, the last sequence padded: one token at a time."""
    rows: list[list[int]] = []
    place = 0
    for index, length in enumerate(lengths):
        for offset in range(length):
            sequence, position = divmod(place, sequence_length)
            if offset == 0 or position == 0:
                rows.append([sequence, position, first_document + index, offset, 0, 0])
            rows[-1][4] += 1
            rows[-1][5] = int(offset == length - 1)
            place += 1
    columns = np.array(rows, np.int64).reshape(-1, 6).T
    num_sequences = -(-place // sequence_length)
    return Segments(*columns[:5], columns[5].astype(bool), num_sequences, sequence_length)


def reference_row(segments: Segments, store: ListStore, sequence: int) -> dict[str, np.ndarray]:
    """One sequence's arrays, token by token."""
    length = segments.sequence_length
    row = {name: np.zeros(length, np.int32) for name in ("inputs", "targets")}
    row |= {f"{name}_{what}": np.zeros(length, np.int32) for name in row for what in ("segmentation", "position")}
    here = np.flatnonzero(segments.sequence_index == sequence)
    for number, index in enumerate(here, start=1):
        tokens = store.documents[segments.document_index[index]][segments.document_offset[index] :]
        for place in range(segments.length[index]):
            at = segments.position[index] + place
            row["inputs"][at] = tokens[place]
            row["inputs_segmentation"][at] = number
            row["inputs_position"][at] = row["targets_position"][at] = place
            if place + 1 < segments.length[index]:
                row["targets"][at] = tokens[place + 1]
                row["targets_segmentation"][at] = number
    return row


@dataclass
class TinyDataset:
    """Where the dataset lies and what it was made of."""

    root: Path
    store: ListStore
    segments: Segments
    validation: Segments
    orders: dict[str, np.ndarray]


def write_tiny_dataset(
    root: Path,
    *,
    num_documents: int = 32,
    num_validation_documents: int = 4,
    sequence_length: int = 16,
    sequences_per_file: int = 7,
    vocab_size: int = 64,
    layout: str = "packed",
    seed: int = 0,
    dtype: str = "uint16",
    group_names: Mapping[str, Sequence[str]] = GROUP_NAMES,
    features: str | None = None,
) -> TinyDataset:
    """Write every stage's files and the manifest; `balance` and `uniform_shuffle` are permutations.

    `features` stands for all that decides the feature space.
    """
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 3 * sequence_length, num_documents + num_validation_documents)
    store = ListStore([_text(rng, int(length), vocab_size, dtype) for length in lengths])
    segments = pack(lengths[:num_documents].tolist(), sequence_length)
    validation = pack(lengths[num_documents:].tolist(), sequence_length, first_document=num_documents)
    orders = {name: rng.permutation(segments.num_sequences) for name in ("balance", "uniform_shuffle")}
    folder = OutputFolder(root)
    with folder.lock():
        folder.manifest["settings"] = {}
        clusterings = {name: len(names) for name, names in group_names.items() if name.startswith("cluster")}
        if features:
            partial = folder.partial("embed", "0" * 64, resume=False)
            _publish(folder, "embed", partial, "embeddings", {"features": features})
            partial = folder.partial("cluster", "0" * 64, resume=False)
            for name in clusterings:
                write_json(partial / clusters_name(name), [{"name": each} for each in group_names[name]])
            _publish(folder, "cluster", partial, "clusters", {"clusterings": clusterings, "features": features})
        _write_documents(folder, store, vocab_size, dtype, features)
        _write_sequences(folder, segments, validation)
        _write_characteristics(folder, segments, group_names, len(lengths), features)
        for name, order in orders.items():
            ordering = Ordering(order, {"method": name})
            mark = Dataset(root).characteristics.fingerprint
            counts = {"num_sequences": len(order), "fingerprint": ordering.fingerprint, "characteristics": mark}
            partial = folder.partial(f"order/{name}", "0" * 64, resume=False)
            np.save(partial / f"{name}.npy", ordering.indices)
            _publish(folder, f"order/{name}", partial, "orderings", counts)
            partial = folder.partial(f"measure/{name}", "0" * 64, resume=False)
            write_json(partial / f"{name}.json", {**counts, **ordering.info})
            _publish(folder, f"measure/{name}", partial, "orderings", {})
        partial = folder.partial("write", "0" * 64, resume=False)
        identity = hashlib.sha256(f"{seed} {lengths} {vocab_size} {dtype}".encode()).hexdigest()
        order = orders["balance"] if layout == "ordered" else np.arange(segments.num_sequences)
        counts = {
            stem: write_records(
                part,
                store.gather,
                dtype,
                part_order,
                partial,
                stem,
                sequences_per_file=sequences_per_file,
                identity=identity,
            )
            for stem, part, part_order in (
                ("train", segments, order),
                ("validation", validation, np.arange(validation.num_sequences)),
            )
        }
        about = {"layout": layout, "ordering": "balance" if layout == "ordered" else None, "dtype": dtype}
        about |= {"records": counts, "identity": identity, "format": VERSION}
        _publish(folder, "write", partial, "records", about)
    return TinyDataset(root, store, segments, validation, orders)


def _text(rng: np.random.Generator, length: int, vocab_size: int, dtype: str) -> np.ndarray:
    """A walk over the ids above 0 (so that padding shows), with the end token, the last id, at its end."""
    walk = (rng.integers(vocab_size) + np.cumsum(rng.integers(0, 3, length))) % (vocab_size - 2) + 1
    walk[-1] = vocab_size - 1
    return walk.astype(dtype)


def _publish(folder: OutputFolder, stage: str, partial: Path, destination: str, counts: dict) -> None:
    mark = hashlib.sha256(stage.encode()).hexdigest()
    summary = ", ".join(f"{name} {value}" for name, value in counts.items())
    entry = {"fingerprint": mark, "config": {}, "inputs": {}, "counts": counts, "summary": summary}
    folder.publish(stage, partial, destination, entry, owns_folder="/" not in stage)


def _write_documents(folder: OutputFolder, store: ListStore, vocab_size: int, dtype: str, features: str | None) -> None:
    number = len(store.documents)
    partial = folder.partial("prepare", "0" * 64, resume=False)
    ids = [f"document-{index}" for index in range(number)]
    table = pyarrow.table({"id": ids, "text": ["words"] * number, "source": ["tiny"] * number})
    half = number // 2
    for name in ("documents", "duplicates"):
        (partial / name).mkdir()
    pyarrow.parquet.write_table(table.slice(0, half), partial / "documents" / "documents-00000.parquet")
    pyarrow.parquet.write_table(table.slice(half), partial / "documents" / "documents-00001.parquet")
    np.save(partial / "duplicates" / "groups.npy", np.arange(number))
    _publish(folder, "prepare", partial, "", {"num_documents": number})

    partial = folder.partial("tokenize", "0" * 64, resume=False)
    lengths = np.array([len(document) for document in store.documents], np.int32)
    width = np.dtype(dtype).itemsize
    (partial / "tokens-00000.bin").write_bytes(np.concatenate(store.documents).tobytes())
    (partial / "tokens-00000.idx").write_bytes(
        struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, {2: 8, 4: 4}[width], number, number + 1)
        + lengths.tobytes()
        + ((np.cumsum(lengths, dtype=np.int64) - lengths) * width).tobytes()
        + np.arange(number + 1, dtype=np.int64).tobytes()
    )
    counts = {"vocab_size": vocab_size, "end_id": vocab_size - 1, "token_dtype": dtype}
    counts |= {"num_documents": number, "num_tokens": int(lengths.sum()), "features": features}
    _publish(folder, "tokenize", partial, "tokens", counts)


def _write_sequences(folder: OutputFolder, segments: Segments, validation: Segments) -> None:
    partial = folder.partial("pack", "0" * 64, resume=False)
    for name, part in (("segments", segments), ("validation", validation)):
        table = pyarrow.table({column: getattr(part, column) for column in Segments.COLUMNS})
        pyarrow.parquet.write_table(table, partial / f"{name}.parquet")
    counts = {"sequence_length": segments.sequence_length, "overlap": 0, "num_sequences": segments.num_sequences}
    counts |= {"num_validation_sequences": validation.num_sequences, "num_inserted_ends": 0}
    counts |= {
        "num_loss_tokens": int(segments.length.sum()),
        "num_validation_loss_tokens": int(validation.length.sum()),
    }
    _publish(folder, "pack", partial, "sequences", counts)


def _write_characteristics(
    folder: OutputFolder,
    segments: Segments,
    group_names: Mapping[str, Sequence[str]],
    num_documents: int,
    features: str | None,
) -> None:
    partial = folder.partial("characterize", "0" * 64, resume=False)
    totals = {}
    for family, names in group_names.items():
        group = segments.document_index % len(names)
        shape = (segments.num_sequences, len(names))
        counts = csr_array((segments.length.astype(np.int32), (segments.sequence_index, group)), shape=shape)
        counts.sum_duplicates()
        save_npz(partial / f"{family}.npz", counts, compressed=False)
        totals[family] = counts.sum(axis=0).tolist()
    write_json(partial / "totals.json", totals)
    np.save(partial / "sequence_documents.npy", sequence_documents(segments))
    # Every third document is a copy of another.
    documents = np.arange(int(segments.document_index.max(initial=0)) + 1)
    np.save(
        partial / "sequence_copies.npy", sequence_copies(segments, np.where(documents % 3, documents, documents % 4))
    )
    write_json(partial / "groups.json", group_names)
    ids = [f"document-{index}" for index in range(num_documents)]
    about_documents = pyarrow.table({"id": ids, "source": ["tiny"] * num_documents})
    pyarrow.parquet.write_table(about_documents, partial / "documents.parquet")
    codes = {family: np.arange(num_documents, dtype=np.int32) % len(names) for family, names in group_names.items()}
    pyarrow.parquet.write_table(pyarrow.table(codes), partial / "codes.parquet")
    about = {"families": [*group_names], "weights": {name: 1.0 + place for place, name in enumerate(group_names)}}
    about |= {"features": features}
    _publish(folder, "characterize", partial, "characteristics", about)
