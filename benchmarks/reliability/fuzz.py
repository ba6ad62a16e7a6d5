"""Files that Hypothesis generates, for every reader: it reads them, or raises a `UserError`.

A reader of a dataset's files, whose hashes are in the manifest, must also read the original values. `count` is the
number of seconds for each reader; all run under a limit of their memory.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies as st

import jax_diversity as jd
from benchmarks.reliability import small
from benchmarks.reliability.forks import in_fork
from benchmarks.reliability.readers import hash_of
from benchmarks.reliability.small import Place
from benchmarks.reliability.tally import Tally
from jax_diversity.foundation import artifacts

_MEMORY = 2 * 2**30
_ROUND = 200
"""Number of examples of one run of Hypothesis; each run draws other examples."""

_LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 2**31, 2**63, 2**64, 10**30, 10**400]),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["", "..", "/path-of-nothing", "a\0b", "\ud800", "\x1b[31m", "n" * 300]),
)
_VALUES = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)


@st.composite
def changed_bytes(draw: Any, valid: bytes) -> bytes:
    """Generate valid bytes with some edits; sometimes any bytes."""
    if draw(st.integers(0, 19)) == 0:
        return draw(st.binary(max_size=200))
    content = bytearray(valid)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(content)))
        if draw(st.booleans()):  # headers and footers are where formats break
            place = min(place % 128, len(content)) if draw(st.booleans()) else max(0, len(content) - place % 128)
        kind = draw(st.sampled_from(("flip", "replace", "insert", "cut", "remove", "number")))
        if kind == "flip" and place < len(content):
            content[place] ^= 1 << draw(st.integers(0, 7))
        elif kind == "replace":
            part = draw(st.binary(min_size=1, max_size=16))
            content[place : place + len(part)] = part
        elif kind == "number":
            size = draw(st.sampled_from((2, 4, 8)))
            number = draw(st.sampled_from((0, 1, -1, 2**15, 2**31 - 1, -(2**31), 2**62, -(2**63), len(content))))
            content[place : place + size] = (number % 2 ** (8 * size)).to_bytes(size, "little")
        elif kind == "insert":
            content[place:place] = draw(st.binary(max_size=64))
        elif kind == "cut":
            del content[place:]
        else:
            del content[place : place + draw(st.integers(1, 64))]
    return bytes(content)


@st.composite
def changed_manifest(draw: Any, valid: Any) -> bytes:
    """Generate a manifest with one changed value or key; often its own hash is made to fit."""
    document = json.loads(json.dumps(valid))
    inner, path = document, []
    while isinstance(inner, dict | list) and inner and (not path or draw(st.integers(0, 3))):
        keys = sorted(inner) if isinstance(inner, dict) else range(len(inner))
        path.append(draw(st.sampled_from(keys)))
        inner = inner[path[-1]]
    holder = document
    for key in path[:-1]:
        holder = holder[key]
    if isinstance(holder, dict) and draw(st.integers(0, 4)) == 0:
        holder[draw(st.text(max_size=12))] = holder.pop(path[-1])
    else:
        holder[path[-1]] = draw(_VALUES)
    if draw(st.booleans()):
        document = artifacts.signed(document)
    return json.dumps(document, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")


def _lines() -> st.SearchStrategy[bytes]:
    fields = st.sampled_from(["id", "text", "source", "language", "title", "year", "m"])
    record = st.dictionaries(fields | st.text(max_size=6), _VALUES, max_size=6)
    line = st.one_of(record, record, _VALUES).map(lambda value: json.dumps(value).encode())
    return st.lists(st.one_of(line, line, st.binary(max_size=40)), max_size=8).map(b"\n".join)


@st.composite
def tables(draw: Any) -> bytes:
    """Parquet files of columns of any types."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {}
    number = draw(st.integers(0, 4))
    for name in draw(st.lists(st.sampled_from(["id", "text", "source", "tokens", "m", ""]), unique=True, max_size=4)):
        leaf = draw(
            st.sampled_from((st.text(max_size=8), st.integers(-(2**31), 2**31), st.floats(), st.binary(max_size=8)))
        )
        kind = draw(st.sampled_from((leaf, leaf, st.lists(leaf, max_size=3), st.none() | leaf)))
        columns[name] = draw(st.lists(kind, min_size=number, max_size=number))
    sink = pa.BufferOutputStream()
    try:
        pq.write_table(pa.table(columns), sink)
    except (pa.ArrowException, UnicodeEncodeError):
        return b""
    return sink.getvalue().to_pybytes()


@dataclass(frozen=True)
class Reader:
    """A generator of files and a reader; `expected` is the hash that `read` gives for the valid file."""

    files: st.SearchStrategy[Any]
    read: Callable[[Any], str | None]
    expected: str | None = None


def _corpus_reader(path: Path, files: st.SearchStrategy[bytes], **settings: Any) -> Reader:
    from jax_diversity.preparation.readers.reading import read_documents
    from jax_diversity.preparation.readers.records import ReadReport
    from jax_diversity.preparation.settings import CorpusConfig

    def read(content: bytes) -> None:
        path.write_bytes(content)
        config = CorpusConfig(paths=(str(path.with_suffix("")) if path.suffix == ".idx" else str(path),), **settings)
        for document in read_documents(config, ReadReport()):
            json.dumps(dict(document.metadata))

    return Reader(files, read)


def _array_record(path: Path) -> bytes:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), "group_size:1,uncompressed")
    for length in range(1, 30):
        writer.write(np.arange(length, dtype="<i4").tobytes())
    writer.close()
    return path.read_bytes()


def _token_index(folder: Path, place: Place) -> Reader:
    from jax_diversity.sequences.token_store.megatron import TokenStore

    prefix = folder / "tokens"
    source = sorted((place.dataset / "tokens").glob("*.idx"))[0]
    shutil.copyfile(source.with_suffix(".bin"), prefix.with_suffix(".bin"))

    def read(content: bytes) -> None:
        prefix.with_suffix(".idx").write_bytes(content)
        store = TokenStore([prefix])
        for index in range(min(store.num_documents, 100)):
            store.document(index).sum()

    return Reader(changed_bytes(source.read_bytes()), read)


def _ordering(folder: Path, place: Place) -> Reader:
    path = folder / "order.npy"

    def read(content: bytes) -> None:
        path.write_bytes(content)
        jd.Ordering.load(path)

    return Reader(changed_bytes((place.dataset / "orderings" / "balance.npy").read_bytes()), read)


def _records(place: Place) -> Reader:
    path = sorted((place.dataset / "records").glob("train-*.array_record"))[1]
    content = path.read_bytes()

    def read(content: bytes) -> str:
        path.write_bytes(content)
        loader = jd.make_loader(place.dataset, global_batch_size=32, fields=("inputs",), num_prefetch=0)
        return hash_of([batch["inputs"] for batch in loader])

    return Reader(changed_bytes(content), read, read(content))


def _manifest(place: Place) -> Reader:
    path = place.dataset / "manifest.json"
    valid = path.read_bytes()

    def read(content: bytes) -> None:
        path.write_bytes(content)
        dataset = jd.open_dataset(place.dataset)
        repr(dataset)
        dataset.verify()
        _ = dataset.fingerprint, dataset.families, dataset.vocab_size, dataset.end_id
        for name in dataset.orderings:
            _ = dataset.orderings[name].indices
        next(iter(jd.make_loader(place.dataset, global_batch_size=8, num_prefetch=0)))

    return Reader(st.one_of(changed_manifest(json.loads(valid)), changed_bytes(valid)), read)


def _checkpoint(place: Place) -> Reader:
    """Change a file of the last checkpoint; the run must continue with the same losses, or not at all."""
    from jax_diversity.lab.training import train

    small.begin_training(place)
    folder, kept = place.dataset / "training" / "balance", place.root / "kept"
    shutil.copytree(folder, kept)
    last = max((kept / "checkpoints").rglob("*"), key=lambda path: (path.is_file(), path.stat().st_size))
    config, valid = small.training_config(), last.read_bytes()

    def read(content: bytes) -> str:
        shutil.rmtree(folder)
        shutil.copytree(kept, folder)
        (folder / last.relative_to(kept)).write_bytes(content)
        run = train(jd.open_dataset(place.dataset), config, folder)
        return hash_of([step["loss"] for step in run.steps])

    return Reader(changed_bytes(valid), read, read(valid))


READERS: Mapping[str, Callable[[Path, Place], Reader]] = {
    "JSONL": lambda folder, place: _corpus_reader(folder / "part.jsonl", _lines()),
    "JSONL of tokens": lambda folder, place: _corpus_reader(folder / "part.jsonl", _lines(), format="tokens"),
    "Parquet": lambda folder, place: _corpus_reader(
        folder / "part.parquet",
        st.one_of(tables(), changed_bytes((place.dataset / "documents" / "documents-00000.parquet").read_bytes())),
    ),
    "ArrayRecord corpus": lambda folder, place: _corpus_reader(
        folder / "part.array_record",
        changed_bytes(_array_record(folder / "valid.array_record")),
        format="tokens",
        array_record_tokens="int32",
    ),
    ".idx": _token_index,
    ".npy": _ordering,
    "records": lambda folder, place: _records(place),
    "manifest": lambda folder, place: _manifest(place),
    "checkpoint": lambda folder, place: _checkpoint(place),
}


def attack(folder: Path, count: int, seed: int, dataset: Place | None = None) -> dict[str, object]:
    """Fuzz each reader for a number of seconds."""
    sound = small.build(folder / "sound") if dataset is None else dataset
    tally = Tally(seed)
    hypothesis.find(st.text(), lambda text: True)  # makes the tables of characters, which takes seconds
    for name, make in READERS.items():
        _fuzz(tally, name, make, sound.copied_to(folder / "fuzzed"), count, seed)
    return tally.result


def _fuzz(
    tally: Tally, name: str, make: Callable[[Path, Place], Reader], place: Place, seconds: float, seed: int
) -> None:
    """Fuzz one reader; a crash ends its process, not the campaign."""
    log = place.root / "log"
    end = time.monotonic() + seconds
    while True:
        log.unlink(missing_ok=True)
        left = end - time.monotonic()
        outcome = in_fork(partial(_rounds, make, place, log, left, seed), max(left, 0) + 120)
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        number = sum(line.get("examples", 0) for line in lines)
        tally.begin(number)
        tally.add(name, number)
        for line in lines:
            if "fault" in line:
                tally.fail(line["fault"], reader=name, said=line["said"], input=line["input"])
        if outcome.status == 0:
            return
        tally.fail(
            "hangs" if outcome.status is None else "crashes", reader=name, status=outcome.status, said=outcome.said
        )
        seed += 1000
        if time.monotonic() > end or not number:
            return


def _rounds(make: Callable[[Path, Place], Reader], place: Place, log: Path, seconds: float, first_seed: int) -> None:
    """Run rounds of examples until the time is over; a fault is shrunk once and then skipped."""
    folder = place.root / "files"
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    reader = make(folder, place)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + _MEMORY, in_use + _MEMORY))
    end, seen, number = time.monotonic() + seconds, set[str](), first_seed
    with log.open("a") as file:
        while time.monotonic() < end:
            number += 1
            counted = [0]
            fault = _one_round(reader, number, end, seen, counted)
            about = {"examples": counted[0]}
            if fault is not None:
                seen.add(fault["said"].split(": ")[0])
                about |= fault
            file.write(json.dumps(about) + "\n")
            file.flush()


def _one_round(reader: Reader, seed: int, end: float, seen: set[str], counted: list[int]) -> dict[str, str] | None:
    """The first new fault of a round, with a shrunk input; None if there is no new fault."""
    latest: dict[str, str] = {}

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=_ROUND, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
    )
    @hypothesis.given(reader.files)
    def check(content: Any) -> None:
        if time.monotonic() > end:
            return
        counted[0] += 1
        fault = _fault(reader, content)
        if fault is not None and fault[1].split(": ")[0] not in seen:
            latest.update(fault=fault[0], said=fault[1], input=ascii(content)[:400])
            raise _FoundError(fault[1].split(": ")[0])

    try:
        check()
    except BaseException as error:
        if not latest:
            raise
        del error
    return latest or None


class _FoundError(Exception):
    """A fault, for Hypothesis to shrink."""


def _fault(reader: Reader, content: Any) -> tuple[str, str] | None:
    try:
        found = reader.read(content)
    except jd.UserError:
        return None
    except Exception as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "jax_diversity" in frame.filename]
        where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
        return "tracebacks", f"{type(error).__name__} at {where}: {str(error)[:200]}"
    if reader.expected is not None and found != reader.expected:
        return "silent", "other values: "
    return None
