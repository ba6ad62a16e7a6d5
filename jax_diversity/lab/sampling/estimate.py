"""Losses with error bars: the mean loss of all sequences, estimated from the losses of a sample."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float64

from jax_diversity.foundation.checks import check_type
from jax_diversity.foundation.errors import UserError, in_one_line, quoted
from jax_diversity.lab.sampling.population import as_numbers
from jax_diversity.lab.sampling.sample import Sample
from jax_diversity.lab.sampling.variance import fit_components, mean_deviations
from jax_diversity.schema.intervals import LEAST, TOO_FEW, MeanInterval, skewness_of_mean, student_reach


@dataclass(frozen=True)
class LossEstimate(MeanInterval):
    """The mean of all sequences (or documents), estimated from a sample, in the unit of the losses.

    With too few sequences, error and interval are NaN.

    Attributes:
        num_sequences: number of sequences (or documents) of the sample.
        num_all: number of sequences or documents that it stands for.
        worth: number of random sequences whose plain mean has this error.
        groups: group -> its estimate.
    """

    num_sequences: int
    num_all: int
    worth: float
    groups: Mapping[str, LossEstimate] = field(default_factory=dict)

    def __str__(self) -> str:
        meaning = "95 % interval" if math.isfinite(self.reach) else TOO_FEW
        line = f"{self._value} ({meaning}) from {self.num_sequences:,} of {self.num_all:,}"
        if math.isfinite(self.worth):
            line += f", as exact as {self.worth:,.0f} random ones"
        width = max(map(len, self.groups), default=0)
        rows = []
        # Groups without an interval follow below the others.
        for name, estimate in sorted(self.groups.items(), key=lambda pair: not math.isfinite(pair[1].reach)):
            few = "" if math.isfinite(estimate.reach) else f": {TOO_FEW}"
            rows.append(f"  {name:<{width}}  {estimate._value}  ({estimate.num_sequences:,}{few})")
        return "\n".join([line, *rows])

    @property
    def _value(self) -> str:
        # Two digits of the interval's half width; the mean has as many decimals.
        reach = self.reach
        if not math.isfinite(reach):
            return f"{self.mean:.4f}"
        decimals = max(1 - math.floor(math.log10(reach)), 0) if reach > 0 else 4
        return f"{self.mean:.{decimals}f} ± {reach:.{decimals}f}"


def estimate(
    losses: Any,
    sample: Sample,
    reference: Any = None,
    *,
    weights: Any = None,
    groups: Any = None,
) -> LossEstimate:
    """Estimate the mean loss of all sequences from the losses of a sample, with its standard error and interval.

    The error of a balanced sample is smaller than s/√n. It is estimated from what the families leave unexplained in the
    sample and from how far the sample's mixture is from that of all (see `sampling.variance`). It also holds for random
    samples (`Sample.of`). For the difference of two models give the differences of their losses.

    The interval holds for the sequences that the sample stands for. It contains no noise of training. Do not trust it
    for a sample that was chosen by the losses themselves, or for losses that were made to differ on the sample.

    Args:
        losses: the mean loss per token of each of the sample's sequences (or any number of it), in the sample's order.
        sample: the sample, from `jd.sample` or `Sample.of`.
        reference: losses of another model for *all* sequences, such as an earlier checkpoint. The mean is then
            estimated by regression on them (Cochran 1977, *Sampling techniques*, chapter 7). A reference that
            correlates with the losses lowers the error.
        weights: number of tokens of each of the sample's sequences, so that the mean is per token: of all sequences
            if there is a reference. None means the tokens of the sequences without padding; documents count equally.
        groups: a family of the sample, in which a sequence counts by its tokens in a group; or one label per sequence
            of the sample. Groups are estimated without the reference.

    Raises:
        UserError: losses, weights, reference or labels of another number of sequences, or not finite; fewer than two
            sequences; a reference that is constant or equal to the losses; an unknown family.

    Example:
        >>> chosen = jd.sample(chars, 1_000)
        >>> print(jd.estimate(evaluate(model, chosen.positions), chosen))
        3.412 ± 0.011 (95 % interval) from 1,000 of 37,811, as exact as 5,600 random ones
    """
    check_type("sample", sample, Sample, "a sample; make one with jd.sample or Sample.of")
    values = _of_sample("losses", losses, sample)
    if len(values) < 2:
        raise UserError("Expected the losses of at least two sequences, found one; take a larger sample.")
    own_weights = _weights(weights, sample, reference is not None)
    by_group = {} if groups is None else _by_group(values, sample, own_weights, groups)
    if reference is None:
        return _one(*_columns(values, own_weights[:, None], sample)[0], by_group)
    other, mean = _reference(reference, values, sample, weights)
    centred = other - mean
    return _regressed(values, own_weights, centred / np.abs(centred).max(), sample, by_group)  # the unit has no effect


def _of_sample(what: str, numbers: Any, sample: Sample) -> Float64[np.ndarray, " chosen"]:
    """Check one number for each of the sample's sequences."""
    words = f"one for each of the sample's {sample.kind} in the order of its positions"
    if isinstance(numbers, np.ndarray) and numbers.shape == (sample.num_all,) != (len(sample),):
        words += f" (from {what} of all take {what}[sample.positions])"
    return as_numbers(what, numbers, len(sample), words)


def _weights(weights: Any, sample: Sample, has_reference: bool) -> Float64[np.ndarray, " chosen"]:
    """Return the weights of the sample's sequences."""
    if weights is None:
        return sample.tokens.astype(np.float64) if sample.tokens.any() else np.ones(len(sample))
    if has_reference:
        chosen_weights = _of_all("weights", weights, sample)[sample.positions]
    else:
        chosen_weights = _of_sample("weights", weights, sample)
    if chosen_weights.min() < 0 or not chosen_weights.any():
        raise UserError(f"Expected weights >= 0 and one above 0, found {chosen_weights.min():g} as the smallest.")
    return chosen_weights


def _of_all(what: str, numbers: Any, sample: Sample) -> Float64[np.ndarray, " all"]:
    number = int(sample.info.get("num_numbers", sample.num_all))
    return as_numbers(what, numbers, number, f"one for each of all {sample.kind}, not only for the sample's")


def _reference(
    reference: Any, values: Float64[np.ndarray, " chosen"], sample: Sample, weights: Any
) -> tuple[Float64[np.ndarray, " chosen"], float]:
    """Return the reference of the sample's sequences, and its mean over all."""
    everywhere = _of_all("the reference", reference, sample)
    other = everywhere[sample.positions]
    numbers = np.arange(sample.num_all) if sample.numbers is None else sample.numbers
    if np.ptp(other) == 0:
        raise UserError(
            f"Expected a reference that differs between sequences, found {other[0]:g} everywhere; leave it out."
        )
    if np.array_equal(other, values):
        raise UserError(
            "Expected a reference of another model than the losses, found equal numbers; the mean of all is known then."
        )
    of_all = np.ones(sample.num_all) if sample.all_tokens is None else sample.all_tokens.astype(np.float64)
    if weights is not None:
        of_all = _of_all("weights", weights, sample)[numbers]
    return other, float(everywhere[numbers] @ of_all / of_all.sum())


def _by_group(
    values: Float64[np.ndarray, " chosen"], sample: Sample, num_tokens: Float64[np.ndarray, " chosen"], groups: Any
) -> dict[str, LossEstimate]:
    """Return the estimate of every group with tokens in the sample."""
    if isinstance(groups, str):
        chars = sample.characteristics
        if groups not in chars.families:
            raise UserError(f"Expected a family among {', '.join(chars.families)}, found {groups!r}.")
        counts = chars.counts[groups].toarray().astype(np.float64)
        group_names = sample.names.get(groups)
        names: Sequence[str] = (
            [str(number) for number in range(counts.shape[1])] if group_names is None else group_names
        )
        shares = counts * (num_tokens / np.maximum(sample.tokens, 1))[:, None]
    else:
        try:
            labels = np.asarray(groups, object)
        except Exception as error:  # arrays of other libraries raise various errors when NumPy converts them
            raise UserError(f"Expected groups to be a family or labels, found: {in_one_line(error)}.") from None
        if labels.shape != (len(sample),):
            raise UserError(
                f"Expected groups to be a family or {len(sample):,} labels, one for each of the sample's "
                f"{sample.kind}, found the shape {labels.shape}."
            )
        kinds = (str, bytes, int | np.integer | bool | np.bool_, float | np.floating)
        kind = next((kind for kind in kinds if isinstance(labels[0], kind)), None)
        for label in labels.tolist():
            if kind is None or not isinstance(label, kind) or label != label:
                raise UserError(
                    f"Expected labels of one kind, texts or numbers, found {quoted(label)} among them; give every "
                    f"{sample.kind[:-1]} a label."
                )
        distinct, place = np.unique(labels, return_inverse=True)
        names = [str(label) for label in distinct.tolist()]
        shares = np.zeros((len(sample), len(names)))
        shares[np.arange(len(sample)), place] = num_tokens
    used = np.flatnonzero(shares.sum(axis=0) > 0)
    estimates = [_one(*column) for column in _columns(values, shares[:, used], sample)]
    return {names[group]: estimate for group, estimate in zip(used.tolist(), estimates, strict=True)}


def _columns(
    values: Float64[np.ndarray, " chosen"], weights: Float64[np.ndarray, "chosen number"], sample: Sample
) -> list[tuple[float, float, float, float, float, int, int]]:
    """Return the arguments of `_one` for each column of weights."""
    number = len(weights)
    means = values @ weights / weights.sum(axis=0)
    # The ratio of two means, linearised: its error is the mean of these numbers, whose mean over all is about 0.
    scaled = weights * (values[:, None] - means) / weights.mean(axis=0)
    plain = (scaled**2).sum(axis=0) / (number - 1)
    left = max(1 / number - 1 / sample.num_all, 0.0)
    components = fit_components(sample, scaled, np.ones((number, 1)))
    deviations = mean_deviations(sample.characteristics, sample.shares, np.arange(number))
    variance = np.minimum(components.of_mean(left, deviations), plain * left)
    effective = weights.sum(axis=0) ** 2 / (weights**2).sum(axis=0)
    rows, skewness = (weights > 0).sum(axis=0), skewness_of_mean(scaled)
    return [
        (
            float(means[place]),
            float(variance[place]),
            float(plain[place]),
            float(effective[place]) - 1,
            float(skewness[place]),
            in_row,
            sample.num_all,
        )
        for place, in_row in enumerate(rows.tolist())
    ]


def _regressed(
    values: Float64[np.ndarray, " chosen"],
    weights: Float64[np.ndarray, " chosen"],
    centred: Float64[np.ndarray, " chosen"],
    sample: Sample,
    by_group: Mapping[str, LossEstimate],
) -> LossEstimate:
    """Estimate by regression on a reference, given less its mean over all."""
    number = len(values)
    if number < LEAST:
        raise UserError(f"Expected the losses of at least {LEAST} sequences with a reference, found {number}.")
    relative = weights / weights.mean()
    design = np.column_stack([np.ones(number), centred]) * np.sqrt(relative)[:, None]
    (mean, slope), *_ = np.linalg.lstsq(design, values * np.sqrt(relative), rcond=None)
    rest = relative * (values - mean - slope * centred)
    along = relative * centred
    # The slope is estimated, too: its error moves the mean by as much as the sample's reference is off.
    spread = float(((along - along.mean()) ** 2).sum())
    left = max(1 / number - 1 / sample.num_all, 0.0) + along.mean() ** 2 / spread
    components = fit_components(sample, rest[:, None], np.column_stack([np.ones(number), along]))
    deviations = mean_deviations(sample.characteristics, sample.shares, np.arange(number))
    plain = float((rest**2).sum()) / (number - 2)
    variance = min(float(components.of_mean(left, deviations)[0]), plain * left)
    scaled = relative * (values - values @ relative / number)
    effective = float(weights.sum() ** 2 / (weights**2).sum())
    of_losses = float((scaled**2).sum()) / (number - 1)
    skewness = float(skewness_of_mean(rest))
    return _one(float(mean), variance, of_losses, effective - 2, skewness, number, sample.num_all, by_group)


def _one(
    mean: float,
    variance: float,
    plain: float,
    freedom: float,
    skewness: float,
    number: int,
    number_of_all: int,
    by_group: Mapping[str, LossEstimate] | None = None,
) -> LossEstimate:
    """Make an estimate of its mean and variance; `plain` is the variance of one sequence."""
    if number < LEAST and number < number_of_all:
        error = reach = worth = math.nan
    else:
        error = math.sqrt(variance)
        reach = float(student_reach(error, freedom, skewness))
        worth = plain / (variance + plain / number_of_all) if plain > 0 else float(number)
    return LossEstimate(mean, error, reach, number, number_of_all, worth, by_group or {})
