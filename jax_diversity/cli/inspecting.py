"""What `inspect` prints: one batch beside all others of its ordering, its rows, and where a document is used."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64
from rich.text import Text

from jax_diversity.cli.tables import end_of, plain_table, printed
from jax_diversity.foundation.terminal import clean

if TYPE_CHECKING:
    from jax_diversity.dataset.inspection import BatchView, Use
    from jax_diversity.schedule.inspection import RunBatch, RunRow, RunUse

Deviations = Mapping[str, Float64[np.ndarray, " batch"]]
_FAMILY_WIDTH, _SOURCE_WIDTH = 16, 14
_PATH_WIDTH, _DOCUMENT_WIDTH, _MOST_DOCUMENTS = 16, 24, 3


def batch_table(batch: BatchView, num_rows: int, deviations: Deviations | None = None) -> str:
    """One batch, or a host's rows of it: how good it is, where it differs, and its first rows' documents.

    `deviations`, the TV of every batch of an epoch, shows its rank among them.
    """
    size = len(batch.sequences)
    place = f"epoch {batch.epoch}, position {batch.position:,}, {size:,} rows"
    head = f"step {batch.step:,} of {_clean(batch.ordering)!r}: {place}"
    lines = [_head(head, batch), ""]
    if deviations:
        lines += [_ranks_table(batch, deviations), ""]
    return "\n".join([*lines, _differences_table(batch), "", _rows_table(batch, num_rows), *_rest(size, num_rows)])


def run_batch_table(batch: RunBatch, num_rows: int, deviations: Deviations | None = None) -> str:
    """One batch of a run, as `batch_table` shows one of an ordering: its rows with their datasets and epochs."""
    size = len(batch.sequences)
    place = f"position {batch.position:,}, {size:,} rows"
    lines = [_head(f"step {batch.step:,} of {_clean(batch.schedule)!r}, version {batch.version}: {place}", batch), ""]
    if deviations:
        lines += [_ranks_table(batch, deviations), "", _differences_table(batch, "run"), ""]
    numbers = ("row", "position", "epoch", "sequence")
    table = plain_table("row", "position", "dataset", "epoch", "sequence", "documents", numbers=numbers)
    for each in batch.sequences[:num_rows]:
        documents = list(dict.fromkeys(_clean(str(segment.about["id"])) for segment in each.segments))
        shown = ", ".join(end_of(name, _DOCUMENT_WIDTH) for name in documents[:_MOST_DOCUMENTS])
        if len(documents) > _MOST_DOCUMENTS:
            shown += f" and {len(documents) - _MOST_DOCUMENTS} more"
        cells = (str(each.row), f"{each.position:,}", _dataset(each), str(each.epoch), f"{each.sequence_index:,}")
        table.add_row(*cells, shown)
    return "\n".join([*lines, printed(table), *_rest(size, num_rows)])


def _dataset(of: RunRow | RunUse) -> str:
    return end_of(_clean(of.path), _PATH_WIDTH)


def _head(head: str, batch: BatchView | RunBatch) -> str:
    """What is shown, and what of it repeats."""
    repeats = "no document comes twice"
    if batch.num_repeats:
        repeats = f"{batch.num_repeats:,} of them continue a document that another row holds"
    if batch.num_copies:
        repeats += f"; {batch.num_copies:,} copies of documents that another row holds"
    return textwrap.fill(f"{head}; {repeats}", width=80, break_long_words=False)


def _rest(size: int, num_rows: int) -> list[str]:
    return [f"... and {size - num_rows:,} rows more (--rows {size}, --json)"] if size > num_rows else []


def _ranks_table(batch: BatchView | RunBatch, deviations: Deviations) -> str:
    """Every family's TV beside those of all batches."""
    numbers = ("TV", "worse are", f"best of {len(next(iter(deviations.values()))):,} batches", "mean", "worst")
    table = plain_table("family", *numbers, numbers=numbers)
    for family, view in batch.families.items():
        tv, others = view.total_variation, deviations[family]
        spread = (f"{value:.3f}" for value in (others.min(), others.mean(), others.max()))
        name = Text(_clean(family)[:_FAMILY_WIDTH])
        table.add_row(name, f"{tv:.3f}", _in_percent(float(np.mean(others > tv))), *spread)
    return printed(table)


def _in_percent(share: float) -> str:
    """A share in whole per cent; 0 % and 100 % only where they are exact."""
    if 0 < share < 0.005:
        return "< 1 %"
    return "> 99 %" if 0.995 <= share < 1 else f"{100 * share:.0f} %"


def _differences_table(batch: BatchView | RunBatch, whole: str = "corpus") -> str:
    """Every family's TV, and its groups that are farthest from the share of the whole."""
    table = plain_table("family", "TV", f"largest differences: share here (in the {whole})", numbers={"TV"})
    for family, view in batch.families.items():
        differences = ", ".join(
            f"{_clean(name)[:24]}: {100 * share:.1f} % ({100 * target:.1f} %)"
            for name, share, target in view.largest_differences(2)
        )
        table.add_row(Text(_clean(family)[:_FAMILY_WIDTH]), f"{view.total_variation:.3f}", Text(differences))
    return printed(table)


def _rows_table(batch: BatchView, num_rows: int) -> str:
    """The first rows' sequences, and the documents in each."""
    cells = []
    for sequence in batch.sequences[:num_rows]:
        for index, segment in enumerate(sequence.segments):
            place = (str(sequence.row), f"{sequence.sequence_index:,}") if index == 0 else ("", "")
            code = str(segment.codes.get("cluster", ""))
            source, document = (_clean(str(segment.about[name])) for name in ("source", "id"))
            cells.append((*place, f"{segment.num_tokens:,}", code, source[:_SOURCE_WIDTH], document))
    numbers = ("row", "sequence", "tokens", "cluster")
    heads = (*numbers, "source", "document")
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    room = 80 - sum(width + 2 for width in widths[:-1])
    table = plain_table(*heads, numbers=numbers, no_wrap=True)
    for *others, document in cells:
        table.add_row(*map(Text, others), Text(end_of(document, room)))
    return printed(table)


def _clean(text: str) -> str:
    """The corpus's text as one line of a table; cleaned before the columns' widths are counted."""
    return clean(text).replace("\n", "\ufffd")


def uses_table(document: str, uses: Sequence[Use], appearances: int | None = None) -> str:
    """Where training reads a document, which was packed so often by its weight."""
    document = _clean(document)
    if not uses:
        weighed = "" if appearances is None else "left out by its weight, "
        return f"{document}: in no training sequence ({weighed}kept for validation, or lost in packing)"
    numbers = ("step", "row", "position", "sequence", "tokens", "from token")
    table = plain_table(*numbers, numbers=numbers)
    for use in uses:
        values = (use.step, use.row, use.position, use.sequence_index, use.num_tokens, use.document_offset)
        table.add_row(*(f"{value:,}" for value in values))
    times = "" if appearances in (None, 1) else f", {appearances:,} times by its weight"
    return f"{document}, in every pass over the order{times}:\n{printed(table)}"


def run_uses_table(document: str, uses: Sequence[RunUse]) -> str:
    """Where a run reads a document."""
    document = _clean(document)
    if not uses:
        return f"{document}: nowhere in the schedule (kept for validation, lost in packing, or not reached)"
    numbers = ("epoch", "step", "row", "position", "sequence", "tokens", "from token")
    table = plain_table("dataset", *numbers, numbers=numbers)
    for use in uses:
        values = (use.epoch, use.step, use.row, use.position, use.sequence_index, use.num_tokens, use.document_offset)
        table.add_row(_dataset(use), *(f"{value:,}" for value in values))
    return f"{document}, in the whole schedule:\n{printed(table)}"


def as_json(value: BatchView | RunBatch | Sequence[Use], deviations: Deviations | None = None) -> str:
    """What the tables show, and all sequences of the batch, as JSON."""
    if isinstance(value, Sequence):
        return json.dumps([dataclasses.asdict(use) for use in value], indent=2, default=_plain)
    plain: dict[str, Any] = dataclasses.asdict(value)
    for family, others in (deviations or {}).items():
        tv = value.families[family].total_variation
        plain["families"][family]["all_batches"] = {
            "number": len(others),
            "tv_best": float(others.min()),
            "tv_mean": float(others.mean()),
            "tv_worst": float(others.max()),
            "share_worse": float(np.mean(others > tv)),
        }
    return json.dumps(plain, indent=2, default=_plain)


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)
