"""All claims of several experiments: one table, and one figure with all effects on one axis.

If several experiments made the same comparison with other seeds, the table also has the claim judged by all their rows
together. The figure then has this effect alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from evidence.figures import Bar, differences_figure
from evidence.judging import Judge, Judged, together
from evidence.settings import ClaimConfig
from evidence.statistics import smallest_detectable
from jax_diversity.foundation.artifacts import write_text
from jax_diversity.foundation.folders import make_folder

FIGURE = "effects.svg"


class JudgedClaim(NamedTuple):
    """A judged claim.

    Attributes:
        experiments: the names of the experiments whose rows judge it.
        judged: the verdict and its numbers.
        is_part: whether another claim is the same one, judged by the rows of more experiments.
    """

    experiments: tuple[str, ...]
    judged: Judged
    is_part: bool = False


def judged_claims(judges: Sequence[Judge]) -> list[JudgedClaim]:
    """Judge the claims of several experiments. They are sorted by number; claims that were not run are left out."""
    by_subject = defaultdict[Hashable, list[tuple[Judge, ClaimConfig]]](list)
    for judge in judges:
        for claim in judge.experiment.config.claims if judge.runs else ():
            by_subject[judge.subject(claim)].append((judge, claim))
    claims = list[JudgedClaim]()
    for same in by_subject.values():
        parts = [JudgedClaim((judge.experiment.name,), judge.judge(claim)) for judge, claim in same]
        parts = [part for part in parts if part.judged.verdict != "not run"]
        if len(names := tuple(dict.fromkeys(part.experiments[0] for part in parts))) > 1:
            judged = together([judge for judge, _ in same]).judge(same[-1][1])
            parts = [*(part._replace(is_part=True) for part in parts), JudgedClaim(names, judged)]
        claims += parts
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
    arms = defaultdict[tuple[str, ...], set[str]](set)
    for experiments, judged, _ in claims:
        arms[experiments].update(judged.claim.arms)
    for experiments, judged, is_part in claims:
        if judged.effect is None or is_part:
            continue
        if judged.claim.number != number:
            number = judged.claim.number
            bars.append(Bar(f"Claim {number}"))
        name = " + ".join(map(_page, experiments))
        if len(arms[experiments]) > 1:
            name += f": {', '.join(judged.claim.arms)}"
        _, at, share = judged.claim.measures[0].partition("@")
        bars.append(Bar(name + at + share, judged.effect, judged.verdict != "inconclusive"))
    make_folder(folder)
    subtitle = "Nats per token; claim 4: logarithms of ratios. 95 % intervals, grey if inconclusive."
    write_text(folder / FIGURE, differences_figure("The effects behind the claims", subtitle, bars))


def _lines(claims: Sequence[JudgedClaim]) -> Iterator[str]:
    yield "| claim | experiment | verdict | effect [95 % interval] | pairs | minimal detectable effect |"
    yield "|---|---|---|---|---|---|"
    for experiments, judged, _ in claims:
        effect, cells = judged.effect, [judged.figure, "", ""]
        if effect is not None:
            detectable = smallest_detectable(max(effect.deviation, 1e-9), effect.num_pairs)
            interval = f"{effect.mean:+.3f} [{effect.low:+.3f}, {effect.high:+.3f}]"
            cells = [interval, str(effect.num_pairs), f"{detectable:.3f}"]
        pages = " and ".join(f"[{_page(name)}]({_page(name)}.md)" for name in experiments)
        pages += ", together" * (len(experiments) > 1)
        yield f"| {judged.claim.number}. {judged.claim.text} | {pages} | {judged.verdict} | {' | '.join(cells)} |"


def _page(experiment: str) -> str:
    return experiment.replace("_", "-")
