"""All measures of one ordering or run, in every family (a characteristic such as topic cluster, length or source)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Float64, Int64

from jax_diversity.counts import Characteristics
from jax_diversity.counts.characteristics import MADE_BY
from jax_diversity.figures.figure import Figure
from jax_diversity.figures.plain import clean_text
from jax_diversity.foundation.checks import (
    as_tuple,
    as_whole_number,
    check_function,
    check_mapping,
    check_one_of,
    check_type,
)
from jax_diversity.foundation.errors import UserError, in_one_line, quoted
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.foundation.tables import Cells, aligned, as_html, wrapped
from jax_diversity.foundation.wording import counted
from jax_diversity.measures.documents import DocumentSpread, document_spread
from jax_diversity.measures.drawn import curve_values, curves_of, limit_values
from jax_diversity.measures.floors import ideal_token_shuffle, window_limits
from jax_diversity.measures.prefixes import norm_drift, prefix_deviation
from jax_diversity.measures.sliding import EveryStart, window_maximum, window_tv_all
from jax_diversity.measures.windows import (
    aligned_windows,
    cumulative_tokens,
    place,
    row_sums,
    token_windows,
    usable_windows,
    window_deviation,
)
from jax_diversity.schema import Ordering
from jax_diversity.schema.orderings import Positions

# Windows of equal tokens are measured if the number of tokens per sequence varies: if its standard deviation is larger
# than this part of its mean.
_UNEVEN = 0.1


@runtime_checkable
class SupportsOrder(Protocol):
    """An object that gives the order of training, such as a run."""

    def to_order(self) -> Ordering | Positions:
        """Return the sequence at every position."""
        ...


Order = Ordering | Positions | SupportsOrder | Int64[np.ndarray, " position"]
"""The order of training; an array must be a bijection of the sequences."""
Targets = Mapping[str, Float[np.ndarray, " group"] | Sequence[float]]
"""Maps a family to the shares of its groups that an order is measured against."""


@dataclass(frozen=True, repr=False)
class Balance:
    """The measures of one ordering; arrays are float64 unless stated otherwise.

    A run may repeat and omit sequences. Then `num_sequences` in the shapes below is the number of positions, and floors
    and bounds are valid for all orders of the same positions. *Aligned* windows begin at position 0.

    Attributes:
        prefix_l2: family -> (num_sequences,) the prefix deviation after every position, in sequence lengths.
        window_tv: family -> window size -> (num_sequences // size,) the TV of consecutive aligned windows.
        window_tv_shifted: the same for windows that start at position size // 2; empty if no window fits.
        window_l2: family -> window size -> (num_sequences // size,) the Euclidean norm of share - τ of aligned windows.
        window_tv_floor: family -> window size -> the floor of the mean of `window_tv`.
        window_max: family -> window size -> the largest |share - τ| over all start positions and groups.
        ideal_tv: family -> window size -> the expected TV of an ideal token shuffle.
        norm_drift: (num_sequences,) the running sum of norms minus their mean, of the first family, in sequences.
        window_tv_bound: family -> window size -> a bound of the mean of `window_tv`, at least the floor.
        groups_per_batch: family -> window size -> int64 (num_sequences // size,) the number of distinct groups of every
            window.
        groups_per_sequence: family -> the mean number of distinct groups of a position's sequence.
        window_tv_every_start: family -> window size -> mean and worst TV over all start positions, if requested.
        window_tv_tokens: family -> window size -> the TV of consecutive windows with as many tokens as `size` sequences
            have on average; empty if all sequences have about the same number of tokens.
        documents: repeats and gaps of documents with several sequences; None if the documents are unknown.
        copies: the same for copies of one document; None if there are no copies or the copies are unknown.
    """

    prefix_l2: Mapping[str, Float64[np.ndarray, " sequence"]]
    window_tv: Mapping[str, Mapping[int, Float64[np.ndarray, " window"]]]
    window_tv_shifted: Mapping[str, Mapping[int, Float64[np.ndarray, " shifted_window"]]]
    window_l2: Mapping[str, Mapping[int, Float64[np.ndarray, " window"]]]
    window_tv_floor: Mapping[str, Mapping[int, float]]
    window_max: Mapping[str, Mapping[int, float]]
    ideal_tv: Mapping[str, Mapping[int, float]]
    norm_drift: Float64[np.ndarray, " sequence"]
    window_tv_bound: Mapping[str, Mapping[int, float]]
    groups_per_batch: Mapping[str, Mapping[int, Int64[np.ndarray, " window"]]]
    groups_per_sequence: Mapping[str, float]
    window_tv_every_start: Mapping[str, Mapping[int, EveryStart]]
    window_tv_tokens: Mapping[str, Mapping[int, Float64[np.ndarray, " token_window"]]]
    documents: DocumentSpread | None
    copies: DocumentSpread | None

    def _short(self) -> tuple[str, Cells]:
        """A sentence and a table: mean / worst TV of the aligned windows, and the largest prefix deviation."""
        sizes = list(dict.fromkeys(size for windows in self.window_tv.values() for size in windows))
        lines = [
            [
                family,
                *(f"{tv.mean():.3f} / {tv.max():.3f}" if len(tv) else "-" for tv in self.window_tv[family].values()),
                f"{prefix.max(initial=0.0):.2f}",
            ]
            for family, prefix in self.prefix_l2.items()
        ]
        number = counted(len(self.norm_drift), "position")
        sentence = f"Balance of {number}: window TV (mean / worst), largest prefix deviation"
        return sentence, [["family", *map(str, sizes), "prefix L2"], *lines]

    def __repr__(self) -> str:
        sentence, cells = self._short()
        return f"{wrapped(sentence)}\n\n{aligned(cells)}"

    def _repr_html_(self) -> str:
        return as_html(*self._short())

    def plot(
        self,
        figure: str = "windows",
        *,
        family: str | None = None,
        window: int | None = None,
    ) -> Figure:
        """Return a figure of the report on this order, which a notebook shows.

        Args:
            figure: `windows` (the TV of every window along training), `prefix` (the prefix deviation) or `drift` (the
                norm drift).
            family: the family; by default the first.
            window: for `windows`: the window size; by default the first.

        Raises:
            ValueError: there is no such figure, or the family or window was not measured.

        Example:
            >>> measure(chars, ordering, windows=(256,)).plot(family="topic")
        """
        check_one_of("figure", figure, ("windows", "prefix", "drift"))
        sizes = sorted({size for windows in self.window_tv.values() for size in windows})
        given = {"family": None if family is None else clean_text(family), "size": window}
        choices = {name: value for name, value in given.items() if value is not None}
        order = {
            "name": "order",
            "is_baseline": False,
            **curve_values(self.summary(), curves_of(self), len(self.norm_drift)),
        }
        ordering = {
            "baseline": None,
            "families": list(map(clean_text, self.prefix_l2)),
            "window_sizes": sizes,
            "references": limit_values(self.window_tv_floor, self.ideal_tv),
            "orders": [order],
        }
        return Figure(figure, {"ordering": ordering}, choices)

    def summary(self) -> dict[str, Any]:
        """Return the values that a table shows, as plain numbers, by family and window size.

        `tv_mean_shifted` and the other `_shifted` values are None if no shifted window fits. `tv_mean_every_start` and
        `tv_worst_every_start` exist if they were requested. `tv_mean_tokens` and the other `_tokens` values exist if
        the number of tokens per sequence varies. `documents` and `copies` exist if they are known.
        """
        families: dict[str, Any] = {
            family: {
                "prefix_l2_max": float(prefix.max(initial=0.0)),
                "groups_per_sequence_mean": self.groups_per_sequence[family],
                "windows": {str(size): self._window_summary(family, size) for size in self.window_tv[family]},
            }
            for family, prefix in self.prefix_l2.items()
        }
        drift = float(np.abs(self.norm_drift).max(initial=0.0))
        spreads = {"documents": self.documents, "copies": self.copies}
        known = {name: spread.summary() for name, spread in spreads.items() if spread is not None}
        return {"families": families, "norm_drift_max": drift, **known}

    def _window_summary(self, family: str, size: int) -> dict[str, float | None]:
        tv, shifted = self.window_tv[family][size], self.window_tv_shifted[family][size]
        groups = self.groups_per_batch[family][size]
        measured = self.window_tv_every_start[family].get(size)
        every_start = measured._asdict().items() if measured else ()
        parts = {"mean": np.mean, "best": np.min, "worst": np.max}
        of_tokens = self.window_tv_tokens[family].get(size, ())
        return {
            **{f"tv_{name}": float(part(tv)) for name, part in parts.items()},
            **{f"tv_{name}_shifted": float(part(shifted)) if len(shifted) else None for name, part in parts.items()},
            "tv_floor": self.window_tv_floor[family][size],
            "tv_bound": self.window_tv_bound[family][size],
            "tv_ideal_token_shuffle": self.ideal_tv[family][size],
            "l2_worst": float(self.window_l2[family][size].max()),
            "max_share_deviation": self.window_max[family][size],
            "groups_per_batch_mean": float(groups.mean()),
            "groups_per_batch_min": float(groups.min()),
            **{f"tv_{name}_every_start": value for name, value in every_start},
            **{f"tv_{name}_tokens": float(part(of_tokens)) for name, part in parts.items() if len(of_tokens)},
        }


def measure(
    characteristics: Characteristics,
    ordering: Order,
    windows: Sequence[int] | None = None,
    advance: Advance = ignore,
    *,
    targets: Targets | None = None,
    every_start: bool = False,
) -> Balance:
    """Measure an ordering, or a run that repeats or omits sequences, in every family.

    Args:
        characteristics: the token counts; weights are ignored. With `jd.measure`, also a built dataset or its folder.
        ordering: the order of training; an array must be a bijection of the sequences. Of a dataset, also the name of
            an ordering; by default `balance`.
        windows: window sizes in sequences, each between 1 and the number of positions. None means 256 and the batch
            size of the characteristics, without the sizes that do not fit twice; if none fits, half of all sequences.
        advance: called with the number of positions done, over all families.
        targets: family -> the groups' shares to measure against; for other families, the shares of the corpus. Norms
            have no target: if the first family has a target, the drift is measured against the mean of all positions.
        every_start: whether to also measure the window TV of all start positions.

    Raises:
        ValueError: the ordering was made for another dataset, a window size is out of range, or targets are not shares.

    Example:
        >>> chars = Characteristics.from_counts({"topic": [[2, 0], [0, 2], [2, 0], [0, 2]]})
        >>> float(measure(chars, np.arange(4), windows=(2,)).window_tv["topic"][2].max())
        0.0
    """
    check_type("characteristics", characteristics, Characteristics, MADE_BY)
    if windows is None:
        windows = usable_windows((256,), characteristics.num_sequences, characteristics.batch_size)
    return Measurer(characteristics, windows, targets, every_start=every_start).measure(ordering, advance)


class Measurer:
    """Measures several orders of one corpus against the same targets; see `measure` for the arguments."""

    def __init__(
        self,
        characteristics: Characteristics,
        windows: Sequence[int],
        targets: Targets | None = None,
        *,
        every_start: bool = False,
    ) -> None:
        check_type("characteristics", characteristics, Characteristics, MADE_BY)
        targets = {} if targets is None else targets
        self.windows = tuple(as_whole_number("every window size", size, 1) for size in as_tuple(windows))
        self.shares = target_shares(characteristics, targets)
        check_type("every_start", every_start, bool | np.bool_, "True or False")
        self._characteristics, self._every_start = characteristics, every_start
        first, self._length = characteristics.families[0], characteristics.sequence_length
        self._has_own_mean = first in targets
        squares = row_sums(characteristics.counts[first], lambda _, tokens: tokens.astype(np.float64) ** 2)
        self._norms = np.sqrt(squares) / self._length
        tokens = characteristics.tokens.astype(np.float64)
        self._mean_tokens = float(tokens.mean()) if len(tokens) else 0.0
        # An incomplete last sequence alone does not need windows of equal tokens.
        self._is_uneven = bool(len(tokens) and tokens.std() > _UNEVEN * self._mean_tokens)
        # Floors and bounds take as long as some measures. They are the same for every bijection, so we compute them
        # once.
        self._limits_of_corpus: dict[str, dict[int, tuple[float, float]]] = {}

    def measure(self, ordering: Order, advance: Advance = ignore) -> Balance:
        """Measure one of the orders."""
        check_function("advance", advance)
        ordering = as_order_of(self._characteristics, ordering)
        for size in self.windows:
            as_whole_number("every window size", size, 1, len(ordering))
        by_name: dict[str, Any] = {}  # attribute of `Balance` -> family -> value
        for family in self.shares:
            for name, value in self._family(family, ordering, advance).items():
                by_name.setdefault(name, {})[family] = value
        drift = norm_drift(self._norms, ordering.indices, own_mean=self._has_own_mean)
        documents, copies = self._spread("documents", ordering), self._spread("copies", ordering)
        return Balance(**by_name, norm_drift=drift, documents=documents, copies=copies)

    def _spread(self, name: str, ordering: Ordering | Positions) -> DocumentSpread | None:
        """Measure the spread of documents or copies; None if they are unknown."""
        groups = getattr(self._characteristics, name)
        if groups is None or groups.size == 0:
            return None
        return document_spread(groups, ordering.indices, self.windows)

    def _family(self, family: str, ordering: Ordering | Positions, advance: Advance) -> dict[str, Any]:
        """Measure one family; return a dict from attributes of `Balance` to their values for this family."""
        # We reorder the rows of one family at a time: otherwise memory would contain the rows of all families twice.
        target, length, sizes = self.shares[family], self._length, self.windows
        placed = place(self._characteristics.counts[family], ordering.indices)
        aligned = {size: aligned_windows(placed, target, size) for size in sizes}
        # All orderings of a corpus have the same floors and bounds. A run has its own floors and bounds, computed from
        # its positions.
        limits = self._limits_of_corpus if isinstance(ordering, Ordering) else {}
        if family not in limits:
            each = {size: (placed, target, size, length) for size in sizes}
            limits[family] = {size: window_limits(*these) for size, these in each.items()}
        # All positions are read once for the prefixes. For each window size they are read once for the maximum and, if
        # requested, once for all start positions.
        advance = _once(advance, 1 + len(sizes) * (2 if self._every_start else 1))
        return {
            "prefix_l2": prefix_deviation(placed, np.diff(cumulative_tokens(placed)), target, length, advance),
            "window_tv": {size: aligned[size].tv for size in sizes},
            "window_tv_shifted": {size: window_deviation(placed, target, size, size // 2) for size in sizes},
            "window_l2": {size: aligned[size].l2 for size in sizes},
            "window_tv_floor": {size: limits[family][size][0] for size in sizes},
            "window_tv_bound": {size: limits[family][size][1] for size in sizes},
            "window_max": {size: window_maximum(placed, target, size, advance) for size in sizes},
            "ideal_tv": {size: ideal_token_shuffle(target, size, length) for size in sizes},
            "groups_per_batch": {size: aligned[size].num_groups for size in sizes},
            "groups_per_sequence": len(placed.data) / max(len(ordering), 1),
            "window_tv_every_start": {
                size: window_tv_all(placed, target, size, advance) for size in sizes if self._every_start
            },
            "window_tv_tokens": {
                size: token_windows(placed, target, size * self._mean_tokens) for size in sizes if self._is_uneven
            },
        }


def _once(advance: Advance, num_walks: int) -> Advance:
    """Report each position once even if it is read several times, so that progress is the number of positions."""
    done = 0

    def told(amount: int) -> None:
        nonlocal done
        # We report whole positions; the remainder of the division is reported with the next call.
        before, done = done // num_walks, done + amount
        advance(done // num_walks - before)

    return told


def as_order_of(characteristics: Characteristics, ordering: Order, name: str = "the ordering") -> Ordering | Positions:
    """Check that an ordering has as many sequences as the characteristics; `name` is its name in error messages."""
    check_type("characteristics", characteristics, Characteristics, MADE_BY)
    ordering = as_order(ordering, name)
    if ordering.num_sequences != characteristics.num_sequences:
        raise UserError(
            f"Expected an ordering of {characteristics.num_sequences} sequences, found {ordering.num_sequences}; "
            "it was made for another dataset."
        )
    return ordering


def as_order(ordering: Order, name: str = "the ordering") -> Ordering | Positions:
    """Convert a run to its positions and an array to an ordering; `name` is the argument's name in error messages."""
    if isinstance(ordering, Ordering | Positions):
        return ordering
    if isinstance(ordering, SupportsOrder):
        return ordering.to_order()
    if isinstance(ordering, Mapping):
        raise UserError(
            f"Expected {name} to be one jd.Ordering or its array, found a mapping; jd.compare takes several."
        )
    try:
        return Ordering(ordering)
    except UserError as error:
        raise UserError(f"Expected {name} to be a jd.Ordering or its array: {in_one_line(error)}") from None
    except Exception as error:  # errors that come from arrays of NumPy and other libraries
        raise UserError(f"Expected {name} to be a jd.Ordering or its array, found: {in_one_line(error)}.") from None


def own_shares(characteristics: Characteristics, ordering: Order) -> dict[str, Float64[np.ndarray, " group"]]:
    """Return the groups' shares of the tokens of all positions, such as the mixture of a run that repeats sequences.

    Example:
        >>> chars = Characteristics.from_counts({"topic": [[2, 0], [0, 2]]})
        >>> own_shares(chars, make_run(chars, positions=[0, 0, 0, 1]))
        {'topic': array([0.75, 0.25])}
    """
    indices = as_order_of(characteristics, ordering).indices
    times = np.bincount(indices, minlength=characteristics.num_sequences)
    tokens = {family: (counts.T @ times).astype(np.float64) for family, counts in characteristics.counts.items()}
    return {family: each / max(each.sum(), 1.0) for family, each in tokens.items()}


def target_shares(characteristics: Characteristics, targets: Targets) -> dict[str, Float64[np.ndarray, " group"]]:
    """Return τ of every family: the given target, or the shares of the corpus."""
    check_mapping("targets", targets, "family -> shares of its groups")
    if unknown := set(targets) - set(characteristics.families):
        raise UserError(
            f"Targets name unknown families {sorted(unknown)}; the families are {sorted(characteristics.families)}."
        )
    shares = {}
    for family in characteristics.families:
        num_groups = characteristics.counts[family].shape[1]
        if family not in targets:
            shares[family] = characteristics.target_share(family)
            continue
        # The sum of rounded shares may differ from 1. We remove a difference up to 1e-6 by scaling; a larger difference
        # is an error.
        try:
            given = np.asarray(targets[family], np.float64)
        except (TypeError, ValueError):
            raise UserError(
                f"Expected the target of family {family!r} to be numbers, found {quoted(targets[family])}."
            ) from None
        if given.shape != (num_groups,) or not np.isfinite(given).all() or given.min() < 0:
            raise UserError(
                f"Expected the target of family {family!r} to be {num_groups} finite shares >= 0, found {given}."
            )
        if abs(given.sum() - 1) > 1e-6:
            raise UserError(f"Expected the target shares of family {family!r} to add up to 1, found {given.sum()}.")
        shares[family] = given / given.sum()
    return shares
