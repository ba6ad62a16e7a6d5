"""How well held-out documents stand for a corpus: the loss of documents that are chosen by hash, and for the mixture.

    python benchmarks/held_out.py [--corpora packages synthetic FOLDER] [--folder held_out] [--write]

Three documents of ten are set aside by a hash. The lab's `tiny` GPT is trained for 1,000 steps of 4,096 tokens on the
others, in a shuffle. The documents that were set aside are then a corpus whose loss is known for every document. From
it, a part is chosen again and again, with other seeds: by a hash, and so that it has the mixture of the corpus. The
result is the variance of the part's mean loss around the mean loss of the corpus, the same for the mean that an
`Evaluator` gives, which is calibrated on the lengths and groups of all documents, and how many of its intervals hold
the mean loss of the documents up to the longest of the part. Files in `--folder` are kept and read again.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import gradients
import numpy as np
import results_file

import jax_diversity as jd
from evidence.settings import SIZES, TrialConfig
from evidence.trial import learning_rate
from jax_diversity.lab.calibration import Composition, Family, calibrated_mean, length_bins, tokens_by_group
from jax_diversity.lab.compiled import CompiledModel, compiled_model
from jax_diversity.lab.group_losses import groups_of_segments
from jax_diversity.lab.trainer import Trainer
from jax_diversity.lab.training import FIELDS
from jax_diversity.schema.intervals import LEAST, student_reach
from jax_diversity.sequences.packing.held_out import choose
from jax_diversity.sequences.packing.split import unit_counts

LENGTH, NUM_STEPS, SET_ASIDE, ROWS = 128, 1000, 0.3, 64
FRACTIONS, NUM_CHOICES = (0.02, 0.05, 0.2), 100
PARTS = ("hash", "balanced")


def document_losses(dataset: jd.Dataset, model: CompiledModel, parameters: object) -> tuple[np.ndarray, np.ndarray]:
    """Return the summed loss and the number of targets of every document among the validation sequences."""
    part = dataset.validation
    documents = np.arange(len(dataset.tokens.document_lengths))
    sums, counts = np.zeros(len(documents)), np.zeros(len(documents))
    for start in range(0, part.num_sequences, ROWS):
        # The last batch repeats the last sequence, so that all batches have one shape; repeated rows do not count.
        rows = np.arange(start, start + ROWS).clip(max=part.num_sequences - 1)
        batch = dict(part.records.read_sequences(rows, fields=FIELDS))
        batch["targets_segmentation"][part.num_sequences - start :] = 0
        losses = np.asarray(model.losses(parameters, batch).by_token, np.float64).reshape(ROWS, -1)
        segment = batch["targets_segmentation"]
        owner = np.take_along_axis(groups_of_segments(part.segments, documents, rows), (segment - 1).clip(0), axis=1)
        counted = segment > 0
        sums += np.bincount(owner[counted], losses[counted], len(documents))
        counts += np.bincount(owner[counted], minlength=len(documents))
    return sums, counts


def losses_of(corpus: str, folder: Path) -> tuple[jd.Dataset, np.ndarray, np.ndarray]:
    """Build a corpus, train on its training documents, and return the losses of the others; kept in `folder`."""
    packing = {"validation_fraction": SET_ASIDE, "validation_choice": "hash"}
    dataset = gradients.build(corpus, LENGTH, folder, packing)
    path = folder / f"{Path(corpus).name}.documents.npz"
    if not path.exists():
        model = compiled_model(dataset.vocab_size, SIZES["gpt"]["tiny"])
        batch_size = gradients.TOKENS_PER_STEP // LENGTH
        source = gradients.Shuffled(dataset, np.arange(dataset.num_sequences), batch_size)
        trainer = Trainer(model, source.give, seed=0)
        for taken in trainer.steps(0, NUM_STEPS, partial(learning_rate, TrialConfig(), NUM_STEPS)):
            taken.result.block_until_ready()
        sums, counts = document_losses(dataset, model, trainer.parameters)
        np.savez(path, sums=sums, counts=counts)
    found = np.load(path)
    print(f"{Path(corpus).name}: {found['sums'].sum() / found['counts'].sum():.4f} nats per token", flush=True)
    return dataset, found["sums"], found["counts"]


def compared(dataset: jd.Dataset, sums: np.ndarray, counts: np.ndarray) -> dict[str, Any]:
    """Return the mean squared error of the mean loss of chosen parts, by hash and balanced, at every fraction."""
    groups = np.asarray(dataset.duplicate_groups)
    families, tokens = unit_counts(dataset, groups, int(groups.max()) + 1)
    losses, targets = (np.bincount(groups, each, len(tokens)) for each in (sums, counts))
    known = np.flatnonzero(targets)
    losses, targets, tokens = losses[known], targets[known], tokens[known]
    families = {family: matrix[known] for family, matrix in families.items()}
    bins = length_bins(tokens)
    truth, whole = losses.sum() / targets.sum(), composition(families, tokens)
    found: dict[str, Any] = {"num_units": len(known), "num_tokens": int(tokens.sum()), "loss": truth}
    for fraction in FRACTIONS:
        errors: dict[str, list[float]] = {name: [] for name in PARTS}
        calibrated: dict[str, list[tuple[float, float]]] = {name: [] for name in PARTS}
        for seed in range(NUM_CHOICES):
            by_hash = np.random.default_rng(seed).random(len(known)) < fraction
            for name, mask in zip(PARTS, (by_hash, choose(families, tokens, fraction, seed)), strict=True):
                errors[name].append(losses[mask].sum() / targets[mask].sum() - truth)
                part = np.flatnonzero(mask)
                if len(part) >= LEAST:
                    mean = calibrated_mean(losses[part] / targets[part], targets[part], whole.of(part))
                    reach = float(student_reach(mean.variance**0.5, len(part) - 1, mean.skewness))
                    meant = bins <= bins[part].max()  # documents up to the longest of the part
                    calibrated[name].append((mean.mean - losses[meant].sum() / targets[meant].sum(), reach))
        squares = {name: np.square(each) for name, each in errors.items()}
        # The ratio's interval: a bootstrap over the choices.
        draws = np.random.default_rng(0).integers(NUM_CHOICES, size=(2000, NUM_CHOICES))
        ratios = squares["balanced"][draws].mean(axis=1) / squares["hash"][draws].mean(axis=1)
        found[str(fraction)] = {
            "hash": float(squares["hash"].mean() ** 0.5),
            "balanced": float(squares["balanced"].mean() ** 0.5),
            "ratio": float(squares["balanced"].mean() / squares["hash"].mean()),
            "interval": np.quantile(ratios, [0.025, 0.975]).tolist(),
            "calibrated": {name: _judged(np.array(calibrated[name])) for name in PARTS},
        }
    return found


def composition(families: dict[str, Any], tokens: np.ndarray) -> Composition:
    """Return the lengths and groups of units of documents; a unit has the group with most of its tokens."""
    dataset = np.zeros(len(tokens), np.int64)
    known = {}
    for name, matrix in families.items():
        codes = np.asarray(matrix.argmax(axis=1)).ravel().astype(np.int64)
        known[name] = Family(codes, tokens_by_group(codes, matrix.shape[1], tokens)[None])
    return Composition(dataset, length_bins(tokens), tokens_by_group(dataset, 1, tokens), known)


def _judged(pairs: np.ndarray) -> dict[str, float]:
    """Return the error of the mean, how far its intervals reach, and which share of them hold the truth."""
    errors, reaches = pairs.T
    return {
        "error": float((errors**2).mean() ** 0.5),
        "reach": float(reaches.mean()),
        "held": float((abs(errors) <= reaches).mean()),
    }


def main() -> None:
    """Measure every corpus."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", nargs="+", default=["packages", "synthetic"])
    parser.add_argument("--folder", default="held_out")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    folder = Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    results = {}
    for corpus in options.corpora:
        found = compared(*losses_of(corpus, folder))
        results[Path(corpus).name] = found
        for fraction in map(str, FRACTIONS):
            row = found[fraction]
            low, high = row["interval"]
            print(
                f"  {fraction} of {found['num_units']:,} units: error of the mean loss {row['hash']:.4f} by hash, "
                f"{row['balanced']:.4f} balanced; ratio of squares {row['ratio']:.2f} [{low:.2f}, {high:.2f}]"
            )
            for name, judged in row["calibrated"].items():
                print(
                    f"    calibrated, {name}: error {judged['error']:.4f}, reach {judged['reach']:.4f}, "
                    f"{judged['held']:.2f} of the intervals hold the mean"
                )
    if options.write:
        results_file.write("held_out", {**results_file.environment("jax", "numpy"), "results": results})


if __name__ == "__main__":
    main()
