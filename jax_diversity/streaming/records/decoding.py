"""Convert a batch of records into arrays for training, and reuse the memory of these arrays."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Int32, Integer, UInt8

from jax_diversity.foundation.checks import check_one_of
from jax_diversity.foundation.errors import UserError
from jax_diversity.streaming.records.codec import Bodies, padding_mark

FIELDS = ("inputs", "targets", "inputs_segmentation", "targets_segmentation", "inputs_position", "targets_position")
"""The fields of a batch that `decode` makes; all by default."""

LossMask = Literal["all", "answers"]
"""Which tokens are targets: all tokens, or only the answers in chats."""

Arrays = dict[str, Int32[np.ndarray, "row token"]]
"""Arrays of a batch by field name, see `decode`."""

# Number of tokens that are decoded at a time, so that intermediate arrays stay in the processor's cache.
_PIECE_TOKENS = 2**17
# Arrays of one size that a pool keeps: eight batches of six fields. A training loop frees fewer arrays at a time.
_MAX_ARRAYS = 48
# Sizes for which a pool keeps arrays. A loader uses one or two sizes; parts of batches of several datasets have many.
_MAX_SIZES = 4


def as_fields(fields: Any) -> tuple[str, ...]:
    """Return the requested fields; a `UserError` if a field does not exist or the list is empty."""
    listed = isinstance(fields, Collection) and not isinstance(fields, str)
    unknown = [field for field in fields if field not in FIELDS] if listed else fields
    if unknown or not listed or not fields:
        raise UserError(f"Expected a list of fields among {', '.join(FIELDS)}, found {unknown or fields!r}.")
    return tuple(fields)


def as_loss(loss_mask: str, has_loss_mask: bool) -> LossMask:
    """Check which tokens are targets. A loss on answers is a `UserError` if no dataset has a loss mask."""
    check_one_of("loss_mask", loss_mask, get_args(LossMask))
    if loss_mask == "answers" and not has_loss_mask:
        raise UserError(
            "Expected a dataset of chats with loss_mask=answers, found one without a loss mask; build a dataset with "
            "corpus.format=chat, or leave loss_mask out."
        )
    return loss_mask  # type: ignore[return-value]


class BufferPool:
    """Gives int32 arrays whose memory returns to the pool when nothing refers to it any more.

    The system maps new memory page by page at the first write. This takes several times as long as filling the memory:
    with new memory a loader makes only a third to four fifths as many batches. Views, and JAX arrays that share the
    memory, keep it in use. Any number of threads may use the pool. It keeps the memory of a few batches; more is freed.
    """

    def __init__(self) -> None:
        self._free: dict[int, deque[np.ndarray]] = {}
        # The lock guards the sizes. Memory returns at any time and in any thread, without the lock.
        self._lock = threading.Lock()

    def empty(self, shape: tuple[int, int]) -> Int32[np.ndarray, "row token"]:
        """Return an array of this shape. Its values are not set."""
        size = shape[0] * shape[1]
        if (free := self._free.get(size)) is None:
            with self._lock:
                free = self._free.setdefault(size, deque(maxlen=_MAX_ARRAYS))
                if len(self._free) > _MAX_SIZES:
                    del self._free[next(iter(self._free))]  # the oldest
        try:  # we do not check first whether there is an array: another thread could take the last array meanwhile
            memory = free.pop()
        except IndexError:
            memory = np.empty(size, np.int32)
        if not size:  # an array without memory to return
            return memory.reshape(shape)
        # All views refer to `lease` and not to `memory`. So `lease` is finalized when the last view is freed.
        lease = np.frombuffer(memory.data, np.int32)
        # `append` on a full deque drops the array at its other end. Nothing is returned when the interpreter ends.
        weakref.finalize(lease, free.append, memory).atexit = False
        return lease.reshape(shape)


def decode(
    bodies: Bodies,
    *,
    fields: Sequence[str] = FIELDS,
    merge_segments: bool = False,
    loss_mask: LossMask = "all",
    pool: BufferPool | None = None,
    width: int | None = None,
) -> Arrays:
    """Convert records into a batch of int32 arrays (row, L). L is `width`; by default all places of a record.

    - `inputs`: the tokens; padding is 0.
    - `inputs_segmentation`: 1, 2 ... for the segments of a sequence; padding is 0.
    - `inputs_position`: the place within the segment; padding is 0.
    - `targets`: the next token of the same segment. If there is none, `targets` is 0, and `targets_segmentation` is 0,
      which masks the target.

    `merge_segments` joins the segments of a sequence into one segment, so that documents attend to earlier documents.
    Positions are then places in the sequence, and a token before padding has no target. `loss_mask="answers"` also
    masks targets that do not count towards the loss: their `targets_segmentation` is 0, but `targets` still has the
    token. Without a pool, new memory is used. The two fields of positions are one array, which is read-only.
    """
    if unknown := [field for field in fields if field not in FIELDS]:
        raise ValueError(f"Expected fields among {', '.join(FIELDS)}, found {', '.join(map(repr, unknown))}.")
    pool = pool or BufferPool()
    num_rows, sequence_length = bodies.tokens.shape
    # Positions of inputs and targets are equal: they are written once.
    written = {field: "position" if field.endswith("_position") else field for field in fields}
    batch = {array: pool.empty((num_rows, sequence_length)) for array in written.values()}
    num_piece_rows = max(1, _PIECE_TOKENS // sequence_length)
    for first in range(0, num_rows, num_piece_rows):
        rows = slice(first, first + num_piece_rows)
        piece = bodies.of_rows(rows)
        _fill({field: array[rows] for field, array in batch.items()}, piece, merge_segments)
        if loss_mask == "answers" and piece.loss_mask is not None and "targets_segmentation" in batch:
            counted = np.unpackbits(piece.loss_mask, axis=1, count=sequence_length, bitorder="little")
            # The target of a place is the token of the next place. The last place of a row has no target.
            batch["targets_segmentation"][rows, :-1] *= counted[:, 1:]
    if width not in (None, sequence_length):
        # We copy the rows, so that they follow one another in memory and the pool's memory is free again.
        batch = {field: np.ascontiguousarray(rows[:, :width]) for field, rows in batch.items()}
    if "position" in batch:
        batch["position"].flags.writeable = False
    return {field: batch[array] for field, array in written.items()}


def stored_rows(
    bodies: Bodies, width: int, dtype: np.dtype, has_loss_mask: bool
) -> dict[str, Integer[np.ndarray, "row column"]]:
    """Copy from records what `device_decoding.expand` needs, about a tenth of the bytes of the six int32 arrays.

    - `tokens` (row, L + 1), of the type `dtype`: the tokens and the token after the row. Padding is as in the record.
    - `starts` (row, ceil((L + 1) / 8)), uint8: one bit per place, lowest bit first: whether a segment or a run of
      padding starts there.
    - `loss_mask`, only with `has_loss_mask`: one bit per place, whether its token counts towards the loss.

    A record without a token after the row gets padding there, so that the last token of the row has no target.
    """
    num_rows, num_stored = bodies.tokens.shape
    num_bytes = -(-(width + 1) // 8)
    tokens = np.empty((num_rows, width + 1), dtype)
    tokens[:, :num_stored] = bodies.tokens[:, : width + 1]
    if tokens.dtype != bodies.tokens.dtype:
        tokens[tokens == padding_mark(bodies.tokens.dtype)] = padding_mark(tokens.dtype)
    rows = {"tokens": tokens, "starts": _bits(bodies.starts, num_bytes)}
    if num_stored == width:
        tokens[:, width] = padding_mark(tokens.dtype)
        rows["starts"][:, width >> 3] |= 1 << (width & 7)
    if has_loss_mask:
        mask = np.full_like(bodies.starts, 255) if bodies.loss_mask is None else bodies.loss_mask
        rows["loss_mask"] = _bits(mask, num_bytes)
    return rows


def _bits(stored: UInt8[np.ndarray, "row byte"], num_bytes: int) -> UInt8[np.ndarray, "row wanted"]:
    bits = np.zeros((len(stored), num_bytes), np.uint8)
    bits[:, : stored.shape[1]] = stored[:, :num_bytes]
    return bits


def _runs(bodies: Bodies, merge_segments: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut all rows into runs, which are segments or padding: their starts, lengths and numbers (0 for padding)."""
    num_rows, length = bodies.tokens.shape
    row_bytes = bodies.starts.shape[1]
    # Most bytes are zero, so we unpack only the others. The place of a bit in its row is 8 times the place of its byte,
    # plus the bit's place in the byte.
    byte = np.flatnonzero(bodies.starts != 0)
    bit = np.flatnonzero(np.unpackbits(bodies.starts.reshape(-1)[byte], bitorder="little").view(np.bool_))
    row, column = np.divmod(8 * byte[bit >> 3] + (bit & 7), 8 * row_bytes)
    start = row * length + column
    if not merge_segments and (bodies.num_tokens == length).all():  # no padding: this saves a third of the time
        number = np.arange(1, len(start) + 1) - np.flatnonzero(column == 0)[row]
        return start, _lengths(start, num_rows * length), number
    is_segment = ~bodies.is_padding(start)
    if merge_segments:  # a segment is joined to the segment directly before it
        apart = (column == 0) | ~is_segment
        apart[1:] |= ~is_segment[:-1]
        start, is_segment = start[apart], is_segment[apart]
        number = np.ones(len(start), np.int64)
    else:
        number = np.cumsum(is_segment)
        # We count segments over all rows and subtract the segments of the previous rows. Every row begins with a run.
        first = np.flatnonzero(column == 0)
        number -= (number - is_segment)[first][row]
    number[~is_segment] = 0
    return start, _lengths(start, num_rows * length), number


def _lengths(start: np.ndarray, end: int) -> np.ndarray:
    length = np.empty_like(start)  # `np.diff` with `append` takes three times as long
    np.subtract(start[1:], start[:-1], out=length[:-1])
    length[-1:] = end - start[-1:]
    return length


def _fill(batch: Mapping[str, np.ndarray], bodies: Bodies, merge_segments: bool) -> None:
    tokens = bodies.tokens
    if "inputs" in batch:
        batch["inputs"][:] = tokens
    if batch.keys() == {"inputs"} and not (bodies.num_tokens < tokens.shape[1]).any():
        return
    run_start, run_length, run_number = _runs(bodies, merge_segments)
    if "inputs" in batch:
        batch["inputs"].reshape(-1)[run_start[run_number == 0]] = 0  # where padding starts, no token is stored
    if "targets" in batch:  # tokens are shifted within every row; places without a next token are set at the end
        batch["targets"][:, :-1] = tokens[:, 1:]
    length = tokens.shape[1]
    # One or two bytes need less memory traffic; the numbers become int32 where they are written.
    narrow = np.min_scalar_type(length)
    if segmentation := [array for field, array in batch.items() if field.endswith("_segmentation")]:
        smallest = np.min_scalar_type(run_number.max(initial=0))
        number = np.repeat(run_number.astype(smallest), run_length).reshape(tokens.shape)
        for array in segmentation:
            array[:] = number
    if "position" in batch:
        # Positions of merged segments are counted from the first place of the sequence, even after padding.
        origin = np.zeros(len(run_start), narrow) if merge_segments else (run_start % length).astype(narrow)
        place = np.repeat(origin, run_length).reshape(tokens.shape)
        np.subtract(np.arange(length, dtype=narrow), place, out=place)
        if not run_number.all():  # there is padding
            place *= np.repeat(run_number > 0, run_length).reshape(tokens.shape)
        batch["position"][:] = place
    # The last token of a segment has no next token. This also sets the last column of `targets`, because a run ends at
    # the end of every row. It must be set, because new memory contains arbitrary values.
    last = run_start + run_length - 1
    for field in batch.keys() & {"targets", "targets_segmentation"}:
        batch[field].reshape(-1)[last] = 0
