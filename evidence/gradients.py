"""Measures of gradients by matrix, between batches, and along a direction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jax_diversity.lab.gradients import squared_norm, stable_rank


def named_matrices(gradients: Any) -> dict[str, Array]:
    """The gradients' matrices by layer and kind: `block0/query`, `block0/key`, ..., `embedding`.

    The joint matrix of queries, keys and values is split into three; arrays that are not matrices are left out.
    """
    measures = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradients):
        if leaf.ndim != 2:
            continue
        words = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path]
        words = [word for word in words if word not in ("kernel", "value", "embedding") or len(words) == 1] or [
            "embedding"
        ]
        layer = next((f"block{word}/" for word in words if word.isdigit()), "")
        kind = next((word for word in reversed(words) if not word.isdigit() and word not in ("blocks", "layers")), "")
        if kind == "query_key_value":
            for part, matrix in zip(("query", "key", "value"), jnp.split(leaf, 3, axis=1), strict=True):
                measures[f"{layer}{part}"] = matrix
        else:
            measures[f"{layer}{kind or 'embedding'}"] = leaf
    return measures


def stable_ranks(gradients: Any) -> dict[str, Float[Array, ""]]:
    """The stable rank of every matrix of a model's gradient, by layer and kind (see `named_matrices`)."""
    return {name: stable_rank(matrix) for name, matrix in named_matrices(gradients).items()}


def between_batches(gradients: Any) -> Float[Array, ""]:
    """The variance between the gradients of batches, divided by the squared norm of their mean.

    This is the noise scale of a batch: the unbiased estimate of the trace of the covariance, divided by `||mean||²`
    (McCandlish, Kaplan and Amodei 2018, "An empirical model of large-batch training").

    Args:
        gradients: a pytree of arrays (batch, ...).
    """
    means = jax.tree.map(lambda leaf: leaf.mean(axis=0), gradients)
    number = jax.tree.leaves(gradients)[0].shape[0]
    deviations = jax.tree.map(lambda leaf, mean: leaf - mean, gradients, means)
    return squared_norm(deviations) / (number - 1) / squared_norm(means)


def cosine(one: Any, other: Any) -> Float[Array, ""]:
    """Cosine of the angle between two gradients, pytrees of one structure; NaN if one of them is zero.

    Example:
        >>> float(cosine({"a": jnp.array([1.0, 0.0])}, {"a": jnp.array([1.0, 1.0])}))
        0.707...
    """
    inner = sum(jax.tree.leaves(jax.tree.map(jnp.vdot, one, other)))
    return inner / jnp.sqrt(squared_norm(one) * squared_norm(other))


def curvature_along(loss: Callable[[Any], Array], parameters: Any, direction: Any) -> Float[Array, ""]:
    """`dᵀ H d / ||d||²`, H the Hessian of the loss: its second derivative along a direction, such as a gradient.

    The product of Hessian and vector is one derivative of the gradient; the Hessian is never formed (Pearlmutter 1994,
    "Fast exact multiplication by the Hessian"). With a task's loss and a batch's gradient it shows how soon a longer
    step along the gradient stops lowering the task's loss.

    Example:
        >>> float(curvature_along(lambda x: 3 * jnp.sum(x * x), jnp.ones(2), jnp.array([1.0, 2.0])))
        6.0
    """
    # This is the derivative of the gradient, not of the loss: the derivative of `jax.grad` along d is H d.
    product = jax.jvp(jax.grad(loss), (parameters,), (direction,))[1]
    inner = sum(jax.tree.leaves(jax.tree.map(jnp.vdot, direction, product)))
    return inner / squared_norm(direction)
