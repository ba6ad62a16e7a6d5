"""What refinement for a batch size gains there and costs elsewhere, and its time, beside exact greedy f3.

    python benchmarks/refinement.py [--dataset out/] [--num-sequences 20000 60000] [--write]

Corpora: the built datasets that are named, and synthetic ones of `corpora.py`. Figures are ratios to the exact
greedy with `Objective.f3()` of the same run: the first family's TV in windows, mean / worst, and the largest prefix
deviation. Refining is run twice and the second run timed; the first run, which compiles, stands apart. Processor
seconds of both cores are given too, which say more where the machine is shared.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import corpora
import jax
import numpy as np
import results_file

import jax_diversity as jd

BATCH = 256
OFFSETS = (0, 64, 128, 192, 77)
SIZES = (64, 192, 320, 1024)


def timed(run: Callable[[], jd.Ordering]) -> tuple[jd.Ordering, dict[str, float]]:
    """An ordering and what it took."""
    clock, processor = time.perf_counter(), time.process_time()
    ordering = run()
    seconds = {"seconds": time.perf_counter() - clock, "processor_seconds": time.process_time() - processor}
    return ordering, {name: round(value, 2) for name, value in seconds.items()}


def quality(chars: jd.Characteristics, ordering: jd.Ordering) -> dict[str, tuple[float, float]]:
    """Mean and worst TV by window, as `size@offset`, and the largest prefix deviation."""
    first = chars.families[0]
    found: dict[str, tuple[float, float]] = {}
    for offset in OFFSETS:
        # Only whole windows of the shifted ordering; what is rolled to the end is in none of them.
        shifted = jd.measure(chars, np.roll(ordering.indices, -offset), windows=(BATCH,)).window_tv[first][BATCH]
        tv = shifted[: (len(ordering) - offset) // BATCH]
        found[f"{BATCH}@{offset}"] = float(tv.mean()), float(tv.max())
    balance = jd.measure(chars, ordering, windows=SIZES)
    for size in SIZES:
        tv = balance.window_tv[first][size]
        found[f"{size}@0"] = float(tv.mean()), float(tv.max())
    largest = float(balance.prefix_l2[first].max())
    found["prefix"] = largest, largest
    return found


def ratios(found: dict[str, tuple[float, float]], reference: dict[str, tuple[float, float]]) -> dict[str, list[float]]:
    """Every figure by the reference's."""
    return {
        name: [round(value / by, 4) for value, by in zip(found[name], reference[name], strict=True)] for name in found
    }


def compare(name: str, chars: jd.Characteristics) -> dict[str, Any]:
    """All starts, as they are and refined in both forms."""
    exact, exact_seconds = timed(lambda: jd.order(chars, "greedy", objective=jd.Objective.f3()))
    reference = quality(chars, exact)
    starts = {
        "greedy f3": exact,
        "greedy": jd.order(chars, "greedy"),
        "greedy, windows": jd.order(chars, "greedy", objective=jd.Objective(windows=(BATCH,))),
        "balance, windows": jd.order(chars, "balance", objective=jd.Objective(windows=(BATCH,))),
    }
    print(f"\n{name}: {chars}\nexact greedy f3: {exact_seconds}", flush=True)
    print("".join([" " * 34, *(f"{title:>14}" for title in reference), f"{'s':>8}{'cpu s':>8}{'first s':>8}"]))
    rows = []
    for start, ordering in starts.items():
        rows.append({"start": start, "form": "", "ratios": ratios(quality(chars, ordering), reference)})
        show(rows[-1])
        for form in ("aligned", "sliding"):

            def run(ordering: jd.Ordering = ordering, form: str = form) -> jd.Ordering:
                return jd.refine(chars, ordering, batch_size=BATCH, sliding=form == "sliding")

            _, first = timed(run)
            refined, seconds = timed(run)
            row = {"start": start, "form": form, "ratios": ratios(quality(chars, refined), reference)}
            rows.append({**row, **seconds, "first_seconds": first["seconds"]})
            show(rows[-1])
    return {"corpus": name, "num_sequences": chars.num_sequences, "exact_f3": exact_seconds, "orders": rows}


def show(row: dict[str, Any]) -> None:
    """One line."""
    pairs = "".join(f"{mean:>7.3f}/{worst:.3f} " for mean, worst in row["ratios"].values())
    times = "".join(f"{row[name]:>8}" for name in ("seconds", "processor_seconds", "first_seconds") if name in row)
    print(f"{row['start'] + ' ' + row['form']:<34}{pairs}{times}", flush=True)


def main() -> None:
    """Print the tables; with --write, keep them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", action="append", default=[], help="a built dataset; may be given again")
    parser.add_argument("--num-sequences", type=int, nargs="*", default=[20_000], help="sizes of synthetic corpora")
    parser.add_argument("--write", action="store_true", help="write results/refinement.json")
    options = parser.parse_args()
    tables = [compare(str(path).rstrip("/").split("/")[-1], corpora.from_dataset(path)) for path in options.dataset]
    tables += [compare("synthetic", corpora.synthetic(size)) for size in options.num_sequences]
    if options.write:
        about = results_file.environment("jax", "numpy")
        device = str(jax.devices()[0])
        results_file.write("refinement", {"device": device, **about, "batch_size": BATCH, "corpora": tables})


if __name__ == "__main__":
    main()
