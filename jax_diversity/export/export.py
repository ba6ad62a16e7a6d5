"""The verb `export`: an ordering of a dataset, written for another stack."""

from __future__ import annotations

from pathlib import Path

from jax_diversity.dataset import open_dataset
from jax_diversity.export import maxtext, megatron, olmo, permutation
from jax_diversity.export.settings import ExportConfig
from jax_diversity.foundation.progress import Progress

_EXPORTS = {
    "npy": permutation.export_permutation,
    "megatron": megatron.export_megatron,
    "olmo": olmo.export_olmo,
    "maxtext": maxtext.export_maxtext,
}


def export(out: str | Path, config: ExportConfig, progress: Progress) -> list[str]:
    """Write an ordering of a dataset for another stack.

    Returns:
        A line for everything that was written.

    Raises:
        UserError: no such dataset or ordering; settings that do not fit it; another ordering's files in the way.
    """
    return [written.line for written in _EXPORTS[config.to](open_dataset(out), config, progress)]
