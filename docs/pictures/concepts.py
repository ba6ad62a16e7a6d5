"""The pictures of docs/concepts.md and docs/mathematics.md, drawn from what the package really computes.

    python docs/pictures/concepts.py [--out FOLDER]

A made-up corpus of documents on known topics is packed, counted, ordered and measured by the package's own
functions; the pictures show the results as SVG that read on a light and on a dark ground.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

import jax_diversity as jd
from jax_diversity.foundation.svg import Chart, Curve, framed, rect, text, titles
from jax_diversity.ordering.measures.windows import aligned_windows, place
from jax_diversity.sequences.characteristics.codes import Codes, length_bins
from jax_diversity.sequences.characteristics.counts import count_tokens

FOLDER = Path(__file__).parent.parent / "images"
NUM_DOCUMENTS, NUM_TOPICS, SEQUENCE_LENGTH = 6_000, 60, 256
SHARES = 1.0 / np.arange(1, NUM_TOPICS + 1)  # Zipf: the k-th topic in proportion to 1/k
SIZES = tuple(2**power for power in range(0, 11))
NUM_SHUFFLES = 12


class Corpus(NamedTuple):
    """Documents' topics, and the sequences that they were packed into."""

    characteristics: jd.Characteristics
    segments: jd.Segments


@cache
def corpus() -> Corpus:
    """Documents in the order in which a crawl may bring them: topic by topic, then packed end to end."""
    rng = np.random.default_rng(0)
    lengths = np.maximum(rng.lognormal(5.2, 1.0, NUM_DOCUMENTS).astype(np.int64), 8)
    topics = np.sort(rng.choice(NUM_TOPICS, NUM_DOCUMENTS, p=SHARES / SHARES.sum())).astype(np.int32)
    segments = jd.pack(lengths, SEQUENCE_LENGTH, document_order=np.arange(NUM_DOCUMENTS)).segments
    codes = {
        "topic": Codes(topics, tuple(f"topic {index}" for index in range(NUM_TOPICS))),
        "length": length_bins(lengths.astype(np.int32), 10),
    }
    counts = {family: count_tokens(segments, code) for family, code in codes.items()}
    return Corpus(jd.Characteristics.from_counts(counts, sequence_length=SEQUENCE_LENGTH), segments)


@cache
def ordering(method: str, seed: int = 0, objective: jd.Objective | None = None) -> jd.Ordering:
    """An order of the corpus's sequences."""
    return jd.order(corpus().characteristics, method, seed=seed, objective=objective)


def flow() -> str:
    """The whole way, of a corpus that fits into a picture."""
    length, lengths = 256, np.array([330, 290, 150, 410, 220, 190, 120, 170, 168])
    topics = np.array([0, 0, 0, 1, 1, 1, 2, 2, 3], np.int32)
    segments = jd.pack(lengths, length, document_order=np.arange(len(lengths))).segments
    counts = count_tokens(segments, Codes(topics, tuple("ABCD")))
    indices = jd.order(jd.Characteristics.from_counts({"topic": counts}), "greedy").indices
    scale = 592 / lengths.sum()
    parts = titles("From documents to an order", "9 documents of 4 topics, 2,048 tokens; sequences of 256 tokens")
    parts += _step(80, "documents", "colour: topic")
    starts = np.cumsum(lengths) - lengths
    for start, tokens, topic in zip(starts, lengths, topics, strict=True):
        parts.append(rect(f"g{topic}", 144 + scale * start, 80, scale * tokens - 2, 30))
    parts += _step(146, "sequences", "packed")
    parts += _step(216, "characteristics", "tokens by topic")
    parts += _step(336, "order", "a permutation")
    for place_in_row in range(counts.shape[0]):
        x = 144 + place_in_row * 74
        parts += _sequence(segments, topics, place_in_row, x, 146, scale)
        parts.append(text(x + 36, 192, f"{place_in_row}", "quiet", "middle"))
        for topic, tokens in enumerate(counts[[place_in_row]].toarray()[0]):
            parts.append(rect(f"g{topic}" if tokens else "empty", x, 206 + topic * 26, 72, 24))
            if tokens:
                parts.append(text(x + 36, 223 + topic * 26, str(int(tokens)), "", "middle"))
        parts += _sequence(segments, topics, int(indices[place_in_row]), x, 336, scale)
        parts.append(text(x + 36, 382, f"{indices[place_in_row]}", "quiet", "middle"))
    return framed("From documents to an order", parts, 760, 404)


def _step(top: float, name: str, words: str) -> list[str]:
    return [text(24, top + 13, name, "strong"), text(24, top + 31, words, "quiet")]


def _sequence(segments: jd.Segments, topics: np.ndarray, index: int, x: float, top: float, scale: float) -> list[str]:
    """A sequence's segments, coloured by their documents' topics."""
    parts, own = [], np.flatnonzero(segments.sequence_index == index)
    for document, tokens in zip(segments.document_index[own], segments.length[own], strict=True):
        width = scale * tokens * 72 / 74
        parts.append(rect(f"g{topics[document]}", x, top, max(width - 1, 1), 30))
        x += width
    return parts


ORDERS: Mapping[str, str] = {"corpus_order": "as packed", "uniform_shuffle": "shuffled", "balance": "balance"}


def windows() -> str:
    """What sixteen consecutive windows hold, in three orders."""
    counts, size, shown = corpus().characteristics.counts["topic"], 64, 16
    target = corpus().characteristics.target_share("topic")
    subtitle = "From below: the five largest topics, then all others. At the left: the corpus."
    parts = titles("What a window sees: 16 windows of 64 sequences, by topic", subtitle)
    for row, (method, words) in enumerate(ORDERS.items()):
        top = 74 + row * 118
        placed = place(counts, ordering(method).indices)
        tv = aligned_windows(placed, target, size).tv
        tokens = np.stack([_tokens(placed, first * size, size) for first in _spread(placed.shape[0] // size, shown)])
        shares = np.vstack([target, tokens / tokens.sum(axis=1, keepdims=True)])
        for column, share in enumerate(shares):
            x = 24 + column * 34 + (14 if column else 0)
            parts += _stack(x, top, np.append(share[:5], share[5:].sum()))
        parts.append(text(636, top + 30, words, "strong"))
        parts.append(text(636, top + 52, f"TV mean {tv.mean():.2f}", "quiet"))
        parts.append(text(636, top + 72, f"worst {tv.max():.2f}", "quiet"))
    return framed("What a window sees", parts, 760, 436)


def _spread(number: int, shown: int) -> list[int]:
    return [index * number // shown for index in range(shown)]


def _tokens(placed: csr_array, start: int, size: int) -> np.ndarray:
    return np.asarray(placed[start : start + size].sum(axis=0)).ravel().astype(np.float64)


def _stack(x: float, top: float, shares: np.ndarray) -> list[str]:
    parts, bottom = [], top + 100.0
    for index, share in enumerate(shares):
        parts.append(rect(f"g{index}", x, bottom - 100 * share, 28, 100 * share))
        bottom -= 100 * share
    return parts


def walk() -> str:
    """Prefix deviations of shuffles and of the balanced order."""
    chars = corpus().characteristics
    curves = []
    for seed in range(NUM_SHUFFLES):
        prefix = _prefix(ordering("uniform_shuffle", seed))
        curves.append(Curve(*_thinned(prefix), "thin", "a shuffle" if seed == 0 else ""))
    curves.append(Curve(*_thinned(_prefix(ordering("balance"))), "main", "balance"))
    chart = Chart(
        "A shuffle is a random walk",
        f"How far the mixture of all that was seen is from the corpus's: {NUM_SHUFFLES} shuffles, one balance",
        "sequences trained on",
        "prefix deviation, in sequences",
        (0, chars.num_sequences),
        (0, max(curve.y.max() for curve in curves) * 1.05),
    )
    return chart.draw(curves)


def _prefix(order: jd.Ordering) -> np.ndarray:
    return jd.measure(corpus().characteristics, order, windows=(64,)).prefix_l2["topic"]


def _thinned(values: np.ndarray, points: int = 180) -> tuple[np.ndarray, np.ndarray]:
    """The largest value of each stretch, so that no peak is lost."""
    bounds = np.linspace(0, len(values), min(points, len(values)) + 1).astype(np.int64)
    return bounds[1:].astype(np.float64), np.array([values[a:b].max() for a, b in pairwise(bounds)])


def floor() -> str:
    """Window TV over window sizes, with the floor and the ideal token shuffle."""
    chars = corpus().characteristics
    sizes = [size for size in SIZES if 2 * size <= chars.num_sequences]
    measured = {name: jd.measure(chars, ordering(name), sizes) for name in ("uniform_shuffle", "balance")}
    at = np.array(sizes, np.float64)

    def curve(values: Callable[[int], float], kind: str, words: str) -> Curve:
        return Curve(at, np.array([values(size) for size in sizes]), kind, words)

    shuffle, balance = measured["uniform_shuffle"], measured["balance"]
    curves = [
        curve(lambda size: shuffle.window_tv["topic"][size].max(), "second dashed", "shuffle, worst window"),
        curve(lambda size: shuffle.window_tv["topic"][size].mean(), "second", "shuffle, mean"),
        curve(lambda size: balance.window_tv["topic"][size].max(), "main dashed", "balance, worst window"),
        curve(lambda size: balance.window_tv["topic"][size].mean(), "main", "balance, mean"),
        curve(lambda size: balance.window_tv_floor["topic"][size], "limit", "floor of the mean"),
        curve(lambda size: balance.ideal_tv["topic"][size], "quiet-line", "ideal token shuffle"),
    ]
    chart = Chart(
        "Windows of every size, and what no order can pass",
        "Half the L1 distance between a window's topics and the corpus's",
        "window, in sequences",
        "window TV",
        (1, sizes[-1]),
        (0.004, 1.0),
        logarithmic=(True, True),
        room=210,
    )
    return chart.draw(curves)


def drift() -> str:
    """The flaw of the published greedy and its cure."""
    chars = corpus().characteristics
    orders = {
        "greedy, f3 as published": ("second", ordering("greedy", 0, jd.Objective.f3())),
        "greedy, with the norm column": ("main", ordering("greedy")),
        "a shuffle": ("thin", ordering("uniform_shuffle")),
    }
    curves = []
    for words, (kind, order) in orders.items():
        values = jd.measure(chars, order, windows=(64,)).norm_drift
        at = np.linspace(0, len(values) - 1, 300).astype(np.int64)
        curves.append(Curve(at.astype(np.float64), values[at], kind, words))
    low = min(curve.y.min() for curve in curves)
    chart = Chart(
        "Mixed sequences first: the flaw and its cure",
        "Running sum of the sequences' norms minus their mean; an order without drift stays at zero",
        "sequences trained on",
        "norm drift, in sequences",
        (0, chars.num_sequences),
        (low * 1.05, max(curve.y.max() for curve in curves) * 1.2),
        room=225,
    )
    return chart.draw(curves)


def all_pictures() -> dict[str, str]:
    """File name -> SVG."""
    makers: Sequence[Callable[[], str]] = (flow, windows, walk, floor, drift)
    return {f"concept-{maker.__name__}.svg": maker() for maker in makers}


def main() -> None:
    """Draw all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    for name, picture in all_pictures().items():
        (arguments.out / name).write_text(picture, encoding="utf-8")
        print(arguments.out / name)


if __name__ == "__main__":
    main()
