"""Orderings, and schedules, which may repeat and omit sequences, made of existing orderings.

Batches in random order stay balanced; windows of several batches and prefixes do not. Reversed, windows are the same
windows, and a prefix is as balanced: an ordering's deviation ends at zero. Parts one after another are balanced if
every part holds the same mixture (`duplicates.separate_duplicates`). `info` says under `of` what a plan was made from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.checks import instance_of, several, whole_number
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.ordering.base import order
from jax_diversity.ordering.objective import Objective
from jax_diversity.ordering.plan import Targets
from jax_diversity.schema import Characteristics, Ordering, Schedule
from jax_diversity.schema.characteristics import MADE_BY
from jax_diversity.schema.orderings import check_ordering, integers

_MOST_POSITIONS = 2**48
"""Positions of a schedule: more than a computer's memory holds, but few enough for NumPy to try."""

OrderingSource = Ordering | Callable[[int], Ordering]
"""One ordering for all epochs, or a function from the epoch (0, 1, 2 ...) to its ordering."""


def shuffle_blocks(ordering: Ordering, batch_size: SupportsIndex, seed: SupportsIndex = 0) -> Ordering:
    """Put whole batches in random order and keep the sequences of each, and their order in it.

    Batches are the aligned runs of `batch_size` positions. A last batch that is not full stays last, so that all
    others stay aligned. The order of batches is NumPy's PCG64 permutation for the seed.

    Raises:
        UserError: a batch size below 1 or above the number of sequences; a negative seed.

    Example:
        >>> shuffle_blocks(Ordering(np.arange(7)), 2, seed=0).indices.tolist()
        [4, 5, 0, 1, 2, 3, 6]
    """
    check_ordering("ordering", ordering)
    size = whole_number("batch_size", batch_size, 1, len(ordering) or None)
    seed = whole_number("seed", seed, 0)
    # Rows of a matrix are batches: permuting rows keeps each batch and the order within it.
    num_batches = len(ordering) // size
    whole = ordering.indices[: num_batches * size].reshape(num_batches, size)
    shuffled = whole[np.random.default_rng(seed).permutation(num_batches)].ravel()
    indices = np.concatenate([shuffled, ordering.indices[num_batches * size :]])
    return Ordering(indices, {"method": "shuffle_blocks", "batch_size": size, "seed": seed, "of": origin(ordering)})


def reverse(ordering: Ordering) -> Ordering:
    """The sequences in reverse order.

    Example:
        >>> reverse(Ordering(np.array([2, 0, 1]))).indices.tolist()
        [1, 0, 2]
    """
    check_ordering("ordering", ordering)
    return Ordering(ordering.indices[::-1], {"method": "reverse", "of": origin(ordering)})


def repeat(ordering: OrderingSource, num_epochs: float, *, reverse_odd: bool = False) -> Schedule:
    """Epoch after epoch.

    Args:
        ordering: one ordering for all epochs, or a function that gives each epoch's own, such as
            `lambda epoch: jd.order(chars, "balance", seed=epoch)`; all of the same number of sequences.
        num_epochs: how many, above zero; a fraction keeps the first positions of the last epoch, their number rounded
            to the nearest.
        reverse_odd: reverse the second, fourth ... epoch.

    Raises:
        UserError: a number of epochs that is not finite and above zero; a function that gives anything but
            orderings of one size.

    Example:
        >>> repeat(Ordering(np.array([2, 0, 1])), 2.7, reverse_odd=True).indices.tolist()
        [2, 0, 1, 1, 0, 2, 2, 0]
    """
    try:
        fits = math.isfinite(num_epochs) and num_epochs > 0
    except (TypeError, OverflowError):
        fits = False
    if not fits:
        raise UserError(f"Expected num_epochs to be finite and above zero, found {num_epochs!r}.")
    first = epoch_ordering(ordering, 0)
    # One allocation for all epochs: a list of epochs would need the memory twice when it is joined.
    num_positions = round(num_epochs * len(first))
    if num_positions > _MOST_POSITIONS:
        raise UserError(f"Expected num_epochs of at most {_MOST_POSITIONS:,} positions in all, found {num_epochs!r}.")
    indices = np.empty(num_positions, np.int64)
    origins = []
    for epoch, start in enumerate(range(0, num_positions, max(len(first), 1))):
        current = first if epoch == 0 else epoch_ordering(ordering, epoch, len(first))
        turned = current.indices[:: -1 if reverse_odd and epoch % 2 else 1]
        indices[start : start + len(first)] = turned[: num_positions - start]
        origins.append(origin(current))
    info = {"method": "repeat", "num_epochs": float(num_epochs), "reverse_odd": bool(reverse_odd)}
    return Schedule(indices, len(first), {**info, "of": origins if callable(ordering) else origins[:1]})


def truncate(
    plan: Ordering | Schedule,
    num_positions: SupportsIndex | None = None,
    *,
    num_tokens: SupportsIndex | None = None,
    tokens: Int64[np.ndarray, " sequence"] | None = None,
) -> Schedule:
    """The beginning of an ordering or schedule.

    Args:
        plan: the ordering or schedule.
        num_positions: how many positions to keep.
        num_tokens: instead, as many positions as hold at most this number of tokens.
        tokens: every sequence's number of tokens (`Characteristics.tokens`), with `num_tokens`.

    Raises:
        UserError: both or neither of `num_positions` and `num_tokens`; more of either than the plan holds; tokens
            of another dataset, negative tokens.

    Example:
        >>> truncate(Ordering(np.array([2, 0, 1])), num_tokens=11, tokens=np.array([7, 7, 4])).indices.tolist()
        [2, 0]
    """
    check_ordering("plan", plan, Ordering | Schedule)
    if (num_positions is None) == (num_tokens is None) or (num_tokens is None) != (tokens is None):
        raise UserError("Expected either num_positions, or num_tokens with the tokens of every sequence.")
    # Without tokens each position counts as one.
    running = np.arange(1, len(plan) + 1)
    if tokens is not None:
        counts = integers("every sequence's tokens", tokens)
        if len(counts) != plan.num_sequences:
            raise UserError(
                f"Expected the tokens of {plan.num_sequences} sequences of this dataset, found {len(counts)}."
            )
        running = np.cumsum(counts[plan.indices])
    name = "num_positions" if tokens is None else "num_tokens"
    total = int(running[-1]) if len(running) else 0
    limit = whole_number(name, num_positions if tokens is None else num_tokens, most=total)
    # "right" keeps a position whose running sum is exactly the limit, and positions without tokens behind it.
    kept = int(np.searchsorted(running, limit, side="right"))
    return Schedule(plan.indices[:kept], plan.num_sequences, {"method": "truncate", name: limit, "of": origin(plan)})


def concatenate(orderings: Sequence[Ordering], offsets: Sequence[int] | None = None) -> Ordering:
    """Datasets one after another, each in its own ordering, as one ordering over all their sequences.

    Args:
        orderings: of the datasets, in the order of training.
        offsets: the index of each dataset's first sequence among all; None stacks the datasets in the given order.

    Raises:
        UserError: no ordering; offsets that leave gaps between the datasets or lay them over one another.

    Example:
        >>> concatenate([Ordering(np.array([1, 0])), Ordering(np.array([0, 2, 1]))]).indices.tolist()
        [1, 0, 2, 4, 3]
    """
    orderings, offsets = several(orderings), None if offsets is None else several(offsets)
    if not orderings:
        raise UserError("Expected at least one ordering to concatenate, found none.")
    for number, ordering in enumerate(orderings):
        check_ordering(f"orderings[{number}]", ordering)
    sizes = [len(ordering) for ordering in orderings]
    starts = stacked_offsets(sizes) if offsets is None else _checked_offsets(offsets, sizes)
    indices = np.concatenate([start + ordering.indices for start, ordering in zip(starts, orderings, strict=True)])
    origins = [origin(ordering) for ordering in orderings]
    return Ordering(indices, {"method": "concatenate", "offsets": starts, "of": origins})


def replan(
    characteristics: Characteristics,
    ordering: Ordering,
    position: SupportsIndex,
    method: str = "balance",
    *,
    seed: int = 0,
    objective: Objective | None = None,
    targets: Targets | Mapping[str, Any] | None = None,
    checkpoint: str | Path | None = None,
    advance: Advance = ignore,
    **options: Any,
) -> Ordering:
    """Keep an ordering up to a position and order the remaining sequences again.

    The result is a bijection: each sequence comes once over both parts. It can be used like any ordering (files,
    measures, exports, loaders). A training run that changes on the way is a schedule (`extend_schedule`).

    Args:
        characteristics: token counts of the ordering's sequences; weights may differ from those it was made with.
        ordering: what training has followed so far, itself re-planned or not.
        position: the first position that changes: those before it have been trained on. Counted within the epoch: in
            a run over several it is `iterator.position % len(ordering)`.
        method: one that can continue after consumed sequences: `balance`, `greedy`, `greedy_pool`.
        seed: see `order`.
        objective: see `order`.
        targets: the shares to aim at: family -> shares, from the position on; or `Targets`, whose phases count from
            position 0 and apply to the past too, so that a group that had too many tokens gets fewer from now on. None
            aims at the corpus's own shares.
        checkpoint: see `order`.
        advance: see `order`.
        options: the method's own.

    Returns:
        The whole epoch's ordering. Its `info` says at which position it begins to differ (`replanned_at`), and
        from what (`of`).

    Raises:
        ValueError: an ordering of another number of sequences, a position outside it, and the errors of `order`.

    Example:
        >>> chars = Characteristics.from_counts({"topic": [[2, 0], [2, 0], [0, 2], [0, 2]]})
        >>> replan(chars, Ordering(np.array([1, 0, 2, 3])), 1, "greedy").indices.tolist()
        [1, 2, 0, 3]
    """
    instance_of("characteristics", characteristics, Characteristics, MADE_BY)
    check_ordering("ordering", ordering)
    place = whole_number("position", position, 0)
    if len(ordering) != characteristics.num_sequences:
        raise UserError(
            f"Expected an ordering of the characteristics' {characteristics.num_sequences} sequences, found one of "
            f"{len(ordering)}; it was made for another dataset."
        )
    if place > len(ordering):
        raise UserError(
            f"Expected a position in 0 .. {len(ordering)}, found {place}; of a run over several epochs give the "
            "position in its epoch, the remainder of the division by the number of sequences."
        )
    # Both parts together are checked to be a bijection when the Ordering is made.
    consumed = ordering.indices[:place]
    rest = order(
        characteristics,
        method,
        seed=seed,
        objective=objective,
        targets=targets,
        consumed=consumed,
        checkpoint=checkpoint,
        advance=advance,
        **options,
    )
    info = {**rest.info, "replanned_at": place, "of": origin(ordering)}
    return Ordering(np.concatenate([consumed, rest.indices]), info)


def stacked_offsets(sizes: Sequence[int]) -> list[int]:
    """The index of the first sequence of each of several datasets that are stored one after another."""
    return [0, *np.cumsum(sizes, dtype=np.int64).tolist()[:-1]]


def _checked_offsets(offsets: Sequence[int], sizes: Sequence[int]) -> list[int]:
    starts = [whole_number("offsets", offset, 0) for offset in offsets]
    if len(starts) != len(sizes):
        raise UserError(f"Expected an offset for each of {len(sizes)} orderings, found {len(starts)}.")
    # In order of their offsets each must begin where the one before ends; datasets without sequences may share one.
    end = 0
    for start, size in sorted(zip(starts, sizes, strict=True)):
        if start != end:
            raise UserError(
                f"Expected datasets that lie one after another, found one at the offset {start} where the one "
                f"before ends at {end}; leave the offsets out to stack them."
            )
        end = start + size
    return starts


def epoch_ordering(source: OrderingSource, epoch: int, num_sequences: int | None = None) -> Ordering:
    """The ordering of an epoch, counted from 0; refused if it has not `num_sequences` (None takes any number)."""
    ordering = source(epoch) if callable(source) else source
    if not isinstance(ordering, Ordering):
        raise UserError(
            f"Expected an Ordering, or a function from epoch to Ordering, found {type(ordering).__name__} in epoch "
            f"{epoch}; wrap an array in jd.Ordering(indices)."
        )
    if num_sequences is not None and len(ordering) != num_sequences:
        raise UserError(
            f"Expected orderings of one dataset in all epochs: of {num_sequences} sequences in epoch 0, found "
            f"{len(ordering)} in epoch {epoch}."
        )
    return ordering


def origin(plan: Ordering | Schedule) -> dict[str, Any]:
    """What a composition's `info` keeps of what it was made from."""
    return {**plan.info, "fingerprint": plan.fingerprint}
