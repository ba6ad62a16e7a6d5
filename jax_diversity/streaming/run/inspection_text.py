"""The output of `inspect`: one batch compared with all other batches, its rows, and the uses of a document."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64, Int64
from rich.text import Text

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.tables import end_of, plain_table, printed, wrapped
from jax_diversity.foundation.terminal import clean
from jax_diversity.foundation.wording import counted
from jax_diversity.sequences.characteristics.stored import TOKENS

if TYPE_CHECKING:
    from jax_diversity.streaming.dataset import Dataset
    from jax_diversity.streaming.run.history import DocumentHistory
    from jax_diversity.streaming.run.inspection import BatchView, DocumentUse, TurnView
    from jax_diversity.streaming.run.run import Run

_FAMILY_WIDTH, _SOURCE_WIDTH = 16, 14
_PATH_WIDTH = 16
_TURN_CHARACTERS = 400
"""Characters of a turn that are shown."""
_NUM_STEPS = 5
"""The number of steps with two rows of one document that are listed."""


@dataclass(frozen=True)
class AllBatches:
    """All batches of a run, with which one batch is compared.

    Attributes:
        number: the number of batches; a partial last batch is left out.
        deviations: family -> the TV of every batch.
        repeats: the steps whose batch has two rows of one document; None if documents are unknown.
    """

    number: int
    deviations: Mapping[str, Float64[np.ndarray, " batch"]]
    repeats: Int64[np.ndarray, " step"] | None

    @property
    def words(self) -> str:
        """The number of batches, in words."""
        return counted(self.number, "batch")


def batch_table(batch: BatchView, run: Run, num_rows: int, all_batches: AllBatches | None = None) -> str:
    """Describe a batch, or a host's rows of it: deviation, largest differences, and the documents of the first rows.

    With `all_batches`, the rank of the batch among all batches is shown, and the batches with two rows of one document.
    """
    size, several = len(batch.sequences), len(run.sizes) > 1
    version = "" if batch.version is None else f", version {batch.version}"
    epochs = sorted({sequence.epoch for sequence in batch.sequences})
    epoch = "" if several else f"epoch {' and '.join(map(str, epochs[:2]))}, "
    place = f"{epoch}position {batch.position:,}, {counted(size, 'row')}"
    lines = [_head(f"step {batch.step:,} of {_clean(batch.run)!r}{version}: {place}", batch), ""]
    if all_batches is not None:
        lines += [_ranks_table(batch, all_batches), *_repeats_line(all_batches), ""]
    if batch.families:
        # With one feature space, numbers of clusters and token ids mean the same in all datasets.
        is_common = len({dataset.feature_space for dataset in run.datasets}) == 1
        has_names = bool(run.datasets) and (is_common or not several)
        names = _names_of_groups(run.datasets[0], batch.families) if has_names else {}
        lines += [_differences_table(batch, "run" if several else "corpus", names), ""]
    return "\n".join([*lines, _rows_table(batch, num_rows, several), *_rest(size, num_rows)])


def _head(head: str, batch: BatchView) -> str:
    """The first line: the place of the batch, and its repeated documents."""
    # A row that has less than 99 % of one document belongs to no document: parts of it may be in other rows.
    repeats = "no document has two rows"
    if batch.num_repeats:
        verb = "continues" if batch.num_repeats == 1 else "continue"
        repeats = f"{batch.num_repeats:,} of them {verb} a document that is in another row"
    if batch.num_copies:
        repeats += f"; {counted(batch.num_copies, 'copy')} of documents that are in another row"
    return textwrap.fill(f"{head}; {repeats}", width=80, break_long_words=False)


def _rest(size: int, num_rows: int) -> list[str]:
    return [f"... and {counted(size - num_rows, 'row')} more (--rows {size}, --json)"] if size > num_rows else []


def _repeats_line(all_batches: AllBatches) -> list[str]:
    """The batches with two rows of one document; no line if documents are unknown."""
    if all_batches.repeats is None:
        return []
    steps = [f"{step:,}" for step in all_batches.repeats[:_NUM_STEPS].tolist()]
    more = " ..." if len(all_batches.repeats) > _NUM_STEPS else ""
    where = f": steps {' '.join(steps)}{more}" if steps else ""
    return [f"{len(all_batches.repeats):,} of {all_batches.words} have two rows of one document{where}"]


def _ranks_table(batch: BatchView, all_batches: AllBatches) -> str:
    """A table of every family's TV, compared with the TV of all batches."""
    compared = f"better than, of {all_batches.words}"
    numbers = ("TV", compared, "best", "mean", "worst")
    table = plain_table("family", *numbers, numbers=numbers)
    for family, view in batch.families.items():
        tv, deviations = view.total_variation, all_batches.deviations[family]
        spread = (f"{value:.3f}" for value in (deviations.min(), deviations.mean(), deviations.max()))
        name = Text(_clean(family)[:_FAMILY_WIDTH])
        table.add_row(name, f"{tv:.3f}", _in_percent(float(np.mean(deviations > tv))), *spread)
    return printed(table)


def _in_percent(share: float) -> str:
    """A share in whole per cent; 0 % and 100 % only for exact values."""
    if 0 < share < 0.005:
        return "< 1 %"
    return "> 99 %" if 0.995 <= share < 1 else f"{100 * share:.0f} %"


def _names_of_groups(dataset: Dataset, families: Collection[str]) -> dict[str, dict[str, str]]:
    """Return family -> stored name of a group -> its name in reports; a token id has the text of the token."""
    stored, shown = dataset.group_names, dataset.shown_groups
    names = {family: dict(zip(stored[family], shown[family], strict=True)) for family in families}
    if TOKENS in families:
        with suppress(UserError):  # the tokenizer's library may be missing
            names[TOKENS] = _texts_of_tokens(dataset)
    return names


def _texts_of_tokens(dataset: Dataset) -> dict[str, str]:
    """Return number of a group of token ids -> the text of its first token; a + means that the group has more ids."""
    if dataset.tokenizer is None:
        return {}
    groups = dataset.group_names[TOKENS]
    more = "+" if dataset.vocab_size > len(groups) else ""
    texts = {group: dataset.tokenizer.decode([int(group)]) for group in groups}
    return {group: f"{text!r}{more}" for group, text in texts.items() if text}


def _differences_table(batch: BatchView, whole: str, names: Mapping[str, Mapping[str, str]]) -> str:
    """A table of every family's TV, and of the groups whose shares differ most from the whole dataset or run."""
    table = plain_table("family", "TV", f"largest differences: share here (in the {whole})", numbers={"TV"})
    for family, view in batch.families.items():
        group_names = names.get(family, {})
        differences = ", ".join(
            f"{_clean(group_names.get(name, name).replace(', ', ' '))[:24]}: {100 * share:.1f} % ({100 * target:.1f} %)"
            for name, share, target in view.largest_differences(2)
        )
        table.add_row(Text(_clean(family)[:_FAMILY_WIDTH]), f"{view.total_variation:.3f}", Text(differences))
    return printed(table)


def _rows_table(batch: BatchView, num_rows: int, several: bool) -> str:
    """A table of the first rows: sequence (with its dataset if there are several) and documents."""
    cells = []
    for sequence in batch.sequences[:num_rows]:
        origin = (end_of(_clean(sequence.path), _PATH_WIDTH), str(sequence.epoch)) if several else ()
        for index, segment in enumerate(sequence.segments):
            place = (str(sequence.row), *origin, f"{sequence.sequence_index:,}")
            code = str(segment.codes.get("cluster", ""))
            source, document = (_clean(str(segment.about[name])) for name in ("source", "id"))
            shown = place if index == 0 else ("",) * len(place)
            source_cells = () if several else (code, source[:_SOURCE_WIDTH])
            cells.append((*shown, f"{segment.num_tokens:,}", *source_cells, document))
    of_dataset = ("dataset", "epoch") if several else ()
    of_segment = () if several else ("cluster", "source")
    heads = ("row", *of_dataset, "sequence", "tokens", *of_segment, "document")
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    room = 80 - sum(width + 2 for width in widths[:-1])
    numbers = ("row", "epoch", "sequence", "tokens", "cluster")
    table = plain_table(*heads, numbers=numbers, no_wrap=True)
    for *cells_before, document in cells:
        table.add_row(*map(Text, cells_before), Text(end_of(document, room)))
    return printed(table)


def _clean(text: str) -> str:
    """A text of the corpus as one line of a table; texts are cleaned before the widths of the columns are computed."""
    return clean(text).replace("\n", "\ufffd")


def uses_table(
    document: str, run: Run, uses: Sequence[DocumentUse], appearances: int | None = None, absence: str = ""
) -> str:
    """A table of the uses of a document in a run, and how often it was packed because of its weight.

    Without uses, `absence` is the reason (`Inspector.absence`).
    """
    document, several = _clean(document), len(run.sizes) > 1
    if not uses:
        return f"{document}: in no training sequence of the run ({absence})"
    of_dataset = ("dataset",) if several else ()
    of_run = () if run.is_bijection else ("epoch",)
    numbers = (*of_run, "step", "row", "position", "sequence", "tokens", "from token")
    table = plain_table(*of_dataset, *numbers, numbers=numbers)
    for use in uses:
        values = (use.step, use.row, use.position, use.sequence_index, use.num_tokens, use.document_offset)
        shown = values if run.is_bijection else (use.epoch, *values)
        path = (end_of(_clean(use.path), _PATH_WIDTH),) if several else ()
        table.add_row(*path, *(f"{value:,}" for value in shown))
    times = "" if appearances in (None, 1) else f", {appearances:,} times by its weight"
    where = "every pass over the order" if run.is_bijection else "the whole run"
    return f"{document}, in {where}{times}:\n{printed(table)}"


def history_text(document: str, sentences: Sequence[str], uses: str) -> str:
    """What happened to a document before training, in sentences, and the table of its uses, if there is one."""
    lines = [wrapped(_clean(sentence)) for sentence in sentences]
    head = [] if uses else [f"{_clean(document)}, in no training sequence:"]
    return "\n".join([*head, *lines, *([uses] if uses else [])])


def turns_text(turns: Sequence[TurnView]) -> str:
    """The turns of a chat; tokens that count towards the loss are between » and «. Empty without turns."""
    lines = []
    for number, turn in enumerate(turns, 1):
        text = "".join(f"»{piece}«" if counts else piece for piece, counts in turn.texts)
        missing = f", {turn.num_left_out:,} of them in no sequence" if turn.num_left_out else ""
        shown = f"{number} {turn.role} ({counted(turn.num_tokens, 'token')}{missing}): {clean(text)}"
        lines.append(textwrap.shorten(shown, _TURN_CHARACTERS, placeholder=" ..."))
    return "\n".join(["", "The turns; what counts with loss_mask=answers is between » and «:", *lines] if lines else [])


def document_json(histories: Sequence[DocumentHistory], uses: Sequence[DocumentUse]) -> str:
    """What happened to a document before training (for each dataset), and its uses, as JSON."""
    plain = {"history": list(map(dataclasses.asdict, histories)), "uses": list(map(dataclasses.asdict, uses))}
    return json.dumps(plain, indent=2, default=_plain)


def batch_json(value: BatchView, all_batches: AllBatches | None = None) -> str:
    """The content of the tables and all sequences of the batch, as JSON."""
    plain: dict[str, Any] = dataclasses.asdict(value)
    if all_batches is not None:
        plain["steps_with_repeats"] = all_batches.repeats
    for family, deviations in (all_batches.deviations if all_batches else {}).items():
        tv = value.families[family].total_variation
        plain["families"][family]["all_batches"] = {
            "number": len(deviations),
            "tv_best": float(deviations.min()),
            "tv_mean": float(deviations.mean()),
            "tv_worst": float(deviations.max()),
            "share_worse": float(np.mean(deviations > tv)),
        }
    return json.dumps(plain, indent=2, default=_plain)


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)
