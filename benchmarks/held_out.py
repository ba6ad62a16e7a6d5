"""How well held-out documents stand for a corpus: the loss of documents that are chosen by hash, and for the mixture.

    python benchmarks/held_out.py [--corpora packages synthetic FOLDER] [--folder held_out] [--write]

Three documents of ten are set aside by a hash. The lab's `tiny` GPT is trained for 1,000 steps of 4,096 tokens on the
others, in a shuffle. The documents that were set aside are then a corpus whose loss is known for every document. From
it, a part is chosen again and again, with other seeds: by a hash, and so that it has the mixture of the corpus. The
result is the variance of the part's mean loss around the mean loss of the corpus. Files in `--folder` are kept and read
again.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import gradients
import numpy as np

import jax_diversity as jd
from jax_diversity.lab.compiled import CompiledModel, compiled_model
from jax_diversity.lab.experiments.settings import SIZES, TrialConfig
from jax_diversity.lab.experiments.trial import learning_rate
from jax_diversity.lab.group_losses import groups_of_segments
from jax_diversity.lab.trainer import Trainer
from jax_diversity.lab.training import FIELDS

LENGTH, NUM_STEPS, SET_ASIDE, ROWS = 128, 1000, 0.3, 64


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
    packing = {"validation_fraction": SET_ASIDE}
    dataset = gradients.build(corpus, LENGTH, folder, packing)
    path = folder / f"{Path(corpus).name}.documents.npz"
    if not path.exists():
        model = compiled_model(dataset.vocab_size, SIZES["gpt"]["tiny"])
        batch_size = gradients.TOKENS_PER_STEP // LENGTH
        source = gradients.Shuffled(dataset, np.arange(dataset.num_sequences), batch_size)
        trainer = Trainer(model, source, seed=0)
        for taken in trainer.steps(0, NUM_STEPS, partial(learning_rate, TrialConfig(), NUM_STEPS)):
            taken.result.loss.block_until_ready()
        sums, counts = document_losses(dataset, model, trainer.parameters)
        np.savez(path, sums=sums, counts=counts)
    found = np.load(path)
    print(f"{Path(corpus).name}: {found['sums'].sum() / found['counts'].sum():.4f} nats per token", flush=True)
    return dataset, found["sums"], found["counts"]


def main() -> None:
    """Measure every corpus."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", nargs="+", default=["packages", "synthetic"])
    parser.add_argument("--folder", default="held_out")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    folder = Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    for corpus in options.corpora:
        losses_of(corpus, folder)


if __name__ == "__main__":
    main()
