"""Write our order as the index cache of Megatron-LM: the files that `GPTDataset` reads instead of shuffling.

The folder `--data-cache-path` contains, for every dataset, `<hash>-GPTDataset-train-document_index.npy`,
`...-sample_index.npy`, `...-shuffle_index.npy` and `...-description.txt`. The hash is the MD5 of the description, a
JSON text with the dataset's settings. If all four files exist, Megatron uses them unchanged. The first two give the
tokens of each sample, the third gives the sample at every position; our ordering replaces the third.
The format was taken from megatron-core 0.16.1 and tested with it (`megatron/core/datasets/{megatron,gpt}_dataset.py`).

MaxText reads the same folder (`grain_file_type: mmap_npy`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, Integer

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.locks import hold
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.foundation.wording import counted
from jax_diversity.schema.orderings import Order
from jax_diversity.sequences.packing.megatron import MegatronIndices, megatron_indices
from jax_diversity.sequences.token_store.megatron import TokenFile, TokenStore, TokenWriter
from jax_diversity.streaming.dataset import Dataset
from jax_diversity.streaming.export.files import Written, new_file

_CLASS, _SPLIT = "GPTDataset", "train"
_DESCRIPTION = re.compile(rf"([0-9a-f]{{32}})-{_CLASS}-{_SPLIT}-description\.txt")
_TOKENS_AT_A_TIME = 2**24


@dataclass(frozen=True)
class Description:
    """The description that a Megatron run writes of its dataset. The names of the cache's files contain its hash.

    Attributes:
        dataset_path: the prefix of `.bin` and `.idx`, exactly as it is written in `--data-path`.
        num_samples: `train_iters * global_batch_size`; None for one epoch, Megatron's default without weights
            and without a number of iterations.
        random_seed: `--seed`.
        sequence_length: `--seq-length`.
        split: `--split`, such as `99,1,0`; None with `--train-data-path`.
        tokenizer: the tokenizer's `unique_identifiers`, in their order.
    """

    dataset_path: str
    num_samples: int | None
    random_seed: int
    sequence_length: int
    split: str | None
    tokenizer: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The description, byte for byte as Megatron writes it."""
        description = {
            "class": _CLASS,
            "dataset_path": self.dataset_path,
            "num_samples": self.num_samples,
            "index_split": _SPLIT,
            "random_seed": self.random_seed,
            "sequence_length": self.sequence_length,
            "split": self.split,
            "split_matrix": None if self.split is None else split_matrix(self.split),
            "tokenizer": dict(self.tokenizer),
        }
        return json.dumps(description, indent=4)


def description_hash(text: str) -> str:
    """Return the hash of a description's text; it is part of the names of the cache's files."""
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def split_matrix(split: str) -> list[tuple[float, float] | None]:
    """Return where the training, validation and test parts of a split such as "99,1,0" begin and end."""
    # This is the same expression as in Megatron. The matrix is part of the text whose hash names the cache. So a
    # difference of one bit in a share makes Megatron build its own indices.
    weights = [float(part) for part in re.findall(r"[.0-9]+", split) if part.strip(".")]
    if not weights or len(weights) > 3 or not sum(weights) > 0:
        raise UserError(f"Expected a split of one to three weights such as 99,1,0, found {split!r}.")
    values = np.array([*weights, *[0.0] * (3 - len(weights))], np.float64)
    ends: list[float] = [0, *np.cumsum(values / np.sum(values)).tolist()]  # an int 0, as in Megatron's JSON
    return [(begin, end) if end > begin else None for begin, end in pairwise(ends)]


def read_description(path: Path, *, sequence_length: int, num_positions: int) -> str:
    """Read the description that a run of Megatron wrote to its cache, `<hash>-GPTDataset-train-description.txt`.

    Raises:
        UserError: the file does not exist; the hash of its text is not the hash in its name; it describes another split
            than `train`, another sequence length than the dataset's, or more samples than the order has positions.
    """
    try:
        text = path.read_text(encoding="utf-8")
        description = json.loads(text)
        values = {name: description[name] for name in ("class", "index_split", "sequence_length", "num_samples")}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"Expected a description that Megatron wrote at {path}, found no description ({error}); name the file "
            f"<hash>-{_CLASS}-{_SPLIT}-description.txt in its cache folder."
        ) from None
    name = _DESCRIPTION.fullmatch(path.name)
    if name and name[1] != description_hash(text):
        raise UserError(
            f"Expected a text with the hash {name[1]} in {path}, found {description_hash(text)}: restore the file."
        )
    for key, value in {"class": _CLASS, "index_split": _SPLIT, "sequence_length": sequence_length}.items():
        if values[key] != value:
            raise UserError(
                f"Expected {key} {value!r} in {path}, found {values[key]!r}; name the description of the training run "
                "that will read this export."
            )
    _check_num_samples(values["num_samples"], num_positions)
    return text


def _check_num_samples(num_samples: Any, num_positions: int) -> None:
    if num_samples is not None and not (type(num_samples) is int and 1 <= num_samples <= num_positions):
        raise UserError(
            f"Expected num_samples in 1 .. {num_positions}, the positions of the order, found {num_samples!r}; pack "
            "more epochs (num_epochs of packing.options), export a schedule of several epochs, or train fewer steps."
        )


def check_prefix(prefix: str, document_lengths: Int64[np.ndarray, " document"]) -> None:
    """Raise a `UserError` if a prefix's files have another number of documents, or other lengths, than were packed."""
    # Comparing the tokens, too, would read the whole corpus. Other documents of the same lengths are improbable.
    lengths = TokenFile(Path(prefix)).sequence_lengths
    if len(lengths) != len(document_lengths):
        raise UserError(
            f"Expected the {len(document_lengths)} documents of the dataset in {prefix}.idx, found {len(lengths)} "
            "stored sequences; name the files that the dataset was made from."
        )
    if not np.array_equal(lengths, document_lengths):
        other = int(np.argmax(lengths != document_lengths))
        raise UserError(
            f"Expected {document_lengths[other]} tokens in document {other} of {prefix}.idx, found "
            f"{lengths[other]}; name the files that the dataset was made from."
        )


def write_tokens(tokens: TokenStore, prefix: Path, *, overwrite: bool = False, advance: Advance = ignore) -> Written:
    """Write all documents into one pair of `.bin` and `.idx` files, because a `GPTDataset` reads one pair.

    Existing files with documents of the same lengths are kept; a UserError is raised for other files.
    """
    files = prefix.with_name(f"{prefix.name}.bin"), prefix.with_name(f"{prefix.name}.idx")
    with hold(prefix.parent):
        if files[1].exists() and not overwrite:
            check_prefix(str(prefix), tokens.document_lengths)
            advance(tokens.num_tokens)
        else:
            with TokenWriter(prefix, tokens.dtype) as writer:
                for file in tokens.files:
                    # We copy whole documents, about `_TOKENS_AT_A_TIME` tokens at a time, so that memory does not grow
                    # with the file.
                    bounds = np.searchsorted(
                        np.cumsum(file.lengths), np.arange(_TOKENS_AT_A_TIME, file.num_tokens, _TOKENS_AT_A_TIME)
                    )
                    bounds = np.unique([0, *bounds, file.num_documents])
                    for first, stop in pairwise(bounds.tolist()):
                        lengths = file.lengths[first:stop]
                        writer.add_runs(file.documents(first, stop), lengths)
                        advance(int(lengths.sum()))
    return Written(
        files, f"{prefix}: {counted(tokens.num_documents, 'document')}, {counted(tokens.num_tokens, 'token')}."
    )


def check_samples(order: Order, sample_index: Integer[np.ndarray, "boundary 2"], description: str) -> None:
    """Raise a `UserError` if the order has other samples than the index, or fewer than the description."""
    num_samples = len(sample_index) - 1
    if order.num_sequences != num_samples or not len(order):
        raise UserError(f"Expected an ordering of {num_samples} samples, found one of {order.num_sequences}.")
    _check_num_samples(json.loads(description)["num_samples"], len(order))


def write_megatron(
    order: Order,
    document_index: Integer[np.ndarray, " place"],
    sample_index: Integer[np.ndarray, "boundary 2"],
    description: str,
    folder: Path,
    *,
    overwrite: bool = False,
) -> Written:
    """Write the cache of a training dataset, with an order as its shuffle index.

    Megatron reads sample `shuffle_index[i]` at position i and uses the number of rows of the sample index as its
    number of positions. Therefore a run may repeat and omit samples. If it is longer than the number of samples, the
    sample index is filled up with unused rows. If it is shorter, its beginning is added after its end, because Megatron
    reads ahead of the last step.

    Args:
        order: the order of the samples; a run's order may repeat and leave out samples.
        document_index: the documents of all epochs, end to end (`packing.megatron_indices`).
        sample_index: where each sample begins in these documents, and one more row for the end of the last sample.
        description: `Description.text`, or the result of `read_description`.
        folder: `--data-cache-path`.
        overwrite: whether an existing cache of Megatron or of another ordering is replaced.

    Raises:
        UserError: the indices have another number of samples; the description has too many samples; there is a cache
            with this name and other content.

    Example:
        >>> indices = megatron_indices(lengths, np.arange(len(lengths)), 2048, seed=1234)
        >>> about = Description("tokens/web", None, 1234, 2048, "100,0,0", {"class": "..."})
        >>> write_megatron(ordering, indices.document_index, indices.sample_index, about.text, Path("cache"))
    """
    check_samples(order, sample_index, description)
    num_samples = len(sample_index) - 1
    num_rows = max(num_samples, len(order))
    unused = np.repeat(sample_index[-1:], num_rows - num_samples, axis=0)
    sample_index = np.concatenate([sample_index, unused])
    start = f"{description_hash(description)}-{_CLASS}-{_SPLIT}"
    wide = num_rows >= np.iinfo(np.uint32).max - 1  # Megatron chooses the type by the same rule
    shuffle_index = np.resize(order.indices, num_rows).astype(np.int64 if wide else np.uint32)
    arrays = {"document_index": document_index, "sample_index": sample_index, "shuffle_index": shuffle_index}
    text = folder / f"{start}-description.txt"
    paths = {folder / f"{start}-{name}.npy": values for name, values in arrays.items()}
    with ExitStack() as files:
        # The files get their names when the block ends, the last file first. The description is opened first, so it
        # gets its name last. Until then Megatron does not use the cache.
        files.enter_context(new_file(text, overwrite=overwrite)).write_text(description, encoding="utf-8")
        for path, values in paths.items():
            with files.enter_context(new_file(path, overwrite=overwrite)).open("wb") as file:
                np.save(file, values)
    return Written(
        (*paths, text),
        f"{folder}/{start}-*: {counted(len(order), 'position')} in order; run Megatron with --data-cache-path {folder} "
        f"and --data-path {json.loads(description)['dataset_path']}.",
    )


def packed_indices(dataset: Dataset) -> MegatronIndices:
    """Compute the document and sample indices of the packing again, and compare them with the stored sequences."""
    packing = dataset.settings["packing"]
    if packing["method"] != "megatron":
        raise UserError(
            f"Expected a dataset packed with packing.method=megatron in {dataset.root}, found {packing['method']}: "
            "Megatron's indices can describe only its own samples; pack again with the method megatron."
        )
    if (appearances := dataset.appearances) is None:
        appearances = ~dataset.held_out
    indices = megatron_indices(
        dataset.tokens.document_lengths,
        np.repeat(np.arange(len(appearances)), appearances),
        packing["sequence_length"],
        seed=packing["seed"],
        **packing["options"],
    )
    # The stored sequences must begin where the samples begin. The first sample is not compared: it may begin with an
    # empty document, which has no stored segment.
    segments, num_samples = dataset.segments, len(indices.sample_index) - 1
    first = np.searchsorted(segments.sequence_index, np.arange(1, num_samples))
    place, offset = indices.sample_index[1:-1].T
    if not (
        segments.num_sequences == num_samples
        and np.array_equal(segments.document_index[first], indices.document_index[place])
        and np.array_equal(segments.document_offset[first], offset)
    ):
        raise UserError(
            f"Expected the sequences that packing.seed={packing['seed']} gives in {dataset.root}, found other "
            "sequences: the settings were changed after packing; run `jax-diversity pack` and the later stages again."
        )
    return indices
