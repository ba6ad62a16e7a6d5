"""Paired differences of an experiment's rows, with intervals, and verdicts on its claims."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float64

from evidence.results import TrialRow, check_data
from evidence.settings import ClaimConfig, Experiment
from evidence.statistics import Difference, VarianceRatio, holm, paired_difference, pairs_needed, variance_ratio
from jax_diversity.foundation.errors import UserError

Verdict = Literal["supported", "not supported", "inconclusive", "not run"]
Seeds = tuple[int, int]
ALL = "all"
"""Name for the mean over all varied settings."""
_NOT_COMPARED: Mapping[str, Any] = {"order_seed": 0, "weight_seed": 0, "evaluate_at": (), "diagnose_at": ()}
"""Settings of a trial that a claim does not compare: seeds, and when the model is measured."""


class SampleSize(NamedTuple):
    """The runs that an inconclusive claim would need.

    Attributes:
        num_pairs: number of pairs that detect the observed difference with a power of 80 % (a paired t-test at the
            level of 5 %).
        hours: the time of these pairs on one core, or with one process on an accelerator, at the mean time of the
            stored runs.
    """

    num_pairs: int
    hours: float


class Judged(NamedTuple):
    """A claim, its verdict, and the numbers behind the verdict.

    Attributes:
        claim: the claim.
        verdict: the verdict.
        figure: the differences with their intervals, as text.
        effect: the difference that decides the verdict: of several, the weakest. None if the claim counts measures.
        needed: the runs that the claim would need. None if it was decided, or if no number of pairs is enough.
    """

    claim: ClaimConfig
    verdict: Verdict
    figure: str
    effect: Difference | None = None
    needed: SampleSize | None = None


class Spread(NamedTuple):
    """The noise of an arm: the spread of its runs, which differ in one kind of seed.

    Attributes:
        arm: the arm and the varied settings.
        share: point of training at which it was measured, as a fraction of the steps.
        mean: mean of the first measure.
        deviation: standard deviation of the first measure over the runs.
        by_group: root mean square over the groups of the deviation of a group's loss from its run's mean.
        num_runs: number of runs that each of two arms needs to detect a difference of .01 with a power of 80 %,
            unpaired; None for more than a million.
        ratio: the variance of the arm with which the arm is compared, divided by its own, with its interval. None for
            an arm that is compared with no other one.
    """

    arm: str
    share: float
    mean: float
    deviation: float
    by_group: float
    num_runs: int | None
    ratio: VarianceRatio | None


@dataclass(frozen=True)
class Judge:
    """An experiment and its rows by identity."""

    experiment: Experiment
    rows: Mapping[str, TrialRow]

    @cached_property
    def runs(self) -> dict[tuple[str, str], dict[Seeds, TrialRow]]:
        """Rows without diverged runs: (arm, varied settings as JSON) -> seeds -> row.

        Raises:
            UserError: rows of one dataset have different tokens.
        """
        check_data(self.experiment, self.rows)
        runs: dict[tuple[str, str], dict[Seeds, TrialRow]] = {}
        for trial in self.experiment.trials:
            row = self.rows.get(trial.identity)
            if row is not None and row.status == "done":
                key = trial.arm, _key(trial.varied)
                runs.setdefault(key, {})[trial.config.order_seed, trial.config.weight_seed] = row
        return runs

    def subject(self, claim: ClaimConfig) -> Hashable:
        """What a claim compares, without its text and the seeds: claims with equal subjects can be judged together."""
        involved = self._involved(claim)
        trials = [trial for trial in self.experiment.trials if trial.arm in involved]
        settings = {(trial.arm, _key(trial.varied), repr(replace(trial.config, **_NOT_COMPARED))) for trial in trials}
        tokens = {row.data for trial in trials if (row := self.rows.get(trial.identity)) is not None}
        first = self.experiment.config.measures[0] if claim.test == "sensitivity" else ""
        others = self._others(claim)
        return replace(claim, text="", against=""), others, first, frozenset(settings), frozenset(tokens)

    @cached_property
    def num_diverged(self) -> int:
        """Number of runs whose loss became infinite or NaN."""
        identities = {trial.identity for trial in self.experiment.trials}
        return sum(row.status == "diverged" for identity, row in self.rows.items() if identity in identities)

    @cached_property
    def settings(self) -> list[str]:
        """The varied settings with which at least one arm was run, as JSON."""
        return list(dict.fromkeys(_key(trial.varied) for trial in self.experiment.trials))

    def is_run(self, arm: str) -> bool:
        """Whether an arm has at least two rows, so that it can be compared."""
        return any(len(self.runs.get((arm, setting), {})) >= 2 for setting in self.settings)

    def best(self, arm: str) -> str:
        """The varied settings at which an arm's first measure has the lowest mean."""
        first = self.experiment.config.measures[0]
        means = {
            setting: np.mean([value_of(row, first) for row in rows.values()])
            for setting in self.settings
            if len(rows := self.runs.get((arm, setting), {})) >= 2
        }
        if not means:
            raise UserError(f"Expected at least two runs of the arm {arm!r}, found fewer; run the experiment first.")
        return min(means, key=lambda setting: means[setting])

    def against(self, arm: str) -> str:
        """The arm with which another arm is compared."""
        return self.experiment.config.compare.get(arm, self.experiment.config.baseline)

    def values(self, arm: str, measure: str, setting: str | None = None) -> Float64[np.ndarray, " run"]:
        """A measure of an arm's runs, at its best setting if `setting` is None."""
        rows = self.runs.get((arm, self.best(arm) if setting is None else setting), {})
        return np.array([value_of(row, measure) for row in rows.values()])

    def difference(self, arm: str, other: str, measure: str, setting: str | None = None) -> Difference | None:
        """The paired difference of two arms in a measure; None if fewer than two pairs were run.

        Args:
            arm: the first arm.
            other: the arm that is subtracted.
            measure: the name of the measure.
            setting: the varied setting of both arms. None means the best setting of each arm, `ALL` means every
                pair's mean over all settings.
        """
        one, two = self._runs(arm, setting), self._runs(other, setting)
        pairs = [seeds for seeds in one if seeds in two]
        if len(pairs) < 2:
            return None
        weights = None
        first, second = one[pairs[0]][0], two[pairs[0]][0]
        if _of_documents(measure, first) and np.array_equal(first.document_tokens, second.document_tokens):
            weights = _document_weights(measure, first)

        def values(rows: Sequence[TrialRow]) -> np.ndarray:
            if weights is None:
                return np.mean([[value_of(row, measure)] for row in rows], axis=0)
            return np.mean([row.document_losses.astype(np.float64) for row in rows], axis=0)

        left, right = (np.array([values(runs[seeds]) for seeds in pairs]) for runs in (one, two))
        if not np.isfinite(left).all() or not np.isfinite(right).all():
            return None
        return paired_difference(left, right, weights, num_draws=2000)

    def _runs(self, arm: str, setting: str | None) -> dict[Seeds, list[TrialRow]]:
        """The rows of an arm by seeds: one for each pair of seeds; for `ALL`, one for every varied setting."""
        if setting != ALL:
            return {seeds: [row] for seeds, row in self.runs.get((arm, setting or self.best(arm)), {}).items()}
        rows = [self.runs.get((arm, setting), {}) for setting in self.settings]
        return {seeds: [row[seeds] for row in rows] for seeds in rows[0] if all(seeds in row for row in rows)}

    def names(self, pattern: str) -> list[str]:
        """The measures that match a name, which may end in `*`."""
        begins, star, ends = pattern.partition("*")
        if not star:
            return [pattern]
        rows = [row for rows in self.runs.values() for row in rows.values()]
        names = {name for row in rows[:1] for name in row.final()}
        return [name + ends for name in sorted(names) if name.startswith(begins)]

    def judge(self, claim: ClaimConfig) -> Judged:
        """The verdict on a claim."""
        if not all(self.is_run(arm) for arm in self._involved(claim)):
            return Judged(claim, "not run", "")
        if claim.test == "sensitivity":
            return self._sensitivity(claim)
        measures = [name for pattern in claim.measures for name in self.names(pattern)]
        if claim.test in ("lowest", "highest"):
            pairs = [(arm, other, name) for arm in claim.arms for other in claim.among for name in measures]
        else:
            pairs = [(arm, claim.against or self.against(arm), name) for arm in claim.arms for name in measures]
        # The mean over the varied settings uses all runs; the choice of an arm's best setting depends on noise.
        setting = ALL if len(self.settings) > 1 else None
        judged_pairs = [
            (pair, difference) for pair in pairs if (difference := self.difference(*pair, setting)) is not None
        ]
        if not judged_pairs:
            return Judged(claim, "not run", "")
        differences = [difference for _, difference in judged_pairs]
        if claim.test == "mixed":
            clear = are_significant(differences)
            lower = sum(mark and difference.mean < 0 for mark, difference in zip(clear, differences, strict=True))
            higher = sum(clear) - lower
            figure = f"{lower} of {len(judged_pairs)} measures lower, {higher} higher, after Holm's correction"
            return Judged(
                claim, "supported" if lower and higher else "not supported" if any(clear) else "inconclusive", figure
            )
        if claim.test == "most_higher":
            return self._most_higher(claim, [pair for pair, _ in judged_pairs], differences)
        sign = -1 if claim.test in ("lower", "lowest") else 1
        verdict = _verdict_on_all(differences, sign)
        # The weakest comparison decides: the largest p-value, or the smallest p-value on the other side.
        weakest = max(
            judged_pairs, key=lambda pair: pair[1].p_value if sign * pair[1].mean > 0 else 2 - pair[1].p_value
        )
        shown = judged_pairs if len(judged_pairs) <= 4 else [weakest]
        figure = "; ".join(f"{arm} - {other}: {interval(difference)}" for (arm, other, _), difference in shown)
        if setting == ALL and len(judged_pairs) == 1 and (best := self.difference(*judged_pairs[0][0])) is not None:
            figure += f" over all settings; {interval(best)} with each at its best"
        if len(judged_pairs) > 1:
            number = sum(difference.is_clear and sign * difference.mean > 0 for difference in differences)
            figure = f"{number} of {len(judged_pairs)} as claimed; the largest p is {weakest[1].p_value:.3g}; {figure}"
        return self._with_needed(Judged(claim, verdict, figure, weakest[1]), [weakest[1]])

    def _most_higher(
        self, claim: ClaimConfig, pairs: Sequence[tuple[str, str, str]], differences: Sequence[Difference]
    ) -> Judged:
        """The verdict on `most_higher`: the number of higher measures, and the mean difference of their logarithms."""
        arm, other, _ = pairs[0]
        setting = ALL if len(self.settings) > 1 else None
        one, two = self._runs(arm, setting), self._runs(other, setting)
        seeds = [pair for pair in one if pair in two]

        def logs(runs: Mapping[Seeds, Sequence[TrialRow]]) -> np.ndarray:
            names = [name for _, _, name in pairs]
            values = [[np.log(value_of(row, name)) for name in names for row in runs[pair]] for pair in seeds]
            return np.array(values).mean(axis=1)[:, None]

        mean = paired_difference(logs(one), logs(two), num_draws=2000)
        number = sum(difference.mean > 0 for difference in differences)
        figure = f"{number} of {len(differences)} higher; ratio of geometric means {np.exp(mean.mean):.3f} "
        figure += f"[{np.exp(mean.low):.3f}, {np.exp(mean.high):.3f}]"
        if mean.is_significant:
            is_supported = mean.mean > 0 and number >= 0.8 * len(differences)
            return Judged(claim, "supported" if is_supported else "not supported", figure, mean)
        return self._with_needed(Judged(claim, "inconclusive", figure, mean), [mean])

    def ranges(self, arm: str) -> dict[Seeds, float]:
        """Range of the first measure over the varied settings, for every pair of seeds with all of them."""
        first = self.experiment.config.measures[0]
        rows = [self.runs.get((arm, setting), {}) for setting in self.settings]
        seeds = [pair for pair in rows[0] if all(pair in other for other in rows)]
        return {pair: float(np.ptp([value_of(other[pair], first) for other in rows])) for pair in seeds}

    def _sensitivity(self, claim: ClaimConfig) -> Judged:
        ranges_compared = []
        for arm in claim.arms:
            one, two = self.ranges(arm), self.ranges(claim.against or self.against(arm))
            seeds = [pair for pair in one if pair in two]
            if len(seeds) < 2:
                return Judged(claim, "not run", "")
            left, right = (np.array([[ranges[pair]] for pair in seeds]) for ranges in (one, two))
            ranges_compared.append((arm, paired_difference(left, right, num_draws=2000)))
        figure = "; ".join(
            f"range of {arm} less that of the other: {interval(difference)}" for arm, difference in ranges_compared
        )
        differences = [difference for _, difference in ranges_compared]
        weakest = min(differences, key=lambda difference: difference.mean / max(difference.error, 1e-12))
        return self._with_needed(Judged(claim, _verdict_on_all(differences, 1), figure, weakest), differences)

    def _with_needed(self, judged: Judged, differences: Sequence[Difference]) -> Judged:
        """Add the runs that an inconclusive claim would need to detect all of some observed differences."""
        if judged.verdict != "inconclusive" or not all(difference.deviation > 0 for difference in differences):
            return judged
        try:
            num_pairs = max(pairs_needed(difference.mean, difference.deviation) for difference in differences)
        except UserError:  # a million pairs are not enough
            return judged
        seconds = num_pairs * sum(map(self._seconds, self._involved(judged.claim)))
        return judged._replace(needed=SampleSize(num_pairs, seconds / 3600))

    def _involved(self, claim: ClaimConfig) -> set[str]:
        """Return the arms that a claim compares."""
        return {*claim.arms, *self._others(claim)}

    def _others(self, claim: ClaimConfig) -> tuple[str, ...]:
        """Return the arms with which a claim's arms are compared."""
        if claim.test in ("lowest", "highest"):
            return claim.among
        return tuple(claim.against or self.against(arm) for arm in claim.arms)

    def _seconds(self, arm: str) -> float:
        """Return the mean time of an arm's runs in seconds, summed over the varied settings: the cost of one pair."""
        rows_by_setting = (self.runs.get((arm, setting), {}).values() for setting in self.settings)
        return float(sum(np.mean([row.seconds for row in rows]) for rows in rows_by_setting if rows))

    def spreads(self) -> list[Spread]:
        """The noise of every arm at every evaluated point of training, by the first measure without a part of its own.

        `loss/train@>0.9` has its own part of the training.
        """
        spreads = []
        measures = [name for name in self.experiment.config.measures if "@" not in name]
        if not measures:
            return []
        for (arm, setting), rows in self.runs.items():
            if len(rows) < 3:
                continue
            baseline_rows = self.runs.get((self.against(arm), setting), {})
            seeds = [pair for pair in rows if pair in baseline_rows and self.against(arm) != arm]
            words = " ".join([arm, *(str(value) for value in json.loads(setting).values())])
            for share in next(iter(rows.values())).settings["evaluate_at"]:
                first = f"{measures[0]}@{share}"
                values = np.array([value_of(row, first) for row in rows.values()])
                names = [f"{name}@{share}" for name in self.names(f"loss/{self.experiment.config.validation.macro}/*")]
                deviation, by_group, ratio = float(values.std(ddof=1)), 0.0, None
                if names:
                    groups = np.array([[value_of(row, name) for name in names] for row in rows.values()])
                    residuals = groups - groups.mean(axis=1, keepdims=True)
                    by_group = float(np.sqrt(residuals.var(axis=0, ddof=1).mean()))
                try:
                    num_runs = pairs_needed(0.01, max(deviation, 1e-6) * np.sqrt(2))
                except UserError:
                    num_runs = None
                if len(seeds) >= 3:
                    both = np.array(
                        [[value_of(arm_rows[pair], first) for pair in seeds] for arm_rows in (baseline_rows, rows)]
                    )
                    if np.ptp(both, axis=1).all():  # runs that are all equal have no ratio
                        ratio = variance_ratio(*both)
                spreads.append(Spread(words, share, float(values.mean()), deviation, by_group, num_runs, ratio))
        return spreads


def together(judges: Sequence[Judge]) -> Judge:
    """One judge of the rows of several experiments, for a claim whose `subject` is the same in all of them."""
    trials = {trial.identity: trial for judge in judges for trial in judge.experiment.trials}
    rows = {identity: row for judge in judges for identity, row in judge.rows.items()}
    return Judge(replace(judges[0].experiment, trials=tuple(trials.values())), rows)


def _verdict_on_all(differences: Sequence[Difference], sign: int) -> Verdict:
    """The verdict on the claim that all differences have a sign.

    An intersection-union test: the claim holds if each difference is significant at 5 % by itself. This needs no
    correction, because the claim is wrong as soon as one difference is (Berger 1982, *Multiparameter hypothesis testing
    and acceptance sampling*, Technometrics 24(4)). The claim does not hold if any difference is significant with the
    other sign, after Holm's correction.
    """
    if all(difference.is_clear and sign * difference.mean > 0 for difference in differences):
        return "supported"
    marks = zip(are_significant(differences), differences, strict=True)
    return "not supported" if any(mark and sign * difference.mean < 0 for mark, difference in marks) else "inconclusive"


def are_significant(differences: Sequence[Difference]) -> list[bool]:
    """Whether each difference is significant at 5 %: after Holm's correction, and with an interval that excludes 0."""
    corrected = holm(np.array([difference.p_value for difference in differences]))
    return [bool(p <= 0.05) and difference.is_significant for p, difference in zip(corrected, differences, strict=True)]


def interval(difference: Difference) -> str:
    """A difference with its interval, such as `-0.0120 [-0.0180, -0.0060]`."""
    return f"{difference.mean:+.4f} [{difference.low:+.4f}, {difference.high:+.4f}]"


def value_of(row: TrialRow, measure: str) -> float:
    """A measure of a run; NaN if the run has no such measure.

    `NAME` is the last value, `NAME@0.2` the value after a fifth of the steps, `NAME@>0.9` the mean over the last tenth.
    """
    name, _, share = measure.partition("@")
    steps, values = row.curve(name)
    if not len(steps):
        return float("nan")
    if share.startswith(">"):
        return float(values[steps > float(share[1:]) * row.num_steps].mean())
    target_step = row.num_steps if not share else float(share) * row.num_steps
    return float(values[np.argmin(np.abs(steps - target_step))])


def _of_documents(measure: str, row: TrialRow) -> bool:
    return len(row.document_losses) > 0 and "@" not in measure and measure in ("loss/macro", "loss/validation")


def _document_weights(measure: str, row: TrialRow) -> Float64[np.ndarray, " document"]:
    """The share of every document in a measure: by tokens; for `loss/macro` every group has the same total."""
    tokens = row.document_tokens.astype(np.float64)
    if measure == "loss/validation":
        return tokens / tokens.sum()
    groups, place = np.unique(np.array(row.document_groups), return_inverse=True)
    totals = np.bincount(place, tokens)
    return tokens / totals[place] / len(groups)


def _key(varied: Mapping[str, Any]) -> str:
    return json.dumps(dict(varied), sort_keys=True)
