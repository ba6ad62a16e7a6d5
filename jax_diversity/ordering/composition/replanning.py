"""Another plan for the rest of a run: the past of an ordering stays, what is left of it is ordered anew."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.ordering.base import order
from jax_diversity.ordering.composition.compose import checked_whole, origin
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
    """Keep an ordering up to a position and order the sequences from there on anew.

    The result is a bijection again: each sequence comes once over both parts, so that all that takes an ordering
    (files, measures, exports, loaders) takes it. `loader.replanned_state` carries a training run over to it.

    Args:
        characteristics: token counts of the ordering's sequences; weights may differ from those it was made with.
        ordering: what training has followed so far, itself re-planned or not.
        position: the first position that is planned anew: those before it have been trained on. Counted in the
            epoch: of a run over several it is `iterator.position % len(ordering)`.
        method: one that goes on from consumed sequences: `balance`, `greedy`, `greedy_pool`.
        seed: see `order`, as all that is not said here.
        objective: see there.
        targets: what the rest aims at: family -> shares, from the position on; or `Targets`, whose phases count
            from position 0 and hold for the past too, so that what it had too much of is made up for. None aims
            at the corpus's own shares.
        checkpoint: see there.
        advance: see there.
        options: the method's own.

    Returns:
        The whole epoch's ordering. Its `info` says at which position it begins to differ (`replanned_at`), and
        from what (`of`).

    Raises:
        ValueError: an ordering of another number of sequences, a position outside of it, and all that `order`
            refuses.

    Example:
        >>> chars = Characteristics.from_counts({"topic": [[2, 0], [2, 0], [0, 2], [0, 2]]})
        >>> replan(chars, Ordering(np.array([1, 0, 2, 3])), 1, "greedy").indices.tolist()
        [1, 2, 0, 3]
    """
    place = checked_whole("position", position, 0)
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
