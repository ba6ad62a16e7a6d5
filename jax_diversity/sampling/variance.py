"""The variance of the mean of a sample whose mixture is known: what the families leave unexplained.

A number z of every sequence (its loss less the mean) is modelled as `z = <β, v> + e`. Here v are the sequence's counts
as an ordering sees them (each family's counts divided by L and times √λ, less what its tokens would have in the mixture
of all), the entries of β are independent with the variance σ_β², and e is noise with the variance σ_e². All v are known
and their mean over all N sequences is 0, so the mean of n sequences has the variance

    σ_e² (1 / n - 1 / N) + σ_β² ‖mean of v over the sample‖²

A balanced order makes the second term small. The two variances are estimated from the sample by restricted maximum
likelihood (Patterson and Thompson 1971, *Recovery of inter-block information when block sizes are unequal*), which
works with more groups than sequences: only the products of sequences are needed. In genetics the same model is used
to tell how much all genes explain (Yang et al. 2010, *Common SNPs explain a large proportion of the heritability for
human height*).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64
from scipy.sparse import csr_array, hstack

from jax_diversity.sampling.sample import Sample
from jax_diversity.schema import Characteristics

_BLOCK = 1024
"""The largest number of sequences whose products are computed together; larger samples are divided."""
_SHARES = np.concatenate([[0.0], np.geomspace(0.01, 0.5, 16), 1 - np.geomspace(0.5, 0.002, 20)[1:]])
"""Shares of the variance that the families may explain; the likelihood is averaged over them."""


class Components(NamedTuple):
    """The two variances, for each of several numbers of the sequences.

    Attributes:
        explained: σ_β².
        rest: σ_e².
    """

    explained: Float64[np.ndarray, " number"]
    rest: Float64[np.ndarray, " number"]


def fit_components(
    sample: Sample, values: Float64[np.ndarray, "chosen number"], design: Float64[np.ndarray, "chosen column"]
) -> Components:
    """Estimate both variances from a sample.

    The likelihood is averaged over the shares that the families may explain, because a small sample does not determine
    its maximum.

    Args:
        sample: the sample.
        values: numbers of its sequences, each fitted by itself.
        design: columns that are fitted without a penalty: a constant, and a reference.
    """
    num_blocks = -(-len(values) // _BLOCK)
    spectra, squares = [], []
    for block in range(num_blocks):
        # Every block takes its sequences from the whole sample, which may be sorted.
        rows = np.arange(block, len(values), num_blocks)
        columns = design.shape[1]
        if len(rows) <= columns:
            continue
        free = np.linalg.qr(design[rows], mode="complete")[0][:, columns:]
        spectrum, directions = np.linalg.eigh(free.T @ _products(sample.characteristics, sample.shares, rows) @ free)
        spectra.append(np.maximum(spectrum, 0.0))
        squares.append((directions.T @ (free.T @ values[rows])) ** 2)
    if not spectra:
        return Components(np.zeros(values.shape[1]), np.zeros(values.shape[1]))
    spectrum, square = np.concatenate(spectra), np.concatenate(squares)
    mean = float(spectrum.mean())
    if mean <= 0:
        return Components(np.zeros(values.shape[1]), square.mean(axis=0))
    ratios = _SHARES / (1 - _SHARES) / mean
    rest = np.array([(square / (1 + ratio * spectrum)[:, None]).mean(axis=0) for ratio in ratios])
    logarithms = np.array([np.log1p(ratio * spectrum).sum() for ratio in ratios])
    with np.errstate(divide="ignore", invalid="ignore"):
        likelihood = -0.5 * (logarithms[:, None] + len(spectrum) * np.log(rest))
        weight = np.exp(likelihood - likelihood.max(axis=0)) * np.gradient(_SHARES)[:, None]
        weight = np.nan_to_num(weight / weight.sum(axis=0))  # NaN for values that are all zero
    return Components((weight * ratios[:, None] * rest).sum(axis=0), (weight * rest).sum(axis=0))


def mean_deviation(
    counts: Characteristics, shares: Mapping[str, Float64[np.ndarray, " group"]], rows: Int64[np.ndarray, " row"]
) -> float:
    """Return `‖mean of v‖²` over some rows."""
    total = 0.0
    tokens = float(counts.tokens[rows].sum())
    for family, matrix in counts.counts.items():
        sums = np.asarray(matrix[rows].sum(axis=0)).ravel() - shares[family] * tokens
        total += counts.weights[family] * float(sums @ sums)
    return total / (counts.sequence_length * len(rows)) ** 2


def _products(
    counts: Characteristics, shares: Mapping[str, Float64[np.ndarray, " group"]], rows: Int64[np.ndarray, " row"]
) -> Float64[np.ndarray, "row row"]:
    """Return the products of the rows' v."""
    factors = {family: np.sqrt(counts.weights[family]) for family in counts.families}
    matrix = csr_array(
        hstack([counts.counts[family][rows] * (factors[family] / counts.sequence_length) for family in factors])
    )
    target = np.concatenate([factors[family] * shares[family] for family in factors])
    tokens = counts.tokens[rows] / counts.sequence_length
    # v = c - t τ, so <v, v'> = <c, c'> - t' <c, τ> - t <c', τ> + t t' ‖τ‖²: only the non-zeros of c are needed.
    along = np.outer(matrix @ target, tokens)
    return (matrix @ matrix.T).toarray() - along - along.T + float(target @ target) * np.outer(tokens, tokens)
