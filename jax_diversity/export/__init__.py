"""Orders and sequences in the forms that other training stacks read; one stack a module.

Names are imported when first used: no stack's package is needed for another's files.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jax_diversity.export.files import Written as Written
    from jax_diversity.export.levanter import LevanterDataset as LevanterDataset
    from jax_diversity.export.maxtext import write_maxtext as write_maxtext
    from jax_diversity.export.megatron import Description as Description
    from jax_diversity.export.megatron import read_description as read_description
    from jax_diversity.export.megatron import write_megatron as write_megatron
    from jax_diversity.export.olmo import write_olmo as write_olmo
    from jax_diversity.export.olmo import write_olmo_tokens as write_olmo_tokens
    from jax_diversity.export.permutation import document_order as document_order
    from jax_diversity.export.permutation import write_permutation as write_permutation
    from jax_diversity.export.pytorch import OrderedBatchSampler as OrderedBatchSampler
    from jax_diversity.export.pytorch import TorchDataset as TorchDataset
    from jax_diversity.export.rows import OrderedSequences as OrderedSequences
    from jax_diversity.export.rows import Sequences as Sequences

_HOMES = {
    "Description": "megatron",
    "LevanterDataset": "levanter",
    "OrderedBatchSampler": "pytorch",
    "OrderedSequences": "rows",
    "Sequences": "rows",
    "TorchDataset": "pytorch",
    "Written": "files",
    "document_order": "permutation",
    "read_description": "megatron",
    "write_maxtext": "maxtext",
    "write_megatron": "megatron",
    "write_olmo": "olmo",
    "write_olmo_tokens": "olmo",
    "write_permutation": "permutation",
}
__all__ = [
    "Description",
    "LevanterDataset",
    "OrderedBatchSampler",
    "OrderedSequences",
    "Sequences",
    "TorchDataset",
    "Written",
    "document_order",
    "read_description",
    "write_maxtext",
    "write_megatron",
    "write_olmo",
    "write_olmo_tokens",
    "write_permutation",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
