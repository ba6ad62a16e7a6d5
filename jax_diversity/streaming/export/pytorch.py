"""PyTorch's map-style dataset over the records, and a batch sampler that follows an ordering, by duck typing."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np

from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.libraries import optional
from jax_diversity.streaming.export.files import common_length
from jax_diversity.streaming.run.run import Datasets, Run, as_run
from jax_diversity.streaming.run.source import SequenceSource

IGNORED = -100
"""The target value that `torch.nn.functional.cross_entropy` ignores by default."""
_FIELDS = {
    "inputs": "inputs",
    "targets": "targets",
    "inputs_segmentation": "segment_ids",
    "inputs_position": "positions",
}
_READ = (*_FIELDS, "targets_segmentation")


class TorchDataset:
    """The training sequences by index, as int64 tensors of L values.

    An element is a dict with four tensors. `inputs` are the token ids. `targets` are the next tokens of the same
    document, or -100 at its end. `segment_ids` are 1, 2 ... for the documents of a sequence, and 0 on padding.
    `positions` are the places within the document. A batch is read at once. Workers get the path of the dataset and
    open the records themselves.

    Args:
        run: a run; or a built dataset, its folder or address; or several datasets, numbered end to end.
        merge_segments: treat all documents of a sequence as one, so that they attend to one another.
        loss_mask: with "answers" only the answers of chats are targets; in other documents all tokens are targets.

    Raises:
        UserError: the dataset does not exist, or has no chats for a loss on answers; torch is missing (at the first
            read).

    Example:
        >>> dataset = TorchDataset("out")
        >>> loader = DataLoader(dataset, batch_sampler=OrderedBatchSampler("out", "balance", 64), num_workers=2)
    """

    def __init__(self, run: Run | Datasets, *, merge_segments: bool = False, loss_mask: str = "all") -> None:
        if isinstance(run, Run):
            common_length(run)  # raises an error if there are several
        self.source = SequenceSource(run, _READ, merge_segments=merge_segments, loss_mask=loss_mask)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]:
        return self.__getitems__([operator.index(index)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Several sequences in one read; `DataLoader` requests a whole batch in this way."""
        torch = optional("torch", None)
        places = np.asarray(indices, np.int64)
        if len(places) and not 0 <= places.min() <= places.max() < len(self):
            raise IndexError(f"Expected sequences in 0 .. {len(self) - 1}, found {places.min()} .. {places.max()}.")
        # torch indexes embeddings and classes by int64; narrower tensors would be converted in every step.
        rows = self.source.read(places)
        rows["targets"][rows["targets_segmentation"] == 0] = IGNORED
        columns = {name: torch.from_numpy(rows[field].astype(np.int64)) for field, name in _FIELDS.items()}
        return [{name: values[row] for name, values in columns.items()} for row in range(len(indices))]


class OrderedBatchSampler:
    """Batches of sequence indices in an ordering's order, for `DataLoader(batch_sampler=...)`.

    The global batch at position p contains the sequences at p .. p + B - 1. Rank r of R gets rows r·B/R ..
    (r+1)·B/R - 1 of the batch. Positions continue from epoch to epoch, so a batch may begin in one epoch and end in the
    next.

    Workers prefetch, so the sampler is ahead of training by an unknown number of batches: pass the number of finished
    steps to `state`. `resume` continues there, with any batch size and any number of ranks.

    Args:
        run: a run; or a built dataset, its folder or address, or several.
        ordering: the ordering of the datasets, see `make_loader`; None with a run, which has its own order.
        global_batch_size: B, the number of sequences in a step over all ranks.
        rank: r, the index of this process.
        num_ranks: R, the number of processes that share the batch.
        num_epochs: passes over the ordering.
        drop_last: whether the last sequences, which do not fill a batch, are left out. Otherwise the last batch is
            short, and some ranks may get no rows of it.

    Raises:
        UserError: the dataset or ordering does not exist; `num_ranks` does not divide the batch; a rank is out of
            range.
    """

    def __init__(
        self,
        run: Run | Datasets,
        ordering: Any,
        global_batch_size: SupportsIndex,
        *,
        rank: SupportsIndex = 0,
        num_ranks: SupportsIndex = 1,
        num_epochs: SupportsIndex = 1,
        drop_last: bool = True,
    ) -> None:
        self._run = as_run(run, ordering)
        common_length(self._run)  # raises an error if there are several
        self.end, self.drop_last = as_whole_number("num_epochs", num_epochs, 1) * len(self._run), drop_last
        self.global_batch_size = as_whole_number(
            "global_batch_size", global_batch_size, 1, self.end if drop_last else None
        )
        self.num_ranks = as_whole_number("num_ranks", num_ranks, 1)
        self.rank = as_whole_number("rank", rank, 0, self.num_ranks - 1)
        if self.global_batch_size % self.num_ranks:
            raise UserError(
                f"Expected num_ranks to divide the global batch of {self.global_batch_size}, found {self.num_ranks}."
            )
        self.position = 0
        self._fingerprints = {
            "dataset_fingerprint": self._run.identity,
            "ordering_fingerprint": self._run.fingerprint,
        }

    def __len__(self) -> int:
        left = self.end - self.position
        return left // self.global_batch_size if self.drop_last else -(-left // self.global_batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        rows = self.global_batch_size // self.num_ranks
        for step in range(len(self)):
            # The same rule as in `loader.settings.Windows`, repeated here so that JAX is not imported.
            first = self.position + step * self.global_batch_size + self.rank * rows
            # A short last batch may end before this rank's rows begin; the rank then gets no rows.
            positions = np.arange(first, max(first, min(first + rows, self.end)))
            if len(positions):
                yield self._run.at(positions).tolist()

    def state(self, num_steps: int) -> dict[str, int | str]:
        """The state after `num_steps` batches since the sampler was made or resumed, as plain JSON."""
        position = min(self.position + num_steps * self.global_batch_size, self.end)
        return {"position": position, **self._fingerprints}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; raises a UserError for another dataset or ordering, or a position beyond the end.

        A state of another version of a stored run is accepted if both versions have the same sequences before it.
        """
        position, run = state.get("position"), self._run
        for name, fingerprint in self._fingerprints.items():
            stored = str(state.get(name))
            agrees = name == "ordering_fingerprint" and isinstance(position, int) and run.continues(position, stored)
            if stored != fingerprint and not agrees:
                raise UserError(
                    f"Expected a state of the {name.removesuffix('_fingerprint')} {fingerprint[:16]}, found "
                    f"{stored[:16]}; open the one that training began with."
                )
        self.position = as_whole_number("the state's position", position, 0, self.end)
