"""Write an order for OLMo-core: `global_indices*.npy` in the working folder of its data loader.

If this file exists, the loader uses it as the order of the epoch; otherwise the loader makes an order. Despite its
name, the file has no .npy header: it contains raw little-endian uint32, the instance at every position. Its name
depends on the loader (taken from OLMo-core's sources in November 2026; not run against an installed OLMo-core):

| loader | name before `.npy` |
|---|---|
| `NumpyFSLDataLoader` | `global_indices_dataset_size{N}_epoch{E}_seed{S}_v1` |
| `NumpyFSLDataLoader` of 2024 | `global_indices_epoch{E}_seed{S}_size{N cut to whole batches}` |
| `ComposableDataLoader` | `global_indices_epoch{E}_max_seq_len{L}_seed{S}_seq_len{L}_shuffle{how}_size{N}_v1` |

`{how}` is `inter_source`, its default. OLMo calls a sequence an *instance*: instance i is the i-th block of L
tokens in its token files.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.checks import check_at_least
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.foundation.wording import counted
from jax_diversity.schema.orderings import Order
from jax_diversity.streaming.export.files import Written, common_length, new_file
from jax_diversity.streaming.export.settings import OlmoExportConfig
from jax_diversity.streaming.loader.streaming import StreamedRun
from jax_diversity.streaming.run.run import Run
from jax_diversity.streaming.run.source import SequenceSource

_LARGEST = 2**32 - 1
_TOKENS_AT_A_TIME = 2**20


def indices_name(config: OlmoExportConfig, num_instances: int, sequence_length: int, epoch: int) -> str:
    """Return the name of the file that a loader looks up for an epoch; epochs count from 1."""
    fields: dict[str, int | str] = {"epoch": epoch, "seed": config.seed}
    if config.loader == "numpy":
        fields |= {"dataset_size": num_instances, "v": 1}
    elif config.loader == "composable":
        fields |= {"max_seq_len": sequence_length, "seq_len": sequence_length}
        fields |= {"shuffle": "inter_source", "size": num_instances, "v": 1}
    else:
        fields["size"] = _num_indices(config, num_instances)
    # OLMo-core sorts the fields by their names when it makes the name of the file.
    return "_".join(["global_indices", *(f"{key}{fields[key]}" for key in sorted(fields))]) + ".npy"


def write_olmo(
    order: Order,
    folder: Path,
    config: OlmoExportConfig | None = None,
    *,
    sequence_length: int,
    overwrite: bool = False,
) -> Written:
    """Write an ordering of instances as the loader's global indices, the same for every epoch.

    A run that repeats or leaves out instances is divided into OLMo's epochs. Each epoch gets the next positions of
    the run, in the largest number of whole batches that fits into the number of instances. The last epoch is filled up
    with the beginning of the run.

    Args:
        order: the order of all instances of the loader's dataset; a run's order may repeat and leave out instances.
        folder: the loader's `work_dir`.
        config: the loader (which treats the order as its shuffle), its seed, and the epochs to write.
        sequence_length: L, the sequence length of the dataset.
        overwrite: whether other files with these names are replaced.

    Raises:
        UserError: too many instances for uint32, settings that do not fit the order, or another file with this name.

    Example:
        >>> write_olmo(ordering, Path("work-dir"), OlmoExportConfig(seed=34521), sequence_length=2048)
    """
    config, num_instances = config or OlmoExportConfig(), order.num_sequences
    if num_instances >= _LARGEST:
        raise UserError(f"Expected fewer than {_LARGEST} sequences for OLMo's uint32, found {num_instances}.")
    check_at_least(1, "olmo", config, "num_epochs")
    check_at_least(0, "olmo", config, "seed")
    size = config.global_batch_size
    # A shuffled stream has another order in every epoch.
    is_run = not order.is_bijection or isinstance(order, StreamedRun)
    if (is_run or config.loader == "numpy_2024") and (size is None or not 1 <= size <= num_instances):
        why = "a run, because OLMo counts steps by epochs" if is_run else "numpy_2024, whose file is named after it"
        raise UserError(
            f"Expected a global batch size in 1 .. {num_instances} for {why}, found {size}; give "
            "--olmo.global-batch-size."
        )
    if is_run and config.num_epochs != 1:
        raise UserError(
            f"Expected --olmo.num-epochs 1 with a run, which has its own epochs, found {config.num_epochs}."
        )
    length = _num_indices(config, num_instances)
    if is_run:
        read = num_instances - num_instances % (size or 1)  # the positions that OLMo reads in an epoch
        starts = range(0, max(len(order), 1), read)
        indices = order.indices
        epochs = [indices[np.arange(start, start + length) % max(len(order), 1)] for start in starts]
        ends = f" train {counted(len(order) // (size or 1), 'step')};"
    else:
        epochs, ends = [order.indices[:length]] * config.num_epochs, ""
    names = [indices_name(config, num_instances, sequence_length, epoch) for epoch in range(1, len(epochs) + 1)]
    paths = [folder / name for name in names]
    with ExitStack() as files:  # all files or no file: nobody would notice that some epochs have no order
        for path, indices in zip(paths, epochs, strict=True):
            files.enter_context(new_file(path, overwrite=overwrite)).write_bytes(indices.astype("<u4").data)
    more = f" and {len(paths) - 1} for later epochs" if len(paths) > 1 else ""
    line = f"{paths[0]}{more}: {length:,} uint32 indices;{ends} work_dir={folder}, seed={config.seed}."
    return Written(tuple(paths), line)


def _num_indices(config: OlmoExportConfig, num_instances: int) -> int:
    """Length of the file: all positions, or the positions that fill whole batches."""
    if config.loader == "numpy_2024" and config.global_batch_size:
        return num_instances - num_instances % config.global_batch_size
    return num_instances


def check_full(run: Run) -> None:
    """Raise a `UserError` for sequences with padding in a run without chats.

    Padding is stored as 0, which is also a token id, and without a mask OLMo-core would train on it.
    """
    if any(dataset.has_loss_mask for dataset in run.datasets):
        return
    for offset, dataset in zip(run.offsets.tolist(), run.datasets, strict=False):
        segments = dataset.segments
        lengths = np.bincount(segments.sequence_index, segments.length, minlength=dataset.num_sequences)
        if (lengths < dataset.sequence_length).any():
            row = offset + int(np.argmax(lengths < dataset.sequence_length))
            raise UserError(
                f"Expected sequences full of tokens for OLMo-core, found padding in sequence {row}; pack with a method "
                "without padding (concat, last_sequence=drop)."
            )


def write_olmo_tokens(run: Run, path: Path, *, overwrite: bool = False, advance: Advance = ignore) -> Written:
    """Write the tokens of the datasets of a run in packed order, end to end: instance i of this file is sequence i.

    The file contains raw little-endian uint16 or uint32 without a header, as OLMo-core's `NumpyFSLDataset` reads it. If
    a dataset has chats, a second file of raw booleans, `label_mask.npy` in the same folder, says which tokens count
    towards the loss: the answers, and in other documents all tokens.

    Raises:
        UserError: sequences with padding, which OLMo-core cannot distinguish from tokens without a mask; another file
            with one of these names.
    """
    # OLMo-core maps token files as unsigned integers; our records contain int32 if uint16 is too small.
    vocab_size = max(dataset.vocab_size for dataset in run.datasets)
    dtype = np.dtype("<u2" if vocab_size <= 2**16 else "<u4")
    check_full(run)
    has_mask = any(dataset.has_loss_mask for dataset in run.datasets)
    fields = ("inputs", "targets_segmentation")
    loss_mask = "answers" if has_mask else "all"
    length, source = common_length(run), SequenceSource(run, fields, merge_segments=True, loss_mask=loss_mask)
    num_rows = max(1, _TOKENS_AT_A_TIME // length)
    paths = (path, path.with_name("label_mask.npy"))[: 1 + has_mask]
    with ExitStack() as files:
        opened = [files.enter_context(new_file(path, overwrite=overwrite)) for path in paths]
        file, *masks = [files.enter_context(temporary.open("wb")) for temporary in opened]
        for first in range(0, len(source), num_rows):
            indices: Int64[np.ndarray, " row"] = np.arange(first, min(first + num_rows, len(source)))
            rows = source.read(indices)
            file.write(rows["inputs"].astype(dtype).data)
            for mask in masks:  # a token is the target of the place before it
                mask.write(np.pad(rows["targets_segmentation"][:, :-1] > 0, ((0, 0), (1, 0))).tobytes())
            advance(len(indices))
    line = f"{path}: {counted(len(source), 'instance')} of {counted(length, 'token')}, raw {dtype.name}."
    if has_mask:
        line += f" {paths[1]}: the tokens that count, raw bool, for label_mask_paths."
    return Written(paths, line)
