"""Write a sample's documents or sequences into a Parquet file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int64

from jax_diversity.counts import TokenCounts
from jax_diversity.foundation.artifacts import atomic_path
from jax_diversity.foundation.errors import UserError
from jax_diversity.lab.sampling.population import Source, is_parquet
from jax_diversity.streaming.dataset import Dataset, open_dataset

if TYPE_CHECKING:
    import pyarrow as pa

Chosen = Int64[np.ndarray, " chosen"]
"""The numbers of documents or sequences in their source."""


def write_parquet(kind: str, positions: Chosen, path: Path, source: Source) -> None:
    """Write the documents or sequences at some positions of their source; see `Sample.write`."""
    import pyarrow.parquet as pq

    if path.suffix != ".parquet":
        raise UserError(f"Expected a file name that ends in .parquet, found {path.name!r}.")
    if path.exists():
        raise UserError(f"Expected a new file, found that {path} exists; name another or remove it.")
    if isinstance(source, TokenCounts):
        raise UserError(
            "Expected a dataset or a Parquet file to write a sample from, found token counts; save the positions with "
            "Sample.save and take them from your own files."
        )
    table = _rows(kind, positions, source)
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary)


def _rows(kind: str, positions: Chosen, source: str | Path | Dataset) -> pa.Table:
    import pyarrow.parquet as pq

    if is_parquet(source):
        return pq.read_table(str(source)).take(positions)
    dataset = source if isinstance(source, Dataset) else open_dataset(str(source))
    if kind == "sequences":
        return _sequences(positions, dataset)
    texts = dataset.documents.take(np.sort(positions))
    return texts.take(np.argsort(np.argsort(positions)))


def _sequences(positions: Chosen, dataset: Dataset) -> pa.Table:
    """Return a table of the sequences: number, tokens, and text if there is a tokenizer."""
    import pyarrow as pa

    rows = np.sort(positions)
    batch = dataset.records.read_sequences(rows, fields=("inputs", "inputs_segmentation"))
    used = batch["inputs_segmentation"] > 0  # without padding
    tokens = [row[mask] for row, mask in zip(batch["inputs"], used, strict=True)]
    places = np.searchsorted(rows, positions)
    columns = {"sequence": positions, "tokens": [tokens[place] for place in places.tolist()]}
    if dataset.tokenizer is not None:
        columns["text"] = [dataset.tokenizer.decode(row) for row in columns["tokens"]]
    return pa.table(columns)
