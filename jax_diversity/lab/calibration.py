"""The mean loss of a corpus, from the losses of a few of its documents and from what is known of all of them.

A plain mean over the tokens of some documents has an error that the documents do not show: a few long documents hold
most tokens of a corpus, and they are rarely among the few. But the length and the groups (source, cluster ...) of
*every* document are known. The mean loss y of a document's tokens is modelled as

    y = β + walk(length) + Σ_f u_f[group] + e

where e has the variance σ², the effects u of each family have the variance `_GROUPS` σ², and the walk is a random walk
over the logarithm of the length, with the variance `_STEP` σ² for each step of half an octave. The estimated mean is
the best linear unbiased prediction (Henderson 1975, *Best linear unbiased estimation and prediction under a selection
model*; with the walk it is kriging) of the mean at the corpus's own shares of tokens: a weighted mean of the documents
whose weights depend on lengths and groups alone, not on the losses. So the means of two models on the same documents
differ by the mean of the differences.

The mean is that of the documents that are not longer than the longest evaluated one (by bins of half an octave). The
losses of longer ones are not known: real ones are often of another kind (tables, mail attachments), and intervals that
extrapolated the losses did not contain the true mean.

If no other documents have known targets, the weights are the target tokens: the mean is the plain mean. This is the
case for a whole test set, with a loss mask, and for turns of chats. The variance is then the noise of the documents
alone.

The ratios are constants and not estimated: twenty documents do not determine them, and estimates that are 0 by chance
gave intervals that were far too short. The variance of the mean has two parts, the error of the prediction and the
noise of the documents; the noise is also computed from every document's own residual, and the larger one counts,
because long documents of a rare source can vary more than all others (docs/log.md has the trials).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64, Num
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve

from jax_diversity.schema.intervals import skewness_of_mean

_GROUPS = 0.5
_STEP = 0.15
_PER_OCTAVE = 2
_NUM_BINS = 128
"""Bins of half an octave of the length: enough for 2^63 tokens."""
_NEARLY_ALL = 0.999
"""From this share of the tokens on, all documents are evaluated; a document of one token can be without a target."""
_BLOCK = 4096


class Family(NamedTuple):
    """One family of the documents.

    Attributes:
        codes: the group of every evaluated document.
        tokens: the tokens of all documents of the corpus, by dataset, group and bin of the length.
        is_known: whether the target tokens of the documents that were not evaluated are known.
        has_effects: whether its groups have effects. Bins of lengths have none, because of the walk, and turns of chats
            have none, because a document has several.
    """

    codes: Int64[np.ndarray, " document"]
    tokens: Float64[np.ndarray, "dataset group bin"]
    is_known: bool = True
    has_effects: bool = True


@dataclass(frozen=True, eq=False)
class Composition:
    """What is known of the evaluated documents, and of all documents of their datasets.

    Attributes:
        dataset: the dataset of every evaluated document.
        document: its number, over all datasets: turns of a chat are evaluated one by one, but have one document.
        lengths: its tokens.
        tokens: the tokens of all documents, by dataset and bin of the length (`length_bins`).
        families: the families in which a document has one group.
        is_known: whether the target tokens of the documents that were not evaluated are known.
    """

    dataset: Int64[np.ndarray, " document"]
    document: Int64[np.ndarray, " document"]
    lengths: Int64[np.ndarray, " document"]
    tokens: Float64[np.ndarray, "dataset bin"]
    families: Mapping[str, Family]
    is_known: bool = True

    def of(self, documents: Int64[np.ndarray, " part"]) -> Composition:
        """The composition with some of the evaluated documents; the datasets stay the same."""
        families = {name: family._replace(codes=family.codes[documents]) for name, family in self.families.items()}
        columns = {name: getattr(self, name)[documents] for name in ("dataset", "document", "lengths")}
        return replace(self, families=families, **columns)

    def has_others(self, documents: Int64[np.ndarray, " part"], group: tuple[str, int] | None = None) -> bool:
        """Whether the corpus, or a group, has more documents than these whose target tokens are known."""
        is_known, tokens = self.is_known, self.tokens
        if group is not None:
            family = self.families[group[0]]
            is_known, tokens = is_known and family.is_known, family.tokens[:, group[1]]
        documents = documents[np.unique(self.document[documents], return_index=True)[1]]
        evaluated = np.bincount(self.dataset[documents], self.lengths[documents], len(tokens))
        return is_known and bool((evaluated < _NEARLY_ALL * tokens.sum(axis=1)).any())


class Calibrated(NamedTuple):
    """The mean of the documents of a corpus that are not longer than all evaluated ones.

    Attributes:
        mean: the estimate.
        variance: the square of its standard error.
        skewness: the absolute skewness of the mean's noise: 1 if one document has all of it, near 0 for many.
        worth: the number of documents whose plain mean would have the same noise.
        longer: the share of the corpus's tokens in documents longer than all evaluated ones. The mean does not
            include them.
    """

    mean: float
    variance: float
    skewness: float
    worth: float
    longer: float


def length_bins(lengths: Num[np.ndarray, " document"]) -> Int64[np.ndarray, " document"]:
    """The bins of documents' lengths, of half an octave each."""
    return (np.log2(np.maximum(lengths, 1)) * _PER_OCTAVE).astype(np.int64)


def tokens_by_group(
    codes: Int64[np.ndarray, " document"], num_groups: int, lengths: Num[np.ndarray, " document"]
) -> Float64[np.ndarray, "group bin"]:
    """Count the tokens of documents by group and by bin of the length."""
    places = codes * _NUM_BINS + length_bins(lengths)
    return np.bincount(places, lengths, num_groups * _NUM_BINS).reshape(num_groups, _NUM_BINS)


def calibrated_mean(
    values: Float64[np.ndarray, " document"],
    targets: Num[np.ndarray, " document"],
    composition: Composition,
    group: tuple[str, int] | None = None,
    *,
    has_others: bool = True,
) -> Calibrated:
    """Estimate the mean of all documents up to the longest evaluated ones, or of those of one group, from at least two.

    Args:
        values: the mean loss of every evaluated document.
        targets: its number of target tokens; among several datasets, a dataset counts by those of its documents.
        composition: what is known of these documents, and of all documents.
        group: a family and the number of its group, to which these documents belong; None for all documents.
        has_others: whether there are more documents (`Composition.has_others`); if not, the mean is the plain one.
    """
    # With V = I + Z Z', as a multiple of σ², and few columns of Z: V⁻¹ = I - Z (I + Z'Z)⁻¹ Z' (Woodbury).
    columns, means, extent, longer = _design(targets, composition, group)
    inner = cho_factor((columns.T @ columns).toarray() + np.eye(columns.shape[1]))

    def solved(right: Float64[np.ndarray, " document"]) -> Float64[np.ndarray, " document"]:
        return right - columns @ cho_solve(inner, columns.T @ right)

    shared = columns @ means  # the covariance of every document with the mean of all
    ones, along = solved(np.ones(len(values))), solved(shared)
    weights = ones * ((1 - along.sum()) / ones.sum()) + along if has_others else targets / targets.sum()
    # P = V⁻¹ - V⁻¹ 1 1' V⁻¹ / 1' V⁻¹ 1; a residual (P y)_i has the variance σ² P_ii.
    residuals = solved(values)
    residuals -= ones * (residuals.sum() / ones.sum())
    diagonal = 1 - ones**2 / ones.sum()
    for first in range(0, len(values), _BLOCK):
        block = columns[first : first + _BLOCK].toarray()
        diagonal[first : first + _BLOCK] -= np.einsum("ij,ij->i", block, cho_solve(inner, block.T).T)
    variance = max(float(values @ residuals), 0.0) / (len(values) - 1)
    reached = columns.T @ weights
    of_effects = max(extent - 2 * float(weights @ shared) + float(reached @ reached), 0.0) if has_others else 0.0
    own_errors = weights * residuals / np.sqrt(np.maximum(diagonal, np.finfo(float).eps))
    noise = max(variance * float(weights @ weights), float(own_errors @ own_errors))
    skewness, worth = float(skewness_of_mean(own_errors)), 1 / float(weights @ weights)
    mean, longer = float(weights @ values), longer if has_others else 0.0
    return Calibrated(mean, variance * of_effects + noise, skewness, worth, longer)


def _design(
    targets: Num[np.ndarray, " document"], composition: Composition, group: tuple[str, int] | None
) -> tuple[sparse.csr_array, Float64[np.ndarray, " column"], float, float]:
    """Make the matrix Z of the effects.

    Returns:
        Z, whose squares are variances; the row of Z of the mean of all documents; the sum of the squares of this row,
        also of groups without an evaluated document; and the share of the tokens in longer documents.
    """
    tokens = composition.tokens if group is None else composition.families[group[0]].tokens[:, group[1]]
    bins = length_bins(composition.lengths)
    top = int(bins.max()) + 1
    of_dataset = np.bincount(composition.dataset, targets, len(tokens)) / targets.sum()

    def per_token(counted: Float64[np.ndarray, "dataset bin"]) -> Float64[np.ndarray, " dataset"]:
        sums = counted.sum(axis=1)
        return np.divide(of_dataset, sums, out=np.zeros_like(of_dataset), where=sums > 0)

    longer = float(tokens[:, top:].sum(axis=1) @ per_token(tokens))
    scale = per_token(tokens[:, :top])
    shares = tokens[:, :top] * scale[:, None]
    # A document has made all steps of the walk up to its own bin.
    beyond = np.cumsum(shares.sum(axis=0)[::-1])[::-1]
    steps = np.sqrt(_STEP) * (bins[:, None] >= np.arange(1, top))
    blocks, means = [sparse.csr_array(steps)], [np.sqrt(_STEP) * beyond[1:]]
    extent = _STEP * float(beyond[1:] @ beyond[1:])
    effects = [(composition.dataset, shares.sum(axis=1))] if len(tokens) > 1 else []
    for family in composition.families.values() if group is None else ():
        if not family.has_effects:
            continue
        of_groups = family.tokens[:, :, :top].sum(axis=2) * scale[:, None]
        effects.append((composition.dataset * of_groups.shape[1] + family.codes, of_groups.ravel()))
    for codes, of_groups in effects:
        groups, column = np.unique(codes, return_inverse=True)
        entries = (np.full(len(codes), np.sqrt(_GROUPS)), (np.arange(len(codes)), column))
        blocks.append(sparse.csr_array(entries, shape=(len(codes), len(groups))))
        means.append(np.sqrt(_GROUPS) * of_groups[groups])
        extent += _GROUPS * float(of_groups @ of_groups)
    return sparse.csr_array(sparse.hstack(blocks)), np.concatenate(means), extent, longer
