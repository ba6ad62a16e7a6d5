"""Our orders compared with those of coreax (kernel herding) and GraB (gradient balancing), on the same sequences.

    pip install --no-deps -r benchmarks/requirements.txt      # into the environment of `make lint`
    python benchmarks/peers.py [--num-sequences 8000] [--write]

All methods order the synthetic corpus of `corpora.py`. The other libraries read it as dense float32 rows `c_s / L`
(1,000 clusters and 100 length bins), the only form that they accept; our orders use sparse counts. Everything runs in
one process on the same cores.

- coreax's `KernelHerding` with the linear kernel, a coreset of all rows and `unique=True` (a row is chosen only
  once), jitted as in its own timing script (`eqx.filter_jit(solver.reduce)`). The coreset's indices are in
  the order of choice, which is its ordering. It chooses the smallest `2 <D, v_s> - 2 <μ, v_s>`, which
  is the published greedy rule (f3) without `||c_s||²`. It is compared with `greedy` and `Objective.f3()`, which has the
  same columns.
- grab-sampler's `MeanBalance`, the published GraB (Lu, Guo, De Sa, NeurIPS 2022, https://arxiv.org/abs/2205.10733): it
  reads every row as if it were a gradient, in ten passes, and its next order is compared. `PairBalance`, its successor,
  is compared too; it does not need the mean of the last pass. Both are called as in the package's `GraBSampler`, which
  itself fails with current versions of torch. They are compared in every measure with `greedy` and, if it exists,
  `balance`.

The prefix deviation at a position is the norm over the columns of both families, which f3 and kernel herding minimise.
Seconds are the best of three runs. CPU seconds are the sum over all threads of the best run (other work on the machine
hardly changes them). Compilation is timed separately: for coreax by compiling first, for ours as the
extra time of an earlier run; the loop of `greedy` was already compiled for f3.
"""

from __future__ import annotations

import argparse
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import corpora
import numpy as np
import results_file

import jax_diversity as jd
from jax_diversity.ordering.base import METHODS

WINDOWS = (64, 256, 1024)
REPEATS = 3
PASSES = 10
AVERAGED = 256  # positions over which two prefix curves are averaged before they are compared
ROWS_PER_STEP = 256  # rows that GraB reads at a time; the result does not depend on this number
WINDOW_MEASURES = (
    "tv_mean",
    "tv_worst",
    "tv_mean_shifted",
    "tv_worst_shifted",
    "l2_worst",
    "max_share_deviation",
)


@dataclass(frozen=True)
class Run:
    """An order and its time."""

    indices: np.ndarray
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    compile_seconds: float = 0.0


def timed(compute: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return a result, the seconds of the best run and its CPU seconds."""
    result, runs = None, []
    for _ in range(REPEATS):
        start, cpu_start = time.perf_counter(), time.process_time()
        result = compute()
        runs.append((time.perf_counter() - start, time.process_time() - cpu_start))
    return result, *min(runs)


def dense_rows(chars: jd.Characteristics) -> np.ndarray:
    """`c_s / L` of all families side by side, float32 (sequence, group)."""
    families = [chars.counts[family].toarray() for family in chars.families]
    return (np.hstack(families) / chars.sequence_length).astype(np.float32)


def run_ours(chars: jd.Characteristics, method: str, objective: jd.Objective | None = None) -> Run:
    """Run all of `jd.order`, including its tables."""
    start = time.perf_counter()
    jd.order(chars, method, objective=objective)
    first = time.perf_counter() - start
    ordering, seconds, cpu_seconds = timed(lambda: jd.order(chars, method, objective=objective))
    return Run(ordering.indices, seconds, cpu_seconds, max(first - seconds, 0.0))


def run_coreax(rows: np.ndarray) -> Run:
    import equinox
    import jax.numpy as jnp
    from coreax import Data
    from coreax.kernels import LinearKernel
    from coreax.solvers import KernelHerding

    solver = KernelHerding(coreset_size=len(rows), kernel=LinearKernel(), unique=True)
    points = Data(jnp.asarray(rows))
    jitted: Any = equinox.filter_jit(solver.reduce)
    start = time.perf_counter()
    reduce = jitted.lower(points).compile()
    compile_seconds = time.perf_counter() - start
    indices, seconds, cpu_seconds = timed(lambda: np.asarray(reduce(points)[0].unweighted_indices))
    return Run(indices.astype(np.int64), seconds, cpu_seconds, compile_seconds)


def run_grab(rows: np.ndarray, name: str, seed: int = 0) -> Run:
    """The order after ten passes over unchanged rows, with torch on the processor."""
    # The package imports torch_sparse for a projection that is not used here; torch_sparse takes many minutes to build.
    torch_sparse = types.ModuleType("torch_sparse")
    torch_sparse.__dict__["SparseTensor"] = object
    sys.modules.setdefault("torch_sparse", torch_sparse)
    import torch
    from grabsampler import sorter

    gradients = torch.from_numpy(rows)

    def balance_passes() -> np.ndarray:
        torch.manual_seed(seed)  # the seed of the first order
        balancing = getattr(sorter, name)(*rows.shape, device="cpu")
        for _ in range(PASSES):
            balancing.reset_epoch()
            for part in balancing.orders.split(ROWS_PER_STEP):
                balancing.step({"row": gradients[part]})
        balancing.reset_epoch()
        return balancing.orders.numpy().copy()

    return Run(*timed(balance_passes))


def flat_measures(chars: jd.Characteristics, run: Run) -> dict[str, float]:
    """Every measure of an order by name, smaller is better; a window size's half offset is `shifted`."""
    balance = jd.measure(chars, run.indices, windows=[size for size in WINDOWS if size <= chars.num_sequences])
    summary = balance.summary()
    values = {}
    for family, measured in summary["families"].items():
        values[f"{family} prefix max"] = measured["prefix_l2_max"]
        values[f"{family} prefix mean"] = float(balance.prefix_l2[family].mean())
        for size, window in measured["windows"].items():
            named = {f"{family} {size} {name}": window[name] for name in WINDOW_MEASURES}
            values.update({name: value for name, value in named.items() if value is not None})
    values["norm drift max"] = summary["norm_drift_max"]
    return values


def joint_prefix(chars: jd.Characteristics, run: Run) -> np.ndarray:
    """Prefix deviation over both families' columns at every position, in sequence lengths."""
    families = jd.measure(chars, run.indices, windows=()).prefix_l2
    return np.sqrt(np.sum([deviation**2 for deviation in families.values()], axis=0))


def compare_prefixes(chars: jd.Characteristics, ours: Run, peer: Run) -> dict[str, float]:
    """Compare ours with a peer: the curves and their running maxima, position by position."""
    our_curve, peer_curve = joint_prefix(chars, ours), joint_prefix(chars, peer)
    rounding = 1e-9  # both curves end at zero
    running = np.maximum.accumulate(our_curve) > np.maximum.accumulate(peer_curve) + rounding
    whole = len(our_curve) // AVERAGED * AVERAGED
    our_means, peer_means = (curve[:whole].reshape(-1, AVERAGED).mean(axis=1) for curve in (our_curve, peer_curve))
    return {
        "ours_max": float(our_curve.max()),
        "peer_max": float(peer_curve.max()),
        "ours_mean": float(our_curve.mean()),
        "peer_mean": float(peer_curve.mean()),
        "share_of_positions_ours_worse": float((our_curve > peer_curve + rounding).mean()),
        "largest_excess_of_ours": float((our_curve - peer_curve).max()),
        "largest_excess_of_peer": float((peer_curve - our_curve).max()),
        "share_of_positions_running_maximum_worse": float(running.mean()),
        f"share_of_means_of_{AVERAGED}_positions_ours_worse": float((our_means > peer_means).mean()),
    }


def run_all(chars: jd.Characteristics) -> dict[str, Run]:
    """Every order by its label."""
    rows = dense_rows(chars)
    shuffle = jd.order(chars, "uniform_shuffle").indices
    runs = {"uniform shuffle": Run(shuffle)}
    runs["coreax herding"] = run_coreax(rows)
    runs["GraB mean"] = run_grab(rows, "MeanBalance")
    if len(rows) % 2 == 0:  # pairs
        runs["GraB pair"] = run_grab(rows, "PairBalance")
    runs["greedy f3"] = run_ours(chars, "greedy", jd.Objective.f3())
    for method in ("greedy", "balance"):
        if method in METHODS:
            runs[method] = run_ours(chars, method)
    return runs


def print_table(runs: dict[str, Run], measures: dict[str, dict[str, float]]) -> None:
    """A table with one column per order."""
    width = max(map(len, next(iter(measures.values())))) + 2
    print(" " * width + "".join(f"{label:>16}" for label in runs))
    times = {"seconds": "seconds", "CPU seconds": "cpu_seconds", "seconds to compile": "compile_seconds"}
    for title, field in times.items():
        print(f"{title:<{width}}" + "".join(f"{getattr(run, field):>16.2f}" for run in runs.values()))
    for name in next(iter(measures.values())):
        print(f"{name:<{width}}" + "".join(f"{measures[label][name]:>16.4f}" for label in runs))


def compare(chars: jd.Characteristics, runs: dict[str, Run], measures: dict[str, Any]) -> dict[str, Any]:
    """Ratios and verdicts against both peers."""
    herding, greedy = runs["coreax herding"], runs["greedy f3"]
    with_compilation = (herding.seconds + herding.compile_seconds) / (greedy.seconds + greedy.compile_seconds)
    against_coreax = {
        "times_faster": round(herding.seconds / greedy.seconds, 1),
        "times_less_cpu": round(herding.cpu_seconds / greedy.cpu_seconds, 1),
        "times_faster_with_compilation": round(with_compilation, 1),
        **compare_prefixes(chars, greedy, herding),
    }
    against_grab = {}
    for peer in (label for label in runs if label.startswith("GraB")):
        for ours in (label for label in ("greedy f3", "greedy", "balance") if label in runs):
            ratios = {name: value / measures[peer][name] for name, value in measures[ours].items()}
            against_grab[f"{ours} / {peer}"] = {
                "times_faster": round(runs[peer].seconds / runs[ours].seconds, 1),
                "times_less_cpu": round(runs[peer].cpu_seconds / runs[ours].cpu_seconds, 1),
                "num_measures": len(ratios),
                "largest_ratio": round(max(ratios.values()), 3),
                "not_better": sorted(name for name, ratio in ratios.items() if ratio >= 1),
            }
    return {"greedy f3 / coreax": against_coreax, **against_grab}


def main() -> None:
    """Print the table; with --write, store it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-sequences", type=int, default=8000)
    parser.add_argument("--write", action="store_true", help="write results/peers.json")
    arguments = parser.parse_args()
    packages = ("jax", "coreax", "equinox", "torch", "grab-sampler", "numpy")
    about = results_file.environment(*packages)  # the load of the machine without this benchmark
    chars = corpora.synthetic(arguments.num_sequences)
    runs = run_all(chars)
    measures = {label: flat_measures(chars, run) for label, run in runs.items()}
    print_table(runs, measures)
    comparisons = compare(chars, runs, measures)
    for label, values in comparisons.items():
        print(f"\n{label}")
        for name, value in values.items():
            print(f"  {name:<44}{value if not isinstance(value, float) else round(value, 4)}")
    if arguments.write:
        import jax

        orders = {
            label: {
                "seconds": round(run.seconds, 3),
                "cpu_seconds": round(run.cpu_seconds, 3),
                "compile_seconds": round(run.compile_seconds, 2),
                **{name: round(value, 5) for name, value in measures[label].items()},
            }
            for label, run in runs.items()
        }
        corpus = {"num_sequences": chars.num_sequences, "sequence_length": chars.sequence_length, "seed": 0}
        values = {"corpus": corpus, "passes_of_grab": PASSES, "comparisons": comparisons, "orders": orders}
        results_file.write("peers", {"device": str(jax.devices()[0]), **about, **values})


if __name__ == "__main__":
    main()
