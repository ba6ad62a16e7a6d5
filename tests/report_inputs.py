"""Made-up datasets for the report's tests: a common one, a tiny one, an empty one, one full of hostile text."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from jax_diversity.report.inputs import (
    BatchInputs,
    ClusterInputs,
    CorpusInputs,
    DocumentGroups,
    ExtremeInputs,
    HeatMapInputs,
    OrderingInputs,
    PackingInputs,
    ProfileInputs,
    PurityInputs,
    ReferenceInputs,
    ReportInputs,
    RowInputs,
    SegmentInputs,
    TrainingInputs,
)

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


BATCH_SIZE = 16


def make_profile(num_sequences: int, level: float, seed: int = 0) -> dict[str, ProfileInputs]:
    """Falling curves over window sizes, at both offsets; `level` is the mean TV of single sequences."""
    rng = np.random.default_rng(seed)
    profiles = {}
    for offset, least in (("0", 1), ("half", 2)):
        sizes = np.array([2**k for k in range(30) if least <= 2**k <= num_sequences], np.int64)
        num_windows = (num_sequences - (sizes // 2 if offset == "half" else 0)) // sizes
        sizes, num_windows = sizes[num_windows > 0], num_windows[num_windows > 0]
        mean = level * (1 + rng.normal(0, 0.01, len(sizes))) / (1 + sizes / 4) ** 0.5
        width = np.where(num_windows > 1, 0.2, 0.0)
        profiles[offset] = ProfileInputs(sizes, num_windows, mean, mean * (1 - width), mean * (1 + width))
    return profiles


def make_references(families: tuple[str, ...], num_sequences: int = 2000) -> dict[str, ReferenceInputs]:
    """A floor, an ideal, and five shuffles between the ideal and the sky."""
    shuffles = [make_profile(num_sequences, 0.9, seed) for seed in range(5)]
    sizes = shuffles[0]["0"].sizes if num_sequences else np.zeros(0, np.int64)
    floor, ideal = 0.7 / sizes**0.9, 0.3 / sizes**0.5
    return {family: ReferenceInputs(sizes, floor, ideal, shuffles) for family in families}


def make_heat_map(names: tuple[str, ...], num_sequences: int, seed: int = 0) -> HeatMapInputs:
    """Up to 24 groups over up to 96 bins."""
    rng = np.random.default_rng(seed)
    names = names[:24]
    bin_size = max(-(-num_sequences // 96), 1)
    target = 0.8 / (len(names) * (1 + np.arange(len(names))) ** 0.5)
    share = target[:, None] * rng.lognormal(0, 0.4, (len(names), -(-num_sequences // bin_size)))
    return HeatMapInputs(bin_size, names, target, np.minimum(share, 1.0))


def make_batch(step: int, tv: float, text: tuple[str, ...] = ()) -> BatchInputs:
    """A batch of twelve shown rows and four more; `text` stands wherever text of a corpus can stand."""
    rng = np.random.default_rng(step)
    names = text or ("cells, proteins", "roads", "music, songs", "football", "recipes", "planets, stars")

    def name(index: int) -> str:
        return names[index % len(names)]

    rows = [
        RowInputs(
            row,
            int(rng.integers(2000)),
            [
                SegmentInputs(
                    name(part) if text else f"doc-{step}-{row}-{part}",
                    name(part) if text else f"On {name(row + part)}",
                    name(part) if text else f"source {part}",
                    None if part % 3 == 2 else name(part) if text else "en",
                    None if part == 4 else name(row + part),
                    int(rng.integers(1, 60)),
                )
                for part in range(1 + row % 6)
            ],
            num_more_segments=3 if row == 5 else 0,
        )
        for row in range(12)
    ]
    differences = [(name(k), 0.1 + tv / (k + 1), 0.1) for k in range(6)]
    return BatchInputs(step, step * BATCH_SIZE, tv, differences, rows, num_more_rows=BATCH_SIZE - 12)


def with_details(order: OrderingInputs, text: tuple[str, ...] = ()) -> OrderingInputs:
    """The same ordering with profiles, heat maps and opened batches in every family."""
    num_sequences = len(order.norm_drift)
    shuffled = order.method == "uniform_shuffle"
    groups = text or tuple(f"group {index}" for index in range(30))
    extremes = ExtremeInputs(
        [make_batch(step, 0.3 + step / 1000, text) for step in (7, 31, 2)],
        [make_batch(step, 0.8 - step / 1000, text) for step in (90, 101, 55)],
    )
    return dataclasses.replace(
        order,
        profile={family: make_profile(num_sequences, 0.9 if shuffled else 0.7) for family in order.prefix_l2},
        heat_maps={family: make_heat_map(groups, num_sequences, index) for index, family in enumerate(order.prefix_l2)},
        batches=dict.fromkeys(order.prefix_l2, extremes),
    )


def make_ordering(
    name: str,
    method: str,
    tv: dict[str, dict[int, list[float]]],
    *,
    floor: float = 0.05,
    num_sequences: int = 2000,
) -> OrderingInputs:
    rng = np.random.default_rng(len(name))
    walk = np.abs(np.cumsum(rng.normal(size=num_sequences)))
    return OrderingInputs(
        name=name,
        method=method,
        prefix_l2=dict.fromkeys(tv, walk),
        window_tv={family: {size: np.array(v, float) for size, v in by.items()} for family, by in tv.items()},
        window_tv_floor={family: dict.fromkeys(by, floor) for family, by in tv.items()},
        window_max={family: dict.fromkeys(by, 0.01) for family, by in tv.items()},
        norm_drift=walk - 3,
        info={"seed": 0},
    )


SHUFFLE = make_ordering(
    "uniform_shuffle",
    "uniform_shuffle",
    {"cluster": {64: [0.5, 0.6], 256: [0.252, 0.3, 0.317]}, "length": {64: [0.4, 0.5], 256: [0.2, 0.22, 0.24]}},
)
GREEDY = make_ordering(
    "greedy",
    "greedy",
    {"cluster": {64: [0.4, 0.55], 256: [0.14, 0.15, 0.166]}, "length": {64: [0.2, 0.3], 256: [0.1, 0.1, 0.12]}},
)


def make_inputs(num_documents: int = 300, num_clusters: int = 70, text: tuple[str, ...] = ()) -> ReportInputs:
    """A report on a made-up dataset; `text` stands wherever text of a corpus can stand."""
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(5, 1.3, num_documents).astype(np.int64)
    cluster = rng.integers(0, num_clusters, num_documents)
    names = tuple(text) or tuple(f"source {index}" for index in range(50))
    terms = list(text) or ["gene", "protein", "cell"]
    circle = np.stack([np.cos(np.arange(num_clusters)), np.sin(np.arange(num_clusters))], axis=1)
    return ReportInputs(
        title=text[0] if text else "A small corpus",
        corpus=CorpusInputs(
            text_bytes=int(4 * lengths.sum()),
            document_lengths=lengths,
            sources=DocumentGroups(rng.integers(0, len(names), num_documents), names),
            languages=DocumentGroups.from_names([None if index % 3 else "en" for index in range(num_documents)]),
            skipped={"not JSON": 2, "empty": 0, **dict.fromkeys(text, 1)},
            num_duplicates=4,
            num_duplicate_groups=3,
            largest_duplicate_group=3,
        ),
        clusters=ClusterInputs(
            num_documents=np.bincount(cluster, minlength=num_clusters),
            num_tokens=np.bincount(cluster, weights=lengths, minlength=num_clusters).astype(np.int64),
            top_terms=[terms for _ in range(num_clusters)],
            example_titles=[list(text) or ["On cells"] for _ in range(num_clusters)],
            names=[", ".join(terms[:3]) for _ in range(num_clusters)],
            positions=np.where(np.arange(num_clusters)[:, None] == 3, np.nan, circle),
            labels=[None if index == 5 else names[index % len(names)] for index in range(num_clusters)],
            purity=PurityInputs("domain", 19, 0.214, {1000: 0.9699, 100: 0.9491}, "tfidf_svd"),
        ),
        packing=PackingInputs("concat", 128, 2000, 20, 2020 * 128, 77, 210, rng.integers(1, 9, 2000)),
        orderings=(with_details(SHUFFLE, text), with_details(GREEDY, text)),
        profile_references=make_references(("cluster", "length")),
        batch_size=BATCH_SIZE,
        ideal_token_tv={"cluster": {64: 0.02, 256: 0.01}, "length": {64: 0.02, 256: 0.01}},
        training=(
            TrainingInputs(
                "greedy",
                [
                    {"step": s, "loss": 7 / s**0.1, "input_wait_seconds": 0.02 / s}
                    | {"gradient_diversity": 1 + 0.1 / s, "stable_rank": 3 + s / 20}
                    | ({"validation_loss": 7.1} if s % 9 == 0 else {})
                    for s in range(1, 40)
                ],
            ),
        ),
        settings={"packing": {"sequence_length": 128, "names": text}, "rate": math.nan},
        fingerprints={"tokens": "ab" * 32},
    )


def many_inputs() -> ReportInputs:
    """A shuffle and eight other orderings."""
    others = (dataclasses.replace(with_details(GREEDY), name=f"ordering {index}") for index in range(8))
    return dataclasses.replace(make_inputs(), orderings=(with_details(SHUFFLE), *others), training=())


def tiny_inputs() -> ReportInputs:
    """One document of one token, no training, nothing that could be compared."""
    one = np.array([1])
    return ReportInputs(
        title="",
        corpus=CorpusInputs(1, one),
        clusters=ClusterInputs(one, one, [[]], [[]]),
        packing=PackingInputs("concat", 2, 1, 0, 1, 0, 0, one),
        orderings=(
            make_ordering("shuffle", "uniform_shuffle", {"cluster": {256: []}}, num_sequences=1),
            make_ordering("greedy", "greedy", {"cluster": {256: []}}, num_sequences=1),
        ),
    )


def nothing_inputs() -> ReportInputs:
    none = np.array([], np.int64)
    return ReportInputs(
        "",
        CorpusInputs(0, none, DocumentGroups(none, ()), DocumentGroups(none, ())),
        ClusterInputs(none, none, [], []),
        PackingInputs("concat", 2, 0, 0, 0, 0, 0, none),
        (),
    )
