"""The optimiser of the lab's models."""

from __future__ import annotations

from typing import Any

import jax
import optax
from jaxtyping import Array, Float


def adamw(rate: optax.ScalarOrSchedule, weight_decay: float | Float[Array, ""]) -> optax.GradientTransformation:
    """AdamW with gradients clipped to norm 1 (Loshchilov and Hutter 2019, "Decoupled weight decay regularization").

    Weight decay applies only to matrices. The scales of the norms are vectors, and decay would pull them towards 0. The
    optimiser's state does not depend on rate and weight decay, so they may be traced values.
    """

    def is_matrix(parameters: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf.ndim > 1, parameters)

    return optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(rate, b2=0.95, weight_decay=weight_decay, mask=is_matrix)
    )
