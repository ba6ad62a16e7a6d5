"""The settings of `jax-diversity export`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class MegatronExportConfig:
    """The run of Megatron-LM that reads the cache; these values determine the name of the cache."""

    description: str | None = None
    """The `...-GPTDataset-train-description.txt` that such a run wrote to its cache; without it, it is made from
    the other options."""
    prefix: str | None = None
    """The .bin and .idx files that the run reads, exactly as in its --data-path; by default the dataset's files;
    if the dataset has several pairs, they are copied into the target folder as one pair."""
    seed: int | None = None
    """The --seed of the run; by default the seed that the sequences were packed with."""
    split: str | None = "100,0,0"
    """The --split of the run; `None` if the run has --train-data-path instead."""
    num_samples: int | None = None
    """The number of iterations times the global batch size; leave it out if Megatron reads one epoch, or the whole
    run."""
    tokenizer: str | None = None
    """The `unique_identifiers` of the tokenizer, as JSON or the name of a .json file."""


@dataclass(frozen=True)
class OlmoExportConfig:
    """The run of OLMo-core that reads the indices; these values determine the names of the files."""

    loader: Literal["numpy", "numpy_2024", "composable"] = "numpy"
    """The data loader: NumpyFSLDataLoader, its version of 2024, or ComposableDataLoader."""
    seed: int = 0
    """The loader's seed."""
    num_epochs: int = 1
    """Number of epochs in this order; not allowed with a run, which has its own epochs."""
    global_batch_size: int | None = None
    """Number of sequences in a step (for numpy_2024, and for runs)."""
    tokens: bool = False
    """Also write the tokens of the sequences to `sequences.npy`; the indices refer to the instances of this file."""


@dataclass(frozen=True)
class MaxTextExportConfig:
    """Files for MaxText."""

    sequences_per_file: int | None = None
    """Number of records in a file; by default there is one file. MaxText reads several files in the order in which the
    disk lists them, which is not always the order of their names; a gs:// bucket lists them sorted."""


@dataclass(frozen=True)
class ExportConfig:
    """An order, or ordered sequences, in the format of another training stack."""

    to: Literal["npy", "megatron", "olmo", "maxtext"] = "npy"
    """`npy`: only the indices; `megatron`: the index cache of Megatron-LM and NeMo; `olmo`: the global indices of
    OLMo-core; `maxtext`: ordered records. Levanter and PyTorch need no files: docs/exports.md."""
    ordering: str | None = None
    """The dataset's ordering, or a .npy file of sequence indices; `balance` by default."""
    target: str = "export"
    """The folder for the files."""
    overwrite: bool = False
    """Replace files of another ordering in the target folder."""
    documents: bool = False
    """Also write the order in which training first reads the documents (npy)."""
    megatron: MegatronExportConfig = MegatronExportConfig()
    olmo: OlmoExportConfig = OlmoExportConfig()
    maxtext: MaxTextExportConfig = MaxTextExportConfig()
