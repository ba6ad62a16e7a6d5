"""The rows of an experiment, one for each training run, in a Parquet file that is rewritten as a whole.

Every row is stored with a hash of its values, and the file with a hash of these hashes. Reading compares both, and the
checksums of Parquet's pages.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from evidence.settings import VERSION, Experiment
from jax_diversity.foundation.artifacts import atomic_path, fingerprint
from jax_diversity.foundation.errors import UserError, in_one_line

if TYPE_CHECKING:
    import pyarrow as pa

FILE = "results.parquet"
_HASH = "hash"
"""Name of the column with the rows' hashes, and key of the file's hash in the schema's metadata."""


class Measure(NamedTuple):
    """A number that was measured after `step` steps."""

    step: int
    name: str
    value: float


@dataclass(frozen=True)
class TrialRow:
    """The results of a training run.

    Attributes:
        identity: hash of its settings.
        experiment: name of the experiment.
        arm: name of the arm.
        varied: the varied settings and their values.
        order_seed: seed of the order.
        weight_seed: seed of the first weights.
        settings: all settings of the trial.
        data: hash of the tokens of training and evaluation.
        version: version of the meaning of the settings.
        status: `done`, or `diverged` if the loss became infinite or NaN.
        num_parameters: number of weights.
        num_steps: number of optimiser steps.
        num_tokens: number of target tokens in training.
        seconds: duration of the whole run with its compilation.
        device: the device that computed it.
        digest: hash of the losses of all steps and documents, bit for bit.
        measures: all measured numbers, with their steps.
        document_losses: mean loss of every validation document at the end, in nats per token.
        document_tokens: number of targets in each of these means.
        document_groups: the group of each document in the experiment's family `macro`.
    """

    identity: str
    experiment: str
    arm: str
    varied: Mapping[str, Any]
    order_seed: int
    weight_seed: int
    settings: Mapping[str, Any]
    data: str
    version: int
    status: str
    num_parameters: int
    num_steps: int
    num_tokens: int
    seconds: float
    device: str
    digest: str
    measures: tuple[Measure, ...]
    document_losses: np.ndarray
    document_tokens: np.ndarray
    document_groups: Sequence[str]

    def final(self) -> dict[str, float]:
        """The last value of every measure."""
        return {measure.name: measure.value for measure in self.measures}

    def curve(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """The steps of a measure, and its values."""
        points = [(measure.step, measure.value) for measure in self.measures if measure.name == name]
        return np.array([step for step, _ in points]), np.array([value for _, value in points])


def append_rows(path: Path, rows: Iterable[TrialRow]) -> None:
    """Add all rows to a file, or no row after an error; rows in the file do not change."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = _table(list(rows))
    if path.exists():
        table = pa.concat_tables([_read(path), table])
    hashes = _hashes(table)
    table = table.append_column(_HASH, [hashes]).replace_schema_metadata({_HASH: fingerprint(hashes)})
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)


def stored_identities(path: Path) -> set[str]:
    """The identities of a file's rows, read without the other columns; empty if there is no file."""
    return set(_read(path)["identity"].to_pylist()) if path.exists() else set()


def read_rows(*folders: Path) -> dict[str, TrialRow]:
    """All rows in some folders by their identity, from `results.parquet` and any other .parquet file.

    To join the rows of several machines, put their files into one folder.

    Raises:
        UserError: a file has no rows or rows of another version, or two runs of one identity have different numbers.
    """
    rows: dict[str, TrialRow] = {}
    origin: dict[str, Path] = {}
    for path in (path for folder in folders for path in sorted(folder.glob("*.parquet"))):
        for row in _rows(_read(path), path):
            other = rows.get(row.identity)
            if other is not None and _numbers(other) != _numbers(row):
                raise UserError(
                    f"Expected one result of each run, found two different results of {row.experiment}, {row.arm}, "
                    f"order seed {row.order_seed}, weights {row.weight_seed} ({row.identity}; {origin[row.identity]} "
                    f"on {other.device}, {path} on {row.device}): equal settings should give equal bits on one kind of "
                    "machine; find the reason, and remove one of the two."
                )
            rows.setdefault(row.identity, row)
            origin.setdefault(row.identity, path)
    return rows


def check_data(experiment: Experiment, rows: Mapping[str, TrialRow], data: Mapping[str, str] | None = None) -> None:
    """Refuse rows of one of the experiment's datasets that were trained or evaluated on different tokens.

    Args:
        experiment: the experiment; other rows are not compared.
        rows: rows by identity.
        data: dataset -> the hash of the tokens of its next runs.
    """
    expected = {name: (value, "the next runs") for name, value in (data or {}).items()}
    for trial in experiment.trials:
        row, dataset = rows.get(trial.identity), trial.config.dataset
        if row is None:
            continue
        value, origin = expected.setdefault(dataset, (row.data, f"{row.arm} on {row.device}"))
        if value != row.data:
            raise UserError(
                f"Expected all runs of {experiment.name} on the dataset {dataset!r} to have the same tokens, found "
                f"{value} ({origin}) and {row.data} ({row.arm} on {row.device}): their losses cannot be compared; "
                "keep the rows with one kind of tokens, and run the other trials again."
            )


def _numbers(row: TrialRow) -> tuple[Any, ...]:
    return row.status, row.data, row.digest


def _schema() -> pa.Schema:
    import pyarrow as pa

    measure = pa.struct([("step", pa.int32()), ("name", pa.string()), ("value", pa.float64())])
    text, whole = pa.string(), pa.int64()
    return pa.schema(
        [
            *((name, text) for name in ("identity", "experiment", "arm", "varied")),
            ("order_seed", whole),
            ("weight_seed", whole),
            ("settings", text),
            ("data", text),
            ("version", whole),
            ("status", text),
            *((name, whole) for name in ("num_parameters", "num_steps", "num_tokens")),
            ("seconds", pa.float64()),
            ("device", text),
            ("digest", text),
            ("measures", pa.list_(measure)),
            ("document_losses", pa.list_(pa.float32())),
            ("document_tokens", pa.list_(pa.int32())),
            ("document_groups", pa.list_(text)),
        ]
    )


def _table(rows: Sequence[TrialRow]) -> pa.Table:
    import pyarrow as pa

    plain = []
    for row in rows:
        values = {name: getattr(row, name) for name in row.__dataclass_fields__}
        values["varied"], values["settings"] = json.dumps(row.varied), json.dumps(row.settings)
        values["measures"] = [measure._asdict() for measure in row.measures]
        values["document_groups"] = list(row.document_groups)
        plain.append(values)
    return pa.Table.from_pylist(plain, schema=_schema())


def _hashes(table: pa.Table) -> list[str]:
    """The hash of every row's values."""
    return [fingerprint(values) for values in table.to_pylist()]


def _read(path: Path) -> pa.Table:
    """The rows of a file, without their hashes.

    Raises:
        UserError: the file does not contain rows, is damaged or edited, or has rows of another version.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path, page_checksum_verification=True)
        lacking = {*_schema().names, _HASH} - set(table.schema.names)
        stored = () if lacking else (table[_HASH].to_pylist(), (table.schema.metadata or {}).get(_HASH.encode()))
        # A damaged schema may have other types, such as bytes for text.
        rows = table if lacking else table.select(_schema().names).cast(_schema())
        hashes = [] if lacking else _hashes(rows)
    except (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError) as error:
        raise _damaged(path, in_one_line(error)) from None
    if lacking:
        raise UserError(f"Expected rows of an experiment in {path}, found none of {', '.join(sorted(lacking))}.")
    if len(rows) and (other := set(rows["version"].to_pylist()) - {VERSION}):
        raise UserError(
            f"Expected rows of version {VERSION} in {path}, found version {', '.join(map(str, sorted(other)))}, whose "
            "settings have another meaning; move the file elsewhere and run the experiment again."
        )
    if stored != (hashes, fingerprint(hashes).encode()):
        raise _damaged(path, "rows that differ from their hashes")
    return rows


def _damaged(path: Path, content: str) -> UserError:
    return UserError(
        f"Expected rows of an experiment in {path}, found {content}; restore the file, or remove it and run its trials "
        "again."
    )


def _rows(table: pa.Table, path: Path) -> Iterable[TrialRow]:
    for values in table.to_pylist():
        try:
            values["varied"], values["settings"] = json.loads(values["varied"]), json.loads(values["settings"])
            values["measures"] = tuple(Measure(**measure) for measure in values["measures"])
            values["document_losses"] = np.array(values["document_losses"], np.float32)
            values["document_tokens"] = np.array(values["document_tokens"], np.int32)
            yield TrialRow(**values)
        except (TypeError, ValueError) as error:
            raise UserError(f"Expected rows of an experiment in {path}, found {in_one_line(error)}.") from None
