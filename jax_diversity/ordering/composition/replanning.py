"""Another plan for the rest of a run: an ordering keeps its past, and the remaining sequences are ordered again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np

from jax_diversity.foundation.checks import whole_number
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.ordering.base import order
from jax_diversity.ordering.composition.compose import origin
from jax_diversity.ordering.objective import Objective
from jax_diversity.ordering.plan import Targets
from jax_diversity.schema import Characteristics, Ordering


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
    measures, exports, loaders). `loader.replanned_state` carries a training run over to it.

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
