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
        return (jax.tree.map(jnp.add, total, gradient), squares + squared_norm(gradient)), None

    def zeros(leaf: Array) -> Array:
        return jnp.zeros(leaf.shape, jnp.promote_types(leaf.dtype, jnp.float32))

    # A scan instead of `vmap`: only one gradient at a time and the two sums are in memory.
    start = (jax.tree.map(zeros, parameters), jnp.zeros((), jnp.float32))
    (total, squares), _ = jax.lax.scan(add, start, parts)
    return squares / squared_norm(total), total


def squared_norm(tree: Any) -> Array:
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
