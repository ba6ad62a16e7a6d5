"""Measure the gradients of a batch: how much the gradients of its parts agree, and how many directions they have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def gradient_diversity(loss: Callable[[Any, Any], Array], parameters: Any, parts: Any) -> tuple[Float[Array, ""], Any]:
    """Return the gradient diversity of the parts of a batch, and the sum of their gradients.

    With `g_i` the gradient of part i's loss, it is `Σ ||g_i||² / ||Σ g_i||²` (Yin, Pananjady, Lam, Papailiopoulos,
    Ramchandran and Bartlett 2018, "Gradient Diversity: a Key Ingredient for Scalable Distributed Learning",
    definition 1). For k parts it is 1 / k when all gradients are equal, 1 when they are orthogonal, and above 1 when
    they oppose one another. A common factor of all losses does not change it. It depends on the number of parts, so
    compare only runs with one batch size.

    Gradients are computed one after another: memory holds three gradients, not k.

    Args:
        loss: a function of parameters and a part that returns the part's loss; the batch's loss is the sum.
        parameters: a pytree of arrays.
        parts: a pytree of arrays (part, ...).

    Returns:
        The diversity, infinite or NaN if the gradients add up to zero; and `Σ g_i`, a pytree like the parameters, in
        float32 or wider.

    Example:
        >>> def loss(w, x):
        ...     return jnp.sum(w * x)
        >>> float(gradient_diversity(loss, jnp.zeros(2), jnp.eye(2))[0])
        1.0
    """
    gradient_of = jax.grad(loss)

    def add(carry: tuple[Any, Array], part: Any) -> tuple[tuple[Any, Array], None]:
        total, squares = carry
        gradient = gradient_of(parameters, part)
        return (jax.tree.map(jnp.add, total, gradient), squares + _squared_norm(gradient)), None

    def zeros(leaf: Array) -> Array:
        return jnp.zeros(leaf.shape, jnp.promote_types(leaf.dtype, jnp.float32))

    # A scan instead of `vmap`: only one gradient at a time and the two sums are in memory.
    start = (jax.tree.map(zeros, parameters), jnp.zeros((), jnp.float32))
    (total, squares), _ = jax.lax.scan(add, start, parts)
    return squares / _squared_norm(total), total


def _squared_norm(tree: Any) -> Array:
    """The squared norm in float32: half precision would lose most of a sum of many squares."""
    squares = (jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in jax.tree.leaves(tree))
    return sum(squares, jnp.zeros((), jnp.float32))


def stable_rank(matrix: Float[Array, "row column"]) -> Float[Array, ""]:
    """`||G||_F² / ||G||_2²`, the sum of the squared singular values over the largest of them.

    The stable rank is between 1 and the rank. Unlike the rank, it changes little when the matrix changes little
    (Rudelson and Vershynin 2007, "Sampling from large matrices: an approach through geometric functional analysis").
    The largest singular value is computed from the eigenvalues of the smaller of `G Gᵀ` and `Gᵀ G`: this is exact and,
    unlike power iteration, needs no stopping rule. The result is NaN for a matrix of zeros.

    Example:
        >>> float(stable_rank(jnp.diag(jnp.array([2.0, 1.0, 1.0]))))
        1.5
    """
    if matrix.shape[0] < matrix.shape[1]:
        matrix = matrix.T
    # The matrix is scaled so that the square of a small gradient does not underflow; the ratio does not depend on the
    # scale.
    matrix = matrix.astype(jnp.float32) / jnp.max(jnp.abs(matrix))
    gram = jnp.matmul(matrix.T, matrix, precision=jax.lax.Precision.HIGHEST)
    return jnp.trace(gram) / jnp.linalg.eigvalsh(gram)[-1]


def mean_stable_rank(gradients: Any) -> Float[Array, ""]:
    """The mean stable rank of a pytree's matrices, without matrices of zeros; NaN if there is no other matrix.

    Example:
        >>> float(mean_stable_rank({"weight": jnp.eye(3), "scale": jnp.ones(3), "unused": jnp.zeros((2, 2))}))
        3.0
    """
    matrices = [leaf for leaf in jax.tree.leaves(gradients) if leaf.ndim == 2]
    if not matrices:
        return jnp.array(jnp.nan)
    ranks = jnp.array([stable_rank(matrix) for matrix in matrices])
    # NaN is not 0: a matrix with NaN is included, and the mean is NaN.
    counts = jnp.array([jnp.any(matrix != 0) for matrix in matrices])
    return jnp.sum(jnp.where(counts, ranks, 0.0)) / jnp.sum(counts)


def named_matrices(gradients: Any) -> dict[str, Array]:
    """The gradients' matrices by layer and kind: `block0/query`, `block0/key`, ..., `embedding`.

    The joint matrix of queries, keys and values is split into three; arrays that are not matrices are left out.
    """
    found = {}
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
                found[f"{layer}{part}"] = matrix
        else:
            found[f"{layer}{kind or 'embedding'}"] = leaf
    return found


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
    return _squared_norm(deviations) / (number - 1) / _squared_norm(means)


def cosine(one: Any, other: Any) -> Float[Array, ""]:
    """Cosine of the angle between two gradients, pytrees of one structure; NaN if one of them is zero.

    Example:
        >>> float(cosine({"a": jnp.array([1.0, 0.0])}, {"a": jnp.array([1.0, 1.0])}))
        0.707...
    """
    inner = sum(jax.tree.leaves(jax.tree.map(jnp.vdot, one, other)))
    return inner / jnp.sqrt(_squared_norm(one) * _squared_norm(other))


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
    return inner / _squared_norm(direction)
