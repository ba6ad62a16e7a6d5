"""The stages `order/NAME`, one for each ordering: counts -> permutation."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from jax_diversity.foundation.artifacts import write_array
from jax_diversity.foundation.stage import Context, Counts, Stage
from jax_diversity.ordering.settings import OrderConfig


def order_stage(config: OrderConfig) -> Stage:
    """The stage that computes one ordering; its windows are the batch size where it sets none."""
    return Stage(
        f"order/{config.file_name}",
        help="Compute and measure one more ordering.",
        section="orders",
        destination="orderings",
        run=lambda context, partial: order_sequences(context, partial, config.for_batches(context.config.batch_size)),
        summary=summary,
        settings=lambda build: {"order": dataclasses.asdict(config.for_batches(build.batch_size))},
        inputs=lambda context: ("characterize",),
        resumable=True,
        owns_folder=False,
        packages=("jax", "numpy"),
        methods="ordering.base",
    )


def order_sequences(context: Context, partial: Path, config: OrderConfig) -> Counts:
    """Compute one ordering; a run that was cut off goes on from its checkpoint in the partial folder."""
    from jax_diversity.ordering.base import METHODS, order

    chars = context.dataset.characteristics
    # A weight may be of a family that this corpus has one group of, and that is balanced whatever the order.
    given = {family: value for family, value in config.weights.items() if family in chars.families}
    chars = chars.with_weights({**chars.weights, **given})
    checkpoint = partial / "checkpoint"
    settings: dict[str, Any] = {"seed": config.seed, "objective": config.resolve_objective(), **config.options}
    if METHODS.takes(config.method, "checkpoint"):
        settings["checkpoint"] = checkpoint
    with context.progress.task(f"order: {config.method}", chars.num_sequences, "sequences") as advance:
        result = order(chars, config.method, advance=advance, **settings)
    checkpoint.unlink(missing_ok=True)  # a finished run has deleted it; in any case it is not published
    write_array(partial / f"{config.file_name}.npy", result.indices)
    return {"num_sequences": len(result), "fingerprint": result.fingerprint, **result.info, "name": config.file_name}


def summary(counts: Counts) -> str:
    """How many positions were filled by which method."""
    return f"{counts['num_sequences']:,} positions by {counts['method']}"
