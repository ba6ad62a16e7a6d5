"""Write a run as records for MaxText, in the order of the run.

A record is a `tf.train.Example` with one column of token ids; the files are ArrayRecord files.

MaxText's Grain pipeline reads such files from beginning to end if shuffling is off. It reads several files in the order
in which the file system lists them: `glob.glob` does not sort, but a gs:// bucket lists files sorted. Therefore one
file is the default here. MaxText uses Grain's own source. The time to read a record grows with the number of
record groups in the file: 1265 µs with 200k groups of one record, 68 µs with groups of 64 (on a busy machine).
Therefore the records of large files are grouped, and Grain then logs a line about it. The padding of a row is left out,
because MaxText pads with its own id.
"""

from __future__ import annotations

import glob
import json
from contextlib import suppress
from pathlib import Path

import numpy as np
from jaxtyping import Int32, Int64

from jax_diversity.foundation.artifacts import remove_leftovers, write_json, write_text
from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.locks import hold
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.foundation.wording import counted
from jax_diversity.streaming.export.files import Written, common_length
from jax_diversity.streaming.records.writing import file_counts, num_records, record_paths, write_array_record
from jax_diversity.streaming.run.run import Run
from jax_diversity.streaming.run.source import SequenceSource

_COLUMN = "tokens"  # the name of the feature; `train_data_columns` in MaxText
_MARK = "order.json"  # identifies the order of the files
_STEM = "train"
_UNGROUPED = 65_536  # up to this number of records, groups of one record are as fast as larger groups
_GROUP_BYTES = 2**17
_LARGEST_GROUP = 64
_TOKENS_AT_A_TIME = 2**19
_LENGTH_DELIMITED = 2
_MOST_BYTES = 5  # the largest length of a varint of 31 bits


def write_maxtext(
    run: Run,
    folder: Path,
    *,
    sequences_per_file: int | None = None,
    overwrite: bool = False,
    advance: Advance = ignore,
) -> Written:
    """Write the sequences of a run in its order, and settings (`maxtext.yml`) with which MaxText keeps this order.

    A run that was interrupted continues after its last complete file. Memory: about 20 MB.

    Args:
        run: the run to write.
        folder: the folder of the files; `order.json` in it identifies their order.
        sequences_per_file: the number of records per file; None means one file.
        overwrite: whether files of another ordering are replaced.
        advance: called with the number of sequences written since its last call.

    Raises:
        UserError: sequences with padding between documents; the folder contains files of another ordering or unknown
            files; another process writes to it.

    Example:
        >>> print(write_maxtext(make_run("out", "balance"), Path("for-maxtext")).line)
    """
    if any(dataset.segments.has_gaps for dataset in run.datasets):
        raise UserError(
            "Expected sequences with padding at their ends only for MaxText, which reads other padding as tokens, "
            "found padding between documents; pack with a packing.options.atom_size of at least the sequence length."
        )
    length, group_size = common_length(run), 1
    per_file = max(len(run), 1)
    if sequences_per_file is not None:
        per_file = as_whole_number("sequences_per_file", sequences_per_file, 1)
    if min(per_file, len(run)) > _UNGROUPED:
        # A record has at most three bytes per token if there are fewer than two million token ids.
        group_size = max(1, min(_LARGEST_GROUP, _GROUP_BYTES // (3 * length)))
    counts = file_counts(len(run), per_file)
    paths = record_paths(folder, _STEM, len(counts))
    description = {
        "dataset": run.identity,
        "ordering": run.fingerprint,
        "num_sequences": len(run),
        "sequence_length": length,
        "sequences_per_file": per_file,
        "group_size": group_size,
    }
    settings = folder / "maxtext.yml"
    # Two exports at the same time could leave a mixture of files.
    with hold(folder):
        for path in (folder / _MARK, settings):
            remove_leftovers(folder, path.name)
        _claim(folder, description, overwrite)
        # Records do not contain their sequence numbers: `order.json` identifies the order of the files. If it matches,
        # a file with the right number of records is complete and is kept.
        source = SequenceSource(run, ("inputs", "inputs_segmentation"), merge_segments=True)
        start, num_rows = 0, max(1, _TOKENS_AT_A_TIME // length)
        for path, count in zip(paths, counts, strict=True):
            remove_leftovers(folder, path.name)
            if path.is_file() and num_records(path) == count:
                advance(count)
            else:
                # With merged segments, a token has the segment number 1 and padding 0, so the sum is the number of
                # tokens.
                examples = (
                    encode_examples(rows["inputs"], rows["inputs_segmentation"].sum(axis=1, dtype=np.int64))
                    for rows in (
                        source.read(run.at(np.arange(first, min(first + num_rows, start + count))))
                        for first in range(start, start + count, num_rows)
                    )
                )
                write_array_record(path, examples, count, f"group_size:{group_size},uncompressed", advance=advance)
            start += count
        write_text(settings, _settings(folder, length))
    line = (
        f"{folder}: {counted(len(run), 'record')} in {counted(len(paths), 'file')}; MaxText reads them by {settings}."
    )
    if not run.is_bijection:
        size = sum(path.stat().st_size for path in paths)
        line += (
            f" They are {size / 2**20:,.1f} MiB: each of the {run.num_sequences:,} sequences is written as often "
            "as it occurs in the run."
        )
    listed = glob.glob(str(folder / f"{_STEM}-*.array_record"))  # as MaxText does
    if listed != sorted(listed):
        line += (
            " This file system lists the files in another order, and MaxText would read them in that order: "
            "copy them to a gs:// bucket, or write one file."
        )
    return Written((*paths, settings), line)


def _settings(folder: Path, sequence_length: int) -> str:
    """Return, as YAML, the part of a MaxText configuration for reading the files in their order."""
    pattern = json.dumps(str(folder.resolve() / f"{_STEM}-*.array_record"), ensure_ascii=False)
    return (
        "dataset_type: grain\n"
        "grain_file_type: arrayrecord\n"
        f"grain_train_files: {pattern}\n"
        f"train_data_columns: ['{_COLUMN}']\n"
        "tokenize_train_data: false\n"
        "enable_data_shuffling: false\n"
        "packing: false\n"
        f"max_target_length: {sequence_length}\n"
        "num_epoch: 1\n"
        "# One iterator for all hosts: on any number of hosts every global batch is the next batch of the order.\n"
        "grain_use_elastic_iterator: true\n"
        "# Several worker processes would each make separate batches.\n"
        "grain_worker_count: 1\n"
    )


def _claim(folder: Path, description: dict[str, object], overwrite: bool) -> None:
    """Raise a `UserError` for a folder with other files, or empty it if `overwrite` is set.

    MaxText reads all files that match the pattern in its settings.
    """
    mark, written_files = folder / _MARK, sorted(folder.glob(f"{_STEM}-*.array_record"))
    with suppress(OSError, ValueError):  # there is no mark, or it is damaged
        if json.loads(mark.read_bytes()) == description:
            return
    if (mark.exists() or written_files) and not overwrite:
        raise UserError(
            f"Expected an empty folder, or the same export, at {folder}, found {(written_files or [mark])[0].name} of "
            "another export; choose another target, or replace it with --overwrite."
        )
    # The mark is removed first and written last: after a kill in between no export accepts the folder as its own.
    mark.unlink(missing_ok=True)
    for path in written_files:
        path.unlink()
    write_json(mark, description)


def encode_examples(
    tokens: Int32[np.ndarray, "row token"], num_tokens: Int64[np.ndarray, " row"], feature: str = _COLUMN
) -> list[bytes]:
    """Return one serialised `tf.train.Example` per row, with the first `num_tokens` token ids of the row."""
    # Example.features (1) > Features.feature (1, a map entry: key (1), value (2)) > Feature.int64_list (3) >
    # Int64List.value (1, packed varints). Every level except the innermost is a tag byte, a length and the bytes
    # of the next level. Source: the protocol buffers' encoding guide; TensorFlow's example.proto and feature.proto for
    # the numbers.
    name, values = feature.encode(), tokens[np.arange(tokens.shape[1]) < num_tokens[:, None]]
    if len(values) and values.min() < 0:
        raise ValueError(f"Expected token ids >= 0, found {values.min()}.")
    packed, ends = _varints(values)
    row_ends = ends[np.cumsum(num_tokens)].tolist()
    records = []
    for start, end in zip([0, *row_ends[:-1]], row_ends, strict=True):
        integers = _field(3, _field(1, packed[start:end].tobytes()) if end > start else b"")
        records.append(_field(1, _field(1, _field(1, name) + _field(2, integers))))
    return records


def _varints(values: Int32[np.ndarray, " value"]) -> tuple[np.ndarray, np.ndarray]:
    """Return the varints of all values end to end, and where each ends (after a first 0).

    A varint has seven bits of the value per byte, the lowest bits first.
    """
    # Column k of `digits` contains the k-th byte of every value; `kept` marks the bytes that the value needs. These
    # bytes, taken row by row, are the varints end to end, without a loop over values.
    longer = [more for count in range(1, _MOST_BYTES) if (more := values >= 1 << 7 * count).any()]
    digits = np.empty((len(values), len(longer) + 1), np.uint8)
    kept = np.ones(digits.shape, bool)
    for place in range(len(longer) + 1):
        digits[:, place] = (values >> 7 * place) & 0x7F
        if place < len(longer):
            digits[:, place] |= longer[place].view(np.uint8) << 7  # one more byte follows
            kept[:, place + 1] = longer[place]
    ends = np.zeros(len(values) + 1, np.int64)
    np.cumsum(kept.sum(axis=1, dtype=np.uint8), out=ends[1:])
    return digits[kept], ends


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | _LENGTH_DELIMITED]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])
