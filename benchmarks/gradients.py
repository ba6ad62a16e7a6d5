"""What orders give a model's gradients: shares explained by each family, and the variance of real batches.

    python benchmarks/gradients.py [--corpora packages synthetic FOLDER] [--lengths 128 512] [--steps 400 2000]
                                   [--loss-steps 400] [--sequences 8192] [--size tiny]
                                   [--folder gradients] [--write]

Every corpus is packed at every length, with a vocabulary of 2,048. The lab's GPT (`tiny` has 230,000 parameters, `mini`
2.2 million) is trained on a shuffle with 4,096 tokens a step. Then the gradients of random sequences that it was not
trained on are explained. (Held-out documents would include languages and sources that training lacks; their few large
gradients decide the variance.) The orders are `balance` with the default families but for `tokens`, with all default
families, and shuffles; three seeds each. The corpora: `packages`, the texts of the installed Python packages, as in the
demonstration; `synthetic`, documents of 50 topics whose words are drawn at random; and any folder of texts.

`--folder` keeps datasets, sketches of gradients and losses of the sequences, and the results of each case. What exists
there is not computed again. At `--loss-steps` only the losses are stored, for other benchmarks. Without the file
`CASE.json` the orders of a case are measured again from its sketches. All cases in the folder are printed and stored.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import results_file

import jax_diversity as jd
from evidence.settings import SIZES, TrialConfig
from evidence.trial import learning_rate
from jax_diversity.foundation.settings import settings_from_plain
from jax_diversity.lab.compiled import compiled_model
from jax_diversity.lab.explaining.checkpoint import gpt_loss
from jax_diversity.lab.explaining.explain import ALL, SKETCH_SIZE, Explanation, explain_sketches
from jax_diversity.lab.explaining.sketching import Sketches, sketch_gradients
from jax_diversity.lab.trainer import Trainer
from jax_diversity.lab.training import FIELDS
from jax_diversity.pipeline.build import Build
from jax_diversity.pipeline.settings import BuildConfig
from jax_diversity.preparation.settings import PYTHON_ENVIRONMENT
from jax_diversity.sequences.characteristics.settings import default_families

VOCAB_SIZE, TOKENS_PER_STEP, BATCH_SIZE = 2048, 4096, 256
SEEDS = (0, 1, 2)
KINDS = ("raw", "adam", "loss")
NUM_TOPICS, NUM_WORDS, NUM_DOCUMENTS = 50, 6000, 24_000
ROWS = 64


def write_synthetic(folder: Path) -> None:
    """Write documents of 50 topics of unequal size; a topic prefers its own words, and both follow Zipf's law."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    letters = np.array(list("aeiouaeionrtslcdmpghbfvkwz"))
    words = np.array(["".join(rng.choice(letters, rng.integers(2, 9))) for _ in range(NUM_WORDS)])
    common = 1 / np.arange(2, NUM_WORDS + 2)
    topics = np.stack([rng.permutation(1 / np.arange(2, NUM_WORDS + 2)) for _ in range(NUM_TOPICS)])
    shares = 0.6 * common / common.sum() + 0.4 * topics / topics.sum(axis=1, keepdims=True)
    popular = 1 / np.arange(3, NUM_TOPICS + 3)
    with (folder / "documents.jsonl").open("w", encoding="utf-8") as file:
        for number in range(NUM_DOCUMENTS):
            topic = int(rng.choice(NUM_TOPICS, p=popular / popular.sum()))
            length = int(np.clip(rng.lognormal(4.6, 1.1), 8, 8000))
            text = " ".join(words[rng.choice(NUM_WORDS, length, p=shares[topic])])
            file.write(json.dumps({"id": str(number), "text": text, "source": f"topic {topic % 5}"}) + "\n")


def build(corpus: str, length: int, folder: Path, packing: dict[str, Any] | None = None) -> jd.Dataset:
    """Build the dataset of a corpus at a sequence length, without orderings and validation documents."""
    if corpus == "packages":
        settings: dict[str, Any] = {"paths": [PYTHON_ENVIRONMENT], "max_bytes": 25_165_824}
    elif corpus == "synthetic":
        if not (folder / "synthetic-texts").exists():
            write_synthetic(folder / "synthetic-texts")
        settings = {"paths": [str(folder / "synthetic-texts" / "documents.jsonl")]}
    else:
        settings = {"paths": sorted(map(str, Path(corpus).glob("*.jsonl*"))), "source_field": "domain"}
    out = folder / f"{Path(corpus).name}-{length}"
    plain = {
        "corpus": settings,
        "tokenizer": {"vocab_size": VOCAB_SIZE, "train_bytes": 8_388_608},
        "cluster": {"num_clusters": 200},
        "packing": {"sequence_length": length, "validation_fraction": 0.0, **(packing or {})},
        "characteristics": {"length_bins": 20},
        "out": str(out),
        "orders": [],
    }
    Build(settings_from_plain(BuildConfig, plain, corpus)).run_all()
    return jd.open_dataset(out)


class Shuffled:
    """Batches of random sequences, for the lab's trainer; a new permutation when all were read."""

    def __init__(self, dataset: jd.Dataset, sequences: np.ndarray, batch_size: int) -> None:
        self.dataset, self.batch_size = dataset, batch_size
        passes = [np.random.default_rng(seed).permutation(sequences) for seed in range(64)]
        self.order = np.concatenate(passes)

    def give(self, step: int) -> dict[str, np.ndarray]:
        rows = self.order[step * self.batch_size : (step + 1) * self.batch_size]
        return dict(self.dataset.records.read_sequences(rows, fields=FIELDS))


def explain(dataset: jd.Dataset, sketches: Sketches, sequences: np.ndarray) -> Explanation:
    """Explain the gradients of some sequences, and measure the three orders."""
    chars = dataset.characteristics.take(sequences)
    weights = default_families(dict.fromkeys(chars.families, 2))
    chars, before = chars.with_weights(weights), chars.with_weights({**weights, "tokens": 0.0})
    orders = {
        "default without tokens": [jd.order(before, seed=seed) for seed in SEEDS],
        "default": [jd.order(chars, seed=seed) for seed in SEEDS],
        "uniform_shuffle": [jd.order(chars, method="uniform_shuffle", seed=seed) for seed in SEEDS],
    }
    return explain_sketches(sketches, chars, orders=orders, batch_size=BATCH_SIZE)


def sketched(
    dataset: jd.Dataset, size: str, steps: list[int], loss_steps: list[int], held: np.ndarray, path: Path
) -> dict[int, Sketches]:
    """Train, sketch the gradients at `steps`, and store the losses at these and at `loss_steps`.

    Nothing is computed if the files of all steps exist.
    """
    files = {step: path.with_name(f"{path.name}-{step}.sketches.npz") for step in sorted(steps)}
    losses_file = path.with_name(f"{path.name}.losses.npz")
    if not losses_file.exists() or not all(file.exists() for file in files.values()):
        trained_on = np.setdiff1d(np.arange(dataset.num_sequences), held)
        batches = [
            dict(dataset.records.read_sequences(held[start : start + ROWS], fields=FIELDS))
            for start in range(0, len(held), ROWS)
        ]
        loss = gpt_loss(dataset.vocab_size, SIZES["gpt"][size])
        mean_losses = jax.jit(jax.vmap(loss, in_axes=(None, 0)))
        source = Shuffled(dataset, trained_on, TOKENS_PER_STEP // dataset.sequence_length)
        trainer = Trainer(compiled_model(dataset.vocab_size, SIZES["gpt"][size]), source.give, seed=0)
        rate = partial(learning_rate, TrialConfig(), max(*steps, *loss_steps))
        first, losses = 0, {}
        for step in sorted({*steps, *loss_steps}):
            start = time.perf_counter()
            for taken in trainer.steps(first, step, rate):
                jax.block_until_ready(taken.result)
            trained, first = time.perf_counter(), step
            if step in files:
                found = sketch_gradients(
                    loss, trainer.parameters, batches, batch_size=BATCH_SIZE, sketch_size=SKETCH_SIZE, seed=0
                )
                np.savez(files[step], **found._asdict())
                losses[f"losses_{step}"] = found.losses
            else:
                parts = [np.asarray(mean_losses(trainer.parameters, batch)) for batch in batches]
                losses[f"losses_{step}"] = np.concatenate(parts)
            took = (trained - start, time.perf_counter() - trained)
            print(f"{path.name}, step {step}: trained in {took[0]:.0f} s, measured in {took[1]:.0f} s", flush=True)
        np.savez(losses_file, allow_pickle=False, held=held, **losses)
    return {step: Sketches(**np.load(file)) for step, file in files.items()}


def measured(corpus: str, length: int, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Train to every step and explain the gradients there."""
    dataset = build(corpus, length, folder)
    split = np.random.default_rng(1).permutation(dataset.num_sequences)
    # Sorted: records are read almost in the order of the files.
    held = np.sort(split[: min(options.sequences, dataset.num_sequences // 3)])
    name = case_name(corpus, length, options.size)
    read = sketched(dataset, options.size, options.steps, options.loss_steps, held, folder / name)
    found: dict[str, Any] = {"num_training_sequences": dataset.num_sequences - len(held)}
    for step, sketches in read.items():
        start = time.perf_counter()
        explained = explain(dataset, sketches, held)
        print(f"\n{name}, step {step}: {explained}\n{time.perf_counter() - start:.0f} s\n", flush=True)
        found[str(step)] = {
            "num_sequences": explained.num_sequences,
            "noise_scale": explained.noise_scale,
            "num_groups": dict(explained.num_groups),
            "shares": {
                kind: {name: each._asdict() for name, each in of.items()} for kind, of in explained.shares.items()
            },
            "windows": {
                kind: {name: {str(size): each._asdict() for size, each in sizes.items()} for name, sizes in of.items()}
                for kind, of in explained.windows.items()
            },
        }
    return found


def case_name(corpus: str, length: int, size: str) -> str:
    """The name of a case, such as `mixed-128` or `mixed-128-mini`."""
    return f"{Path(corpus).name}-{length}" + ("" if size == "tiny" else f"-{size}")


def tables(results: dict[str, Any]) -> str:
    """Both tables of the documentation, in Markdown: explained shares, and the variance of windows before and after."""
    families = ("cluster", "length", "source", "language", "tokens", ALL)
    lines = [f"| corpus, L, step | {' | '.join(families)} | noise scale |", "|---|" + "---|" * (len(families) + 1)]
    for name, found in results.items():
        for step in (key for key in found if key.isdigit()):
            shares = found[step]["shares"]["raw"]
            cells = [_cell(shares[family]) if family in shares else "" for family in families]
            lines.append(f"| {name}, {step} | {' | '.join(cells)} | {found[step]['noise_scale']:,.0f} |")
    sizes = ("16", "64", "256", "1024")
    lines += ["", f"| corpus, L, step | order | {' | '.join(f'{kind} {size}' for kind in KINDS for size in sizes)} |"]
    lines.append("|---|---|" + "---|" * (len(KINDS) * len(sizes)))
    for name, found in results.items():
        for step in (key for key in found if key.isdigit()):
            for order in ("default without tokens", "default"):
                windows = [found[step]["windows"][kind][order] for kind in KINDS]
                cells = [_cell(each[size]) if size in each else "" for each in windows for size in sizes]
                lines.append(f"| {name}, {step} | {order} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(estimate: dict[str, float]) -> str:
    reach = (estimate["high"] - estimate["low"]) / 2
    return f"{estimate['value']:.3f} ± {reach:.3f}".replace("0.", ".")


def main() -> None:
    """Measure every corpus at every length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", nargs="+", default=["packages", "synthetic"])
    parser.add_argument("--lengths", nargs="+", type=int, default=[128, 512])
    parser.add_argument("--steps", nargs="*", type=int, default=[400, 2000])
    parser.add_argument("--loss-steps", nargs="*", type=int, default=[])
    parser.add_argument("--sequences", type=int, default=8192)
    parser.add_argument("--size", choices=("tiny", "mini"), default="tiny")
    parser.add_argument("--folder", default="gradients")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    folder = Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    for corpus in options.corpora:
        for length in options.lengths:
            path = folder / f"{case_name(corpus, length, options.size)}.json"
            if not path.exists():
                found = measured(corpus, length, options, folder)
                if options.steps:
                    path.write_text(json.dumps(found), encoding="utf-8")
    results = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("*.json"))
        if "." not in path.stem
    }
    print(tables(results))
    if options.write:
        conditions = results_file.environment("jax", "jaxlib", "numpy", "flax")
        results_file.write("gradients", {**conditions, "device": jax.devices()[0].device_kind, "results": results})


if __name__ == "__main__":
    main()
