"""The stages of an ordering: the permutation and its measured balance; and whether its settings can be."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_diversity.artifacts import atomic_path, write_json
from jax_diversity.config import OrderConfig
from jax_diversity.errors import UserError
from jax_diversity.pipeline.context import Context, Counts
from jax_diversity.schema import Characteristics

if TYPE_CHECKING:
    from jax_diversity.ordering import Objective

_KINDS = {int: "a whole number", float: "a number", bool: "True or False", str: "text"}


def ordering_name(order: OrderConfig) -> str:
    """The name of an ordering's file.

    Raises:
        UserError: it could not be one.
    """
    name = order.name or order.method
    if not name or "/" in name or name.startswith("."):
        raise UserError(f"Expected an ordering's name to be a plain file name, found {name!r}.")
    return name


def check_order(order: OrderConfig, families: tuple[str, ...]) -> None:
    """Whether an ordering's settings can be: before hours of work rather than after.

    Raises:
        UserError: an impossible name, an unknown method or option, a value or an objective that cannot be.
    """
    from jax_diversity.ordering import find_method

    name = ordering_name(order)
    find_method(order.method)
    objective = objective_of(order)
    try:
        _check_method(order, objective, families)
    except UserError as error:
        raise UserError(f"Ordering {name!r}: {error}") from None


def _check_method(order: OrderConfig, objective: Objective, families: tuple[str, ...]) -> None:
    """Whether the method takes the options and the objective: it is asked to order no sequences at all."""
    from jax_diversity import ordering
    from jax_diversity.ordering.base import check_options, method_options

    check_options(order.method, order.options)
    defaults = method_options(order.method)
    for option, value in order.options.items():
        kind = type(defaults[option])
        if kind not in _KINDS:
            raise UserError(f"The option {option!r} of method {order.method!r} can only be given in Python.")
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise UserError(f"Expected the option {option!r} to be {_KINDS[kind]}, found {value!r}.")
    none = _weighed({family: np.zeros((0, 1), np.int64) for family in families}, order, None)
    options: dict[str, Any] = dict(order.options)
    ordering.order(none, order.method, seed=order.seed, objective=objective, **options)


def _weighed(counts: Mapping[str, Any], order: OrderConfig, sequence_length: int | None) -> Characteristics:
    try:
        return Characteristics.from_counts(counts, weights=order.weights, sequence_length=sequence_length)
    except ValueError as error:
        raise UserError(f"weights: {error}") from None


def objective_of(order: OrderConfig) -> Objective:
    """The objective that an ordering's settings describe: a preset, then what they set by themselves.

    Raises:
        UserError: weights that the preset does not have, or that cannot be.
    """
    from jax_diversity.ordering import Objective

    presets = {"default": Objective, "f1": Objective.f1, "f2": Objective.f2, "f3": Objective.f3}
    if order.weights and order.objective != "default":
        raise UserError(
            f"Expected orders.weights with the default objective only, found them with {order.objective!r}, whose "
            "weights are fixed; take objective=default."
        )
    given = {"norm_weight": order.norm_weight, "self_weight": order.self_weight}
    return dataclasses.replace(
        presets[order.objective](),
        windows=order.windows,
        window_weight=order.window_weight,
        **{name: value for name, value in given.items() if value is not None},
    )


def order(context: Context, partial: Path, order: OrderConfig, name: str) -> Counts:
    """Compute one ordering; a run that was cut off goes on from its checkpoint in the partial folder."""
    from jax_diversity import ordering
    from jax_diversity.ordering.base import takes_checkpoint

    chars = context.dataset.characteristics
    chars = _weighed(chars.counts, order, chars.sequence_length)
    checkpoint = partial / "checkpoint"
    settings: dict[str, Any] = {"seed": order.seed, "objective": objective_of(order), **order.options}
    if takes_checkpoint(order.method):
        settings["checkpoint"] = checkpoint
    with context.progress.task(f"order: {order.method}", chars.num_sequences, "sequences") as advance:
        result = ordering.order(chars, order.method, advance=advance, **settings)
    checkpoint.unlink(missing_ok=True)  # by the end of a run it is gone; should it not be, it is not published
    with atomic_path(partial / f"{name}.npy") as temporary, temporary.open("wb") as file:
        np.save(file, result.indices)
    return {"num_sequences": len(result), "fingerprint": result.fingerprint, **result.info, "name": name}


def measure_order(context: Context, partial: Path, name: str) -> Counts:
    """Measure one ordering; its figures and how it was made stand beside it."""
    from jax_diversity.measures import measure

    dataset = context.dataset
    chars = dataset.characteristics
    windows = usable_windows(context.config.windows, chars.num_sequences)
    with context.progress.task(
        f"measure: {name}", len(chars.families) * chars.num_sequences, "positions"
    ) as advance:
        summary = measure(chars, dataset.orderings[name], windows, advance).summary()
    write_json(partial / f"{name}.json", {**context.counts(f"order/{name}"), "balance": summary})
    return {"windows": list(windows)}


def usable_windows(windows: tuple[int, ...], num_sequences: int) -> tuple[int, ...]:
    """The window sizes that fit twice; all sequences as one window where none does."""
    return tuple(size for size in windows if 2 * size <= num_sequences) or (max(num_sequences // 2, 1),)
