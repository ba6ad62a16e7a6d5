"""Read blends of Megatron datasets as on Megatron's command line: a list of prefixes, or of weights and prefixes.

A prefix is the path of a pair of files `prefix.bin` and `prefix.idx`, without the ending.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float64

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.folders import distinct_ends
from jax_diversity.sequences.token_store.megatron import TokenFile


@dataclass(frozen=True)
class Blend:
    """Several token files and their shares.

    Attributes:
        names: the prefixes' base names, with as many folders as make them distinct.
        weights: shares, adding up to 1.
        files: the token files, checked and open.
    """

    names: tuple[str, ...]
    weights: Float64[np.ndarray, " dataset"]
    files: tuple[TokenFile, ...]


def read_blend(arguments: Sequence[str]) -> Blend:
    """Open the datasets of Megatron's `--data-path`.

    Args:
        arguments: prefixes of `.bin` and `.idx` files. Either each prefix comes after its weight (in any unit), or
            there are no weights; then the numbers of tokens are the weights. A number is a prefix if all arguments have
            files: `2023 2024` beside `2023.idx` and `2024.idx`. Write `2023.0` for the weight.

    Raises:
        UserError: there are no prefixes; only some prefixes have weights; a weight is not above zero; a prefix is
            repeated; there are no weights and no tokens; `TokenFile` refuses a file.

    Example:
        >>> blend = read_blend(["30", "tokens/web", "70", "tokens/books"])
        >>> blend.names, blend.weights.tolist()
        (('web', 'books'), [0.3, 0.7])
    """
    words = [str(argument).strip() for argument in arguments]
    if not words or "" in words:
        raise UserError(f"Expected prefixes of .bin and .idx files, found {words or 'none'}; name at least one prefix.")
    weights = [_weight(word) for word in words[::2]]
    # A prefix may look like a number, such as 2024 for `./2024.idx`. As a weight, its tokens would be left out.
    absent = [word for word in words if not Path(f"{word}.idx").exists()]
    weighted = len(words) % 2 == 0 and None not in weights and bool(absent)
    prefixes = words[1::2] if weighted else words
    if not weighted and any(_weight(word) is not None for word in absent):
        raise UserError(
            f"Expected prefixes only, or a weight before each prefix, found {' '.join(words)}; give weights to all "
            "prefixes or to no prefix."
        )
    if len(set(prefixes)) != len(prefixes):
        twice = next(prefix for prefix in prefixes if prefixes.count(prefix) > 1)
        raise UserError(f"Expected every prefix once, found {twice} repeated; give it once, with the sum of weights.")
    files = tuple(TokenFile(Path(prefix)) for prefix in prefixes)
    if weighted:
        shares = np.array(weights, np.float64)
        for prefix, share in zip(prefixes, shares.tolist(), strict=True):
            if not (math.isfinite(share) and share > 0):
                raise UserError(f"Expected weights that are finite and above zero, found {share} for {prefix}.")
    else:
        shares = np.array([file.num_tokens for file in files], np.float64)
        if not shares.any():
            raise UserError(f"Expected tokens in {', '.join(prefixes)}, found none; tokenize the corpus.")
    return Blend(distinct_ends(prefixes), shares / np.sum(shares), files)


def _weight(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None
