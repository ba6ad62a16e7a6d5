"""How many sequences does a precision need? Answered from pilot losses, before the evaluation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from jax_diversity.foundation.errors import UserError, quoted
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.lab.sampling.population import Kind, Source, as_numbers, find_population
from jax_diversity.lab.sampling.sample import Sample, sample
from jax_diversity.lab.sampling.selection import balanced_prefix
from jax_diversity.lab.sampling.variance import fit_components, mean_deviations

_PILOT = 4096
_LEVEL = 0.95
_SIZES_PER_DOUBLING = 8


@dataclass(frozen=True)
class SampleSizes:
    """Numbers of sequences (or documents) whose mean loss has an interval of ± `precision`.

    Attributes:
        precision: half the width of the 95 % interval, in the unit of the losses.
        balanced: number in a balanced sample.
        random: number in a random sample.
        num_all: number of all.
        tokens_per_sequence: mean number of tokens of a sequence; None for documents.
        kind: `sequences` or `documents`.
    """

    precision: float
    balanced: int
    random: int
    num_all: int
    tokens_per_sequence: float | None
    kind: Kind

    def __str__(self) -> str:
        rows = [("balanced", self.balanced), ("random", self.random)]
        lines = [f"For ± {self.precision:g} (95 % interval) of the mean over all {self.num_all:,} {self.kind}:"]
        for name, number in rows:
            tokens = "" if self.tokens_per_sequence is None else f"  {number * self.tokens_per_sequence:>14,.0f} tokens"
            lines.append(f"  {name:<8}  {number:>10,} {self.kind}{tokens}")
        return "\n".join(lines)


def sequences_needed(
    source: Source,
    precision: float,
    losses: Any,
    pilot: Sample | None = None,
    *,
    of: Kind | None = None,
    seed: int = 0,
    advance: Advance = ignore,
) -> SampleSizes:
    """Say how many sequences a balanced and a random sample need for a precision.

    Args:
        source: see `jd.sample`, also for `of` and `seed`.
        precision: half the width of the 95 % interval of the mean, in the unit of the losses.
        losses: pilot losses: of all sequences (such as an earlier model's), or of the sequences of `pilot`. For
            differences of two models give differences.
        pilot: the sample that the losses belong to.

    Raises:
        UserError: a precision that is not a number above 0; losses of another number of sequences, or not finite.
    """
    if not isinstance(precision, int | float) or not 0 < precision < math.inf:
        raise UserError(f"Expected a precision as a number above 0, found {quoted(precision)}.")
    population = find_population(source, of)
    chars = population.characteristics
    if pilot is None:
        everywhere = population.rows_of("pilot losses", losses)
        pilot = sample(source, min(_PILOT, chars.num_sequences), of=of, seed=seed)
        rows = pilot.positions if population.numbers is None else np.searchsorted(population.numbers, pilot.positions)
        values = everywhere[rows]
    else:
        values = as_numbers("pilot losses", losses, len(pilot), "one for each of the pilot sample")
        if pilot.info.get("characteristics") != chars.fingerprint or pilot.kind != population.kind:
            raise UserError(
                f"Expected a pilot sample of these {chars.num_sequences:,} {population.kind}, found a sample of others "
                "or with values of its own; take a sample of this source without values."
            )
    if len(values) < 2 or np.ptp(values) == 0:
        raise UserError("Expected pilot losses of at least two sequences that differ, found equal ones.")
    tokens = pilot.tokens.astype(np.float64)
    scaled = tokens * (values - values @ tokens / tokens.sum()) / tokens.mean()
    plain = float((scaled**2).sum()) / (len(values) - 1)
    components = fit_components(pilot, scaled[:, None], np.ones((len(values), 1)))
    number_of_all = chars.num_sequences
    goal = (precision / float(stats.norm.ppf((1 + _LEVEL) / 2))) ** 2
    by_chance = max(math.ceil(1 / (goal / plain + 1 / number_of_all)), 2)
    rows = balanced_prefix(chars, by_chance, seed=seed, advance=advance)
    shares = {family: chars.target_share(family) for family in chars.families}
    balanced = by_chance
    steps = math.ceil(_SIZES_PER_DOUBLING * math.log2(by_chance)) + 1
    for number in np.unique(np.geomspace(2, by_chance, steps).round().astype(int)).tolist():
        left = 1 / number - 1 / number_of_all
        deviations = mean_deviations(chars, shares, rows[:number])
        if float(components.of_mean(left, deviations)[0]) <= goal:
            balanced = number
            break
    mean = float(chars.tokens.mean()) if population.kind == "sequences" else None
    return SampleSizes(float(precision), balanced, by_chance, number_of_all, mean, population.kind)
