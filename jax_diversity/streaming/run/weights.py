"""Weights of the datasets or groups of a run: by name, in phases, by temperature, and with limits on repetitions."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from jax_diversity.counts.targets import Targets
from jax_diversity.foundation.checks import as_tuple, as_weight
from jax_diversity.foundation.errors import UserError, quoted
from jax_diversity.foundation.folders import source_of_file
from jax_diversity.schema.weights import WeightRule, fits, parse_rules
from jax_diversity.streaming.run.settings import as_temperature

Weights = Sequence[float] | np.ndarray | Targets
"""A weight for each dataset or group; or `Targets` of one family, for weights in phases."""


def phases_of(
    weights: Weights, sizes: Sequence[float] | None = None, family: str = "dataset"
) -> tuple[tuple[int, ...], Float64[np.ndarray, "phase dataset"]]:
    """The start and the shares of every phase; shares add up to 1, and are checked against the sizes."""
    if not isinstance(weights, Targets):
        return (0,), _as_weights(weights, sizes, family)[None]
    if set(weights.shares) != {family}:
        raise UserError(
            f"Expected the weights of a run to be of one family, {family!r}, found {sorted(weights.shares)}; give "
            f"Targets(starts, {{{family!r}: weights}})."
        )
    shares = weights.shares[family]
    if sizes is not None:
        _check_fit(shares.max(axis=0), sizes, family)
    return weights.starts, shares


def _as_weights(weights: Any, sizes: Sequence[float] | None, family: str) -> Float64[np.ndarray, " dataset"]:
    try:
        values = np.array(weights, np.float64)
    except (TypeError, ValueError):
        raise UserError(f"Expected weights that are numbers, or Targets of {family!r}, found {weights!r}.") from None
    if sizes is not None:
        _check_fit(values, sizes, family)
    elif values.ndim != 1:
        raise UserError(f"Expected one axis of weights, found an array of shape {values.shape}.")
    for index, value in enumerate(values.tolist()):
        as_weight(f"the weight of {family} {index}", value)
    if not values.any():
        raise UserError("Expected at least one weight above zero, found none.")
    return values / values.sum()


def _check_fit(weights: np.ndarray, sizes: Sequence[float], family: str) -> None:
    """Check that there is one weight for each dataset, and that a dataset of a weight above zero has sequences."""
    if weights.shape != (len(sizes),):
        raise UserError(
            f"Expected one weight for each {family}, {len(sizes)} in total, found an array of shape {weights.shape}."
        )
    for index, (value, size) in enumerate(zip(weights.tolist(), sizes, strict=True)):
        if value > 0 and not size:
            raise UserError(
                f"Expected sequences in a {family} of weight {value}, found none in {family} {index}; give it weight 0."
            )


def named_weights(
    weights: Any, names: Sequence[str], tokens: Float64[np.ndarray, " group"], family: str
) -> Float64[np.ndarray, " group"]:
    """Convert weights by name to a weight for every group; groups without a match get weight 0.

    Args:
        weights: name -> weight; or Megatron's list, with each weight before its name (or before a path that ends with
            the name). A name may be a pattern such as `web-*`: all matching groups share its weight in proportion to
            their tokens, except groups that another entry names exactly. If several patterns match, the first one is
            used.
        names: the names of the groups.
        tokens: the tokens of the groups.
        family: the family of the groups, for messages.

    Raises:
        UserError: a name matches no group, or only groups that already have a weight; a list has no weights; weights
            are negative, not finite or all zero.

    Example:
        >>> named_weights({"web-*": 3, "code": 1}, ["web-0", "web-1", "code"], np.array([10.0, 20.0, 5.0]), "dataset")
        array([1., 2., 1.])
        >>> named_weights(["3", "a/web", "1", "a/code"], ["code", "web"], np.ones(2), "source")
        array([1., 3.])
    """
    pairs = list(weights.items()) if isinstance(weights, Mapping) else _pairs(weights)
    named = {str(name): value for name, value in pairs}
    if len(named) < len(pairs):
        raise UserError(f"Expected every name once in the weights, found {quoted([name for name, _ in pairs])}.")
    rules = parse_rules(named, "weights", family)
    exact = [_groups(rule, names, operator.eq) for rule in rules]
    weights_of_groups, reserved, taken = np.zeros(len(names)), set(itertools.chain(*exact)), set[int]()
    for rule, named_groups in zip(rules, exact, strict=True):
        fitting = named_groups or _groups(rule, names, fits)
        if not fitting:
            shown = ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")
            raise UserError(
                f"Expected weights to name groups of {family}, found {quoted(rule.text)}; there are {shown}."
            )
        meant = [index for index in fitting if index not in taken and (named_groups or index not in reserved)]
        if not meant:
            raise UserError(
                f"Expected a group of {family} for every name, found that all groups of {quoted(rule.text)} have "
                "a weight from another name; put the narrower patterns first."
            )
        taken.update(meant)
        tokens_of_groups = tokens[meant]
        weights_of_groups[meant] = rule.factor * (
            tokens_of_groups / tokens_of_groups.sum() if tokens_of_groups.sum() else np.full(len(meant), 1 / len(meant))
        )
    if not weights_of_groups.any():
        raise UserError("Expected at least one weight above zero, found none.")
    return weights_of_groups


def _pairs(weights: Any) -> list[tuple[str, float]]:
    words = list(as_tuple(weights))
    try:
        pairs = [(str(name), float(weight)) for weight, name in zip(words[::2], words[1::2], strict=True)]
    except (TypeError, ValueError, OverflowError):
        pairs = []
    if not pairs or not all(isinstance(name, str | PurePath) for name in words[1::2]):
        raise UserError(f"Expected a weight before each name, as in '3 web 1 code', found {quoted(words)}.")
    return pairs


def _groups(rule: WeightRule, names: Sequence[str], fit: Callable[[str, str], bool]) -> list[int]:
    """The groups that a rule names: full name, without the family, last part of a path, source of a prefix, folder."""
    path = PurePath(rule.value)
    readings = (
        rule.value,
        rule.value.removeprefix(f"{rule.name}="),
        path.name,
        source_of_file(path.name, path.parent.name),
        path.parent.name,
    )
    fitting = ([index for index, name in enumerate(names) if fit(name, reading)] for reading in readings)
    return next(filter(None, fitting), [])


def tempered(tokens: Float64[np.ndarray, " group"], temperature: float) -> Float64[np.ndarray, " group"]:
    """Shares that are proportional to `tokens^(1/temperature)`.

    Temperature 1 gives shares proportional to the tokens; larger temperatures favour small groups. This is the rule of
    mT5 (Xue et al. 2021, section 3.1) with α = 1 / temperature.

    Raises:
        UserError: the temperature is not above zero.

    Example:
        >>> tempered(np.array([8.0, 2.0]), 2.0).round(3)
        array([0.667, 0.333])
    """
    value = as_temperature(temperature)
    if value == 1:
        return tokens / tokens.sum()
    shares = np.zeros(len(tokens))
    has_tokens = tokens > 0
    # Dividing by the largest number prevents an overflow at small temperatures.
    shares[has_tokens] = (tokens[has_tokens] / tokens.max()) ** (1 / value)
    return shares / shares.sum()


def limited(
    shares: Float64[np.ndarray, " group"], most: Float64[np.ndarray, " group"]
) -> Float64[np.ndarray, " group"]:
    """Limit shares to `most`; the other groups get the excess of a group, in proportion to their shares.

    With the shares of a high temperature this is UniMax (Chung et al. 2023).

    Raises:
        UserError: the limits add up to less than one.

    Example:
        >>> limited(np.array([0.6, 0.3, 0.1]), np.array([1.0, 0.2, 1.0])).round(3)
        array([0.686, 0.2  , 0.114])
    """
    if (total := float(most[shares > 0].sum())) < 1 - 1e-12:
        raise UserError(
            f"Expected max_repeats that the run can keep, found a limit that allows {total:.3f} of its positions: the "
            f"run is {1 / max(total, 1e-9):.2f} times too long; raise the limit or shorten the run."
        )
    shares_within, free = np.zeros(len(shares)), shares > 0
    while free.any():
        rest = max(1 - shares_within[~free].sum(), 0.0) * np.where(free, shares, 0.0) / shares[free].sum()
        over = free & (rest > most)
        shares_within[free] = rest[free]
        if not over.any():
            break
        shares_within[over] = most[over]
        free &= ~over
    return shares_within


def check_limit(
    most: int,
    num_wanted: Int64[np.ndarray, " group"],
    num_read: Int64[np.ndarray, " group"],
    sizes: Int64[np.ndarray, " group"],
    names: Sequence[str],
    family: str,
) -> None:
    """Raise a `UserError` if positions read the sequences of a group more than `most` times in the whole run.

    Args:
        most: the largest number of reads of a sequence.
        num_wanted: the number of positions of every group.
        num_read: the number of positions that every group had before.
        sizes: the number of sequences of every group.
        names: the names of the groups.
        family: the family of the groups.

    Raises:
        UserError: the limit cannot be kept; the message names the worst group and its excess.
    """
    over = num_read + num_wanted - most * sizes
    if (over > 0).any():
        worst = int(over.argmax())
        times = (num_read[worst] + num_wanted[worst]) / max(sizes[worst], 1)
        raise UserError(
            f"Expected each sequence at most {most} times, found a share of {family} {names[worst]!r} that needs each "
            f"sequence {times:.2f} times, {over[worst]:,} positions too many; lower its weight, shorten the run or "
            "raise max_repeats."
        )
