"""A run's state carried over to another plan, where the two agree on all that was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import numpy as np

from jax_diversity.foundation.errors import UserError
from jax_diversity.loader.loader import Loader

_CHUNK = 2**20


def replanned_state(state: Mapping[str, Any], loader: Loader, replanned: Loader) -> dict[str, Any]:
    """The state with which a loader of a new plan goes on where a loader of the old one stopped.

    A loader refuses the state of another ordering, in which the position means other sequences. When the new plan
    differs from the old one only after the position, it means the same ones. This is checked here: every position
    of the epoch before the state's has the same sequence in both orders, so that over the change too each sequence
    comes exactly once an epoch. Earlier epochs are not compared; from the position on the new plan is followed.

    Args:
        state: `iterator.get_state()` of the old loader, or a saved one.
        loader: follows the order that was trained on until now.
        replanned: follows the new one; batch size, hosts and threads may differ too. In a run over several epochs
            the later epochs follow the whole new ordering, its old part too; a function from epoch to ordering can
            give them another plan.

    Returns:
        The same position with the new plan's fingerprint, for `set_state`.

    Raises:
        UserError: a state that is not the old loader's; loaders of different datasets, or with epochs of different
            lengths; two orders that differ before the position; a position after the new loader's last epoch.

    Example:
        >>> state = iterator.get_state()
        >>> ordering = jd.replan(chars, ordering, state["position"], targets={"source": [0.2, 0.8]})
        >>> replanned = jd.make_loader("out/", ordering=ordering, global_batch_size=64)
        >>> iterator = iter(replanned)
        >>> iterator.set_state(replanned_state(state, loader, replanned))
    """
    _check_state(loader, state)
    position, end = state["position"], replanned.batches.windows.end
    old_order, order = loader.batches.order, replanned.batches.order
    if len(old_order) != len(order):
        raise UserError(
            f"Expected a new plan of {len(old_order)} positions an epoch, as the old one has, found {len(order)}; plan "
            "the rest with jax_diversity.replan."
        )
    within = min(position, end - 1)  # the end belongs to the last epoch
    # `set_state` checks dataset and end. It cannot see which sequences came before the position: compared below.
    carried = {**state, "ordering": order.fingerprint_at(within)}
    _check_state(replanned, carried)
    for start in range(within // len(order) * len(order), position, _CHUNK):
        positions = np.arange(start, min(start + _CHUNK, position), dtype=np.int64)
        old, new = old_order.at(positions), order.at(positions)
        if (rows := np.flatnonzero(old != new)).size:
            row = rows[0]
            raise UserError(
                f"Expected a new plan that agrees with the old one on the positions before {position}, which were "
                f"trained on; found sequence {new[row]} instead of {old[row]} at position {positions[row]}. Plan "
                "the rest with jax_diversity.replan, from the ordering and the position that were trained up to."
            )
    return carried


def _check_state(loader: Loader, state: Mapping[str, Any]) -> None:
    with closing(iter(loader)) as iterator:
        iterator.set_state(state)
