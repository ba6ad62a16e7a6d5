"""Compare all orders of one corpus: time, prefixes, windows of many sizes, ratios to the exact greedy algorithm f3.

    python benchmarks/orderings.py [--corpus synthetic --num-sequences 20000 | --dataset OUT] [--write]

Prints Markdown: a summary, all measures, the ratios, and whether each target was reached. A ratio of windows is the
larger of two ratios: of aligned windows, and of windows half a window later; for windows of 256 also the largest over
eight offsets. Every order is made twice; `seconds` is the time of the second run, `compile` the extra time of the
first. Orders that take more than a minute are made once, compilation included. The time of the exact greedy algorithm
grows with the square of the number of sequences. Above `--exact-up-to` sequences, only some of its steps are timed, and
its time is estimated.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import corpora
import jax
import numpy as np
import results_file
import verdicts
from jaxtyping import Int64

import jax_diversity as jd
from jax_diversity.ordering.base import METHODS
from jax_diversity.ordering.measures.documents import COPY, DOCUMENT, document_spread
from jax_diversity.ordering.measures.windows import place, window_deviation
from jax_diversity.ordering.running import STEPS_PER_CALL

WINDOWS = (64, 192, 256, 320, 1024)
BATCH = 256  # the window size that some orders are made for
OFFSETS = tuple(range(0, BATCH, BATCH // 8))
DRAWN = tuple(2**power for power in range(2, 13))  # window sizes of the picture of repeats
LONGEST_REPEATED = 60.0  # seconds
REPACKED_ABOVE = 65_536  # above this, the exact greedy makes its tables again when half is placed


@dataclass(frozen=True)
class Recipe:
    """The recipe of an order.

    Attributes:
        label: its name in the table.
        method: a name of `jax_diversity.ordering.METHODS`.
        objective: the weights of the rule; None means the method's default.
        options: further options of the method.
    """

    label: str
    method: str
    objective: jd.Objective | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def about(self) -> dict[str, Any]:
        """Return the recipe for the results' file."""
        objective = None if self.objective is None else dataclasses.asdict(self.objective)
        return {"method": self.method, "objective": objective, "options": self.options}


@dataclass(frozen=True)
class Run:
    """An order and its time; without the order if the time is estimated from some steps."""

    recipe: Recipe
    ordering: jd.Ordering | None
    seconds: float
    compile_seconds: float | None


_WINDOWED = jd.Objective(windows=(BATCH,))
_AS_PUBLISHED = {"ties": "lowest"}
RECIPES = (
    Recipe("corpus order", "corpus_order"),
    Recipe("cluster sorted", "cluster_sorted"),
    Recipe("uniform shuffle", "uniform_shuffle"),
    Recipe("buffer shuffle 10,000", "buffer_shuffle", options={"buffer_size": 10_000}),
    Recipe("stratified", "stratified"),
    *(Recipe(f"greedy pool {size}", "greedy_pool", options={"pool_size": size}) for size in (2048, 4096)),
    *(Recipe(f"balance {size}", "balance", options={"pool_size": size}) for size in (2048, 4096, 8192)),
    Recipe("balance, windows 256", "balance", _WINDOWED, {"pool_size": 4096}),
    Recipe("balance, without documents", "balance", jd.Objective(document_weight=0), {"pool_size": 4096}),
    Recipe("exact f1", "greedy", jd.Objective.f1(), _AS_PUBLISHED),
    Recipe("exact f2", "greedy", jd.Objective.f2(), _AS_PUBLISHED),
    Recipe("exact f3", "greedy", jd.Objective.f3(), _AS_PUBLISHED),
    Recipe("exact", "greedy"),
    Recipe("exact, windows 256", "greedy", _WINDOWED),
)
REFERENCES = ("uniform shuffle", "exact f3")


def chosen_recipes(methods: Sequence[str] | None) -> list[Recipe]:
    """The recipes of some methods or all, including the references."""
    return [recipe for recipe in RECIPES if methods is None or recipe.method in methods or recipe.label in REFERENCES]


def timed(make: Callable[[], jd.Ordering]) -> tuple[jd.Ordering, float, float | None]:
    """An order, its seconds, and the seconds to compile if it was made twice."""
    jax.clear_caches()  # so that no order uses a loop that was compiled for a previous order
    start = time.perf_counter()
    ordering = make()
    first = time.perf_counter() - start
    if first > LONGEST_REPEATED:
        return ordering, first, None
    start = time.perf_counter()
    ordering = make()
    seconds = time.perf_counter() - start
    return ordering, seconds, max(first - seconds, 0.0)


def make_order(chars: jd.Characteristics, recipe: Recipe, exact_up_to: int) -> Run:
    """Make an order and time it."""
    METHODS.find(recipe.method)  # loads its modules
    if recipe.method == "greedy" and chars.num_sequences > exact_up_to:
        return Run(recipe, None, *reckoned(chars, recipe))
    return Run(recipe, *timed(lambda: jd.order(chars, recipe.method, objective=recipe.objective, **recipe.options)))


class _Enough(Exception):
    """Steps timed."""


def reckoned(chars: jd.Characteristics, recipe: Recipe) -> tuple[float, float]:
    """Estimate the seconds of the exact greedy algorithm from a few thousand warm steps, and the time to compile."""
    jax.clear_caches()
    times = [time.perf_counter()]

    def advance(_: int) -> None:
        times.append(time.perf_counter())
        if len(times) > 2:
            raise _Enough

    with contextlib.suppress(_Enough):
        jd.order(chars, recipe.method, objective=recipe.objective, advance=advance)
    first, second = times[1] - times[0], times[2] - times[1]
    return second / STEPS_PER_CALL * steps_of_full_size(chars.num_sequences), max(first - second, 0.0)


def steps_of_full_size(num_sequences: int) -> float:
    """Return the number of full-size steps that take as long as all steps; the tables are halved repeatedly."""
    left, rows = float(num_sequences), 0.0
    while left > REPACKED_ABOVE:
        rows += left * left / 2
        left /= 2
    return (rows + left * left) / num_sequences


def every_offset(chars: jd.Characteristics, ordering: jd.Ordering) -> dict[str, list[float]]:
    """Mean TV of windows of 256 at every one of `OFFSETS`, by family."""
    means = {}
    for family in chars.families:
        placed, target = place(chars.counts[family], ordering.indices), chars.target_share(family)
        tvs = [window_deviation(placed, target, BATCH, offset) for offset in OFFSETS]
        means[family] = [float(tv.mean()) if len(tv) else float("nan") for tv in tvs]
    return means


def measured(chars: jd.Characteristics, runs: Mapping[str, Run]) -> tuple[jd.Comparison, dict[str, Any]]:
    """The comparison of all orders that were made, and the results' entry of every run."""
    orderings = {label: run.ordering for label, run in runs.items() if run.ordering is not None}
    windows = [size for size in WINDOWS if size <= chars.num_sequences]
    comparison = jd.compare(chars, orderings, windows)
    by_order = comparison.as_dict()["orderings"]
    entries = {}
    for label, run in runs.items():
        entry = {**run.recipe.about(), "seconds": run.seconds, "compile_seconds": run.compile_seconds}
        if run.ordering is None:
            entries[label] = {**entry, "reckoned": True}
            continue
        offsets = every_offset(chars, run.ordering)
        families = dict(by_order[label])
        spreads = {name: families.pop(name) for name in (DOCUMENT, COPY) if name in families}
        entries[label] = {**entry, "families": families, f"tv_mean_{BATCH}_by_offset": offsets, **spreads}
        if chars.documents is not None:
            entries[label]["repeats"] = repeats(chars.documents, run.ordering)
    return comparison, entries


def repeats(documents: Int64[np.ndarray, " sequence"], ordering: jd.Ordering) -> dict[str, Any]:
    """Repeats of documents per window, and their floor, at the sizes of the picture."""
    sizes = [size for size in DRAWN if size <= len(ordering)]
    spread = document_spread(documents, ordering.indices, sizes)
    return {
        str(size): {"mean": float(spread.repeats[size].mean()), "floor": spread.repeats_floor[size]} for size in sizes
    }


def markdown(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Format a table with its first column aligned to the left."""
    cells = [list(header), ["---", *["---:"] * (len(header) - 1)], *map(list, lines)]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def summary(entries: Mapping[str, Any], family: str, second: str) -> str:
    """One line per order: time, prefixes, drift and windows of 256."""
    header = ("order", "seconds", "compile", f"prefix max {family} / {second}", "norm drift")
    header += (f"{family} TV {BATCH} mean / worst", "half a window later", "gap closed")
    return markdown(header, [_summary_line(label, entry, family, second) for label, entry in entries.items()])


def _summary_line(label: str, entry: Mapping[str, Any], family: str, second: str) -> list[str]:
    compiling = "in it" if entry["compile_seconds"] is None else f"{entry['compile_seconds']:.1f}"
    about = " (reckoned)" if entry.get("reckoned") else ""
    line = [label, f"{entry['seconds']:.3g}{about}", compiling]
    if "families" not in entry:
        return [*line, *["-"] * 5]
    first = entry["families"][family]
    line.append(" / ".join(f"{entry['families'][name]['prefix_l2_max']:.2f}" for name in (family, second)))
    line.append(f"{first['norm_drift_max']:.1f}")
    window = first["windows"].get(str(BATCH))
    if window is None:
        return [*line, *["-"] * 3]
    for offset in ("0", "half"):
        values = [window["offsets"][offset][name] for name in ("tv_mean", "tv_worst")]
        line.append(" / ".join("-" if value is None else f"{value:.4f}" for value in values))
    closed = window["gap_closed"]
    return [*line, "-" if closed is None else f"{closed:.3f}"]


def documents_table(entries: Mapping[str, Any], family: str, second: str) -> str:
    """One line per order: the spread of its documents, and its mixture; empty if the documents are unknown."""
    known = {label: entry for label, entry in entries.items() if DOCUMENT in entry}
    if not known:
        return ""
    sizes = [size for size in ("64", "256", "1024") if size in next(iter(known.values()))[DOCUMENT]["windows"]]
    header = ("order", "reading order", *(f"repeats in {size}" for size in sizes), "gaps, shortest 5 %")
    header += (f"{family} TV {BATCH} mean / worst", f"{second} TV {BATCH}", "prefix max")
    lines = []
    for label, entry in known.items():
        spread, families = entry[DOCUMENT], entry["families"]
        line = [label, _rounded_or_none(spread["place_correlation"])]
        line += [_rounded_or_none(spread["windows"][size]["repeats_mean"]) for size in sizes]
        line.append(_rounded_or_none(spread["gap_low"]))
        windows = [families[name]["windows"].get(str(BATCH)) for name in (family, second)]
        if None in windows:
            line += ["-", "-"]
        else:
            first, other = (window["offsets"]["0"] for window in windows)
            line += [f"{first['tv_mean']:.4f} / {first['tv_worst']:.4f}", f"{other['tv_mean']:.4f}"]
        lines.append([*line, f"{families[family]['prefix_l2_max']:.2f}"])
    windows = next(iter(known.values()))[DOCUMENT]["windows"]
    lines.append(["floor", "", *(_rounded_or_none(windows[size]["repeats_floor"]) for size in sizes), *[""] * 4])
    return markdown(header, lines)


def _rounded_or_none(value: float | None) -> str:
    return "-" if value is None else f"{value:z.2f}"


def ratio_tables(ratios: Mapping[str, verdicts.Figures], families: Sequence[str]) -> str:
    """By family: time, prefix maximum, mean and worst windows, as ratios to exact f3."""
    parts = []
    for family in families:
        sizes = [size for size in WINDOWS if f"mean TV {size}" in next(iter(ratios.values()))]
        header = ["", "seconds", "prefix max", *map(str, sizes), f"{BATCH}, 8 offsets"]
        lines = []
        for label, figures in ratios.items():

            def number(name: str, figures: verdicts.Figures = figures, family: str = family) -> str:
                value = figures.get(name, {}).get(family)
                return "-" if value is None else f"{value:.3f}"

            lines.append([label, f"{figures['seconds'][family]:.2g}", number("prefix max")])
            lines[-1] += [f"{number(f'mean TV {size}')} / {number(f'worst TV {size}')}" for size in sizes]
            lines[-1].append(number(verdicts.EVERY_OFFSET))
        title = f"**{family}, relative to exact f3: mean / worst window TV, the larger of both offsets**"
        parts.append(f"{title}\n\n{markdown(header, lines)}")
    return "\n\n".join(parts)


def verdict_table(judged: Sequence[Mapping[str, Any]], families: Sequence[str]) -> str:
    """The targets; if a target is for the first family alone, the second is only shown."""
    header = ("order", "measure", "at most", "found", "verdict", f"{families[-1]}, not judged")
    lines = []
    for line in judged:
        beside = "" if line["beside"] is None else f"{line['beside']:.3f}"
        found, most = f"{line['found']:.3f}", f"{line['at_most']:g}"
        lines.append([line["order"], line["measure"], most, found, line["verdict"], beside])
    return markdown(header, lines)


def rounded(value: Any) -> Any:
    """For JSON: the same values with five significant digits, and None for numbers that are not finite."""
    if isinstance(value, float):
        return None if math.isnan(value) else float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {name: rounded(part) for name, part in value.items()}
    return [rounded(part) for part in value] if isinstance(value, list | tuple) else value


def main() -> None:
    """Print the tables; with --write, store them."""
    arguments = _parse()
    about = results_file.environment("jax", "numpy", "scipy")  # the load of the machine without this benchmark
    if arguments.dataset is not None:
        chars, name = corpora.from_dataset(arguments.dataset), arguments.dataset.resolve().name
    else:
        chars, name = corpora.synthetic(arguments.num_sequences), f"synthetic-{arguments.num_sequences}"
    about = {"device": str(jax.devices()[0]), **about}
    print(f"{chars!r}\n", flush=True)
    runs: dict[str, Run] = {}
    for recipe in chosen_recipes(arguments.methods):
        runs[recipe.label] = make_order(chars, recipe, arguments.exact_up_to)
        print(f"{recipe.label:<24}{runs[recipe.label].seconds:>10.3f} s", flush=True)
    comparison, entries = measured(chars, runs)
    ratios = verdicts.all_ratios(entries, chars.families)
    synthetic = arguments.dataset is None
    judged = verdicts.judge(entries, ratios, chars.families, chars.num_sequences, synthetic)
    print(f"\n{summary(entries, chars.families[0], chars.families[-1])}\n\n{comparison.markdown()}")
    print(f"\n{documents_table(entries, chars.families[0], chars.families[-1])}")
    if ratios:
        print(f"\n{ratio_tables(ratios, chars.families)}")
    print(f"\n**Targets**\n\n{verdict_table(judged, chars.families)}\n\n{verdicts.best_everywhere(ratios)}")
    if arguments.write:
        corpus = {"name": name, "sequence_length": chars.sequence_length, "num_sequences": chars.num_sequences}
        corpus |= {f"num_groups_{family}": counts.shape[1] for family, counts in chars.counts.items()}
        corpus["num_nonzeros"] = sum(len(counts.data) for counts in chars.counts.values())
        values = {"corpus": corpus, "targets": judged, "ratios": ratios, "orders": entries}
        results_file.write(f"orderings-{name}", {**about, **rounded(values)})


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    corpus = parser.add_mutually_exclusive_group()
    corpus.add_argument("--corpus", choices=("synthetic",), default="synthetic")
    corpus.add_argument("--dataset", type=Path, help="a built dataset's folder, in place of the synthetic corpus")
    parser.add_argument("--num-sequences", type=int, default=20_000, help="sequences of the synthetic corpus")
    methods = sorted({recipe.method for recipe in RECIPES})
    parser.add_argument("--methods", nargs="+", choices=methods, help="these methods and the references; default: all")
    parser.add_argument("--exact-up-to", type=int, default=400_000, help="above, only some steps are timed")
    parser.add_argument("--write", action="store_true", help="write results/orderings-NAME.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
