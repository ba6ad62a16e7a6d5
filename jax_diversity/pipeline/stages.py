"""The table of stages: what each depends on and where its files go."""

from __future__ import annotations

from jax_diversity.config import OrderConfig, as_plain
from jax_diversity.pipeline import (
    characteristics,
    clusters,
    corpus,
    embeddings,
    orderings,
    reporting,
    sequences,
    tokens,
)
from jax_diversity.pipeline.context import Context, Stage


def order_stages(order: OrderConfig) -> list[Stage]:
    """The stages of one ordering: the permutation, which may take long, and its measured balance."""
    name = orderings.ordering_name(order)
    return [
        Stage(
            f"order/{name}",
            "orderings",
            lambda context, partial: orderings.order(context, partial, order, name),
            settings=lambda config: {"order": as_plain(order)},
            inputs=lambda context: ("characterize",),
            resumable=True,
            owns_folder=False,
            packages=("jax", "numpy"),
        ),
        Stage(
            f"measure/{name}",
            "orderings",
            lambda context, partial: orderings.measure_order(context, partial, name),
            settings=lambda config: {"windows": list(config.windows)},
            inputs=lambda context: ("characterize", f"order/{name}"),
            owns_folder=False,
        ),
    ]


def _pack_inputs(context: Context) -> tuple[str, ...]:
    from jax_diversity.packing import takes

    config = context.config.packing
    by_vectors = takes(config.method, "vectors")
    by_clusters = takes(config.method, "clusters") or config.document_order == "spacing"
    return ("prepare", "tokenize", *["embed"] * by_vectors, *["cluster"] * by_clusters)


def _write_inputs(context: Context) -> tuple[str, ...]:
    config = context.config
    needs = ("tokenize", "pack")
    return (*needs, f"order/{config.records.ordering}") if config.records.layout == "ordered" else needs


STAGES = {
    stage.name: stage
    for stage in (
        Stage(
            "prepare",
            "documents",
            corpus.prepare,
            settings=lambda config: {"corpus": as_plain(config.corpus)},
            outside=corpus.corpus_fingerprint,
            packages=("pyarrow",),
        ),
        Stage(
            "tokenize",
            "tokens",
            tokens.tokenize,
            settings=tokens.token_settings,
            inputs=lambda context: ("prepare",),
            outside=tokens.tokenizer_fingerprint,
            resumable=True,
            packages=("tokenizers",),
        ),
        Stage(
            "embed",
            "embeddings",
            embeddings.embed,
            settings=lambda config: {"embedding": as_plain(config.embedding)},
            inputs=lambda context: ("prepare", "tokenize"),
            outside=embeddings.embedding_fingerprint,
            resumable=True,
            packages=("jax", "numpy", "scikit-learn", "scipy"),
        ),
        Stage(
            "cluster",
            "clusters",
            clusters.cluster,
            settings=lambda config: {"cluster": as_plain(config.cluster)},
            inputs=lambda context: ("prepare", "tokenize", "embed"),
            resumable=True,
            packages=("jax", "numpy", "scikit-learn"),
            version=3,
        ),
        Stage(
            "pack",
            "sequences",
            sequences.pack,
            settings=lambda config: {"packing": as_plain(config.packing)},
            inputs=_pack_inputs,
        ),
        Stage(
            "characterize",
            "characteristics",
            characteristics.characterize,
            settings=lambda config: {"characteristics": as_plain(config.characteristics)},
            inputs=lambda context: ("prepare", "tokenize", "cluster", "pack"),
        ),
        Stage(
            "write",
            "records",
            sequences.write,
            settings=sequences.record_settings,
            inputs=_write_inputs,
            resumable=True,
            packages=("array_record",),
        ),
        Stage(
            "report",
            "",
            reporting.report,
            settings=reporting.report_settings,
            inputs=reporting.report_inputs,
            outside=reporting.outside_fingerprint,
            owns_folder=False,
            packages=("plotly",),
            version=2,
        ),
    )
}
