"""Orders that learn from gradients, epoch by epoch: GraB and CD-GraB.

Both rules read the sequences' gradients in the order of the epoch. They give each gradient a sign such that the running
sum of the signed gradients stays small (herding). Sequences with + come first in the next epoch, and sequences with -
come last, in reverse. GraB gives a sign to each gradient minus the mean of the epoch before (Lu, Guo and De Sa 2022,
"GraB: Finding provably better data permutations than random reshuffling", algorithm 4). CD-GraB gives a sign to the
difference of two neighbours, which needs no mean (Cooper et al. 2023, "Coordinating distributed example orders for
provably accelerated training").

Gradients are too long to store: each gradient is reduced to a sketch of a few thousand numbers, see
`jax_diversity.lab.explaining.sketching.sketch`.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int64

from jax_diversity.foundation.checks import check_one_of
from jax_diversity.foundation.errors import UserError

GradientRule = Literal["grab", "cd_grab"]
SKETCH_SIZE = 4096


@jax.jit
def balanced_signs(
    vectors: Float[Array, "vector size"], start: Float[Array, " size"]
) -> tuple[Bool[Array, " vector"], Float[Array, " size"]]:
    """Give each vector the sign that makes the running sum of the signed vectors shorter.

    Args:
        vectors: the vectors, in their order.
        start: the running sum before the first vector.

    Returns:
        True for +, and the running sum after the last vector.
    """

    def sign(total: Array, vector: Array) -> tuple[Array, Array]:
        # ||s + v|| < ||s - v|| if and only if <s, v> < 0.
        plus = total @ vector < 0
        return total + jnp.where(plus, vector, -vector), plus

    total, plus = jax.lax.scan(sign, start, vectors)
    return plus, total


class GradientOrder:
    """An order learnt over epochs: call `observe` with the gradients of each batch, then `next_epoch`.

    Args:
        order: the order of the first epoch, as sequence indices.
        rule: `grab` or `cd_grab`.
        size: length of a sketch.

    Raises:
        UserError: the rule is unknown.

    Example:
        >>> learnt = GradientOrder(np.arange(4), "cd_grab", size=2)
        >>> learnt.observe(np.array([[1, 0], [1, 0], [-1, 0], [-1, 0]], np.float32))
        >>> learnt.next_epoch().tolist()
        [1, 3, 2, 0]
    """

    def __init__(
        self, order: Int64[np.ndarray, " position"], rule: GradientRule = "cd_grab", size: int = SKETCH_SIZE
    ) -> None:
        check_one_of("rule", rule, ("grab", "cd_grab"))
        self.order, self.rule, self.size = np.asarray(order, np.int64), rule, size
        self._mean = jnp.zeros(size)
        self._begin()

    def _begin(self) -> None:
        self._waiting: list[Array] = []  # cd_grab: a sequence whose neighbour has not been observed yet
        self._running, self._total = jnp.zeros(self.size), jnp.zeros(self.size)
        self._plus: list[np.ndarray] = []
        self._num_seen = 0

    def observe(self, sketches: Float[Array, "row size"] | Float[np.ndarray, "row size"]) -> None:
        """Learn from the sketched gradients of the next sequences of the order.

        Raises:
            UserError: there are more sequences than the epoch has, or the sketches have another size.
        """
        if sketches.ndim != 2 or sketches.shape[1] != self.size or self._num_seen + len(sketches) > len(self.order):
            raise UserError(
                f"Expected sketches of {self.size} numbers of at most {len(self.order) - self._num_seen} sequences, "
                f"the rest of the epoch, found an array of shape {sketches.shape}."
            )
        vectors = jnp.asarray(sketches, jnp.float32)
        self._num_seen += len(vectors)
        if self.rule == "grab":
            self._total += vectors.sum(axis=0)
            plus, self._running = balanced_signs(vectors - self._mean, self._running)
            self._plus.append(np.asarray(plus))
            return
        vectors = jnp.concatenate([*self._waiting, vectors])
        num_pairs = len(vectors) // 2
        self._waiting = [vectors[2 * num_pairs :]]
        plus, self._running = balanced_signs(
            vectors[: 2 * num_pairs : 2] - vectors[1 : 2 * num_pairs : 2], self._running
        )
        first = np.asarray(plus)
        self._plus.append(np.stack([first, ~first], axis=1).reshape(-1))

    def next_epoch(self) -> Int64[np.ndarray, " position"]:
        """The order of the next epoch, learnt from the gradients that were observed in the current epoch.

        Sequences that were not observed stay at the end, such as the last sequences of an epoch, which do not fill a
        batch. A last sequence without a neighbour also stays there.
        """
        plus = np.concatenate(self._plus) if self._plus else np.zeros(0, bool)
        seen, rest = self.order[: len(plus)], self.order[len(plus) :]
        self.order = np.concatenate([seen[plus], seen[~plus][::-1], rest])
        if self.rule == "grab" and self._num_seen:
            self._mean = self._total / self._num_seen
        self._begin()
        return self.order
