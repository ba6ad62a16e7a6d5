"""MaxText's records: `tf.train.Example` with one column of token ids, in ArrayRecord files, in an ordering's order.

MaxText's Grain pipeline reads such files front to back where shuffling is off. It takes several files in the order
in which the file system lists them (`glob.glob`, which does not sort; a gs:// bucket is listed sorted), so one file
is the default here. Its source, Grain's own, reads a record in time that grows with the number of groups in the
file: 1265 µs with 200k groups of one record, 68 µs with groups of 64 (measured on a busy machine); so large files
are grouped, for which Grain logs a line. A row's padding is left out: MaxText pads with its own id.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from jax_diversity.dataset import Dataset
from jax_diversity.export.files import Written, make_folder
from jax_diversity.export.rows import OrderedSequences
from jax_diversity.export.settings import ExportConfig
from jax_diversity.export.tf_example import encode_examples
from jax_diversity.foundation.artifacts import write_json, write_text
from jax_diversity.foundation.checks import whole_number
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance, Progress, ignore
from jax_diversity.records.writing import file_counts, num_records, record_paths, write_array_record

COLUMN = "tokens"
"""The feature's name, MaxText's `train_data_columns`."""
_STEM = "train"
_UNGROUPED = 65_536  # records a file up to which one record a group is as fast
_GROUP_BYTES = 2**17
_LARGEST_GROUP = 64
_TOKENS_AT_A_TIME = 2**19


def write_maxtext(
    sequences: OrderedSequences,
    folder: Path,
    *,
    sequences_per_file: int | None = None,
    overwrite: bool = False,
    advance: Advance = ignore,
) -> Written:
    """Write the sequences in their order, and the settings that make MaxText read them so, `maxtext.yml`.

    A run that was interrupted continues after its last complete file. Memory: about 20 MB.

    Args:
        sequences: what to write.
        folder: where the files go; `order.json` in it tells whose order they are.
        sequences_per_file: records a file; None puts all into one.
        overwrite: replace another ordering's files.
        advance: told the sequences done.

    Raises:
        UserError: the folder holds another ordering's files, or others that this would mix with.

    Example:
        >>> print(write_maxtext(OrderedSequences("out", "balance"), Path("for-maxtext")).line)
    """
    if sequences_per_file is None:
        sequences_per_file = max(len(sequences), 1)
    per_file = whole_number("sequences_per_file", sequences_per_file, 1)
    counts = file_counts(len(sequences), per_file)
    paths = record_paths(folder, _STEM, len(counts))
    group_size = _group_size(sequences, per_file)
    about = {
        "dataset": sequences.fingerprint,
        "ordering": sequences.ordering_fingerprint,
        "num_sequences": len(sequences),
        "sequence_length": sequences.sequence_length,
        "sequences_per_file": per_file,
        "group_size": group_size,
    }
    _claim(folder, about, overwrite)
    start = 0
    for path, count in zip(paths, counts, strict=True):
        if path.is_file() and num_records(path) == count:
            advance(count)
        else:
            examples = _examples(sequences, start, start + count)
            write_array_record(path, examples, count, f"group_size:{group_size},uncompressed", advance=advance)
        start += count
    settings = folder / "maxtext.yml"
    write_text(settings, maxtext_settings(folder, sequences.sequence_length))
    line = f"{folder}: {len(sequences):,} records in {len(paths)} files; MaxText reads them by {settings}."
    if not _listed_in_order(folder):
        line += (
            " This file system lists the files in another order, and so would MaxText: copy them to a gs:// "
            "bucket, or write one file."
        )
    return Written((*paths, settings), line)


def maxtext_settings(folder: Path, sequence_length: int) -> str:
    """The part of a MaxText configuration that reads the files as they lie, as YAML."""
    pattern = json.dumps(str(folder.resolve() / f"{_STEM}-*.array_record"), ensure_ascii=False)
    return (
        "dataset_type: grain\n"
        "grain_file_type: arrayrecord\n"
        f"grain_train_files: {pattern}\n"
        f"train_data_columns: ['{COLUMN}']\n"
        "tokenize_train_data: false\n"
        "enable_data_shuffling: false\n"
        "packing: false\n"
        f"max_target_length: {sequence_length}\n"
        "num_epoch: 1\n"
        "# One iterator for all hosts: every global batch is the order's next one on any number of them.\n"
        "grain_use_elastic_iterator: true\n"
        "# More worker processes would each make every n-th batch of their own.\n"
        "grain_worker_count: 1\n"
    )


def _claim(folder: Path, about: dict[str, object], overwrite: bool) -> None:
    """Refuse a folder with other files, or empty it: MaxText reads whatever the pattern of its settings finds there."""
    make_folder(folder)
    mark, found = folder / "order.json", sorted(folder.glob(f"{_STEM}-*.array_record"))
    try:
        same = json.loads(mark.read_bytes()) == about
    except (OSError, ValueError):
        same = False
    if same:
        return
    if (mark.exists() or found) and not overwrite:
        raise UserError(
            f"Expected an empty folder, or this very export, at {folder}, found {(found or [mark])[0].name} of "
            "another; choose another target, or replace it with --overwrite."
        )
    # The mark goes first and comes last: a process killed in between leaves a folder that no export takes for its own.
    mark.unlink(missing_ok=True)
    for path in found:
        path.unlink()
    write_json(mark, about)


def _examples(sequences: OrderedSequences, start: int, stop: int) -> Iterator[list[bytes]]:
    num_rows = max(1, _TOKENS_AT_A_TIME // sequences.sequence_length)
    fields = ("inputs", "inputs_segmentation")
    # Merged segments number a row's tokens 1 and its padding 0, so their sum is the number of tokens.
    for rows in sequences.stream(start, stop, num_rows, fields, merge_segments=True):
        yield encode_examples(rows["inputs"], rows["inputs_segmentation"].sum(axis=1, dtype=np.int64), COLUMN)


def _group_size(sequences: OrderedSequences, per_file: int) -> int:
    if min(per_file, len(sequences)) <= _UNGROUPED:
        return 1
    bytes_of_record = 3 * sequences.sequence_length  # at most, below two million token ids
    return max(1, min(_LARGEST_GROUP, _GROUP_BYTES // bytes_of_record))


def _listed_in_order(folder: Path) -> bool:
    listed = glob.glob(str(folder / f"{_STEM}-*.array_record"))  # as MaxText does
    return listed == sorted(listed)


def export_maxtext(dataset: Dataset, config: ExportConfig, progress: Progress) -> list[Written]:
    """Write the sequences of a dataset in an ordering's order; the line also shows MaxText's settings."""
    sequences, per_file = OrderedSequences(dataset.root, config.ordering), config.maxtext.sequences_per_file
    with progress.task("export records", len(sequences), "sequences") as advance:
        target = Path(config.target)
        written = write_maxtext(
            sequences, target, sequences_per_file=per_file, overwrite=config.overwrite, advance=advance
        )
    settings = written.files[-1].read_text(encoding="utf-8")
    return [Written(written.files, f"{written.line}\n\n{settings.rstrip()}")]
