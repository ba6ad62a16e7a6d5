"""The artifacts of the stages `measure/NAME`: JSON files with how an ordering was made and its measured values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jax_diversity.foundation.artifacts import read_json
from jax_diversity.foundation.errors import UserError, in_one_line

if TYPE_CHECKING:
    from jax_diversity.foundation.stored import StoredStages
    from jax_diversity.ordering.measures.drawn import MeasuredOrder

ORDERINGS = "orderings"
_STAGE = "measure/"
_NUMBERS = ("tv_mean", "tv_best", "tv_worst", "tv_floor", "tv_ideal_token_shuffle", "max_share_deviation")


def measured_orderings(stored: StoredStages) -> list[str]:
    """Return the names of the orderings that were measured, sorted."""
    return sorted(stage.removeprefix(_STAGE) for stage in stored.stages if stage.startswith(_STAGE))


def figures_name(name: str) -> str:
    """Return the name of the file with the measured values of an ordering."""
    return f"{name}.json"


def curves_name(name: str) -> str:
    """Return the name of the file with the curves of an ordering."""
    return f"{name}.curves.json"


def curves_file(stored: StoredStages, name: str) -> Path:
    """Return the path of the file with the curves of an ordering."""
    return stored.file(f"{_STAGE}{name}", f"{ORDERINGS}/{curves_name(name)}")


def figures_file(stored: StoredStages, name: str) -> Path:
    """Return the path of the file with the measured values of an ordering."""
    return stored.file(f"{_STAGE}{name}", f"{ORDERINGS}/{figures_name(name)}")


def read_figures(stored: StoredStages, name: str, families: Sequence[str]) -> dict[str, Any]:
    """Return how an ordering was made, with its measures as `balance`.

    The measures have the families in the given order; a JSON file has them sorted by name.

    Raises:
        UserError: the file is damaged.
    """
    path = figures_file(stored, name)
    figures = read_json(path, "measure")
    with _measures_in(path):
        summary = figures["balance"]
        float(summary["norm_drift_max"])
        for values in summary["families"].values():
            float(values["prefix_l2_max"])
            for size, window in values["windows"].items():
                _ = int(size), [float(window[number]) for number in _NUMBERS]
        first = {family: summary["families"][family] for family in families if family in summary["families"]}
        return {**figures, "balance": {**summary, "families": {**first, **summary["families"]}}}


def read_curves(stored: StoredStages, name: str) -> dict[str, Any]:
    """Return the curves of an ordering, as `Balance.curves` makes them.

    Raises:
        UserError: the file is damaged.
    """
    from jax_diversity.ordering.measures.drawn import shortened_curves

    path = curves_file(stored, name)
    summary = read_json(path, "measure")
    with _measures_in(path):
        shortened_curves(summary, 1)
        return summary


def read_measured(
    stored: StoredStages, name: str, families: Sequence[str], windows: Sequence[int]
) -> MeasuredOrder | None:
    """Return the stored measures of an ordering in some windows; None if it was not measured in all of them.

    Raises:
        UserError: a file is damaged.
    """
    from jax_diversity.ordering.measures.drawn import MeasuredOrder

    if f"{_STAGE}{name}" not in stored.stages or not set(windows) <= set(stored.counts(f"{_STAGE}{name}")["windows"]):
        return None
    sizes = [str(size) for size in windows]
    summary, curves = read_figures(stored, name, families)["balance"], read_curves(stored, name)
    of_families = {
        family: {**values, "windows": {size: values["windows"][size] for size in sizes}}
        for family, values in summary["families"].items()
    }
    shown = {family: {size: by_size[size] for size in sizes} for family, by_size in curves["windows"].items()}
    spreads = {
        part: {**summary[part], "windows": {size: summary[part]["windows"][size] for size in sizes}}
        for part in ("documents", "copies")
        if part in summary
    }
    return MeasuredOrder({**summary, "families": of_families, **spreads}, {**curves, "windows": shown})


@contextmanager
def _measures_in(path: Path) -> Iterator[None]:
    """Turn errors that values of other kinds raise into a `UserError`."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"Expected the measures of an ordering in {path}, found something else ({in_one_line(error)}); delete the "
            "file, and run `jax-diversity build` again."
        ) from None


def fetch_figures(stored: StoredStages, name: str) -> bool:
    """Fetch an ordering's measured values to the folder of its .npy without a check; False if it was not measured."""
    is_measured = f"{_STAGE}{name}" in stored.stages
    if is_measured:
        stored.fetch(f"{ORDERINGS}/{figures_name(name)}")
    return is_measured
