"""The stages `order/NAME`, one for each ordering: counts -> permutation."""

from __future__ import annotations

import dataclasses
import os
import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_diversity.foundation.artifacts import write_array
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.stage import Context, Counts, Stage
from jax_diversity.foundation.wording import counted
from jax_diversity.ordering.settings import OrderConfig, position_of
from jax_diversity.ordering.stored import ORDERINGS, VALIDATION, VALIDATION_FILE, VALIDATION_STAGE, array_name

if TYPE_CHECKING:
    from jax_diversity.ordering.plan import Targets


_VALIDATION_METHOD = "balance"
_OUT_OF_CORE = "balance"
_WITHOUT_COUNTS = ("corpus_order", "uniform_shuffle")


def order_stage(config: OrderConfig) -> Stage:
    """Make the stage that computes one ordering. If the settings have no windows, the batch size is the window."""
    return Stage(
        f"order/{config.file_name}",
        help="Compute and measure one more ordering.",
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
    """Compute one ordering; an interrupted run continues from its checkpoint in the partial folder."""
    from jax_diversity.ordering.base import METHODS, order
    from jax_diversity.ordering.curriculum import named_targets
    from jax_diversity.ordering.shortages import UnmetTargets, shortages
    from jax_diversity.schema import Ordering

    dataset = context.dataset
    if dataset.stored_counts().is_large and config.method in (_OUT_OF_CORE, *_WITHOUT_COUNTS):
        return _order_large(context, partial, config)
    chars = dataset.characteristics
    # A weight may name a family that the characteristics do not have, because it has only one group in this corpus.
    # Such a family is balanced in any order.
    given = {family: value for family, value in config.weights.items() if family in chars.families}
    chars = chars.with_weights({**chars.weights, **given})
    checkpoint = partial / "checkpoint"
    settings = config.arguments(chars.families)
    if METHODS.takes(config.method, "checkpoint"):
        settings["checkpoint"] = checkpoint
    if config.devices is not None:
        settings["mesh"] = _mesh(config)
    about: Counts = {"name": config.file_name, **_continued(dataset, config, settings)}
    if config.targets.shares:
        targets = named_targets(config.targets, chars, dataset.group_names)
        if found := shortages(chars, targets, np.asarray(settings.get("consumed", ()), np.int64)):
            name = dataset.group_names[found[0].family][found[0].group]
            about["unmet_targets"] = [found[0].sentence(name, len(found) - 1)]
        settings["targets"] = _from_position(config, targets)
    with (
        context.progress.task(f"order: {config.method}", chars.num_sequences, "sequence") as advance,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", UnmetTargets)  # the warning below names the ordering and the group
        result = order(chars, config.method, advance=advance, **settings)
    _warn(about)
    if config.reverse:
        result = Ordering(result.indices[::-1], {**result.info, "reverse": True})
    checkpoint.unlink(missing_ok=True)  # a finished run has already deleted it; it must never be published
    write_array(partial / array_name(config.file_name), result.indices)
    return {"num_sequences": len(result), "fingerprint": result.fingerprint, **result.info, **about}


def _order_large(context: Context, partial: Path, config: OrderConfig) -> Counts:
    """Compute one ordering of a large dataset; an interrupted run continues from its state in the partial folder."""
    from jax_diversity.ordering.base import METHODS, in_turn
    from jax_diversity.ordering.curriculum import targets_of
    from jax_diversity.ordering.out_of_core import order_files
    from jax_diversity.ordering.shortages import UnmetTargets
    from jax_diversity.schema import Ordering

    dataset = context.dataset
    counts = dataset.stored_counts()
    given = {family: value for family, value in config.weights.items() if family in counts.families}
    counts = dataclasses.replace(counts, weights={**counts.weights, **given})
    settings = config.arguments(counts.families)
    path, state = partial / array_name(config.file_name), partial / "unfinished"
    about: Counts = {"name": config.file_name, **_continued(dataset, config, settings)}
    if config.targets.shares:
        totals = {family: dataset.group_tokens[family] for family in config.targets.shares}
        own = {family: each / max(int(each.sum()), 1) for family, each in totals.items()}
        targets = targets_of(config.targets, dataset.group_names, own, counts.num_sequences)
        settings["targets"] = _from_position(config, targets)
    with context.progress.task(f"order: {config.method}", counts.num_sequences, "sequence") as advance:
        if config.method in _WITHOUT_COUNTS:
            indices = METHODS.find(config.method)(counts, advance=advance, **settings)
            result = Ordering(indices, {"method": config.method, **settings, "options": config.options})
            write_array(path, result.indices)
            info = {**result.info, "fingerprint": result.fingerprint}
        else:
            # The devices are left out: the parts are ordered one after another, each on the cores of this machine.
            settings["sequences_in_memory"] = counts.sequences_together
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                info = order_files(counts, state / path.name, advance=advance, **settings)
            if told := [str(each.message) for each in caught if each.category is UnmetTargets]:
                about["unmet_targets"] = told
            os.replace(state / path.name, path)
            shutil.rmtree(state)
    _warn(about)
    indices, changed = None, dict[str, Any]()
    if config.method == _OUT_OF_CORE and info["objective"]["document_weight"] and dataset.sequence_turns is not None:
        indices = in_turn(np.load(path), dataset.sequence_documents, dataset.sequence_turns)
    if config.reverse:
        indices = (np.load(path) if indices is None else indices)[::-1]
        changed["reverse"] = True
    if indices is not None:
        result = Ordering(indices)
        write_array(path, result.indices)
        changed["fingerprint"] = result.fingerprint
    return {**info, **changed, "num_sequences": counts.num_sequences, **about}


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


def _warn(about: Counts) -> None:
    """Warn if groups have too few tokens for the targets."""
    for sentence in about.get("unmet_targets", ()):
        warnings.warn(f"Ordering {about['name']!r}: {sentence}", stacklevel=2)


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
    made = f"{counted(counts['num_sequences'], 'position')} by {counts['method']}{balanced}"
    return ". ".join([made, *counts.get("unmet_targets", [])])
