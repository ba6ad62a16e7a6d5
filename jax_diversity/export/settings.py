"""The settings of `jax-diversity export`: which stack reads what is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class MegatronExportConfig:
    """The run of Megatron-LM that reads the cache; these values decide the name under which it looks for it."""

    description: str | None = None
    """The `...-GPTDataset-train-description.txt` that such a run left in its cache; None makes one of the rest."""
    prefix: str | None = None
    """The .bin and .idx files that the run reads, exactly as in its --data-path; None takes the dataset's own, and
    copies them into the target as one pair where there are several."""
    seed: int | None = None
    """Its --seed; None takes the seed that the sequences were packed with."""
    split: str | None = "100,0,0"
    """Its --split; None where it has --train-data-path instead."""
    num_samples: int | None = None
    """Its number of iterations times its global batch size; None where it reads one epoch, or all of a run."""
    tokenizer: str | None = None
    """Its tokenizer's `unique_identifiers`, as JSON or the name of a .json file."""


@dataclass(frozen=True)
class OlmoExportConfig:
    """The run of OLMo-core that reads the indices; these values decide the name under which it looks for them."""

    loader: Literal["numpy", "numpy_2024", "composable"] = "numpy"
    """Its data loader: NumpyFSLDataLoader, that of 2024, or ComposableDataLoader."""
    seed: int = 0
    """The loader's seed."""
    num_epochs: int = 1
    """Epochs that follow the order; a run has its own."""
    global_batch_size: int | None = None
    """Sequences a step (for numpy_2024, and for runs)."""
    tokens: bool = False
    """Also write the sequences' tokens as the one file whose instances the indices count: `sequences.npy`."""


@dataclass(frozen=True)
class MaxTextExportConfig:
    """Files for MaxText."""

    sequences_per_file: int | None = None
    """Records a file; None puts all into one. MaxText takes several in the order in which a disk lists them, which
    is not always the order of their names; a gs:// bucket lists them sorted."""


@dataclass(frozen=True)
class ExportConfig:
    """An order, or ordered sequences, in the form that another training stack reads."""

    to: Literal["npy", "megatron", "olmo", "maxtext"] = "npy"
    """`npy`: the indices alone; `megatron`: the index cache of Megatron-LM and NeMo; `olmo`: the global indices of
    OLMo-core; `maxtext`: ordered records. Levanter and PyTorch need no files: docs/exports.md."""
    ordering: str | None = None
    """The dataset's ordering, or a .npy file of sequence indices; None takes `balance`."""
    target: str = "export"
    """The folder that takes the files."""
    overwrite: bool = False
    """Replace files of another ordering in that folder."""
    documents: bool = False
    """Also write the order in which training first reads the documents (npy)."""
    megatron: MegatronExportConfig = MegatronExportConfig()
    olmo: OlmoExportConfig = OlmoExportConfig()
    maxtext: MaxTextExportConfig = MaxTextExportConfig()
