"""The variance of the mean of a sample whose mixture is known: what the families leave unexplained.

A number z of every sequence (its loss less the mean) is modelled as `z = Σ_f <β_f, v_f> + e`. Here v_f are the counts
of the family f divided by L, less what the sequence's tokens would have in the mixture of all. The entries of β_f are
independent with the variance σ_f², and e is noise with the variance σ_e². All v are known and their mean over all N
sequences is 0, so the mean of n sequences has the variance

    σ_e² (1 / n - 1 / N) + Σ_f σ_f² ‖mean of v_f over the sample‖²

A balanced order makes the second term small. For two different sequences i and j the model says that the mean of
`z_i z_j` is `Σ_f σ_f² <v_f,i, v_f,j>`. Therefore the variances σ_f² are estimated by a regression of the products of
the numbers on the products of the counts, over all pairs of sequences of the sample (Haseman and Elston 1972, *The
investigation of linkage between a quantitative trait and a marker locus*). The squares `z_i²` are left out: unusual
sequences have large v and large losses, and a likelihood (REML) takes that for a share that the families explain. For
real losses it then said half of the true variance of balanced samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64
from scipy.optimize import nnls
from scipy.sparse import csr_array

from jax_diversity.counts import Characteristics
from jax_diversity.lab.sampling.sample import Sample

_BLOCK = 1024
"""The largest number of sequences whose products are computed together; larger samples are divided."""
_MOST_BLOCKS = 8
"""Samples of more blocks are thinned: 8,192 sequences determine the variances."""
_MOST_EXPLAINED = 0.9
"""The families explain at most this share of the variance. Pairs can say more than all, if the relation is not linear;
then a large sample would have nearly no error."""
_RIDGE = 1e-6
"""Added to the diagonal of the regression's matrix: two families may have equal groups."""


class Components(NamedTuple):
    """The variances, for each of several numbers of the sequences.

    Attributes:
        explained: σ_f² of every family.
        rest: σ_e².
    """

    explained: Float64[np.ndarray, "family number"]
    rest: Float64[np.ndarray, " number"]

    def of_mean(self, left: float, deviations: Float64[np.ndarray, " family"]) -> Float64[np.ndarray, " number"]:
        """Return the variance of the mean of n of N sequences.

        Args:
            left: 1 / n - 1 / N.
            deviations: see `mean_deviations`.
        """
        return self.rest * left + deviations @ self.explained


def fit_components(
    sample: Sample, values: Float64[np.ndarray, "chosen number"], design: Float64[np.ndarray, "chosen column"]
) -> Components:
    """Estimate the variances from a sample.

    Args:
        sample: the sample.
        values: numbers of its sequences, each fitted by itself.
        design: columns that were fitted before: a constant, and a reference.
    """
    counts = sample.characteristics
    num_terms = len(counts.families) + 1  # the families, and the noise
    matrix, sides = np.zeros((num_terms, num_terms)), np.zeros((num_terms, values.shape[1]))
    sizes, squares, number = np.zeros(len(counts.families)), np.zeros(values.shape[1]), 0
    num_blocks = -(-len(values) // _BLOCK)
    for block in range(min(num_blocks, _MOST_BLOCKS)):
        # Every block takes its sequences from the whole sample, which may be sorted.
        rows = np.arange(block, len(values), num_blocks)
        if len(rows) <= design.shape[1]:
            continue
        fitted = np.linalg.qr(design[rows])[0]
        numbers = values[rows] - fitted @ (fitted.T @ values[rows])
        products = [_products(counts, sample.shares[family], family, rows) for family in counts.families]
        sizes += [np.trace(product) for product in products]
        terms = [_without(fitted, product) for product in [*products, np.eye(len(rows))]]
        for term in terms:
            np.fill_diagonal(term, 0.0)  # only pairs of different sequences
        matrix += [[float((term * other).sum()) for other in terms] for term in terms]
        sides += [(numbers * (term @ numbers)).sum(axis=0) for term in terms]
        squares += (numbers**2).sum(axis=0)
        number += len(rows) - design.shape[1]
    if not number:
        return Components(np.zeros((num_terms - 1, values.shape[1])), np.zeros(values.shape[1]))
    plain = squares / number
    explained = _not_negative(matrix, sides)[:-1]
    share = explained.T @ sizes / number
    most = _MOST_EXPLAINED * plain
    explained *= np.divide(most, share, out=np.ones_like(share), where=share > most)
    return Components(explained, np.maximum(plain - explained.T @ sizes / number, 0.0))


def _without(
    fitted: Float64[np.ndarray, "row direction"], products: Float64[np.ndarray, "row row"]
) -> Float64[np.ndarray, "row row"]:
    """Return the products of what the directions of the design leave of the rows."""
    products = products - fitted @ (fitted.T @ products)
    return products - (products @ fitted) @ fitted.T


def _not_negative(
    matrix: Float64[np.ndarray, "term term"], sides: Float64[np.ndarray, "term number"]
) -> Float64[np.ndarray, "term number"]:
    """Solve the normal equations of a regression with coefficients of at least 0."""
    scale = np.sqrt(np.diag(matrix))
    scale[scale == 0] = 1.0
    root = np.linalg.cholesky(matrix / np.outer(scale, scale) + _RIDGE * np.eye(len(scale)))
    sides_of_root = np.linalg.solve(root, sides / scale[:, None])
    return np.stack([nnls(root.T, side)[0] for side in sides_of_root.T], axis=1) / scale[:, None]


def mean_deviations(
    counts: Characteristics, shares: Mapping[str, Float64[np.ndarray, " group"]], rows: Int64[np.ndarray, " row"]
) -> Float64[np.ndarray, " family"]:
    """Return `‖mean of v_f‖²` of every family over some rows."""
    components = []
    tokens = float(counts.tokens[rows].sum())
    for family, matrix in counts.counts.items():
        sums = np.asarray(matrix[rows].sum(axis=0)).ravel() - shares[family] * tokens
        components.append(float(sums @ sums))
    return np.array(components) / (counts.sequence_length * len(rows)) ** 2


def _products(
    counts: Characteristics, shares: Float64[np.ndarray, " group"], family: str, rows: Int64[np.ndarray, " row"]
) -> Float64[np.ndarray, "row row"]:
    """Return the products of the rows' v_f."""
    matrix = csr_array(counts.counts[family][rows] / counts.sequence_length)
    tokens = counts.tokens[rows] / counts.sequence_length
    # v = c - t τ, so <v, v'> = <c, c'> - t' <c, τ> - t <c', τ> + t t' ‖τ‖²: only the non-zeros of c are needed.
    along = np.outer(matrix @ shares, tokens)
    return (matrix @ matrix.T).toarray() - along - along.T + float(shares @ shares) * np.outer(tokens, tokens)
