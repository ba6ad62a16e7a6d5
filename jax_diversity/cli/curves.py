"""Curves of one line of characters, in ASCII where a stream shows nothing else, and short labels."""

from __future__ import annotations

import codecs
import math
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

_BLOCKS, _PLAIN_BLOCKS = "▁▂▃▄▅▆▇█", "_.-:=+*#"


def speaks_unicode(stream: Any = None) -> bool:
    """Tell whether a stream, standard output where none is given, can show more than ASCII."""
    encoding = getattr(sys.stdout if stream is None else stream, "encoding", None) or "ascii"
    try:
        return codecs.lookup(encoding).name.startswith("utf") and os.environ.get("TERM") != "dumb"
    except LookupError:
        return False


def sparkline(
    values: Sequence[float] | Float[np.ndarray, " value"],
    low: float,
    high: float,
    width: int,
    *,
    fancy: bool = True,
) -> str:
    """Show values as one character a column, as high as the column's largest value; at most one column a value.

    Args:
        values: the curve.
        low, high: the scale, the same for all curves that are compared: the lowest and the highest character.
        width: most columns.
        fancy: use block characters (`speaks_unicode` tells whether a stream shows them).

    Example:
        >>> sparkline([0.0, 0.5, 1.0], 0.0, 1.0, width=3)
        '▁▅█'
    """
    array = np.asarray(values, np.float64)
    if not len(array):
        return ""
    starts = np.arange(min(len(array), width)) * len(array) // min(len(array), width)
    tops = np.fmax.reduceat(array, starts)  # fmax leaves NaN out, unless a column holds nothing else
    levels = _BLOCKS if fancy else _PLAIN_BLOCKS
    heights = np.clip((tops - low) / ((high - low) or 1.0), 0.0, 1.0) * len(levels)
    return "".join(
        " " if math.isnan(height) else levels[min(int(height), len(levels) - 1)] for height in heights.tolist()
    )


def size_label(size: int) -> str:
    """A window size in up to four characters: 256, 1k, 16k, 1M (of 1,024 each, where that is exact).

    Example:
        >>> size_label(256), size_label(16384)
        ('256', '16k')
    """
    for scale, sign in ((1 << 20, "M"), (1 << 10, "k")):
        if size >= scale and size % scale == 0:
            return f"{size // scale}{sign}"
    return str(size)
