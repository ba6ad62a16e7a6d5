"""The table of stages: what each depends on and where its files go."""

from __future__ import annotations

from jax_diversity.config import OrderConfig, as_plain
from jax_diversity.errors import UserError
from jax_diversity.pipeline import documents, reporting, sequences
from jax_diversity.pipeline.context import Context, Stage


def ordering_name(order: OrderConfig) -> str:
    """The name of an ordering's file.

    Raises:
        UserError: it could not be one.
    """
    name = order.name or order.method
    if not name or "/" in name or name.startswith("."):
        raise UserError(f"Expected an ordering's name to be a plain file name, found {name!r}.")
    return name


def order_stage(order: OrderConfig) -> Stage:
    """The stage of one ordering."""
    return Stage(
        f"order/{ordering_name(order)}",
        "orderings",
        lambda context, partial: sequences.order(context, partial, order, ordering_name(order)),
        settings=lambda config: {"order": as_plain(order), "windows": list(config.windows)},
        inputs=lambda context: ("characterize",),
    )


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
            documents.prepare,
            settings=lambda config: {"corpus": as_plain(config.corpus)},
            outside=documents.corpus_fingerprint,
        ),
        Stage(
            "tokenize",
            "tokens",
            documents.tokenize,
            settings=lambda config: {"tokenizer": as_plain(config.tokenizer)},
            inputs=lambda context: ("prepare",),
            outside=documents.tokenizer_fingerprint,
            resumable=True,
        ),
        Stage(
            "embed",
            "embeddings",
            documents.embed,
            settings=lambda config: {"embedding": as_plain(config.embedding)},
            inputs=lambda context: ("prepare",),
            resumable=True,
        ),
        Stage(
            "cluster",
            "clusters",
            documents.cluster,
            settings=lambda config: {"cluster": as_plain(config.cluster)},
            inputs=lambda context: ("prepare", "embed"),
        ),
        Stage(
            "pack",
            "sequences",
            sequences.pack,
            settings=lambda config: {"packing": as_plain(config.packing)},
            inputs=lambda context: ("prepare", "tokenize"),
        ),
        Stage(
            "characterize",
            "characteristics",
            sequences.characterize,
            settings=lambda config: {"characteristics": as_plain(config.characteristics)},
            inputs=lambda context: ("prepare", "tokenize", "cluster", "pack"),
        ),
        Stage(
            "write",
            "records",
            sequences.write,
            settings=lambda config: {"records": as_plain(config.records)},
            inputs=_write_inputs,
            resumable=True,
        ),
        Stage(
            "report",
            "",
            reporting.report,
            settings=lambda config: {"windows": list(config.windows)},
            inputs=reporting.report_inputs,
            outside=reporting.runs_fingerprint,
        ),
    )
}
