"""All claims of several experiments: one table, and one figure with all effects on one axis."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from evidence.figures import Bar, differences_figure
from evidence.judging import Judge, Judged
from evidence.statistics import smallest_detectable
from jax_diversity.foundation.artifacts import write_text
from jax_diversity.foundation.folders import make_folder

FIGURE = "effects.svg"


class JudgedClaim(NamedTuple):
    """A judged claim and the name of its experiment."""

    experiment: str
    judged: Judged


def judged_claims(judges: Sequence[Judge]) -> list[JudgedClaim]:
    """Judge the claims of several experiments. They are sorted by number; claims that were not run are left out."""
    claims = [
        JudgedClaim(judge.experiment.name, judged)
        for judge in judges
        if judge.runs
        for judged in map(judge.judge, judge.experiment.config.claims)
        if judged.verdict != "not run"
    ]
    return sorted(claims, key=lambda claim: claim.judged.claim.number)


def summary_text(claims: Sequence[JudgedClaim]) -> str:
    """A table in Markdown: one line for each claim, with its verdict, effect, pairs and minimal detectable effect."""
    return "\n".join(_lines(claims))


def write_figure(claims: Sequence[JudgedClaim], folder: Path) -> None:
    """Write `folder/effects.svg`: the effects of all claims with their intervals.

    Raises:
        UserError: the folder cannot be written.
    """
    bars, number = list[Bar](), None
    arms = defaultdict[str, set[str]](set)
    for experiment, judged in claims:
        arms[experiment].update(judged.claim.arms)
    for experiment, judged in claims:
        if judged.effect is None:
            continue
        if judged.claim.number != number:
            number = judged.claim.number
            bars.append(Bar(f"Claim {number}"))
        name = _page(experiment)
        if len(arms[experiment]) > 1:
            name += f": {', '.join(judged.claim.arms)}"
        bars.append(Bar(name, judged.effect, judged.verdict != "inconclusive"))
    make_folder(folder)
    subtitle = (
        "Experiment, and arm if it has several. Nats per token; claim 4: logarithms of ratios. "
        "95 % intervals, grey if inconclusive."
    )
    write_text(folder / FIGURE, differences_figure("The effects behind the claims", subtitle, bars))


def _lines(claims: Sequence[JudgedClaim]) -> Iterator[str]:
    yield "| claim | verdict | effect [95 % interval] | pairs | minimal detectable effect |\n|---|---|---|---|---|"
    for experiment, judged in claims:
        effect, cells = judged.effect, [judged.figure, "", ""]
        if effect is not None:
            detectable = smallest_detectable(max(effect.deviation, 1e-9), effect.num_pairs)
            interval = f"{effect.mean:+.3f} [{effect.low:+.3f}, {effect.high:+.3f}]"
            cells = [interval, str(effect.num_pairs), f"{detectable:.3f}"]
        page = f"[{judged.claim.text}]({_page(experiment)}.md)"
        yield f"| {judged.claim.number}. {page} | {judged.verdict} | {' | '.join(cells)} |"


def _page(experiment: str) -> str:
    return experiment.replace("_", "-")
