"""The one contract of all ordering methods: characteristics, seed, objective and options in, an ordering out."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import operator
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64

from jax_diversity.errors import UserError
from jax_diversity.ordering.objective import Objective
from jax_diversity.progress import Advance, ignore
from jax_diversity.schema import Characteristics, Ordering


@runtime_checkable
class Method(Protocol):
    """A pure function from characteristics to a permutation; the same arguments give the same result.

    What a method takes besides these arguments are its options: keyword parameters with a default.
    """

    def __call__(
        self,
        characteristics: Characteristics,
        *,
        seed: int,
        objective: Objective,
        advance: Advance,
    ) -> Int64[np.ndarray, " sequence"]:
        """Sequence index at every position; `advance` is told the number of positions filled."""
        ...


# name -> module below jax_diversity.ordering; modules are imported when asked for, so that baselines need no JAX
METHODS = {"corpus_order": "baselines", "greedy": "greedy", "uniform_shuffle": "baselines"}

_CONTRACT = frozenset({"characteristics", "seed", "objective", "advance"})


def find_method(name: str) -> Method:
    """Look a method up by its name.

    Raises:
        ValueError: unknown name; lists all and suggests the nearest.
    """
    if name not in METHODS:
        raise UserError(
            f"Unknown ordering method {name!r}: expected one of {', '.join(sorted(METHODS))}{_hint(name, METHODS)}"
        )
    return getattr(import_module(f"jax_diversity.ordering.{METHODS[name]}"), name)


def _hint(name: str, known: Any) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else "."


def method_options(name: str) -> dict[str, Any]:
    """A method's options and their defaults.

    Example:
        >>> method_options("corpus_order")
        {}
    """
    parameters = inspect.signature(find_method(name)).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters if parameter.name not in _CONTRACT}


def _check_options(method: str, options: Mapping[str, Any]) -> None:
    known = method_options(method)
    for option in options:
        if option not in known:
            expected = f"expected one of {', '.join(sorted(known))}" if known else "it takes none"
            raise UserError(f"Method {method!r} has no option {option!r}: {expected}{_hint(option, known)}")


def _checked_seed(seed: Any) -> int:
    """A plain int, also of NumPy's, so that the ordering's info is JSON."""
    try:
        number = operator.index(seed)
    except TypeError:
        raise UserError(f"Expected a seed that is a whole number >= 0, found {seed!r}.") from None
    if number < 0:
        raise UserError(f"Expected a seed >= 0, found {number}.")
    return number


def order(
    characteristics: Characteristics,
    method: str = "greedy",
    *,
    seed: int = 0,
    objective: Objective | None = None,
    advance: Advance = ignore,
    **options: Any,
) -> Ordering:
    """Compute an ordering of the sequences.

    Args:
        characteristics: token counts of every sequence per family.
        method: `greedy` (exact, quadratic time), `uniform_shuffle` or `corpus_order`.
        seed: for the methods that draw; an integer >= 0.
        objective: weights of the rule; None takes `Objective()`.
        advance: told the number of positions filled since it was last called, for progress bars.
        options: the method's own, such as `buffer_size`; `method_options(name)` lists them.

    Returns:
        A bijection with `info` that says how it was made; of zero sequences where there are none.

    Raises:
        ValueError: unknown method or option, negative seed, an objective that does not fit the characteristics, or more
            sequences or non-zeros than 32-bit indices can hold.

    Example:
        >>> chars = Characteristics.from_counts({"topic": [[2, 0], [2, 0], [0, 2], [0, 2]]})
        >>> order(chars).indices.tolist()
        [0, 2, 1, 3]
    """
    chosen = find_method(method)
    _check_options(method, options)
    objective = Objective() if objective is None else objective
    seed = _checked_seed(seed)
    objective.resolved_weights(characteristics)
    limit = np.iinfo(np.int32).max
    num_nonzeros = sum(len(matrix.data) for matrix in characteristics.counts.values())
    if max(characteristics.num_sequences, num_nonzeros) >= limit // 2:
        raise UserError(
            f"Expected fewer than {limit // 2:,} sequences and non-zero counts, found "
            f"{characteristics.num_sequences:,} and {num_nonzeros:,}; order the corpus in parts."
        )
    indices = chosen(characteristics, seed=seed, objective=objective, advance=advance, **options)
    return Ordering(
        indices,
        info={
            "method": method,
            "seed": seed,
            "objective": dataclasses.asdict(objective),
            "options": options,
            "characteristics": characteristics.fingerprint,
        },
    )
