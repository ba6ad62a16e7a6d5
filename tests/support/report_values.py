"""Made-up values for the report's tests: of a common dataset, a tiny one, one full of hostile text."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

import jax_diversity as jd
from jax_diversity.foundation.figures.plain import as_json, clean_text
from jax_diversity.foundation.progress import Progress
from jax_diversity.report.batches import difference_values, document_values
from jax_diversity.report.corpus import cluster_values, corpus_values, packing_values
from jax_diversity.report.orderings import Shown, orders_values
from jax_diversity.report.preparation import preparation_values
from jax_diversity.report.training import training_values
from jax_diversity.report.values import with_summary
from jax_diversity.report.words import families_sentence, unbalanced_sentence

HOSTILE = (
    "</script><script>window.harmed = 1</script>",
    "<!--<script>",
    "<img src=x onerror='window.harmed = 2'>",
    '<a href="https://example.org/">text</a>',
    "line\u2028and\u2029paragraph",
    "\x00control\x1b[31m\x7f\x85",
    "\u202egnp.exe",
    "\ud800 lone surrogate",
    "עברית ومثال",
    "{{style}} $& %{x} `code`",
    "long " * 100_000,
)
_FIGURES = ("documents", "words", "bytes")
BATCH_SIZE = 16
PREPARED = dict.fromkeys(
    (
        *("num_empty_documents", "num_without_text", "num_text_not_string", "num_invalid_utf8", "num_broken_records"),
        *("num_undecodable", "num_raised", "num_took_too_long"),
    ),
    0,
)
CLUSTERED = {
    "label_field": "domain",
    "num_labels": 19,
    "largest_label": 0.214,
    "clusterings": {"cluster": 1000, "cluster_100": 100},
    "purity": {"cluster": 0.9699, "cluster_100": 0.9491},
}


def make_documents(num_documents: int, text: Sequence[str] = ()) -> pa.Table:
    """Lengths, sources, languages (a third of them) and groups of copies; of languages without any there is none."""
    rng = np.random.default_rng(0)
    names = list(text) or [f"source {index}" for index in range(50)]
    return pa.table(
        {
            "num_tokens": rng.lognormal(5, 1.3, num_documents).astype(np.int64),
            "source": [_storable(names[index]) for index in rng.integers(0, len(names), num_documents)],
            "language": pa.array([None if index % 3 else "en" for index in range(num_documents)], pa.string()),
            "duplicate_group": np.maximum(np.arange(num_documents) - 3, 0),
        }
    )


def _storable(text: str) -> str:
    """Arrow holds no lone surrogates."""
    return text.encode("utf-8", "replace").decode()


def make_clusters(sizes: Sequence[int], text: Sequence[str] = ()) -> dict[str, Any]:
    """Clusters of so many tokens; the fourth has no place on the map, the sixth no label."""
    terms = list(text) or ["gene", "protein", "cell"]
    clusters = [
        {
            "num_documents": size,
            "top_terms": terms,
            "titles": list(text) or ["On cells"],
            "name": ", ".join(terms[:3]),
            "position": None if index == 3 else [np.cos(index), np.sin(index)],
            "label": None if index == 5 else terms[index % len(terms)] if text else f"label {index % 50}",
        }
        for index, size in enumerate(sizes)
    ]
    return cluster_values(clusters, np.array(sizes, np.int64), CLUSTERED, "tfidf_svd")


def make_preparation(text: Sequence[str] = ()) -> dict[str, Any]:
    """Three steps, two sources, a language from the second step on; a rule with examples, one without, an edit."""
    names = list(text) or ["web", "words"]

    def step(*documents: int, **more: Any) -> dict[str, Any]:
        sides = zip(("in", "out"), documents, strict=True)
        figures = {
            f"{name}_{side}": n * times for side, n in sides for name, times in zip(_FIGURES, (1, 90, 500), strict=True)
        }
        return {**figures, "removed": {}, **more}

    some, other = names[0], names[1]
    steps = [
        step(900, 800, step="words", removed={"words": 100}, found={}, edited=0),
        step(800, 700, step="language", removed={"probability": 80, some: 20}, found={}, edited=0),
        step(
            700,
            700,
            step="personal_data",
            found={f"{name} kind": 1 + n for n, name in enumerate(names * 15)},
            edited=20,
        ),
    ]
    by_source = {"words": {some: step(600, 500), other: step(300, 300)}}
    by_source |= {"language": {some: step(500, 400), other: step(300, 300)}}
    by_source |= {"personal_data": {some: step(400, 400), other: step(300, 300)}}
    by_language = {
        "words": {"": step(900, 800)},
        "language": {some: step(800, 700)},
        "personal_data": {some: step(700, 700)},
    }
    phrases = {"words.words": "too few words", "language.probability": "language uncertain, or not a wanted one"}
    account = {"read": 900, "kept": 700, "steps": steps, "phrases": phrases}
    account |= {"source": by_source, "language": by_language}
    about = {"id": names[-1], "source": some, "language": other if text else "en"}
    shown = "\n".join(["A line of the text.", *names, "", "Another one."])
    lines = [[" ", "far"], [" ", "near"], ["-", names[0]], ["+", "<email>"], [" ", names[-1]], [" ", "far away"]]
    examples = {
        "removed": {
            "words.words": [{**about, "value": 12.0, "threshold": 50.0, "text": shown}] * 3,
            f"language.{some}": [{**about, "language": None, "value": 0.123456789, "threshold": 0.65, "text": shown}],
        },
        "edited": {"personal_data": [{**about, "lines": lines}]},
    }
    return preparation_values(account, examples)


def make_batch(step: int, tv: float, text: Sequence[str] = ()) -> dict[str, Any]:
    """A batch of twelve shown rows and four more."""
    rng = np.random.default_rng(step)
    names = text or ("cells, proteins", "roads", "music, songs", "football", "recipes", "planets, stars")

    def segment(row: int, part: int) -> dict[str, Any]:
        name = names[(row + part) % len(names)]
        about = {
            "id": name if text else f"doc-{step}-{row}-{part}",
            "title": name if text else f"On {name}",
            "source": name if text else f"source {part}",
            "language": None if part % 3 == 2 else name if text else "en",
        }
        return {**document_values(about, name), "tokens": int(rng.integers(1, 60))}

    rows = [
        {
            "row": row,
            "sequence_index": int(rng.integers(2000)),
            "segments": [segment(row, part) for part in range(1 + row % 6)],
            "num_more_segments": 3 if row == 5 else 0,
        }
        for row in range(12)
    ]
    share, target = 0.1 + tv / (1 + np.arange(6)), np.full(6, 0.1)
    return {
        "step": step,
        "position": step * BATCH_SIZE,
        "tv": tv,
        "differences": difference_values(share, target, names),
        "rows": rows,
        "num_more_rows": BATCH_SIZE - 12,
    }


def make_orderings(
    names: Sequence[str], num_sequences: int, windows: Sequence[int], text: Sequence[str] = ()
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Values and verdicts of a shuffle and, under the other names, orders that alternate between two topics."""
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 2, num_sequences)
    topics = rng.multinomial(64, np.full(15, 1 / 15), num_sequences)
    counts = np.concatenate([topics * (kinds == kind)[:, None] for kind in (0, 1)], axis=1)
    lengths = np.stack([counts[:, :10].sum(axis=1), counts[:, 10:].sum(axis=1)], axis=1)
    chars = jd.Characteristics.from_counts({"cluster": counts, "length": lengths})
    group_names = {
        "cluster": [text[group % len(text)] if text else f"group {group}" for group in range(30)],
        "length": ["short", "long"],
    }
    by_kind = [np.flatnonzero(kinds == kind) for kind in (0, 1)]
    places = np.concatenate([(np.arange(len(rows)) + 0.5) / max(len(rows), 1) for rows in by_kind])
    orders = {names[0]: rng.permutation(num_sequences)}
    orders |= dict.fromkeys(names[1:], np.concatenate(by_kind)[np.argsort(places, kind="stable")])
    shown = [
        Shown(jd.Ordering(indices), {"name": name, "method": "greedy" if index else "uniform_shuffle", "seed": 0})
        for index, (name, indices) in enumerate(orders.items())
    ]
    ordering, verdicts = orders_values(chars, shown, windows, group_names, Progress(quiet=True))
    counts = {
        "families": list(chars.families),
        "num_groups": {**dict.fromkeys(chars.families, 3), "host": 1},
        "other_fields": list(text),
    }
    sentences = {"balanced": families_sentence(counts), "unbalanced": unbalanced_sentence(counts)}
    return {**ordering, **sentences, "batches": None}, verdicts


def make_explanation(num_steps: int) -> dict[str, Any]:
    """What `lab explain` stores of a model: families explain less at later steps."""
    rng = np.random.default_rng(num_steps)
    groups, sketch = rng.integers(0, 4, 256), rng.normal(size=(256, 8))
    sketch[:, 0] += groups * 20 / num_steps
    chars = jd.Characteristics.from_counts({"cluster": np.eye(4, dtype=int)[groups] * 64})
    found = jd.explain_values(sketch, chars, batch_size=32)
    return {"num_steps": num_steps, **found.values}


@functools.cache
def make_values(
    text: tuple[str, ...] = (), *, num_sequences: int = 2000, names: tuple[str, ...] = ("uniform_shuffle", "greedy")
) -> dict[str, Any]:
    """A made-up dataset; `text` stands wherever text of a corpus can stand. Made once: copy before you change it."""
    tiny = num_sequences < BATCH_SIZE
    documents = make_documents(2 if tiny else 300, text)
    windows = (1,) if tiny else (64, 256)
    ordering, verdicts = make_orderings(names, num_sequences, windows, text)
    best = [make_batch(step, 0.3 + step / 1000, text) for step in (7, 31, 2)]
    worst = [make_batch(step, 0.8 - step / 1000, text) for step in (90, 101, 55)]
    if not tiny:
        batches = {name: {key: {"best": best, "worst": worst} for key in ordering["families"]} for name in names}
        ordering["batches"] = {"batch_size": BATCH_SIZE, "orders": batches}
    lengths = documents["num_tokens"].to_numpy()
    packed = jd.pack(lengths, 128, last_sequence="pad")
    counts = {
        "sequence_length": 128,
        "num_sequences": num_sequences,
        "num_validation_sequences": 20,
        **dict.fromkeys(("num_tokens_kept", "num_tokens_dropped", "num_documents_cut"), 77),
        **dict.fromkeys(("num_padding_tokens", "num_inserted_ends", "num_tokens_repeated"), 0 if tiny else 7),
    }
    steps = [
        {"step": s, "loss": 7 / (s + 1) ** 0.1, "input_wait_seconds": 0.02 / (s + 1)}
        | {"gradient_diversity": 1 + 0.1 / (s + 1), "stable_rank": 3 + s / 20}
        | ({"validation_loss": 7.1, "validation_loss_low": 7.0, "validation_loss_high": 7.2} if s % 9 == 8 else {})
        | ({"validation_loss/source/" + (text[0] if text else "web"): 7 - s / 50} if s % 9 == 8 else {})
        for s in range(39)
    ]
    explained = [make_explanation(step) for step in (20, 39)]
    return with_summary(
        {
            "format_version": 2,
            "title": clean_text(text[0] if text else "A small corpus"),
            "run": None,
            "corpus": corpus_values(documents, {**PREPARED, "text_bytes": 4000, "num_broken_records": 2}, 4),
            "preparation": None if tiny else make_preparation(text),
            "clusters": make_clusters([4] if tiny else [int(5000 / (1 + rank)) for rank in range(70)], text),
            "packing": packing_values(counts, "concat", [packed.segments], np.zeros(len(lengths), np.int32)),
            "ordering": ordering,
            "verdicts": verdicts,
            "training": [] if tiny else [training_values("greedy", steps, explained)],
            "settings": as_json({"packing": {"sequence_length": 128, "names": text}, "rate": float("nan")}),
            "fingerprints": {"tokens": "ab" * 32},
        },
        None,
    )


def without_orderings(values: dict[str, Any]) -> dict[str, Any]:
    """The same dataset before any ordering is made."""
    bare = copy.deepcopy(values)
    bare["ordering"] |= {"baseline": None, "families": [], "window_sizes": [], "references": [], "orders": []}
    bare["ordering"] |= {"batches": None}
    bare |= {"verdicts": [], "training": []}
    return with_summary(bare, None)
