"""The stages `measure/NAME`: measure one ordering and store the values in the folder of its permutation."""

from __future__ import annotations

from pathlib import Path

from jax_diversity.foundation.artifacts import write_json
from jax_diversity.foundation.stage import Context, Counts, Stage
from jax_diversity.ordering.measures.stored import ORDERINGS, curves_name, figures_name


def measure_stage(name: str) -> Stage:
    """Return the stage that measures the ordering `name`."""
    return Stage(
        f"measure/{name}",
        help="Compare orderings with a shuffle: prefixes, windows, drift.",
        section="windows",
        destination=ORDERINGS,
        run=lambda context, partial: _measure(context, partial, name),
        summary=lambda counts: f"windows of {', '.join(map(str, counts['windows']))}",
        settings=lambda config: {"windows": list(config.windows), "batch_size": config.batch_size},
        inputs=lambda context: ("characterize", f"order/{name}"),
        owns_folder=False,
        version=2,
    )


def _measure(context: Context, partial: Path, name: str) -> Counts:
    """Measure one ordering; write the values with how it was made, and its curves, into JSON files in its folder."""
    from jax_diversity.ordering.measures.balance import Measurer
    from jax_diversity.ordering.measures.windows import usable_windows

    counts, ordering = context.dataset.token_counts(), context.dataset.orderings[name]
    windows = usable_windows(context.config.windows, counts.num_sequences, context.config.batch_size)
    with context.progress.task(f"measure: {name}", counts.num_sequences, "position") as advance:
        summary, curves = Measurer(counts, windows).measure_in_short(ordering, advance)
    write_json(partial / curves_name(name), curves)
    write_json(partial / figures_name(name), {**context.counts(f"order/{name}"), "balance": summary})
    return {"windows": list(windows)}
