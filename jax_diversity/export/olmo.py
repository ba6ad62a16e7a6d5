"""OLMo-core's order: `global_indices*.npy` in the data loader's working folder, which takes it as it finds it.

The loader draws an order for an epoch only where that file is absent, so the file *is* the order. Despite its name
it has no .npy header: raw little-endian uint32, the instance at every position. Which name is looked up depends on
the loader, as its sources have it (read in November 2026; not run against an installed OLMo-core):

| loader | name before `.npy` |
|---|---|
| `NumpyFSLDataLoader` | `global_indices_dataset_size{N}_epoch{E}_seed{S}_v1` |
| `NumpyFSLDataLoader` of 2024 | `global_indices_epoch{E}_seed{S}_size{N cut to whole batches}` |
| `ComposableDataLoader` | `global_indices_epoch{E}_max_seq_len{L}_seed{S}_seq_len{L}_shuffle{how}_size{N}_v1` |

`{how}` is `inter_source`, its default. An *instance* is OLMo's word for a sequence: the i-th run of L tokens of its
token files.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Int64

from jax_diversity.errors import UserError
from jax_diversity.export.files import Written, new_file
from jax_diversity.export.rows import Sequences
from jax_diversity.progress import Advance, ignore
from jax_diversity.schema import Ordering

Loader = Literal["numpy", "numpy_2024", "composable"]
_LARGEST = 2**32 - 1
_TOKENS_AT_A_TIME = 2**20


def indices_name(
    loader: Loader,
    num_instances: int,
    epoch: int,
    seed: int,
    *,
    sequence_length: int,
    global_batch_size: int | None,
) -> str:
    """The file's name that a loader looks up for an epoch.

    Args:
        loader: which loader.
        num_instances: N, instances of the loader's dataset.
        epoch: counted from 1.
        seed: the loader's.
        sequence_length: L.
        global_batch_size: instances a step; only `numpy_2024` asks for it.
    """
    fields: dict[str, int | str] = {"epoch": epoch, "seed": seed}
    if loader == "numpy":
        fields |= {"dataset_size": num_instances, "v": 1}
    elif loader == "composable":
        fields |= {"max_seq_len": sequence_length, "seq_len": sequence_length}
        fields |= {"shuffle": "inter_source", "size": num_instances, "v": 1}
    elif global_batch_size is None:
        raise UserError(
            "Expected a global batch size for the loader numpy_2024, whose file name holds it; give it."
        )
    else:
        fields["size"] = num_instances // global_batch_size * global_batch_size
    return "_".join(["global_indices", *(f"{key}{fields[key]}" for key in sorted(fields))]) + ".npy"


def write_olmo(
    ordering: Ordering,
    folder: Path,
    *,
    sequence_length: int,
    seed: int = 0,
    num_epochs: int = 1,
    loader: Loader = "numpy",
    global_batch_size: int | None = None,
    overwrite: bool = False,
) -> Written:
    """Write an ordering of instances as the loader's global indices, the same for every epoch.

    Args:
        ordering: of all instances of the loader's dataset.
        folder: the loader's `work_dir`.
        sequence_length: L, the dataset's.
        seed: the loader's `seed`; with `shuffle=True`, as by default.
        num_epochs: epochs to write it for.
        loader: whose file name.
        global_batch_size: instances a step, for `numpy_2024`, whose file ends with the last whole batch.
        overwrite: replace other files of these names.

    Raises:
        UserError: too many instances for uint32, a batch size that does not fit, another file in the way.
    """
    if len(ordering) >= _LARGEST:
        raise UserError(f"Expected fewer than {_LARGEST} sequences for OLMo's uint32, found {len(ordering)}.")
    if num_epochs < 1 or seed < 0:
        raise UserError(f"Expected num_epochs >= 1 and a seed >= 0, found {num_epochs} and {seed}.")
    if global_batch_size is not None and not 1 <= global_batch_size <= len(ordering):
        raise UserError(f"Expected a global batch size in 1 .. {len(ordering)}, found {global_batch_size}.")
    about = {"sequence_length": sequence_length, "global_batch_size": global_batch_size}
    names = [indices_name(loader, len(ordering), epoch, seed, **about) for epoch in range(1, num_epochs + 1)]
    size = len(ordering)
    if loader == "numpy_2024" and global_batch_size:
        size -= size % global_batch_size
    paths = tuple(folder / name for name in names)
    with ExitStack() as files:
        for path in paths:
            files.enter_context(new_file(path, overwrite=overwrite)).write_bytes(
                ordering.indices[:size].astype("<u4").data
            )
    return Written(paths, f"{paths[0]}{_more(paths)}: {size:,} uint32 indices; work_dir={folder}, seed={seed}.")


def _more(paths: Sequence[Path]) -> str:
    return f" and {len(paths) - 1} for later epochs" if len(paths) > 1 else ""


def write_olmo_tokens(
    sequences: Sequences, path: Path, *, overwrite: bool = False, advance: Advance = ignore
) -> Written:
    """Write the sequences' tokens, as packed, end to end: instance i of this one file is sequence i.

    Raw little-endian uint16 or uint32 without a header, as OLMo-core's `NumpyFSLDataset` maps it.

    Raises:
        UserError: sequences with padding, which OLMo-core could not tell from tokens; another file in the way.
    """
    dtype = np.dtype("<u2" if sequences.dataset.vocab_size <= 2**16 else "<u4")
    length = sequences.sequence_length
    num_rows = max(1, _TOKENS_AT_A_TIME // length)
    with new_file(path, overwrite=overwrite) as temporary, temporary.open("wb") as file:
        for first in range(0, len(sequences), num_rows):
            indices: Int64[np.ndarray, " row"] = np.arange(first, min(first + num_rows, len(sequences)))
            rows = sequences.read(indices, ("inputs", "inputs_segmentation"), merge_segments=True)
            if not rows["inputs_segmentation"].all():
                row = int(np.argmin(rows["inputs_segmentation"].all(axis=1)))
                raise UserError(
                    f"Expected sequences full of tokens for OLMo-core, found padding in sequence {first + row}; "
                    "pack with a method that pads none (concat, last_sequence=drop)."
                )
            file.write(rows["inputs"].astype(dtype).data)
            advance(len(indices))
    return Written((path,), f"{path}: {len(sequences):,} instances of {length} tokens, raw {dtype.name}.")
