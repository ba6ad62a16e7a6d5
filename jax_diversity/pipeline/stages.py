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


def check_order(order: OrderConfig) -> None:
    """Whether an ordering's settings can be: before hours of work rather than after.

    Raises:
        UserError: an impossible name, an unknown method, an objective that cannot be.
    """
    from jax_diversity.ordering import find_method

    ordering_name(order)
    find_method(order.method)
    sequences.objective_of(order)


def order_stages(order: OrderConfig) -> list[Stage]:
    """The stages of one ordering: the permutation, which may take long, and its measured balance."""
    name = ordering_name(order)
    return [
        Stage(
            f"order/{name}",
            "orderings",
            lambda context, partial: sequences.order(context, partial, order, name),
            settings=lambda config: {"order": as_plain(order)},
            inputs=lambda context: ("characterize",),
            owns_folder=False,
            packages=("jax", "numpy"),
        ),
        Stage(
            f"measure/{name}",
            "orderings",
            lambda context, partial: sequences.measure_order(context, partial, name),
            settings=lambda config: {"windows": list(config.windows)},
            inputs=lambda context: ("characterize", f"order/{name}"),
            owns_folder=False,
        ),
    ]


def _pack_inputs(context: Context) -> tuple[str, ...]:
    needs = ("prepare", "tokenize")
    return (*needs, "cluster") if context.config.packing.document_order == "spacing" else needs


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
            packages=("pyarrow",),
        ),
        Stage(
            "tokenize",
            "tokens",
            documents.tokenize,
            settings=lambda config: {"tokenizer": as_plain(config.tokenizer)},
            inputs=lambda context: ("prepare",),
            outside=documents.tokenizer_fingerprint,
            resumable=True,
            packages=("tokenizers",),
        ),
        Stage(
            "embed",
            "embeddings",
            documents.embed,
            settings=lambda config: {"embedding": as_plain(config.embedding)},
            inputs=lambda context: ("prepare",),
            resumable=True,
            packages=("numpy", "scikit-learn", "scipy"),
        ),
        Stage(
            "cluster",
            "clusters",
            documents.cluster,
            settings=lambda config: {"cluster": as_plain(config.cluster)},
            inputs=lambda context: ("prepare", "embed"),
            packages=("jax", "scikit-learn"),
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
            packages=("array_record",),
        ),
        Stage(
            "report",
            "",
            reporting.report,
            settings=lambda config: {"windows": list(config.windows)},
            inputs=reporting.report_inputs,
            outside=reporting.outside_fingerprint,
            owns_folder=False,
            packages=("plotly",),
        ),
    )
}
