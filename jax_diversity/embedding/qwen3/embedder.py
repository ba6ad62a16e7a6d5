"""Documents -> the embeddings of a Qwen3-Embedding checkpoint (Zhang et al. 2025, arXiv:2506.05176).

A text's vector is the final hidden state of the end token that its tokenizer appends, scaled to length 1. Texts go
through the model in batches of a few fixed shapes, so that few programs are compiled, whatever the texts' lengths.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Float32

from jax_diversity.embedding.qwen3.architecture import Architecture
from jax_diversity.embedding.qwen3.batches import BatchPlan, padded
from jax_diversity.embedding.qwen3.checkpoint import hash_checkpoint, open_tensors
from jax_diversity.embedding.qwen3.placement import PlacedModel, flat_mesh, place_model
from jax_diversity.embedding.qwen3.tokens import TokenReader
from jax_diversity.foundation.artifacts import fingerprint
from jax_diversity.foundation.errors import UserError

DTYPES = ("bfloat16", "float32")
_IN_FLIGHT = 2  # batches that devices work on while the next one is made


class Qwen3Embedder:
    """Embeds texts with a Qwen3-Embedding checkpoint; `load` makes one.

    A text's vector does not depend on the texts beside it, nor on the number of devices, but for the rounding of
    products of other shapes: 1e-5 in float32, about 1e-2 in bfloat16.
    """

    def __init__(self, folder: Path, dtype: str, tokens: TokenReader, model: PlacedModel, plan: BatchPlan) -> None:
        self._folder = folder
        self._dtype = dtype
        self._tokens = tokens
        self._model = model
        self._plan = plan

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        max_tokens: int = 1024,
        batch_tokens: int = 16_384,
        mesh: jax.sharding.Mesh | None = None,
        dtype: str = "bfloat16",
    ) -> Qwen3Embedder:
        """The checkpoint in a folder, as it is downloaded: config.json, tokenizer.json, one or more *.safetensors.

        Args:
            folder: the checkpoint's.
            max_tokens: only a text's first tokens are read; the end token is one of them.
            batch_tokens: tokens of a batch on all devices together, padding included. Beside the parameters, a
                batch's attention needs batch_tokens * max_tokens * heads * 4 bytes: 1 GiB for 16,384, 1,024 and 16.
            mesh: devices that share parameters and batches; None takes all of this process.
            dtype: `bfloat16` or `float32`, of parameters and arithmetic.

        Raises:
            UserError: something of the checkpoint is missing, damaged or no Qwen3 model, or the settings do not
                fit it.

        Example:
            >>> embedder = Qwen3Embedder.load("Qwen3-Embedding-0.6B", max_tokens=512)
            >>> embedder.embed(["Sails are set before the wind turns."]).shape
            (1, 1024)
        """
        folder = Path(folder)
        if dtype not in DTYPES:
            raise UserError(f"Expected dtype to be one of {', '.join(DTYPES)}, found {dtype!r}.")
        if batch_tokens < 1:
            raise UserError(f"Expected batch_tokens of 1 or more, found {batch_tokens}.")
        devices = flat_mesh(mesh)
        architecture = Architecture.read(folder)
        if not 2 <= max_tokens <= architecture.max_positions:
            raise UserError(
                f"Expected max_tokens from 2 to {architecture.max_positions}, the max_position_embeddings of the "
                f"checkpoint in {folder}, found {max_tokens}."
            )
        tokens = TokenReader(folder, max_tokens, architecture.vocab_size)
        model = place_model(architecture, open_tensors(folder), devices, dtype)
        return cls(folder, dtype, tokens, model, BatchPlan(max_tokens, batch_tokens, devices.size))

    @property
    def dimensions(self) -> int:
        """Width of the vectors."""
        return self._model.width

    @cached_property
    def fingerprint(self) -> str:
        """A hash of what decides the vectors: every byte of the checkpoint, `max_tokens` and `dtype`."""
        return fingerprint("qwen3", hash_checkpoint(self._folder), self._plan.max_tokens, self._dtype)

    def embed(self, texts: Sequence[str]) -> Float32[np.ndarray, "document feature"]:
        """A vector of length 1 for each text, in the texts' order; a text without tokens has its end token's.

        Args:
            texts: documents' beginnings; a thousand at a time fill the batches well.
        """
        ids = self._tokens.encode(texts)
        vectors = np.empty((len(ids), self.dimensions), np.float32)
        in_flight: deque[tuple[np.ndarray, jax.Array]] = deque()

        def collect() -> None:
            documents, rows = in_flight.popleft()
            vectors[documents] = np.asarray(rows)[: len(documents)]

        lengths = np.array([len(row) for row in ids], np.int64)
        for documents, num_rows, padded_length in self._plan.batches(lengths):
            batch = padded([ids[document] for document in documents], num_rows, padded_length)
            in_flight.append((documents, self._model.embed(*batch)))
            if len(in_flight) > _IN_FLIGHT:
                collect()
        while in_flight:
            collect()
        return vectors
