"""What a sample is worth: variance of the mean loss of samples, coverage of intervals, sequences for a precision.

    python benchmarks/samples.py --folder gradients [--names mixed-128 ...] [--seeds 6] [--windows 200] [--write]

`--folder` is that of `benchmarks/gradients.py`. For every NAME.losses.npz there it reads the dataset (NAME without the
size of the model), the sequences `held` that the model was not trained on, and their mean losses at the last step. The
losses of the first step are the reference, and the differences of the two are those of two models.

Samples are windows of an order of the held sequences. A random sample has the variance 1. The orders: stratified by
source; stratified by clusters of the sequences' token counts, as many as sources (k-means); kernel herding, where
coreax is installed; `balance` with the default families, without and with `tokens`, without and with 50 bins of the
reference. The regression estimator on random and on balanced samples stands beside them. Intervals of variances are
those of `explain_values` (a jackknife over documents, and the orders' seeds), for the regression those of the seeds.
Results of a case are kept as NAME.samples.json and not computed again.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import results_file
from scipy import stats
from scipy.sparse import csr_array

import jax_diversity as jd
from jax_diversity.lab.explaining.explain import document_blocks
from jax_diversity.lab.explaining.windows import window_variance
from jax_diversity.lab.sampling.population import find_population
from jax_diversity.lab.sampling.precision import sequences_needed
from jax_diversity.sequences.characteristics.settings import default_families

WINDOWS = (16, 64, 256, 1024)
COVERED = (64, 256, 1024)
MOST_LARGE = 32
"""Windows of 1,024 whose intervals are checked: each takes seconds."""
PRECISION = 0.01
HERDED, HALVES = 1024, 24
Orders = dict[str, list[np.ndarray]]


def weighed(chars: jd.Characteristics) -> jd.Characteristics:
    """The default families with their weights."""
    return chars.with_weights(default_families(dict.fromkeys(chars.families, 2)))


def clustered(chars: jd.Characteristics, num_clusters: int) -> jd.Characteristics:
    """One family: clusters of the sequences by the square roots of their token shares."""
    from sklearn.cluster import KMeans
    from sklearn.decomposition import TruncatedSVD

    shares = chars.counts["tokens"].astype(np.float64)
    shares.data = np.sqrt(shares.data / chars.sequence_length)
    vectors = TruncatedSVD(64, random_state=0).fit_transform(shares)
    labels = KMeans(num_clusters, random_state=0).fit_predict(vectors)
    return one_family("k-means", labels, chars)


def one_family(name: str, labels: np.ndarray, chars: jd.Characteristics) -> jd.Characteristics:
    """Counts whose only family puts all tokens of a sequence into its group."""
    rows = np.arange(len(labels))
    return jd.Characteristics.from_counts({name: csr_array((chars.tokens, (rows, labels)))})


def herding(chars: jd.Characteristics, values: np.ndarray, num_halves: int) -> dict[str, Any]:
    """Window size -> variance of the mean of the first sequences that coreax's kernel herding chooses.

    Herding gives one sample of a population. So it chooses from random halves of the sequences, and the mean of each
    half is the truth. The result is empty if coreax is not installed.
    """
    if importlib.util.find_spec("coreax") is None:
        return {}
    import jax.numpy as jnp
    from coreax import Data  # pyright: ignore[reportMissingImports]
    from coreax.kernels import SquaredExponentialKernel  # pyright: ignore[reportMissingImports]
    from coreax.solvers import KernelHerding  # pyright: ignore[reportMissingImports]
    from sklearn.decomposition import TruncatedSVD

    shares = chars.counts["tokens"].astype(np.float64) / chars.sequence_length
    vectors = TruncatedSVD(32, random_state=0).fit_transform(shares)
    vectors /= vectors.std(axis=0)
    distances = np.linalg.norm(vectors[:500, None] - vectors[None, 500:1000], axis=-1)
    kernel = SquaredExponentialKernel(length_scale=float(np.median(distances)))
    ratios: dict[str, list[float]] = {}
    number = len(values) // 2
    for seed in range(num_halves):
        rows = np.random.default_rng(seed).permutation(len(values))[:number]
        solver = KernelHerding(coreset_size=min(HERDED, number // 2), kernel=kernel, unique=True)
        coreset, _ = solver.reduce(Data(jnp.asarray(vectors[rows], jnp.float32)))
        chosen = values[rows][np.asarray(coreset.unweighted_indices)]
        for size in (size for size in WINDOWS if size <= len(chosen)):
            expected = values[rows].var() / size * (number - size) / (number - 1)
            error = chosen[:size].mean() - values[rows].mean()
            ratios.setdefault(str(size), []).append(float(error**2 / expected))
    return {size: of_seeds(each) for size, each in ratios.items()}


def of_seeds(ratios: list[float]) -> dict[str, float]:
    """The mean of the seeds' ratios, and its 95 % interval."""
    mean, spread = float(np.mean(ratios)), float(np.std(ratios, ddof=1) / np.sqrt(len(ratios)))
    reach = spread * float(stats.t.ppf(0.975, len(ratios) - 1))
    return {"value": mean, "low": mean - reach, "high": mean + reach}


def make_orders(chars: jd.Characteristics, reference: np.ndarray, num_seeds: int) -> Orders:
    """The orders of every kind."""
    seeds = range(num_seeds)
    without = chars.with_weights({**chars.weights, "tokens": 0.0})
    orders: Orders = {}
    if "source" in chars.families:
        sources = jd.Characteristics.from_counts({"source": chars.counts["source"]})
        orders["stratified by source"] = [jd.order(sources, "stratified", seed=seed).indices for seed in seeds]
    number = chars.counts["source"].shape[1] if "source" in chars.families else 16
    clusters = clustered(chars, number)
    orders["stratified by k-means"] = [jd.order(clusters, "stratified", seed=seed).indices for seed in seeds]
    balanced = {
        "balance without tokens": without,
        "balance": chars,
        "balance without tokens, with reference": with_reference(without, reference),
        "balance with reference": with_reference(chars, reference),
    }
    for name, counts in balanced.items():
        orders[name] = [jd.order(counts, seed=seed).indices for seed in seeds]
    orders["random"] = [np.random.default_rng(seed).permutation(chars.num_sequences) for seed in seeds]
    return orders


def with_reference(chars: jd.Characteristics, reference: np.ndarray) -> jd.Characteristics:
    """The counts with the bins of the reference, as `jd.sample(values=...)` adds them."""
    return find_population(chars, None).with_values({"reference": reference}).characteristics


def variances(values: np.ndarray, orders: Orders, blocks: np.ndarray) -> dict[str, Any]:
    """Order -> window size -> variance of the window's mean with its interval."""
    sizes = [size for size in WINDOWS if 4 * size <= len(values)]
    return {
        name: {str(size): window_variance(values[:, None], of, size, blocks)._asdict() for size in sizes}
        for name, of in orders.items()
    }


def regression(values: np.ndarray, reference: np.ndarray, orders: list[np.ndarray]) -> dict[str, Any]:
    """Window size -> variance of the regression estimator; the interval is that of the seeds."""
    found = {}
    number = len(values)
    for size in (size for size in WINDOWS if 4 * size <= number):
        ratios = []
        for order in orders:
            rows = order[: number // size * size].reshape(-1, size)
            y, x = values[rows], reference[rows]
            centred = x - x.mean(axis=1, keepdims=True)
            slope = (centred * y).sum(axis=1) / (centred**2).sum(axis=1)
            estimates = y.mean(axis=1) - slope * (x.mean(axis=1) - reference.mean())
            expected = values.var() / size * (number - size) / (number - 1)
            ratios.append(float(((estimates - values.mean()) ** 2).mean() / expected))
        found[str(size)] = of_seeds(ratios)
    return found


def coverage(
    values: np.ndarray, reference: np.ndarray | None, orders: list[np.ndarray], whole: jd.Sample, most: int
) -> dict[str, Any]:
    """Window size -> how many of the 95 % intervals of windows hold the mean, and the said by the true error."""
    found = {}
    for size in (size for size in COVERED if 4 * size <= len(values)):
        windows = [order[start : start + size] for order in orders for start in range(0, len(order) - size + 1, size)]
        chosen = np.random.default_rng(0).permutation(len(windows))[: most if size < max(COVERED) else MOST_LARGE]
        estimates = []
        for rows in (windows[index] for index in chosen.tolist()):
            sample = replace(whole, positions=rows.copy(), characteristics=whole.characteristics.take(rows))
            estimates.append(jd.estimate(values[rows], sample, reference))
        truth = float(values.mean())
        errors = np.array([each.mean - truth for each in estimates])
        said = np.array([each.error for each in estimates])
        found[str(size)] = {
            "holds": float(np.mean([each.low <= truth <= each.high for each in estimates])),
            "num_intervals": len(estimates),
            "said_by_true": float(np.sqrt((said**2).mean() / (errors**2).mean())),
        }
    return found


def measured(name: str, folder: Path, num_seeds: int, most: int) -> dict[str, Any]:
    """All figures of a dataset."""
    start = time.perf_counter()
    stored = np.load(folder / f"{name}.losses.npz", allow_pickle=False)
    steps = sorted(int(key.removeprefix("losses_")) for key in stored.files if key.startswith("losses_"))
    losses, reference = (stored[f"losses_{step}"].astype(np.float64) for step in (steps[-1], steps[0]))
    held, dataset = stored["held"], jd.open_dataset(folder / name.removesuffix("-mini"))
    everything = dataset.characteristics
    chars = weighed(everything.take(held))
    blocks, difference = document_blocks(chars), losses - reference
    orders = make_orders(chars, reference, num_seeds)
    found: dict[str, Any] = {
        "num_sequences": len(held),
        "steps": [steps[0], steps[-1]],
        "correlation": float(np.corrcoef(losses, reference)[0, 1]),
        "variance": variances(losses, orders, blocks),
        "variance_of_difference": variances(
            difference, {key: of for key, of in orders.items() if "reference" not in key}, blocks
        ),
        "regression": {key: regression(losses, reference, orders[key]) for key in ("random", "balance")},
    }
    if herded := herding(chars, losses, HALVES):
        found["herding"] = herded
    whole = jd.Sample.of(chars, np.arange(len(held)))
    cases: dict[str, tuple[np.ndarray, np.ndarray | None]] = {
        "loss": (losses, None),
        "difference": (difference, None),
        "loss with reference": (losses, reference),
    }
    found["coverage"] = {
        key: {case: coverage(*of, orders[key], whole, most) for case, of in cases.items()}
        for key in ("balance", "random")
    }
    found["needed"] = needed(dataset, everything, held, losses, reference)
    found["seconds"] = round(time.perf_counter() - start)
    return found


def needed(
    dataset: jd.Dataset, everything: jd.Characteristics, held: np.ndarray, losses: np.ndarray, reference: np.ndarray
) -> dict[str, Any]:
    """Tokens of the whole dataset for the precision: of the loss, of the difference, and with a reference."""
    pilot = jd.Sample.of(everything, held)
    slope = float(np.polyfit(reference, losses, 1)[0])
    cases = {"loss": losses, "difference": losses - reference, "loss with reference": losses - slope * reference}
    found = {key: sequences_needed(everything, PRECISION, values, pilot) for key, values in cases.items()}
    length = dataset.sequence_length
    return {key: {"balanced": each.balanced * length, "random": each.random * length} for key, each in found.items()}


def tables(results: dict[str, Any]) -> str:
    """All figures in Markdown."""
    sizes = [str(size) for size in WINDOWS]
    parts = []
    for what, row in (("variance", "mean loss"), ("variance_of_difference", "difference of two checkpoints")):
        lines = [
            f"| variance of the {row}, random = 1; windows of {', '.join(sizes)} | {' | '.join(results)} |",
            "|---|" + "---|" * len(results),
        ]
        names = dict.fromkeys(key for found in results.values() for key in found[what])
        lines += [_row(name, [found[what].get(name, {}) for found in results.values()], sizes) for name in names]
        if what == "variance":
            for key in ("random", "balance"):
                cells = [found["regression"][key] for found in results.values()]
                lines.append(_row(f"{key}, regression on the reference", cells, sizes))
            if any("herding" in found for found in results.values()):
                cells = [found.get("herding", {}) for found in results.values()]
                lines.append(_row("kernel herding", cells, sizes))
        parts.append("\n".join(lines))
    lines = [f"| intervals of 95 % that hold the mean | {' | '.join(results)} |", "|---|" + "---|" * len(results)]
    for key in ("balance", "random"):
        for case in ("loss", "difference", "loss with reference"):
            cells = (
                " ".join(
                    f"{100 * each['holds']:.0f} % ({each['num_intervals']})"
                    for each in found["coverage"][key][case].values()
                )
                for found in results.values()
            )
            lines.append(f"| {key}, {case} | {' | '.join(cells)} |")
    parts.append("\n".join(lines))
    lines = [f"| tokens for ± {PRECISION} | {' | '.join(results)} |", "|---|" + "---|" * len(results)]
    for case in ("loss", "difference", "loss with reference"):
        for key in ("balanced", "random"):
            cells = (f"{found['needed'][case][key]:,}" for found in results.values())
            lines.append(f"| {case}, {key} | {' | '.join(cells)} |")
    parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _row(name: str, columns: list[dict[str, Any]], sizes: list[str]) -> str:
    cells = ("; ".join(_cell(of[size]) for size in sizes if size in of) for of in columns)
    return f"| {name} | {' | '.join(cells)} |"


def _cell(each: dict[str, float]) -> str:
    value, reach = (f"{number:.2f}".removeprefix("0") for number in (each["value"], (each["high"] - each["low"]) / 2))
    return f"{value} ± {reach}"


def main() -> None:
    """Measure every dataset of the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("gradients"))
    parser.add_argument("--names", nargs="*")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--windows", type=int, default=200, help="windows whose intervals are checked, of each size")
    parser.add_argument("--cache", type=Path, help="folder of the results of every case; by default --folder")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    names = options.names or sorted(
        path.name.removesuffix(".losses.npz") for path in options.folder.glob("*.losses.npz")
    )
    results: dict[str, Any] = {}
    for name in names:
        path = (options.cache or options.folder) / f"{name}.samples.json"
        if not path.exists():
            found = measured(name, options.folder, options.seeds, options.windows)
            path.write_text(json.dumps(found), encoding="utf-8")
        results[name] = json.loads(path.read_text(encoding="utf-8"))
        print(f"{name}: {results[name]['seconds']} s", flush=True)
    print(tables(results))
    if options.write:
        results_file.write("samples", {**results_file.environment("jax", "numpy", "scipy"), "results": results})


if __name__ == "__main__":
    main()
