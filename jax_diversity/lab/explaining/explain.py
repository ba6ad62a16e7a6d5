"""What would an order give a model? Explain its gradients by the characteristics of its sequences.

An order can only remove the part of the gradients' variance that its characteristics explain. This share, the adjusted
R², predicts what the order is worth in wide windows; the variance of the windows of real orders shows what it is worth
at each batch size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Num

from jax_diversity.counts import Characteristics
from jax_diversity.counts.characteristics import MADE_BY
from jax_diversity.foundation.checks import as_whole_number, check_mapping, check_type
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.foundation.svg import Chart, Curve
from jax_diversity.foundation.tables import Cells, Display, Displayed
from jax_diversity.foundation.wording import counted
from jax_diversity.lab.explaining.chosen import ALL, check_batch, document_blocks, family_bases
from jax_diversity.lab.explaining.regression import Basis, Estimate, explained_share
from jax_diversity.lab.explaining.sketching import Loss, Sketches, sketch_gradients
from jax_diversity.lab.explaining.windows import window_variance
from jax_diversity.ordering.base import order
from jax_diversity.schema import Ordering
from jax_diversity.schema.orderings import as_floats

SKETCH_SIZE = 1024
_SEEDS = (0, 1, 2)
_WINDOWS = tuple(4**power for power in range(2, 7))  # 16 to 4,096
_LEAST_WINDOWS = 4
_TITLES = {"raw": "gradients", "adam": "gradients as Adam scales them", "loss": "losses", "values": "values"}


@dataclass(frozen=True)
class Explanation(Displayed):
    """What characteristics explain of the sequences' gradients, and what orders make of it.

    Attributes:
        shares: kind of values (`raw`, `adam`, `loss`; `values` for one's own) -> family -> adjusted R². The last family
            is `all families`.
        windows: kind of values -> order -> window size -> variance of the window's mean; a shuffle has 1.
        noise_scale: in sequences; NaN for one's own values.
        num_sequences: number of sequences.
        num_groups: family -> number of groups that differ among the sequences.
        batch_size: number of sequences in a batch of training.
    """

    shares: Mapping[str, Mapping[str, Estimate]]
    windows: Mapping[str, Mapping[str, Mapping[int, Estimate]]]
    noise_scale: float
    num_sequences: int
    num_groups: Mapping[str, int]
    batch_size: int

    @property
    def sentence(self) -> str:
        """What the order is worth, in a few sentences."""
        kind = next(iter(self.shares))
        share = self.shares[kind][ALL]
        by_chance = round(share.by_chance, 2) + 0.0  # never -0%
        words = (
            f"The families explain {share.value:.0%} \u00b1 {share.reach * 100:.0f} of the variance of the sequences' "
            f"{_TITLES[kind]} (permuted sequences: {by_chance:.0%})."
        )
        name, ratios = next(iter(self.windows[kind].items()), ("", {}))
        if self.batch_size in ratios:
            ratio = ratios[self.batch_size]
            words += (
                f" A batch of {self.batch_size} in the order {name} of these {self.num_sequences:,} sequences is worth "
                f"a shuffled batch of {_worth(self.batch_size, ratio)}."
            )
            wider = max(ratios)
            if wider > self.batch_size:
                words += (
                    f" The mean of {wider // self.batch_size} batches is worth that of batches of "
                    f"{_worth(self.batch_size, ratios[wider])}."
                )
            if np.isfinite(self.noise_scale):
                part = self.noise_scale / (self.noise_scale + self.batch_size) * (1 - ratio.value)
                words += (
                    f" The noise scale is {_sequences(self.noise_scale)}, so the order removes "
                    f"{part:.1%} of the mean squared norm of a batch's gradient."
                )
        if kind == "raw" and "adam" in self.shares:
            share = self.shares["adam"][ALL]
            words += " An optimiser such as Adam scales gradients. With scaled gradients the share is "
            words += f"{share.value:.0%} \u00b1 {share.reach * 100:.0f}"
            ratios = self.windows["adam"].get(name, {})
            if self.batch_size in ratios:
                words += f", and this batch is worth {_worth(self.batch_size, ratios[self.batch_size])}"
            words += "."
        return words + " Early checkpoints overstate the share: measure late in training, too."

    @property
    def values(self) -> dict[str, Any]:
        """The explanation as plain values for JSON: the sentence, numbers, and the rows of both tables.

        A number that is not finite is None.
        """
        shares = [
            {"of": _TITLES[kind], "family": family, "num_groups": self.num_groups[family], **_plain(estimate)}
            for kind, families in self.shares.items()
            for family, estimate in families.items()
        ]
        windows = [
            {"of": _TITLES[kind], "order": name, "window_size": size, **_plain(estimate)}
            for kind, orders in self.windows.items()
            for name, ratios in orders.items()
            for size, estimate in ratios.items()
        ]
        return {
            "sentence": self.sentence,
            "num_sequences": self.num_sequences,
            "batch_size": self.batch_size,
            "noise_scale": _finite(self.noise_scale),
            "shares": shares,
            "windows": windows,
        }

    @property
    def table(self) -> str:
        """The shares and the windows' variances as tables of at most 80 columns."""
        return self._display().table

    def _display(self) -> Display:
        return Display(self.sentence, list(self._blocks()))

    def _blocks(self) -> Iterator[tuple[str, Cells]]:
        """Yield the titles and the cells of the tables."""
        kinds = list(self.shares)
        lines = [["family", "groups", *(_TITLES[kind] for kind in kinds)]]
        for family in self.shares[kinds[0]]:
            shares = [_cell(self.shares[kind][family]) for kind in kinds]
            lines.append([family, f"{self.num_groups[family]:,}", *shares])
        lines.append(["sequences permuted", "", *(f"{self.shares[kind][ALL].by_chance:.3f}" for kind in kinds)])
        yield "Share of the variance that the families explain (adjusted R²)", lines
        for kind in kinds:
            if orders := self.windows[kind]:
                sizes = list(next(iter(orders.values())))
                rows = [[name, *(_cell(ratios[size]) for size in sizes)] for name, ratios in orders.items()]
                cells = [["sequences in a window", *(f"{size:,}" for size in sizes)], *rows]
                yield f"Variance of the mean of a window, shuffle = 1: {_TITLES[kind]}", cells

    @property
    def picture(self) -> str:
        """An SVG picture: how many shuffled sequences a balanced sequence is worth, against the window size."""
        kind = next(iter(self.shares))
        curves = [
            Curve(
                np.array(list(ratios), float),
                1 / np.array([ratio.value for ratio in ratios.values()]),
                f"c{1 + number % 5}",
                name,
            )
            for number, (name, ratios) in enumerate(self.windows[kind].items())
        ]
        if not curves:
            raise UserError("Expected orders to draw, found none; explain more sequences, at least 64.")
        sizes = curves[0].x
        limit = 1 / max(1 - self.shares[kind][ALL].value, 0.01)
        ends = sizes[[0, -1]] if len(sizes) > 1 else np.array([sizes[0], sizes[0] * 4])
        curves += [
            Curve(ends, np.full(2, limit), "thin dashed", "1 / (1 - R²)"),
            Curve(ends, np.ones(2), "c0", "a shuffle"),
        ]
        values = np.concatenate([curve.y for curve in curves])
        low, high = min(float(values.min()), 1.0), float(values.max())
        room = (high - low) * 0.08 or 0.1
        return Chart(
            "What a sequence of an order is worth",
            f"{_TITLES[kind]} of {counted(self.num_sequences, 'sequence')}",
            "sequences in a window",
            "shuffled sequences",
            (float(ends[0]), float(ends[-1])),
            (low - room, high + room),
            logarithmic=(True, False),
            room=170,
        ).draw(curves)

    def __str__(self) -> str:
        return self._display().text


def explain_gradients(
    loss: Loss,
    parameters: Any,
    batches: Iterable[Any],
    characteristics: Characteristics,
    *,
    orders: Mapping[str, Sequence[Ordering]] | None = None,
    batch_size: int = 256,
    sketch_size: int = SKETCH_SIZE,
    seed: int = 0,
    mesh: Mesh | None = None,
    advance: Advance = ignore,
) -> Explanation:
    """Explain the gradients of single sequences by their characteristics, and measure what orders make of them.

    Some 4,000 sequences that the model was not trained on are enough. The time is about that of three passes of
    training over them, plus some seconds. Each gradient is sketched (see `sketch_gradients`), so memory holds
    `sketch_size` numbers a sequence and a few gradients at a time.

    Args:
        loss: a function of parameters and one sequence, a pytree of arrays like a batch's without the first axis. It
            returns the sequence's loss, a scalar.
        parameters: a pytree of arrays.
        batches: pytrees of arrays (row, ...), read twice. Their rows are the sequences of `characteristics`, in the
            same order.
        characteristics: the sequences' token counts; see `Characteristics.take` for a part of a dataset's.
        orders: name -> orderings of these sequences, several for the mean over seeds. None means `balance` with three
            seeds.
        batch_size: number of sequences in a batch of training.
        sketch_size: numbers in a sketch. The shares have no bias from the size.
        seed: seed of the sketch.
        mesh: the devices that share the sequences; None means one device.
        advance: called with the number of sequences that were read; every sequence is read twice.

    Raises:
        UserError: a loss that is not a scalar or not finite; gradients that are all zero; a batch larger than the
            sample; characteristics or orders of other sequences; too few sequences or documents.

    Example:
        >>> def loss(weights, row):
        ...     return jnp.mean((row["x"] @ weights - row["y"]) ** 2)
        >>> explained = explain_gradients(loss, weights, batches, chars, batch_size=16)
        >>> print(explained.sentence)
        The families explain 41% ± 6 of ...
    """
    as_whole_number("sketch_size", sketch_size, 1, 2**20)
    plan = _make_plan(characteristics, orders, batch_size)
    sketches = sketch_gradients(
        loss,
        parameters,
        batches,
        batch_size=batch_size,
        sketch_size=sketch_size,
        seed=seed,
        mesh=mesh,
        advance=advance,
    )
    return _explain(_values_of(sketches), plan, sketches.noise_scale)


def explain_sketches(
    sketches: Sketches,
    characteristics: Characteristics,
    *,
    orders: Mapping[str, Sequence[Ordering]] | None = None,
    batch_size: int = 256,
) -> Explanation:
    """Explain gradients that were sketched before, for example to compare further orders without new gradients.

    Args:
        sketches: the result of `sketch_gradients`.
        characteristics: see `explain_gradients`, also for the other arguments.
        orders: name -> orderings.
        batch_size: number of sequences in a batch.

    Raises:
        UserError: as for `explain_gradients`.

    Example:
        >>> sketches = sketch_gradients(loss, weights, batches, batch_size=256, sketch_size=1024)
        >>> print(explain_sketches(sketches, chars).sentence)
        The families explain 41% ± 6 of ...
    """
    return _explain(_values_of(sketches), _make_plan(characteristics, orders, batch_size), sketches.noise_scale)


def _values_of(sketches: Sketches) -> dict[str, np.ndarray]:
    values = {"raw": sketches.raw, "adam": sketches.adam}
    if np.ptp(sketches.losses):  # equal losses have no variance to explain
        values["loss"] = sketches.losses[:, None]
    return values


def explain_values(
    values: Num[np.ndarray, "sequence number"] | Num[np.ndarray, " sequence"],
    characteristics: Characteristics,
    *,
    orders: Mapping[str, Sequence[Ordering]] | None = None,
    batch_size: int = 256,
) -> Explanation:
    """Like `explain_gradients`, for any numbers of the sequences: losses, scores, sketches of gradients.

    Args:
        values: one number or several numbers for every sequence.
        characteristics: see `explain_gradients`, also for the other arguments.
        orders: name -> orderings.
        batch_size: number of sequences in a batch.

    Raises:
        UserError: as for `explain_gradients`; values that are not finite, or all equal.

    Example:
        >>> chars = jd.Characteristics.from_counts({"topic": [[4, 0], [0, 4]] * 100})
        >>> explained = explain_values(np.tile([3.0, 1.0], 100), chars, batch_size=16)
        >>> explained.shares["values"]["topic"].value
        1.0
    """
    plan = _make_plan(characteristics, orders, batch_size)
    array = as_floats("values", values)
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2 or not array.size or not np.isfinite(array).all() or not (array != array[:1]).any():
        raise UserError(
            "Expected finite numbers (sequence,) or (sequence, number) that are not all equal, found an array of "
            f"shape {np.shape(array)}" + (" with other values." if array.ndim == 2 else ".")
        )
    # All results are ratios. With deviations of at most 1 their squares are neither too large nor too small.
    array = array / np.abs(array).max()
    array = array - array.mean(axis=0)
    return _explain({"values": array / np.abs(array).max()}, plan, float("nan"))


class _Plan(NamedTuple):
    """What is made of the characteristics: it is made first, so that wrong input is found before minutes of work.

    Attributes:
        blocks: the number of every sequence's block for the jackknife.
        bases: family -> basis; the last is `all families`.
        orders: name -> orders, checked.
        batch_size: number of sequences in a batch.
    """

    blocks: np.ndarray
    bases: Mapping[str, Basis]
    orders: Mapping[str, Sequence[np.ndarray]]
    batch_size: int


def _make_plan(
    characteristics: Characteristics, orders: Mapping[str, Sequence[Ordering]] | None, batch_size: int
) -> _Plan:
    if not isinstance(characteristics, Characteristics):
        raise UserError(f"Expected {MADE_BY}, found {type(characteristics).__name__}.")
    number = characteristics.num_sequences
    check_batch(batch_size, number)
    blocks, bases = document_blocks(characteristics), family_bases(characteristics)
    if orders is None:
        orders = {"balance": [order(characteristics, seed=seed) for seed in _SEEDS]}
    check_mapping("orders", orders, "name -> several orderings")
    for name, several in orders.items():
        check_type(f"orders[{name!r}]", several, Iterable, "several orderings")
    checked = {name: [_indices(name, indices, number) for indices in several] for name, several in orders.items()}
    if empty := [name for name, several in checked.items() if not several]:
        raise UserError(f"Expected at least one ordering for each name, found none for {empty[0]!r}.")
    return _Plan(blocks, bases, checked, batch_size)


def _explain(values: Mapping[str, np.ndarray], plan: _Plan, noise_scale: float) -> Explanation:
    blocks, bases, orders, batch_size = plan
    number = len(blocks)
    if (num_rows := len(next(iter(values.values())))) != number:
        raise UserError(
            f"Expected the {number:,} sequences of the characteristics, found the values of {num_rows:,}; pass "
            "characteristics.take(rows) with the rows of the batches."
        )
    shares = {
        kind: {family: explained_share(vectors, basis, blocks) for family, basis in bases.items()}
        for kind, vectors in values.items()
    }
    sizes = sorted({*(size for size in _WINDOWS if size * _LEAST_WINDOWS <= number), batch_size})
    windows = {
        kind: {
            name: {size: window_variance(vectors, several, size, blocks) for size in sizes if size < number}
            for name, several in orders.items()
        }
        for kind, vectors in values.items()
    }
    groups = {family: basis.num_groups for family, basis in bases.items()}
    return Explanation(shares, windows, noise_scale, number, groups, batch_size)


def _indices(name: str, ordering: Ordering, number: int) -> np.ndarray:
    try:
        indices = np.asarray(ordering)
    except ValueError:  # rows of unequal lengths
        indices = np.zeros(0, np.int64)
    is_like_all = indices.dtype.kind in "iu" and indices.shape == (number,)
    if not is_like_all or not np.array_equal(np.sort(indices), np.arange(number)):
        raise UserError(
            f"Expected orderings of the {number:,} sequences of the characteristics, found another one in {name!r}; "
            "make them with jd.order(characteristics)."
        )
    return indices


def _worth(batch_size: int, ratio: Estimate) -> str:
    """The size of the shuffled batch with the same variance, and its 95 % interval."""
    low, value, high = (
        f"{batch_size / share:,.0f}" if share > 0 else "any size" for share in (ratio.high, ratio.value, ratio.low)
    )
    return f"{value} (95 % interval {low} to {high})" if np.isfinite(ratio.reach) else value


def _sequences(noise_scale: float) -> str:
    return "less than one sequence" if noise_scale < 0.5 else counted(round(noise_scale), "sequence")


def _plain(estimate: Estimate) -> dict[str, float | None]:
    return {name: _finite(getattr(estimate, name)) for name in ("value", "low", "high", "by_chance")}


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _cell(estimate: Estimate) -> str:
    return f"{estimate.value:.3f} ± {estimate.reach:.3f}" if np.isfinite(estimate.reach) else f"{estimate.value:.3f}"
