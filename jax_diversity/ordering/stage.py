"""The stages `order/NAME`, one for each ordering: counts -> permutation."""

from __future__ import annotations

import dataclasses
import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_diversity.foundation.artifacts import write_array
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.stage import Context, Counts, Stage
from jax_diversity.foundation.warned import warn
from jax_diversity.foundation.wording import counted
from jax_diversity.ordering.settings import OrderConfig, position_of
from jax_diversity.ordering.stored import ORDERINGS, VALIDATION, VALIDATION_FILE, VALIDATION_STAGE, array_name

if TYPE_CHECKING:
    from jax_diversity.counts.targets import Targets


_VALIDATION_METHOD = "balance"


def order_stage(config: OrderConfig) -> Stage:
    """Make the stage that computes one ordering. If the settings have no windows, the batch size is the window."""
    return Stage(
        f"order/{config.file_name}",
        help="Compute and measure more orderings.",
        section="orders",
        destination=ORDERINGS,
        run=lambda context, partial: order_sequences(context, partial, config.for_batches(context.config.batch_size)),
        summary=summary,
        # The number of devices is left out, because it does not change the result. The name is the stage's name.
        settings=lambda build: {
            "order": {**dataclasses.asdict(config.for_batches(build.batch_size)), "name": None, "devices": None}
        },
        inputs=lambda context: ("characterize", *([f"order/{config.after.order}"] if config.after.order else [])),
        check=lambda context: _mesh(config),  # before the work of other stages
        resumable=True,
        owns_folder=False,
        packages=("jax", "numpy"),
        methods="ordering.base",
    )


def order_sequences(context: Context, partial: Path, config: OrderConfig) -> Counts:
    """Compute one ordering; an interrupted run continues from its state in the partial folder."""
    from jax_diversity.ordering.base import METHODS, order
    from jax_diversity.ordering.curriculum import named_targets
    from jax_diversity.ordering.shortages import UnmetTargets
    from jax_diversity.schema import Ordering

    dataset = context.dataset
    counts = dataset.token_counts()
    state, settings = partial / "state", config.arguments(counts.families)
    if METHODS.takes(config.method, "checkpoint"):
        settings["folder"] = state
    if config.devices is not None:
        settings["mesh"] = _mesh(config)
    description: Counts = {"name": config.file_name, **_continued(dataset, config, settings)}
    if config.targets.shares:
        settings["targets"] = _from_position(config, named_targets(config.targets, counts, dataset.group_names))
    with (
        context.progress.task(f"order: {config.file_name}", counts.num_sequences, "sequence") as advance,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        result = order(counts, config.method, advance=advance, **settings)
    for warning in caught:
        if warning.category is UnmetTargets:
            description.setdefault("unmet_targets", []).append(str(warning.message))
            warn(f"Ordering {config.file_name!r}: {warning.message}")
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if config.reverse:
        result = Ordering(result.indices[::-1], {**result.info, "reverse": True})
    if context.config.packing.continues_rows and (np.diff(result.indices) != 1).any():
        warn(
            f"Ordering {config.file_name!r}: packing.method={context.config.packing.method} packs sequences whose rows "
            "continue from batch to batch. This order separates them; to keep them together, train on `corpus_order`."
        )
    shutil.rmtree(state, ignore_errors=True)  # it is empty; it must never be published
    write_array(partial / array_name(config.file_name), result.indices)
    return {"num_sequences": len(result), "fingerprint": result.fingerprint, **result.info, **description}


def order_validation(context: Context, partial: Path) -> Counts:
    """Compute the order of the validation sequences: balanced, so that the first of them are a sample of all."""
    from jax_diversity.ordering.base import order
    from jax_diversity.schema import Ordering

    result = Ordering(np.zeros(0, np.int64), {"method": _VALIDATION_METHOD})
    if context.counts("pack")["num_validation_sequences"]:
        chars = context.dataset.validation.characteristics
        with context.progress.task("order validation", chars.num_sequences, "sequence") as advance:
            result = order(chars, _VALIDATION_METHOD, advance=advance)
    write_array(partial / VALIDATION_FILE, result.indices)
    return {"num_sequences": len(result), "fingerprint": result.fingerprint, **result.info}


def _mesh(config: OrderConfig) -> Any:
    """Return a mesh of the number of devices in the settings; None if the settings have no such number."""
    from jax_diversity.foundation.devices import first_devices

    return None if config.devices is None else first_devices(config.devices, "sequences")


def _continued(dataset: Any, config: OrderConfig, settings: dict[str, Any]) -> Counts:
    """Add the sequences of the ordering that is continued to the arguments; return its name and fingerprint."""
    if config.after.order is None:
        return {}
    before = dataset.orderings[config.after.order]
    position = position_of(config.after.position or 0, len(before))
    if position > len(before):
        raise UserError(
            f"Ordering {config.file_name!r}: Expected a position in 0 .. {len(before)} (the sequences), found "
            f"{position}; for a run over several epochs, give the position within the epoch."
        )
    settings["consumed"] = before.indices[:position]
    return {"of": {"name": config.after.order, "fingerprint": before.fingerprint}}


def _from_position(config: OrderConfig, targets: Targets) -> Targets | dict[str, Any]:
    """Return the targets as an argument of `order`."""
    # After another ordering, a single phase starts at the continued position; several phases start at position 0.
    if config.after.order is not None and config.targets.num_phases == 1:
        return {family: shares[0] for family, shares in targets.shares.items()}
    return targets


ORDER_VALIDATION = Stage(
    VALIDATION_STAGE,
    help="",  # only builds run it
    section="orders",
    destination=VALIDATION,
    run=order_validation,
    summary=lambda counts: f"{counted(counts['num_sequences'], 'validation sequence')} by {counts['method']}",
    settings=lambda config: {},
    inputs=lambda context: ("tokenize", "pack", "characterize"),
    packages=("jax", "numpy"),
)


def summary(counts: Counts) -> str:
    """Return one line: the number of positions, the method, its windows, and the groups with too few tokens."""
    windows = counts.get("objective", {}).get("windows")
    balanced = f", windows of {', '.join(map(str, windows))}" if windows else ""
    positions = f"{counted(counts['num_sequences'], 'position')} by {counts['method']}{balanced}"
    return ". ".join([positions, *counts.get("unmet_targets", [])])
