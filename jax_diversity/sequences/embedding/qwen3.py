"""Vectors of documents by a Qwen3-Embedding checkpoint (Zhang et al. 2025, arXiv:2506.05176).

The vector of a text is the final hidden state of the end token that the tokenizer appends, scaled to length 1. Texts
are embedded in batches of a few fixed shapes, so only a few programs are compiled.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float32, Int32, Int64

from jax_diversity.foundation.checks import as_whole_number, check_one_of
from jax_diversity.foundation.devices import flat_mesh
from jax_diversity.foundation.errors import UserError
from jax_diversity.sequences.embedding.base import files_at
from jax_diversity.sequences.embedding.qwen3_checkpoint import Architecture, TokenReader, open_tensors
from jax_diversity.sequences.embedding.qwen3_model import AXIS, PlacedModel, place_model

_IN_FLIGHT = 2
_SHORTEST = 64
_PARTS = 8


def qwen3(
    *,
    path: str,
    max_tokens: int = 1024,
    batch_tokens: int = 16_384,
    dtype: Literal["bfloat16", "float32"] = "bfloat16",
    mesh: Mesh | None = None,
) -> Qwen3Embedder:
    """Make an embedder from a downloaded checkpoint folder: config.json, tokenizer.json and safetensors.

    Args:
        path: the folder of the checkpoint; `~` is the home folder.
        max_tokens: how many tokens to read from the beginning of a text, including the end token.
        batch_tokens: tokens of a batch on all devices together, padding included. Besides the parameters, the attention
            of a batch needs batch_tokens * max_tokens * heads * 4 bytes: 1 GiB for 16,384, 1,024 and 16.
        dtype: the type of parameters and arithmetic.
        mesh: devices that share parameters and batches; None means all devices of this process.

    Raises:
        UserError: the checkpoint is incomplete, damaged or not a Qwen3 model, or the options do not fit it.

    Example:
        >>> embedder = qwen3(path="Qwen3-Embedding-0.6B", max_tokens=512)
        >>> embedder.embed(["Sails are set before the wind turns."]).shape
        (1, 1024)
    """
    folder = Path(os.path.expanduser(path))
    input_files(path, batch_tokens, dtype)
    devices = flat_mesh(Mesh(np.array(jax.local_devices()), (AXIS,)) if mesh is None else mesh, AXIS)
    architecture = Architecture.read(folder)
    if not 2 <= max_tokens <= architecture.max_position_embeddings:
        raise UserError(
            f"Expected max_tokens from 2 to {architecture.max_position_embeddings}, the max_position_embeddings of the "
            f"checkpoint in {folder}, found {max_tokens}."
        )
    tokens = TokenReader(folder, max_tokens, architecture.vocab_size)
    model = place_model(architecture, open_tensors(folder), devices, dtype)
    return Qwen3Embedder(tokens, model, BatchPlan(max_tokens, batch_tokens, devices.size))


def input_files(path: str, batch_tokens: int = 1, dtype: str = "bfloat16") -> list[Path]:
    """Return the files of the checkpoint, sorted, without reading them; also check the other options."""
    as_whole_number("batch_tokens", batch_tokens, 1)
    check_one_of("dtype", dtype, ("bfloat16", "float32"))
    files = files_at(path)
    if not os.path.isdir(os.path.expanduser(path)) or not files:
        raise UserError(
            f"Expected the embedding's path to be the folder of a Qwen3-Embedding checkpoint, found no files in "
            f"{path!r}; download one (`hf download Qwen/Qwen3-Embedding-0.6B --local-dir FOLDER`) and name its folder."
        )
    return files


class Qwen3Embedder:
    """Embeds texts with a Qwen3-Embedding checkpoint; `qwen3` makes one.

    The vector of a text does not depend on the other texts or on the number of devices. Only products of other shapes
    are rounded differently: by 1e-5 in float32, by about 1e-2 in bfloat16.
    """

    def __init__(self, tokens: TokenReader, model: PlacedModel, plan: BatchPlan) -> None:
        self._tokens, self._model, self._plan = tokens, model, plan

    @property
    def dimensions(self) -> int:
        """Number of features of a vector."""
        return self._model.width

    def embed(self, texts: Sequence[str]) -> Float32[np.ndarray, "document feature"]:
        """Return a vector of length 1 for each text; a text without tokens gets the vector of its end token."""
        ids = self._tokens.encode(texts)
        vectors = np.empty((len(ids), self.dimensions), np.float32)
        in_flight: deque[tuple[np.ndarray, jax.Array]] = deque()

        def collect(num_left: int) -> None:
            while len(in_flight) > num_left:
                documents, rows = in_flight.popleft()
                vectors[documents] = np.asarray(rows)[: len(documents)]

        lengths = np.array([len(row) for row in ids], np.int64)
        for documents, num_rows, padded_length in self._plan.batches(lengths):
            batch = padded([ids[document] for document in documents], num_rows, padded_length)
            # Devices work on a few batches while the next batch is padded; the results are read only afterwards.
            in_flight.append((documents, self._model.embed(*batch)))
            collect(_IN_FLIGHT)
        collect(0)
        return vectors


@dataclass(frozen=True)
class BatchPlan:
    """Division of texts into batches that have a few fixed shapes.

    A text always has the same padded length, so its vector hardly depends on the other texts. From one padded length to
    the next, lengths grow by a third or a half; on average, a sixth of a batch is padding. For each length there are
    two numbers of rows: the number of a full batch, and an eighth of it for the last texts. With up to 1,024 tokens
    there are at most 18 shapes. The number of rows of every batch is divisible by the number of devices.
    """

    max_tokens: int
    batch_tokens: int
    num_devices: int = 1

    @cached_property
    def padded_lengths(self) -> tuple[int, ...]:
        """The padded lengths: 64, 96, 128, 192, 256 ... and `max_tokens`."""
        powers = range(_SHORTEST.bit_length() - 1, self.max_tokens.bit_length())
        steps = [length for power in powers for length in (1 << power, 3 << (power - 1))]
        return (*(length for length in steps if length < self.max_tokens), self.max_tokens)

    def batches(self, lengths: Int64[np.ndarray, " document"]) -> Iterator[tuple[np.ndarray, int, int]]:
        """Yield every batch: the indices of its texts, its number of rows (at least as many), and its padded length."""
        # The longest texts are first: if a batch does not fit into memory, it fails at the start and not after hours.
        order = np.argsort(-lengths, kind="stable")
        classes = np.searchsorted(self.padded_lengths, lengths[order])
        for number in range(len(self.padded_lengths) - 1, -1, -1):
            documents = order[classes == number]
            padded_length = self.padded_lengths[number]
            full = max(self.batch_tokens // padded_length // self.num_devices, 1) * self.num_devices
            small = max(full // _PARTS // self.num_devices, 1) * self.num_devices
            while len(documents):
                # The last texts are put into small batches, unless the small batches together would have as many rows
                # as a full batch.
                rows = full if len(documents) > full - small else small
                yield documents[:rows], rows, padded_length
                documents = documents[rows:]


def padded(
    rows: Sequence[Sequence[int]], num_rows: int, num_tokens: int
) -> tuple[Int32[np.ndarray, "row token"], Int32[np.ndarray, " row"]]:
    """Pad token ids with zeros and return them with their lengths; rows after the last text have one token."""
    tokens = np.zeros((num_rows, num_tokens), np.int32)
    lengths = np.ones(num_rows, np.int32)
    for index, row in enumerate(rows):
        tokens[index, : len(row)] = row
        lengths[index] = len(row)
    return tokens, lengths
