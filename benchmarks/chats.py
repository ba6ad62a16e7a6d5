"""Measure packing and orders of chats: whole conversations, and targets in every batch.

    python benchmarks/chats.py --mixed FOLDER [--write]

`FOLDER` has the files of `mixed`; its questions of patients (MedQuAD) and its IRC channels are the real chats. Three
corpora are made: chats with long prompts and short answers, chats with short prompts, and a corpus of which a third is
text without turns. The first table shows `concat` and the packing of chats. The second table shows, for batches of 4,
16 and 64 sequences, how many have no target and how the number of targets varies: in a shuffle, in an order without
the family `loss`, and in the default order.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import results_file

import jax_diversity as jd
from jax_diversity.pipeline.build import Build
from jax_diversity.pipeline.settings import BuildConfig
from jax_diversity.preparation.settings import CorpusConfig
from jax_diversity.sequences.clustering.settings import ClusterConfig
from jax_diversity.sequences.embedding.settings import EmbeddingConfig
from jax_diversity.sequences.packing.settings import PackingConfig
from jax_diversity.sequences.tokenization.settings import TokenizerConfig

BATCHES, SEEDS = (4, 16, 64), 3
STAGES = ("prepare", "tokenize", "embed", "cluster", "pack", "characterize")


def documents_of(folder: Path, name: str) -> Iterator[str]:
    with gzip.open(folder / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)["text"]


def real_chats(folder: Path) -> Iterator[list[dict[str, str]]]:
    """Questions and answers of MedQuAD; in IRC, every second speaker is the assistant."""
    for text in documents_of(folder, "medical-medquad"):
        question, found, answer = text.partition("\n\nAnswer: ")
        if found:
            yield turns_of([question, answer])
    for text in documents_of(folder, "chat-irc"):
        said = text.splitlines()
        for first in range(0, len(said) - 20, 40):
            yield turns_of(said[first : first + 40])


def made_chats(folder: Path, of_prompt: tuple[float, float], of_answer: tuple[float, float]) -> Iterator[list]:
    """Chats of one to three questions; the lengths in words are log-normal."""
    rng = np.random.default_rng(0)
    words = " ".join(documents_of(folder, "speeches-us")).split()
    for _ in range(4_000):
        said = []
        for _ in range(int(rng.integers(1, 4))):
            for mean, deviation in (of_prompt, of_answer):
                start = int(rng.integers(len(words) - 3000))
                said.append(" ".join(words[start : start + 1 + int(rng.lognormal(np.log(mean), deviation))]))
        yield turns_of(said)


def turns_of(said: list[str]) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(said)]


def with_text(folder: Path) -> Iterator[dict[str, Any]]:
    """Two thirds chats with short prompts, one third texts, of which all tokens count."""
    chats = [*made_chats(folder, (10, 0.5), (60, 0.8))]
    for number, chat in enumerate(chats):
        yield {"messages": chat, "source": "chats"}
        if number % 8 == 0:
            text = next(iter(documents_of(folder, "speeches-us")))
            begin = number * 37 % max(len(text) - 4000, 1)
            yield {"text": text[begin : begin + 2000], "source": "texts"}


def corpora(folder: Path) -> dict[str, Iterator[dict[str, Any]]]:
    return {
        "real chats": ({"messages": chat} for chat in real_chats(folder)),
        "long prompts": ({"messages": chat} for chat in made_chats(folder, (150, 0.8), (6, 0.5))),
        "short prompts": ({"messages": chat} for chat in made_chats(folder, (10, 0.5), (60, 0.8))),
        "a third text": with_text(folder),
    }


def built(work: Path, name: str, method: str, length: int) -> Any:
    config = BuildConfig(
        out=str(work / name.replace(" ", "-")),
        corpus=CorpusConfig(paths=(str(work / f"{name}.jsonl"),), format="chat"),
        tokenizer=TokenizerConfig(vocab_size=4096),
        embedding=EmbeddingConfig(options={"dimensions": 64}),
        cluster=ClusterConfig(num_clusters=100),
        packing=PackingConfig(method=method, sequence_length=length, validation_fraction=0.0),
    )
    for stage in STAGES:
        Build(config).run_stage(stage)
    return jd.open_dataset(config.out)


def packing_rows(work: Path, name: str) -> Iterator[dict[str, Any]]:
    for length in (256, 512, 2048):
        for method in ("concat", "auto"):
            counts = built(work, name, method, length).counts("pack")
            places = counts["num_sequences"] * length
            yield {
                "corpus": name,
                "L": length,
                "method": method,
                "chats": counts["num_chats"],
                "whole": counts["num_chats_whole"],
                "answers apart": counts["num_answer_tokens_apart"] / counts["num_answer_tokens"],
                "padding": counts["num_padding_tokens"] / places,
                "dropped": counts["num_tokens_dropped"],
            }


def order_rows(work: Path, name: str, weights: list[float]) -> Iterator[dict[str, Any]]:
    dataset = built(work, name, "auto", 256)
    whole = dataset.characteristics
    without = jd.Characteristics.from_counts(
        {family: counts for family, counts in whole.counts.items() if family != "loss"},
        weights={family: weight for family, weight in whole.weights.items() if family != "loss"},
        sequence_length=whole.sequence_length,
    )
    targets = np.asarray(whole.counts["loss"].todense())[:, 0]
    for batch in BATCHES:
        objective = jd.Objective(windows=(batch,))
        orders: dict[str, list[np.ndarray]] = {"shuffle": [], "without loss": []}
        orders |= {f"loss {weight:g}": [] for weight in weights}
        for seed in range(SEEDS):
            orders["shuffle"].append(jd.order(whole, method="uniform_shuffle", seed=seed).indices)
            orders["without loss"].append(jd.order(without, seed=seed, objective=objective).indices)
            for weight in weights:
                weighed = whole.with_weights({**whole.weights, "loss": weight})
                orders[f"loss {weight:g}"].append(jd.order(weighed, seed=seed, objective=objective).indices)
        for kind, of_seeds in orders.items():
            sums, tv = [], []
            for order in of_seeds:
                number = len(order) // batch
                sums.append(targets[order[: number * batch]].reshape(number, batch).sum(axis=1))
                measured = jd.measure(without, order, windows=(batch,)).window_tv
                tv.append([float(measured[family][batch].mean()) for family in without.families])
            joined = np.concatenate(sums)
            yield {
                "corpus": name,
                "B": batch,
                "order": kind,
                "batches": len(joined),
                "without a target": int((joined == 0).sum()),
                "targets": float(joined.mean()),
                "deviation": float(joined.std()),
                **{f"TV {family}": value for family, value in zip(without.families, np.mean(tv, 0), strict=True)},
            }


def table(rows: list[dict[str, Any]]) -> None:
    print("\n| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
    for row in rows:
        cells = (f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values())
        print("| " + " | ".join(cells), "|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mixed", type=Path, required=True)
    parser.add_argument("--weights", type=float, nargs="+", default=[4.0], help="weights of the family `loss`")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    values: dict[str, Any] = {"environment": results_file.environment("jax", "numpy"), "packing": [], "orders": []}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for name, records in corpora(args.mixed).items():
            lines = (json.dumps(record) for record in records)
            (work / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
            values["packing"] += packing_rows(work, name)
            table(values["packing"][-6:])
            values["orders"] += order_rows(work, name, args.weights)
            table([row for row in values["orders"] if row["corpus"] == name])
    if args.write:
        results_file.write("chats", values)


if __name__ == "__main__":
    main()
