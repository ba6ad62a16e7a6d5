"""The page of an experiment: its design, its differences, and the verdicts on its claims."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float64, Int64

from evidence.figures import Bar, curves_figure, differences_figure
from evidence.judging import ALL, Judge, Judged, are_significant, interval
from evidence.results import TrialRow
from evidence.settings import Experiment
from evidence.statistics import Difference, holm, smallest_detectable
from jax_diversity.foundation.artifacts import write_text
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.folders import make_folder
from jax_diversity.foundation.svg import Curve
from jax_diversity.foundation.wording import counted
from jax_diversity.lab.noise import smallest_difference

_MOST_GROUPS = 24
_MOST_LINES = 6
_FEW_POINTS = 50
_KEPT = 0.8  # the part of the moving average that is kept at every step
_TRAINING, _NOISE = "loss/train", "noise"


def experiment_text(experiment: Experiment, rows: Mapping[str, TrialRow]) -> str:
    """The page without its figures.

    Raises:
        UserError: the experiment has no row.
    """
    return "\n".join(_lines(Judge(experiment, rows), ())).rstrip()


def write_page(experiment: Experiment, rows: Mapping[str, TrialRow], folder: Path) -> None:
    """Write `folder/NAME.md` and its figures.

    Raises:
        UserError: the experiment has no row, or the folder cannot be written.
    """
    judge = Judge(experiment, rows)
    make_folder(folder)
    figures = dict(_figures(judge))
    text = "\n".join(_lines(judge, tuple(figures)))
    for name, content in figures.items():
        write_text(folder / name, content)
    write_text(folder / f"{experiment.name.replace('_', '-')}.md", text.rstrip() + "\n")


def _lines(judge: Judge, figures: Sequence[str]) -> Iterator[str]:
    experiment = judge.experiment
    config, rows_done = experiment.config, [row for rows in judge.runs.values() for row in rows.values()]
    if not rows_done:
        raise UserError(
            f"Expected rows of the experiment {experiment.name!r}, found none; run `python -m evidence run`."
        )
    done = sum(trial.identity in judge.rows for trial in experiment.trials)
    yield f"# {config.title}\n\n{config.question}\n"
    yield from (f"![{name}]({name})\n" for name in figures)
    yield f"{_design(judge, rows_done)}\n"
    files = experiment.files
    data = " --data texts" if files else ""
    yield f"```sh\npython -m evidence run configs/experiments/{experiment.name}.yaml{data}"
    yield f"python -m evidence show configs/experiments/{experiment.name}.yaml\n```\n"
    sentences = [f"Files in the folder `--data`: {', '.join(f'`{path}`' for path in files)}."] if files else []
    sentences += [config.corpora] if config.corpora else []
    if sentences:
        yield f"{' '.join(sentences)}\n"
    if done < len(experiment.trials):
        yield f"**{done} of {len(experiment.trials)} runs are done.**\n"
    if judge.num_diverged:
        yield f"{counted(judge.num_diverged, 'run')} diverged, and the results leave such runs out.\n"
    if config.claims:
        yield from _claims_table([judge.judge(claim) for claim in config.claims])
    for measure in config.measures:
        yield from _table(judge, measure)
    if len(judge.settings) > 1:
        yield from _settings_table(judge)
    if any(measure.partition("@")[0] == _TRAINING for measure in config.measures):
        yield from _training_table(judge)
    yield from _noise_table(judge)
    yield from _groups_table(judge)
    yield from _gradients_table(judge)
    if experiment.num_pairs >= 8 or len({*config.seeds.order}) == 1 or len({*config.seeds.weights}) == 1:
        yield from _spread_table(judge)


def _design(judge: Judge, rows: Sequence[TrialRow]) -> str:
    experiment = judge.experiment
    sizes = sorted({(row.num_parameters, row.settings["model"], row.settings["size"]) for row in rows})
    models = ", ".join(f"{model} `{size}` ({number:,} parameters)" for number, model, size in sizes)
    tokens = sorted(row.num_tokens for row in rows)
    span = f"{tokens[0]:,}" if tokens[0] == tokens[-1] else f"{tokens[0]:,} to {tokens[-1]:,}"
    varied = "".join(f", {name} {', '.join(map(str, values))}" for name, values in experiment.vary.items())
    devices = sorted({row.device for row in rows})
    worker = "core" if all(device.startswith("cpu") for device in devices) else "process"
    return (
        f"{len(experiment.arms)} arms, {experiment.num_pairs} runs of each{varied}; runs of one seed share first "
        f"weights, budget and validation. {models}; {span} target tokens per run; "
        f"{', '.join(devices)}; {sum(row.seconds for row in rows) / 3600:.1f} hours of one {worker}. "
        "Losses are nats per token; intervals are 95 % intervals over seeds and documents."
    )


def _claims_table(verdicts: Sequence[Judged]) -> Iterator[str]:
    shows_needed = any(judged.needed for judged in verdicts)
    column, rule = (" pairs needed |", "---|") if shows_needed else ("", "")
    yield f"## Claims\n\n| claim | verdict | values |{column}\n|---|---|---|{rule}"
    for judged in verdicts:
        cell = ""
        if shows_needed:
            needed = judged.needed
            cell = f" {needed.num_pairs:,} ({needed.hours:,.1f} hours) |" if needed else " |"
        yield f"| ({judged.claim.number}) {judged.claim.text} | **{judged.verdict}** | {judged.figure} |{cell}"
    yield ""
    if shows_needed:
        yield "*Pairs needed* is the number of pairs of seeds that detect the observed difference with a power of 80 %"
        yield "(paired t-test at 5 %; of several comparisons, the weakest), and their time on one core, or with one"
        yield "process on an accelerator.\n"


def _table(judge: Judge, measure: str) -> Iterator[str]:
    """Yield every arm's mean, and its difference from the arm it is compared with, each at its best setting."""
    arms = [arm for arm in judge.experiment.arms if judge.is_run(arm)]
    differences = {arm: _difference(judge, arm, measure) for arm in arms}
    shown = {arm: difference for arm, difference in differences.items() if difference is not None}
    clear = dict(zip(shown, are_significant(list(shown.values())), strict=True)) if shown else {}
    corrected = (
        dict(zip(shown, holm(np.array([difference.p_value for difference in shown.values()])), strict=True))
        if shown
        else {}
    )
    several = bool(judge.experiment.config.compare)
    yield f"## {measure}\n"
    column, rule = ("at | ", "---|") if len(judge.settings) > 1 else ("", "")
    yield f"| arm | {column}mean | difference{' from' if several else ''} | p (Holm) | |\n|---|{rule}---|---|---|---|"
    for arm in sorted(arms, key=lambda arm: judge.values(arm, measure).mean()) if not several else arms:
        at = f"{_words(judge.best(arm))} | " if len(judge.settings) > 1 else ""
        mean = judge.values(arm, measure).mean()
        difference = shown.get(arm)
        if difference is None:
            yield f"| {arm} | {at}{mean:.4f} | | | |"
            continue
        verdict = ("lower" if difference.mean < 0 else "higher") if clear[arm] else "inconclusive"
        origin = f"{judge.against(arm)}: " if several else ""
        yield f"| {arm} | {at}{mean:.4f} | {origin}{interval(difference)} | {corrected[arm]:.3g} | {verdict} |"
    if shown:
        pairs = min(difference.num_pairs for difference in shown.values())
        deviation = float(np.median([difference.deviation for difference in shown.values()]))
        effect = smallest_detectable(max(deviation, 1e-9), pairs)
        yield f"\nThe standard deviation of a pair's difference is {deviation:.3g} (median of the arms). With"
        yield f"{pairs} pairs the minimal detectable effect is {effect:.3g} (power 80 %).\n"
    else:
        yield ""


def _difference(judge: Judge, arm: str, measure: str, setting: str | None = None) -> Difference | None:
    other = judge.against(arm)
    if other == arm or not judge.is_run(other) or not judge.is_run(arm):
        return None
    return judge.difference(arm, other, measure, setting)


def _settings_table(judge: Judge) -> Iterator[str]:
    """Yield the first measure at every varied setting, and its range over these settings."""
    first = judge.experiment.config.measures[0]
    yield f"## {first} by {', '.join(judge.experiment.vary)}\n"
    yield "In brackets: the difference from the arm with which each arm is compared, at the same setting.\n"
    yield f"| arm | {' | '.join(map(_words, judge.settings))} | mean difference over all | range |"
    yield f"|---|{'---|' * len(judge.settings)}---|---|"
    for arm in filter(judge.is_run, judge.experiment.arms):
        cells = []
        for setting in judge.settings:
            values = judge.values(arm, first, setting)
            difference = _difference(judge, arm, first, setting)
            cells.append(
                "" if not len(values) else f"{values.mean():.4f}" + (f" ({difference.mean:+.4f})" if difference else "")
            )
        ranges = list(judge.ranges(arm).values())
        over_all = _difference(judge, arm, first, ALL)
        cells.append("" if over_all is None else interval(over_all))
        yield f"| {arm} | {' | '.join(cells)} | {np.mean(ranges) if ranges else float('nan'):.4f} |"
    yield ""


def _training_table(judge: Judge) -> Iterator[str]:
    """Yield training losses at equal epochs and at equal steps, and ranks in the last epoch of arms of one length."""
    arms = list(filter(judge.is_run, judge.experiment.arms))
    curves, steps, groups = {}, {}, {}
    for arm in arms:
        rows = list(judge.runs[arm, judge.best(arm)].values())
        grid = rows[0].curve(_TRAINING)[0]
        curves[arm] = grid, np.mean([np.interp(grid, *row.curve(_TRAINING)) for row in rows], axis=0)
        steps[arm] = rows[0].num_steps, rows[0].settings["num_epochs"]
        packing = rows[0].settings["packing"]
        groups.setdefault((rows[0].settings["dataset"], packing and packing["sequence_length"]), []).append(arm)
    fewest = min(number for number, _ in steps.values())
    # As in the study: the mean perplexity of every hundredth of the last epoch. The last one is the final perplexity.
    last = {arm: _perplexities(curves[arm], *steps[arm]) for arm in steps}
    ranks: dict[str, float] = {}
    for group in groups.values():
        places_of = np.argsort(np.argsort([last[arm] for arm in group], axis=0), axis=0).mean(axis=1) + 1
        ranks |= dict(zip(group, places_of.tolist(), strict=True))
    yield "## Training loss at equal epochs and at equal steps\n"
    yield "*Perplexity* is the mean over the last hundredth of the last epoch. *Rank* is the mean rank of the"
    yield "perplexity over the hundredths of the last epoch, among the arms of one sequence length. *At equal steps* is"
    yield f"after {fewest:,} steps.\n"
    yield "| arm | steps | loss at the end | perplexity | loss at equal steps | rank |\n|---|---|---|---|---|---|"
    for arm in arms:
        end, equal = curves[arm][1][-1], np.interp(fewest, *curves[arm])
        yield f"| {arm} | {steps[arm][0]:,} | {end:.4f} | {last[arm][-1]:.1f} | {equal:.4f} | {ranks[arm]:.1f} |"
    yield ""


def _perplexities(
    curve: tuple[Int64[np.ndarray, " point"], Float64[np.ndarray, " point"]], num_steps: int, num_epochs: int
) -> Float64[np.ndarray, " hundredth"]:
    """Return the mean perplexity in every hundredth of the last epoch; between two points, the loss is a line."""
    bounds = num_steps * (1 - (1 - np.linspace(0, 1, 101)) / num_epochs)
    middles = bounds[:-1, None] + (bounds[1:] - bounds[:-1])[:, None] * (np.arange(16) + 0.5) / 16
    return np.exp(np.interp(middles, *curve)).mean(axis=1)


def _noise_table(judge: Judge) -> Iterator[str]:
    """Yield the noise of the logged training loss by arm and setting, and the differences that a curve can show."""
    names = sorted(judge.names(f"{_NOISE}/*"), key=lambda name: int(name.rpartition("/")[2]))
    if not names:
        return
    steps = [name.rpartition("/")[2] for name in names]
    yield "## Noise of the logged loss\n"
    yield "Standard deviations of the training loss around its course, in the second half of a run: of one step, and of"
    yield "means of several steps (root mean square over the runs). In brackets: the smallest difference between two"
    yield "runs with other batches that four of five comparisons of such means find.\n"
    column, rule = ("at | ", "---|") if len(judge.settings) > 1 else ("", "")
    heads = (f"{number} step{'' if number == '1' else 's'}" for number in steps)
    yield f"| arm | {column}{' | '.join(heads)} |\n|---|{rule}{'---|' * len(steps)}"
    for setting in judge.settings:
        for arm in filter(judge.is_run, judge.experiment.arms):
            cells = []
            for name in names:
                values = judge.values(arm, name, setting)
                values = values[np.isfinite(values)]  # without the rows of runs in which it was not measured
                deviation = float(np.sqrt(np.mean(values**2))) if len(values) else 0.0
                cells.append(f"{deviation:.4f} ({smallest_difference(deviation):.3f})" if len(values) else "")
            at = f"{_words(setting)} | " if len(judge.settings) > 1 else ""
            yield f"| {arm} | {at}{' | '.join(cells)} |"
    yield ""


def _groups_table(judge: Judge) -> Iterator[str]:
    """Yield differences for each group of the family `validation.macro`."""
    family = judge.experiment.config.validation.macro
    names = judge.names(f"loss/{family}/*")[:_MOST_GROUPS]
    arms = [arm for arm in judge.experiment.arms if judge.is_run(arm) and judge.against(arm) != arm][:_MOST_LINES]
    if len(names) < 2 or not arms:
        return
    setting = ALL if len(judge.settings) > 1 else None
    rows = {(arm, name): _difference(judge, arm, name, setting) for arm in arms for name in names}
    yield (
        f"## By {family}\n\nDifferences from the arm with which each arm is compared, means over all settings; "
        "**bold** "
    )
    yield "where they are significant after Holm's correction over the column.\n"
    yield f"| {family} | {' | '.join(arms)} |\n|---|{'---|' * len(arms)}"
    marks: dict[tuple[str, str], bool] = {}
    for arm in arms:
        present = {name: row for name in names if (row := rows[arm, name]) is not None}
        if present:
            marks |= {
                (arm, name): mark for name, mark in zip(present, are_significant(list(present.values())), strict=True)
            }
    for name in names:
        cells = []
        for arm in arms:
            row = rows[arm, name]
            words = "" if row is None else f"{row.mean:+.3f}"
            cells.append(f"**{words}**" if marks.get((arm, name)) else words)
        yield f"| {name.rpartition('/')[2]} | {' | '.join(cells)} |"
    yield ""


def _gradients_table(judge: Judge) -> Iterator[str]:
    """Yield measures of the gradients, divided by the measures of the arm with which each arm is compared."""
    names = [*judge.names("stable_rank/*"), *judge.names("gradient/*")]
    arms = [arm for arm in judge.experiment.arms if judge.is_run(arm) and judge.against(arm) != arm][:_MOST_LINES]
    if not names or not arms:
        return
    row = next(iter(next(iter(judge.runs.values())).values()))
    yield (
        "## Gradients\n\nRatios of the means to the means of the arm with which each arm is compared, both at their "
        "best "
    )
    yield "setting.\n"
    for share in row.settings["diagnose_at"]:
        yield f"After {share:.0%} of the steps:\n\n| | {' | '.join(arms)} |\n|---|{'---|' * len(arms)}"
        for name in names:
            measure = f"{name}@{share}"
            means = {arm: judge.values(arm, measure).mean() for arm in (*arms, *map(judge.against, arms))}
            cells = [f"{means[arm] / means[judge.against(arm)]:.3f}" for arm in arms]
            yield f"| {name} | {' | '.join(cells)} |"
        yield ""


def _spread_table(judge: Judge) -> Iterator[str]:
    yield (
        "## Noise\n\nStandard deviations over runs; *by group* is the deviation of a group's loss from its run's mean; "
    )
    yield (
        "*runs* is the number of runs that each of two arms needs to detect a difference of .01 with a power of 80 %, "
        "unpaired. *Variance ratio* is the variance of the arm with which an arm is compared, divided by its own "
        "(interval of Pitman and Morgan).\n"
    )
    yield f"| arm | share of the steps | mean | deviation | by group | runs | variance ratio |\n|{'---|' * 7}"
    for spread in judge.spreads():
        num_runs = "over a million" if spread.num_runs is None else f"{spread.num_runs:,}"
        ratio = "" if spread.ratio is None else "{:.2f} [{:.2f}, {:.2f}]".format(*spread.ratio)
        yield (
            f"| {spread.arm} | {spread.share:g} | {spread.mean:.4f} | {spread.deviation:.4f} | {spread.by_group:.4f} | "
            f"{num_runs} | {ratio} |"
        )
    yield ""


def _figures(judge: Judge) -> Iterator[tuple[str, str]]:
    experiment = judge.experiment
    config = experiment.config
    bars = []
    for measure in config.measures:
        setting = ALL if len(judge.settings) > 1 else None
        differences = {
            arm: difference
            for arm in experiment.arms
            if (difference := _difference(judge, arm, measure, setting)) is not None
        }
        if differences:
            clear = are_significant(list(differences.values()))
            bars.append(Bar(measure + (", mean over all settings" if setting else "")))
            bars += [
                Bar(arm, difference, mark) for (arm, difference), mark in zip(differences.items(), clear, strict=True)
            ]
    if bars:
        subtitle = "Paired differences with 95 % intervals, nats per token; coloured if significant after correction."
        yield f"{experiment.name.replace('_', '-')}-differences.svg", differences_figure(config.title, subtitle, bars)
    curves: list[Curve] = []
    for arm in list(filter(judge.is_run, experiment.arms))[:_MOST_LINES]:
        rows = list(judge.runs[arm, judge.best(arm)].values())
        measured = [row.curve(_TRAINING) for row in rows]
        if min(len(steps) for steps, _ in measured) >= 3:
            steps = measured[0][0].astype(np.float64)
            mean = np.mean([np.interp(steps, *curve) for curve in measured], axis=0)
            # The high losses of the first steps would compress the rest of the curve.
            shown = slice(len(steps) // 4, None)
            curves.append(Curve(steps[shown], _smoothed(mean)[shown], f"c{len(curves)}", arm))
    if curves:
        subtitle = "Training loss, mean of the runs, smoothed; from a quarter of the steps on."
        name = f"{experiment.name.replace('_', '-')}-curves.svg"
        yield name, curves_figure(f"{config.title}: training", subtitle, "step", curves)


def _smoothed(values: np.ndarray) -> np.ndarray:
    """Exponential moving average that starts at the first value; short curves, which are means already, stay as is."""
    if len(values) < _FEW_POINTS:
        return values
    smooth = [values[0]]
    for value in values[1:]:
        smooth.append(_KEPT * smooth[-1] + (1 - _KEPT) * value)
    return np.array(smooth)


def _words(setting: str) -> str:
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in json.loads(setting).values())
