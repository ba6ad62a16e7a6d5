"""The output of `measure`: curves of orderings along training, and their deviation for each window size."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from jax_diversity.foundation.tables import end_of, plain_table, printed, speaks_unicode
from jax_diversity.foundation.wording import counted

if TYPE_CHECKING:
    from jax_diversity.streaming.run.measuring import ComparisonInput, Curves, FollowedBalance

_BLOCKS, _PLAIN_BLOCKS = "▁▂▃▄▅▆▇█", "_.-:=+*#"
_NAME_WIDTH, _RANGE_WIDTH, _SIZES_A_TABLE = 22, 19, 8


def measures_legend(compared: ComparisonInput) -> str:
    """The number of measured sequences, and the meaning of the tables' columns."""
    counts = compared.counts
    run = ""
    if compared.targets is not None:
        run = (
            " The corpus is that of the run: the sequences of all positions. Groups of equal names are one group in "
            "all datasets."
        )
    return textwrap.fill(
        f"{counted(counts.num_sequences, 'sequence')} of {counted(counts.sequence_length, 'token')}. Prefix L2: the "
        "largest deviation of all tokens read so far from the corpus's mixture, in sequence lengths. Window TV: half "
        "the L1 distance between a window's token shares and the corpus's. No ordering's mean is below the floor, "
        f"nor below the bound. Smaller is better, except for the gap closed and the groups per batch.{run}",
        width=80,
    )


def targets_table(name: str, measured: Mapping[str, Mapping[str, FollowedBalance]], markdown: bool) -> str:
    """A table that compares orderings (ordering -> family -> measures) with the targets that `name` followed."""
    from rich.box import MARKDOWN

    numbers = ("TV mean", "worst", "prefix L2")
    table = plain_table("family", "window", "ordering", *numbers, numbers={"window", *numbers})
    if markdown:
        table.box, table.pad_edge = MARKDOWN, True
    for family in next(iter(measured.values())):
        for size in next(iter(measured.values()))[family].windows:
            for ordering, families in measured.items():
                of_family = families[family]
                tv = of_family.windows[size]
                cells = (f"{tv['tv_mean']:.4f}", f"{tv['tv_worst']:.4f}", f"{of_family.prefix_l2_max:.2f}")
                table.add_row(family, str(size), end_of(ordering, _NAME_WIDTH), *cells)
    return f"Against the targets of {end_of(name, 30)}, each window with its positions' targets\n\n{printed(table)}"


def training_curves(curves: Mapping[str, Curves]) -> str:
    """Draw each ordering (ordering -> family -> curves) as a line of characters along an epoch; a block has one scale.

    The middle window size is drawn. A column shows its largest value, so bad windows remain visible.
    """
    blocks = ["From start to end; each column shows its largest value."]
    for family in next(iter(curves.values()), {}):
        of_family = {name: curve[family] for name, curve in curves.items()}
        sizes = sorted(next(iter(of_family.values())).window_tv)
        if sizes:
            size = sizes[len(sizes) // 2]
            windows = {name: curve.window_tv[size] for name, curve in of_family.items()}
            blocks.append(_block(f"{family}: TV of windows of {size:,}", windows, 3))
        prefixes = {name: curve.prefix_l2 for name, curve in of_family.items()}
        blocks.append(_block(f"{family}: prefix deviation, in sequence lengths", prefixes, 1, low=0.0))
    return "\n\n".join(blocks)


def _block(
    title: str, envelopes: Mapping[str, Mapping[str, Sequence[float]]], decimals: int, low: float | None = None
) -> str:
    """One line per ordering: name, curve and its range. The scale begins at `low`; None means the smallest value."""
    least = {name: min(points["min"], default=0.0) for name, points in envelopes.items()}
    most = {name: max(points["max"], default=0.0) for name, points in envelopes.items()}
    bottom, top = min(least.values()) if low is None else low, max(most.values())
    width = 80 - _NAME_WIDTH - _RANGE_WIDTH
    lines = [f"{title}; scale {bottom:.{decimals}f} to {top:.{decimals}f}"]
    for name, points in envelopes.items():
        line = sparkline(points["max"], bottom, top, width)
        values = f"{least[name]:.{decimals}f} to {most[name]:.{decimals}f}"
        lines.append(f"{_short(name)} {line:<{width}} {values:>{_RANGE_WIDTH - 2}}".rstrip())
    return "\n".join(lines)


def _short(name: str) -> str:
    return f"{end_of(name, _NAME_WIDTH):<{_NAME_WIDTH}}"


def profile_tables(profiles: Mapping[str, Mapping[str, Mapping[int, float]]]) -> str:
    """A table and curves of mean window TV for each family; `profiles`: family -> ordering or limit -> size -> TV."""
    lines = []
    for family, of_family in profiles.items():
        sizes = sorted({size for values in of_family.values() for size in values})
        lines += ["", f"{family}: mean TV of windows of at most {size_label(sizes[-1])} sequences; lower is better"]
        for start in range(0, len(sizes), _SIZES_A_TABLE):
            shown = sizes[start : start + _SIZES_A_TABLE]
            lines.append(" " * _NAME_WIDTH + "".join(f"{size_label(size):>7}" for size in shown))
            for name, values in of_family.items():
                cells = (f"{values[size]:7.4f}" if size in values else " " * 7 for size in shown)
                lines.append((_short(name) + "".join(cells)).rstrip())
        logarithms = {
            name: [math.log10(values[size]) if values.get(size, 0) > 0 else math.nan for size in sizes]
            for name, values in of_family.items()
        }
        # One scale for all orderings, so that the curves can be compared; a TV of 0 has no logarithm.
        finite = [value for values in logarithms.values() for value in values if not math.isnan(value)]
        low, high = min(finite, default=0.0), max(finite, default=0.0)
        lines.append(f"From 1 to {size_label(sizes[-1])}, on one logarithmic scale")
        for name, values in logarithms.items():
            lines.append(f"{_short(name)} {sparkline(values, low, high, len(values))}".rstrip())
    return "\n".join(lines[1:])


def sparkline(values: Sequence[float] | Float[np.ndarray, " value"], low: float, high: float, width: int) -> str:
    """Draw a curve with one character per column, such as ▁▅█. Its height is the largest of the column's values.

    `low` and `high` are the values of the lowest and the highest character; there are at most `width` columns.
    """
    array = np.asarray(values, np.float64)
    if not len(array):
        return ""
    starts = np.arange(min(len(array), width)) * len(array) // min(len(array), width)
    tops = np.fmax.reduceat(array, starts)  # fmax ignores NaN, except in a column that contains only NaN
    levels = _BLOCKS if speaks_unicode() else _PLAIN_BLOCKS
    heights = np.clip((tops - low) / ((high - low) or 1.0), 0.0, 1.0) * len(levels)
    # Each level is an interval without its upper end, but `high` itself belongs to the last level.
    return "".join(
        " " if math.isnan(height) else levels[min(int(height), len(levels) - 1)] for height in heights.tolist()
    )


def size_label(size: int) -> str:
    """A window size in up to four characters: 256, 1k, 16k, 1M (in units of 1,024 if that is exact)."""
    for scale, sign in ((1 << 20, "M"), (1 << 10, "k")):
        if size >= scale and size % scale == 0:
            return f"{size // scale}{sign}"
    return str(size)
