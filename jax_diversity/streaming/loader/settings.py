"""The common settings of `make_loader` and `stream_batches`, and the window contract: the positions of every host."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import jax
import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.checks import as_whole_number, check_one_of
from jax_diversity.foundation.errors import UserError, did_you_mean, quoted
from jax_diversity.streaming.records.decoding import FIELDS, LossMask, as_fields
from jax_diversity.streaming.run.source import ORIGIN_FIELDS

ENDLESS = 2**62
"""The number of positions if epochs never end; positions of a batch after it are still below 2^63."""

_DTYPES = ("int32", "int64", "uint32", "float32")
_SMALLEST = {
    **dict.fromkeys(("global_batch_size", "num_epochs", "num_hosts", "num_threads", "sequence_length"), 1),
    **dict.fromkeys(("start_position", "host_index", "num_prefetch", "num_workers"), 0),
}
_MAY_BE_NONE = ("num_epochs", "sequence_length")


@dataclass(frozen=True, kw_only=True)
class LoaderSettings:
    """The settings of `make_loader` and `stream_batches`; `checked` makes them from keyword arguments."""

    global_batch_size: int
    """B, the number of sequences in a batch, over all hosts."""
    num_epochs: int | None = 1
    """The number of times that the run is read; with None it is repeated without end."""
    start_position: int = 0
    """The global position of the first batch."""
    drop_remainder: bool = True
    """Whether the last sequences are dropped when they do not fill a batch; with False the batch gets padding rows.
    Every host has the same number of batches in both cases."""
    host_index: int = 0
    """The number of this host (`jax.process_index()`); do not give it with `sharding`, which determines it."""
    num_hosts: int = 1
    """The number of hosts (`jax.process_count()`); the batch size must be a multiple of it."""
    sharding: jax.sharding.Sharding | None = None
    """A `jax.sharding.Sharding` of arrays (row, token): batches are then global `jax.Array`s, placed on the devices in
    advance. Row j of the batch is row j of the array for any number of processes."""
    fields: Sequence[str] = FIELDS
    """The arrays in a batch. Each array takes time: only `("inputs",)` is two to three times as fast as all six."""
    names: Mapping[str, str] = field(default_factory=dict)
    """New names of fields, such as {"inputs": "tokens"}; other fields keep their names. MaxText and the Flax examples
    use the original names."""
    dtype: Any = "int32"
    """The type of the arrays: int32, int64, uint32 or float32. With `sharding`, int64 needs JAX's `jax_enable_x64`."""
    merge_segments: bool = False
    """Whether all segments of a sequence are merged. Then positions are counted over the whole sequence, a document
    attends to the documents before it, and its first token is a target. With False, documents are kept apart."""
    loss_mask: LossMask = "all"
    """`answers` masks the prompts of chats: `targets_segmentation` is 0 if the target is not a token of an answer. In
    documents that are not chats every token counts towards the loss. At least one dataset must contain chats."""
    decode: Literal["host", "device"] = "host"
    """Where the arrays are made. `device`: the stored tokens and one bit for each place are transferred, about a tenth
    of the bytes, and the devices make the arrays from them. Batches are then `jax.Array`s; without `sharding` they are
    on the first device of the process. It is meant for GPUs and TPUs: on a CPU `host` is faster."""
    num_prefetch: int = 2
    """Number of batches that are made in advance in the background; 0 makes each batch on request."""
    num_threads: int = 1
    """Number of threads that make batches."""
    num_workers: int = 0
    """Number of processes that make batches instead of threads; they need seconds to start. It must be possible to
    import the program's own file without running it (`if __name__ == "__main__":`), as always with
    `multiprocessing`."""
    sequence_length: int | None = None
    """L, the sequence length that the model expects; a run with another length is refused. None accepts any length."""

    @classmethod
    def checked(cls, **values: Any) -> LoaderSettings:
        """Make settings from keyword arguments; a `UserError` names the first one that is unknown or not valid."""
        fields_of_class = cls.__dataclass_fields__
        for name in values:
            if name not in fields_of_class:
                listed = f"{', '.join(fields_of_class)}{did_you_mean(name, fields_of_class)}"
                raise UserError(f"Unknown setting {quoted(name)}: expected one of {listed}")
        if "global_batch_size" not in values:
            raise UserError("Expected global_batch_size, the number of sequences of a batch, found none.")
        # Whole numbers are converted to int for JSON, because the position in a saved state is computed from them.
        for name, smallest in _SMALLEST.items():
            if name in values and not (name in _MAY_BE_NONE and values[name] is None):
                values[name] = as_whole_number(name, values[name], smallest)
        names = {} if values.get("names") is None else values["names"]
        if not isinstance(names, Mapping) or not all(isinstance(name, str) for name in names.values()):
            raise UserError(f'Expected names as a mapping of fields to names, {{"inputs": "tokens"}}, found {names!r}.')
        values["names"] = dict(names)
        values["fields"] = fields = as_fields(values.get("fields", FIELDS))
        _check_names(fields, values["names"])
        for name in {"drop_remainder", "merge_segments"} & values.keys():
            if not isinstance(values[name], bool | np.bool_):  # other values would silently be used as True or False
                raise UserError(f"Expected {name} to be True or False, found {values[name]!r}.")
        check_one_of("loss_mask", values.get("loss_mask", "all"), get_args(LossMask))
        if values.get("loss_mask") == "answers" and "targets_segmentation" not in fields:
            raise UserError(
                "Expected targets_segmentation among the fields with loss_mask=answers, which is 0 where no loss is "
                f"counted, found {', '.join(fields)}; add it."
            )
        if (sharding := values.get("sharding")) is not None:
            _check_sharding(sharding, values.get("num_hosts", 1))
        check_one_of("decode", values.get("decode", "host"), ("host", "device"))
        on_devices = sharding is not None or values.get("decode") == "device"
        values["dtype"] = _dtype_name(values.get("dtype", "int32"), on_devices=on_devices)
        settings = cls(**values)
        if settings.num_workers and not settings.num_prefetch:
            raise UserError("Expected num_prefetch >= 1 with num_workers, found 0: workers make batches ahead.")
        return settings

    @property
    def of_arrays(self) -> dict[str, Any]:
        """The settings of the arrays in a batch, as keyword arguments of `SequenceSource`."""
        return {name: getattr(self, name) for name in ("fields", "merge_segments", "loss_mask", "decode")}

    @property
    def expand(self) -> Callable[..., dict[str, jax.Array]] | None:
        """The function that makes the arrays on a device from stored rows; None with `decode="host"`."""
        if self.decode == "host":
            return None
        from jax_diversity.streaming.records.device_decoding import expand

        return partial(expand, fields=self.fields, merge_segments=self.merge_segments, dtype=self.dtype)

    def end(self, num_positions: int) -> int:
        """The position after the last epoch, for epochs of `num_positions`."""
        return ENDLESS if self.num_epochs is None else num_positions * self.num_epochs


@dataclass(frozen=True, kw_only=True)
class LoaderOptions(LoaderSettings):
    """The keyword arguments of `make_loader`."""

    ordering: Any = None
    """The name of one of the dataset's orderings, a .npy file, or an ordering itself (integers that name each sequence
    once). For several datasets: an ordering of all their sequences. None means `balance`. Do not give it with a run,
    which has its own order."""
    split: Literal["train", "validation"] = "train"
    """`validation` reads the validation sequences: by default in a balanced order, so that the first batches are a
    sample of all. The last batch is filled with padding, so that every token is read once per epoch. Give datasets, not
    a run; or a mapping from names to datasets, which gives one loader for each name."""
    cache_folder: str | Path | None = None
    """The folder for files of a dataset on an object store, see `open_dataset`. A record file is fetched whole when it
    is first needed; `stream_batches` deletes it after it was read."""


@dataclass(frozen=True)
class Windows:
    """The positions of a run and how batches divide them."""

    num_positions: int
    """N, the number of positions in an epoch."""
    settings: LoaderSettings
    lengths: tuple[tuple[int, int], ...] = ()
    """The sequence lengths in an epoch: pairs (first position, L). It may be empty if only batches are counted."""
    row_numbers: tuple[int, ...] | None = None
    """The rows of the global batch that this process reads, ascending; None means the rows of the host."""
    turn: tuple[int, int] = (0, 1)
    """The first batch that this process reads, and the distance to its next batch: Grain's workers read in turn."""

    def __post_init__(self) -> None:
        settings = self.settings
        # A batch may span epochs, and is padded after the last one. Without padding, all epochs together must contain
        # at least one batch.
        if not self.num_positions or (settings.drop_remainder and settings.global_batch_size > self.end):
            raise UserError(
                f"Expected a global batch size in 1 .. {self.end} (the positions of all epochs), found "
                f"{settings.global_batch_size}; choose a smaller one, more epochs, or drop_remainder=False."
            )
        if settings.global_batch_size % settings.num_hosts:
            raise UserError(
                f"Expected a number of hosts that divides the global batch of {settings.global_batch_size}, "
                f"found {settings.num_hosts}."
            )
        if settings.host_index >= settings.num_hosts:
            raise UserError(f"Expected a host index in 0 .. {settings.num_hosts - 1}, found {settings.host_index}.")
        if settings.start_position > self.end:
            raise UserError(f"Expected a start position in 0 .. {self.end}, found {settings.start_position}.")
        self.check_lengths(settings.start_position)

    @cached_property
    def end(self) -> int:
        """The position after the last epoch."""
        return self.settings.end(self.num_positions)

    @property
    def first_position(self) -> int:
        """The position of the first batch that this process reads."""
        return self.settings.start_position + self.turn[0] * self.settings.global_batch_size

    @property
    def step(self) -> int:
        """The distance in positions between two batches that this process reads."""
        return self.turn[1] * self.settings.global_batch_size

    @property
    def num_rows(self) -> int:
        """The number of rows of this host in a batch."""
        if self.row_numbers is None:
            return self.settings.global_batch_size // self.settings.num_hosts
        return len(self.row_numbers)

    def num_batches(self, position: int) -> int:
        """Return the number of batches from a position, where a batch begins, to the end."""
        left = max(self.end - position, 0)
        size = self.settings.global_batch_size
        return left // size if self.settings.drop_remainder else -(-left // size)

    @property
    def num_batches_here(self) -> int:
        """The number of batches that this process reads after the start position."""
        return max(-(-(self.num_batches(self.settings.start_position) - self.turn[0]) // self.turn[1]), 0)

    def length_at(self, position: int) -> int:
        """Return L, the number of tokens of each sequence in the batch at a position."""
        if len(self.lengths) == 1:
            return self.lengths[0][1]
        return self.lengths[bisect_right(self._firsts, position % self.num_positions) - 1][1]

    def lengths_from(self, position: int) -> list[tuple[int, int]]:
        """Return pairs (position, L): L at a position, and all changes of L in this and the next two epochs."""
        if not self.lengths or position >= self.end:
            return []
        lengths, epoch = [(position, self.length_at(position))], position - position % self.num_positions
        for start in (epoch, epoch + self.num_positions, epoch + 2 * self.num_positions):
            for first, length in self.lengths:
                if position < start + first < self.end and length != lengths[-1][1]:
                    lengths.append((start + first, length))
        return lengths

    def check_lengths(self, position: int) -> None:
        """Raise an error if a batch after a position contains two lengths, or does not have the settings' length."""
        # Three epochs are enough: if the batches fit two whole epochs, they also fit all later epochs.
        settings, lengths = self.settings, self.lengths_from(position)
        for first, length in lengths:
            if settings.sequence_length not in (None, length):
                raise UserError(
                    f"Expected sequences of {settings.sequence_length} tokens, found {length} from position {first} "
                    f"on; pack with packing.sequence_length={settings.sequence_length}, or give the model that length."
                )
        for (_, before), (first, length) in pairwise(lengths):
            number, rest = divmod(first - position, settings.global_batch_size)
            if rest and number < self.num_batches(position):
                raise UserError(
                    f"Expected a batch to begin at position {first}, where sequences of {length} tokens follow "
                    f"sequences of {before}, found batches of {settings.global_batch_size} from position {position} "
                    f"on; choose a global_batch_size that divides {first - position}, or another start_position, or "
                    "extend the schedule at a position where a batch begins."
                )

    @cached_property
    def _firsts(self) -> list[int]:
        return [first for first, _ in self.lengths]

    def positions(self, position: int) -> Int64[np.ndarray, " row"]:
        """Return this host's positions in the batch at `position`. The last batch may have fewer than `num_rows`."""
        # A host reads neighbouring rows, [hB/H, (h+1)B/H), not every H-th row: they are one range of a file.
        if self.row_numbers is None:
            first = position + self.settings.host_index * self.num_rows
            return np.arange(first, max(first, min(first + self.num_rows, self.end)), dtype=np.int64)
        # With a sharding, a process reads the rows of its devices, which may not be neighbours.
        positions = position + np.array(self.row_numbers, np.int64)
        return positions[positions < self.end]


def _check_names(fields: Sequence[str], names: Mapping[str, str]) -> None:
    all_fields = {*FIELDS, *ORIGIN_FIELDS}
    if unknown := [name for name in names if name not in all_fields]:
        raise UserError(f"Expected names of fields ({', '.join(sorted(all_fields))}), found {unknown}.")
    named = [names.get(field, field) for field in (*fields, *ORIGIN_FIELDS)]
    if len(set(named)) != len(named):
        raise UserError(f"Expected different names for different fields, found {named}.")


def _dtype_name(dtype: Any, *, on_devices: bool) -> str:
    """Return the name of a type. On devices it must be a type that JAX does not convert to a smaller type."""
    try:
        chosen = np.dtype("O" if dtype is None else dtype)
    except (TypeError, ValueError):
        chosen = np.dtype("O")
    if chosen not in map(np.dtype, _DTYPES):
        raise UserError(f"Expected dtype to be {', '.join(_DTYPES[:-1])} or {_DTYPES[-1]}, found {dtype!r}.")
    if on_devices and (kept := jax.dtypes.canonicalize_dtype(chosen)) != chosen:
        raise UserError(
            f"Expected a dtype that JAX keeps on devices, found {chosen.name}, which JAX converts to {kept.name}; "
            f'use {kept.name}, or call jax.config.update("jax_enable_x64", True) first.'
        )
    return chosen.name


def _check_sharding(sharding: Any, num_hosts: int) -> None:
    if num_hosts != 1:
        raise UserError(
            f"Expected sharding= without num_hosts, found num_hosts={num_hosts}: the sharding determines the rows of "
            "each process."
        )
    if not isinstance(sharding, jax.sharding.Sharding):
        raise UserError(f"Expected a jax.sharding.Sharding, such as a NamedSharding, found {sharding!r}.")
