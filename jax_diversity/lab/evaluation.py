"""Mean losses of documents with intervals, of all tokens and by group, computed from a model's loss of every token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise, product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, Int32, Int64

from jax_diversity.foundation.checks import as_tuple, as_whole_number, check_function
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.libraries import optional
from jax_diversity.foundation.wording import counted
from jax_diversity.lab.calibration import (
    Composition,
    Family,
    calibrated_mean,
    tokens_by_group,
)
from jax_diversity.lab.group_losses import document_codes, document_families
from jax_diversity.schema import Segments
from jax_diversity.schema.documents import ANSWERS, ROLES
from jax_diversity.schema.intervals import LEAST, TOO_FEW, MeanInterval, student_reach
from jax_diversity.sequences.packing.pieces import expand
from jax_diversity.sequences.token_store.megatron import TokenStore, run_starts
from jax_diversity.streaming.dataset import Dataset
from jax_diversity.streaming.loader.iteration import Batch
from jax_diversity.streaming.loader.loader import Loader
from jax_diversity.streaming.run.joining import joined_groups
from jax_diversity.streaming.run.run import Run

_MASK = "targets_segmentation"
_MENTIONED = 0.01  # a smaller share of the corpus in longer documents is not mentioned
_ONE_PAIR = "of this pair of models on these documents, without the noise of seeds"
_OTHER_PARTS = ("no chat", "no answer")
"""The groups of the parts of documents that are no turns, or no answers."""
_MOST_NAMES = 10
"""The largest number of groups without documents that are named."""


@dataclass(frozen=True)
class MeanLoss(MeanInterval):
    """The mean loss of a corpus, or a difference of mean losses, estimated from some documents, in nats per token.

    With fewer than four documents, the mean is the plain one, and error and interval are NaN.

    Attributes:
        plain: the mean loss of the evaluated target tokens alone.
        num_targets: number of evaluated target tokens.
        num_documents: number of documents with target tokens; copies of a document count once.
        worth: the number of equal documents whose plain mean would have the same noise.
        longer: the share of the corpus's tokens in documents longer than all evaluated ones. The mean does not
            include them.
        is_difference: whether it is a difference of the losses of two models.
    """

    plain: float
    num_targets: int
    num_documents: int
    worth: float
    longer: float
    is_difference: bool = False

    def __str__(self) -> str:
        number = f"{counted(self.num_targets, 'token')}, {counted(self.num_documents, 'document')}"
        pair = f"; {_ONE_PAIR}" if self.is_difference else ""
        if np.isnan(self.error):
            return f"{self.mean:.4f} nats per token ({number}; {TOO_FEW}{pair})"
        facts = [f"{number} worth {self.worth:,.0f}"]
        if f"{self.plain:.4f}" != f"{self.mean:.4f}":
            facts.append(f"their plain mean {self.plain:.4f}")
        if self.longer >= _MENTIONED:
            facts.append(f"longer documents ({self.longer:.0%} of the corpus) are not included")
        return f"{self.mean:.4f} ± {self.reach:.4f} nats per token ({'; '.join(facts)}{pair})"


@dataclass(frozen=True, eq=False)
class Evaluated:
    """The losses of some documents; an `Evaluator` returns it. The difference of two is that of two models.

    **The mean and its interval** are those of all documents of the datasets up to the longest evaluated one, had none
    of them been trained on; `longer` is the share of the tokens in longer documents. The lengths and groups of all
    documents are known, so the mean is calibrated on them (see `lab/calibration.py`). The 95 % interval uses Student's
    quantile with a correction for skewed losses. It includes the chance that other documents would have been evaluated.
    It does not include the chance of other seeds of the training. Copies count as one document. If all documents of the
    datasets are evaluated (a test set), the mean is their plain mean. With a loss mask and for turns of chats it is the
    plain mean, too, because the targets of the other documents are not known. The interval of a plain mean shows how
    much it would change with other documents of the same lengths and groups.

    Attributes:
        sums: summed loss of every document, in nats; with `by="role"` or `by="turn"`, of every turn of a chat.
        counts: number of target tokens of every document or turn.
        copies: the number of the group of copies of every document, or of the document of every turn.
        groups: family -> the names of its groups, and the group of every document.
        composition: the lengths and groups of these documents, and of all documents of the datasets.
        is_difference: whether these are differences of the losses of two models.

    Printed, it is a table: the loss of all tokens, then the groups of every family. Groups that are too small for an
    interval follow below the others. The groups without a document are named, because they are in no mean.

    Example:
        >>> found = evaluate(lambda batch: token_losses(model, batch))
        >>> print(found.loss)
        3.1250 ± 0.0210 nats per token (1,843,200 tokens, 1,204 documents worth 702; their plain mean 3.1194)
        >>> found.by_group("source")["web"].mean
        3.21
        >>> (found - before).loss.high < 0  # the model is better than before, by an interval over the same documents
        True
    """

    sums: Float64[np.ndarray, " document"]
    counts: Int64[np.ndarray, " document"]
    copies: Int64[np.ndarray, " document"]
    groups: Mapping[str, tuple[tuple[str, ...], Int64[np.ndarray, " document"]]]
    composition: Composition
    is_difference: bool = False

    @cached_property
    def loss(self) -> MeanLoss:
        """The mean loss of all documents."""
        return self._mean(np.flatnonzero(self.counts))

    def by_group(self, family: str) -> dict[str, MeanLoss]:
        """The mean loss of every group of a family that has target tokens.

        Raises:
            UserError: the evaluator was made without this family.
        """
        if family not in self.groups:
            raise UserError(
                f"Expected a family of the evaluator ({', '.join(self.groups) or 'it has none'}), found {family!r}; "
                f"make it with by={family!r}."
            )
        names, codes = self.groups[family]
        documents = np.flatnonzero(self.counts)
        documents = documents[np.argsort(codes[documents], kind="stable")]
        firsts = np.searchsorted(codes[documents], np.arange(len(names) + 1)).tolist()
        return {
            name: self._mean(documents[first:last], (family, group))
            for group, (name, (first, last)) in enumerate(zip(names, pairwise(firsts), strict=True))
            if first < last
        }

    def without_documents(self, family: str) -> list[str]:
        """The groups of a family of which no document was evaluated.

        Raises:
            UserError: the evaluator was made without this family.
        """
        by_group = self.by_group(family)
        hidden = {*by_group, *(_OTHER_PARTS if family in _OF_TURNS else ())}
        return [name for name in self.groups[family][0] if name not in hidden]

    def to_frame(self) -> Any:
        """Return the mean losses as a `pandas.DataFrame`: a row for all documents, and one for every group.

        The columns are the family and the group (None in the row of all documents), the mean and its interval in nats
        per token (NaN with few documents), and the numbers of target tokens and of documents.

        Raises:
            UserError: pandas is not installed.

        Example:
            >>> found.to_frame().query("family == 'source'").sort_values("mean")
        """
        means = [(None, None, self.loss)]
        means += [(family, name, loss) for family in self.groups for name, loss in self.by_group(family).items()]
        return optional("pandas", None).DataFrame(
            {
                "family": family,
                "group": name,
                "mean": loss.mean,
                "low": loss.low,
                "high": loss.high,
                "num_targets": loss.num_targets,
                "num_documents": loss.num_documents,
            }
            for family, name, loss in means
        )

    def reference(self, family: str) -> dict[str, Float64[np.ndarray, " group"]]:
        """The mean losses of a family's groups as reference losses for `watch_batches`; NaN for groups without targets.

        Raises:
            UserError: the evaluator was made without this family.
        """
        by_group = self.by_group(family)
        names = self.groups[family][0]
        return {family: np.array([by_group[name].mean if name in by_group else np.nan for name in names])}

    def values(self, name: str = "validation_loss") -> dict[str, float]:
        """The means and the ends of their intervals as values for a log, such as `TrainingLog`.

        With the default name they are `validation_loss`, `validation_loss_low`, `validation_loss_high`, and for every
        group `validation_loss/FAMILY/GROUP`, `validation_loss_low/FAMILY/GROUP`, `validation_loss_high/FAMILY/GROUP`.
        An interval that does not exist is left out.
        """
        losses = {"": self.loss}
        for family in self.groups:
            losses |= {f"/{family}/{group}": loss for group, loss in self.by_group(family).items()}
        values = {}
        for place, loss in losses.items():
            ends = {"": loss.mean, "_low": loss.low, "_high": loss.high}
            values |= {f"{name}{end}{place}": value for end, value in ends.items() if not end or np.isfinite(value)}
        return values

    def __sub__(self, other: Evaluated) -> Evaluated:
        """The differences of the losses of two models on the same documents."""
        if not (np.array_equal(self.counts, other.counts) and np.array_equal(self.copies, other.copies)):
            raise UserError(
                f"Expected losses of the same documents, found {self.loss.num_documents} documents with "
                f"{self.loss.num_targets} targets and {other.loss.num_documents} with {other.loss.num_targets}; "
                "evaluate both models with the same loader."
            )
        return replace(self, sums=self.sums - other.sums, is_difference=True)

    def __str__(self) -> str:
        lines = [str(self.loss)]
        for family in self.groups:
            by_group = self.by_group(family)
            width = max(map(len, by_group), default=0)
            # The sentence on a pair of models stands in the first line alone.
            rows = {name: replace(loss, is_difference=False) for name, loss in by_group.items()}
            small = {name: row for name, row in rows.items() if np.isnan(row.reach)}
            lines += [f"{family}:", *(f"  {name:<{width}}  {row}" for name, row in rows.items() if name not in small)]
            if small:
                lines += [f"{family}, too few documents for an interval:"]
                lines += [f"  {name:<{width}}  {row}" for name, row in small.items()]
            if absent := self.without_documents(family):
                more = f" and {len(absent) - _MOST_NAMES:,} more" if len(absent) > _MOST_NAMES else ""
                # The turns were read, but a loss mask can leave no target in them.
                why = "without targets" if family in _OF_TURNS else "no document was evaluated"
                lines.append(f"{family}, {why}: {', '.join(absent[:_MOST_NAMES])}{more}")
        return "\n".join(lines)

    def _mean(self, documents: Int64[np.ndarray, " part"], group: tuple[str, int] | None = None) -> MeanLoss:
        """The mean of some documents with targets, which belong to a group; copies are one unit."""
        _, first, unit = np.unique(self.copies[documents], return_index=True, return_inverse=True)
        sums = np.bincount(unit, self.sums[documents])
        counts = np.bincount(unit, self.counts[documents])
        targets, number = int(counts.sum()), len(counts)
        plain = float(sums.sum() / targets) if targets else float("nan")
        if number < LEAST:
            return MeanLoss(plain, np.nan, np.nan, plain, targets, number, np.nan, np.nan, self.is_difference)
        has_others = self.composition.has_others(documents, group)
        composition = self.composition.of(documents[first])
        mean = calibrated_mean(sums / counts, counts, composition, group, has_others=has_others)
        error = float(np.sqrt(mean.variance))
        reach = float(student_reach(error, number - 1, mean.skewness))
        return MeanLoss(mean.mean, error, reach, plain, targets, number, mean.worth, mean.longer, self.is_difference)


class Evaluator:
    """Compute mean losses with intervals over the batches of loaders, again and again during training.

    A function of your own gives the loss of every token of a batch. The evaluator sums these losses on the devices by
    the segments of the documents, and on the host, in float64, by document and by group. It works with any loader of
    `make_loader` whose batches have `targets_segmentation`: of the validation split, or of training sequences; with
    `sharding=` on a mesh of one process or several; with merged segments and with masked prompts.

    Args:
        loaders: one loader, or several whose documents are evaluated together.
        by: a family in which a document has one group (source, language, cluster ...), or several families. For chats
            also `role`, the role of a token's turn, `turn`, the number of the turn in its chat, from 1, and `answer`,
            the number of the answer among the answers of its chat, from 1.

    Raises:
        UserError: an argument is not a loader, or its batches do not have all rows or the segmentation of the targets;
            a family is unknown.

    Example:
        >>> held_out = make_loader("out", split="validation", global_batch_size=64)
        >>> evaluate = Evaluator(held_out, by="source")
        >>> found = evaluate(lambda batch: token_losses(model, batch))  # jitted, (row, token)
        >>> log(step, found.values())
    """

    def __init__(self, *loaders: Loader, by: str | tuple[str, ...] = ()) -> None:
        if not loaders:
            raise UserError("Expected a loader of make_loader, found none.")
        for loader in loaders:
            _check(loader)
        datasets = tuple(chain.from_iterable(loader.run.datasets for loader in loaders))
        families = tuple(map(str, as_tuple(by)))
        has_turns = bool({*_OF_TURNS}.intersection(families)) and any(dataset.is_chat.any() for dataset in datasets)
        self._tables = [_Table(loader.run, has_turns) for loader in loaders]
        self._sums = [_summed(loader) for loader in loaders]
        self.loaders = loaders
        self._bounds = np.cumsum([0, *(table.num_parts for table in self._tables)])
        kept = [documents for table in self._tables for documents in table.documents]
        self._copies = _apart(
            [dataset.duplicate_groups[documents] for dataset, documents in zip(datasets, kept, strict=True)]
        )
        of_turns = _OF_TURNS if has_turns else ()
        _check_families(datasets, families)
        groups = {
            family: _turn_groups(self._tables, family) if family in of_turns else _groups(datasets, kept, family)
            for family in dict.fromkeys([*families, *_families(datasets)])
        }
        self._groups = {family: groups[family][:2] for family in families}
        # The targets of documents that are not evaluated are known only if every token is a target.
        masked = any(loader.batches.windows.settings.loss_mask != "all" for loader in loaders)
        self._composition = _composition(datasets, kept, groups, masked=masked)

    def __call__(
        self, losses_of: Callable[[Batch], Float[Array, "row token"]], num_batches: int | None = None
    ) -> Evaluated:
        """Evaluate a model.

        Args:
            losses_of: a function of a batch that returns the loss of every token, (row, token), in nats; it should be
                compiled with `jax.jit` or `nnx.jit`. Losses of tokens without a target are ignored.
            num_batches: the number of batches that are read from the beginning of every loader; None means all.

        Raises:
            UserError: the losses have another shape; all batches of an endless loader.
        """
        check_function("losses_of", losses_of)
        if num_batches is not None:
            num_batches = as_whole_number("num_batches", num_batches, 1)
        sums = np.zeros(self._bounds[-1])
        counts = np.zeros(self._bounds[-1])
        for loader, table, summed, bounds in zip(
            self.loaders, self._tables, self._sums, pairwise(self._bounds.tolist()), strict=True
        ):
            here = slice(*bounds)
            for rows, (of_losses, of_targets) in _results(loader, table, summed, losses_of, num_batches):
                table.add(sums[here], rows, of_losses)
                table.add(counts[here], rows, of_targets)
        return Evaluated(sums, counts.astype(np.int64), self._copies, self._groups, self._composition)


Sums = Float[Array, "row segment"]
_OF_TURNS = ("role", "turn", "answer")
"""The families of the turns of chats."""


class _Pieces(NamedTuple):
    """Segments, or their parts in one turn of a chat each; turn and role are -1 outside of chats, and the number of the
    answer is -1 outside of answers."""

    sequence_index: Int64[np.ndarray, " piece"]
    position: Int64[np.ndarray, " piece"]
    document_index: Int64[np.ndarray, " piece"]
    turn: Int64[np.ndarray, " piece"]
    role: Int64[np.ndarray, " piece"]
    answer: Int64[np.ndarray, " piece"]

    @classmethod
    def of(cls, segments: Segments, tokens: TokenStore | None) -> _Pieces:
        """Cut segments where turns begin; without `tokens` they are not cut."""
        if tokens is None:
            none = np.full(len(segments), -1)
            return cls(segments.sequence_index, segments.position, segments.document_index, none, none, none)
        # All documents are put on one axis, one after another.
        axis = run_starts(tokens.document_lengths)
        begins = axis[tokens.turns.document_index] + tokens.turns.offset
        first = axis[segments.document_index] + segments.document_offset
        before = np.searchsorted(begins, first, "right")
        row, number = expand(np.searchsorted(begins, first + segments.length) - before + 1)
        of_turn = before[row] + number - 1  # the turn that begins at the piece, or before it
        padded = np.append(tokens.turns.document_index, -1)  # -1 is the last: then there is no turn
        is_turn = padded[of_turn] == segments.document_index[row]
        place = np.where(number > 0, begins[np.minimum(of_turn, len(begins) - 1)] - first[row], 0)
        of_chat = np.searchsorted(tokens.turns.document_index, segments.document_index[row])
        is_answer = np.append(tokens.turns.role == ROLES.index(ANSWERS), False)
        num_answers = np.cumsum(is_answer) - is_answer  # before each turn
        return cls(
            segments.sequence_index[row],
            segments.position[row] + place,
            segments.document_index[row],
            np.where(is_turn, of_turn - of_chat, -1),
            np.where(is_turn, np.append(tokens.turns.role, -1)[of_turn], -1),
            np.where(is_turn & is_answer[of_turn], num_answers[of_turn] - num_answers[of_chat], -1),
        )


class _Table:
    """The segments of a run's sequences: where each one begins, and its part.

    A part is a document, or with `by_turns` a turn of a chat. Segments are then cut where turns begin.

    Attributes:
        documents: for every dataset, the document of each part.
        turns: the number of the turn of each part, from 0; -1 for documents that are not chats.
        roles: the number of its role; -1 likewise.
        answers: its number among the answers of the chat, from 0; -1 for other parts.
        num_parts: the number of parts, over all datasets.
    """

    def __init__(self, run: Run, by_turns: bool = False) -> None:
        pieces = [_Pieces.of(dataset.segments, dataset.tokens if by_turns else None) for dataset in run.datasets]
        distinct = [np.unique(np.stack(piece[2:], axis=1), axis=0, return_inverse=True) for piece in pieces]
        self.documents = [rows[:, 0] for rows, _ in distinct]
        self.turns, self.roles, self.answers = (
            np.concatenate([rows[:, column] for rows, _ in distinct]) for column in (1, 2, 3)
        )
        before = np.cumsum([0, *map(len, self.documents)])
        self.num_parts = int(before[-1])
        self._part = np.concatenate(
            [place.ravel() + first for (_, place), first in zip(distinct, before[:-1], strict=True)]
        )
        self._position = np.concatenate([piece.position for piece in pieces])
        numbers = [
            np.bincount(piece.sequence_index, minlength=dataset.segments.num_sequences)
            for piece, dataset in zip(pieces, run.datasets, strict=True)
        ]
        self._number = np.concatenate(numbers)
        self._first = np.cumsum(self._number) - self._number
        self._column = np.arange(self._number.max(initial=1))

    def _places(self, rows: Int64[np.ndarray, " row"]) -> tuple[np.ndarray, np.ndarray]:
        """The indices of the rows' segments, (row, segment), and which of them exist."""
        is_held = self._column < self._number[rows][:, None]
        return np.where(is_held, self._first[rows][:, None] + self._column, 0), is_held

    def starts(self, rows: Int64[np.ndarray, " row"], num_rows: int) -> Int32[np.ndarray, "{num_rows} segment"]:
        """The tokens at which the segments of some sequences begin; rows of padding are added."""
        places, is_held = self._places(rows)
        starts = np.full((num_rows, len(self._column)), np.iinfo(np.int32).max, np.int32)
        starts[: len(rows)][is_held] = self._position[places[is_held]]
        return starts

    def add(
        self, to: Float64[np.ndarray, " document"], rows: Int64[np.ndarray, " row"], values: Float64[np.ndarray, "_ _"]
    ) -> None:
        """Add the values of the segments of some sequences to those of their parts."""
        places, is_held = self._places(rows)
        np.add.at(to, self._part[places[is_held]], values[: len(rows)][is_held])


def _check(loader: Any) -> None:
    if not isinstance(loader, Loader):
        raise UserError(f"Expected a loader of make_loader, found {loader!r}.")
    settings = loader.batches.windows.settings
    if settings.num_hosts > 1:
        raise UserError(
            f"Expected a loader whose batches have all rows, found one of host {settings.host_index} of "
            f"{settings.num_hosts}; give make_loader a sharding instead of num_hosts."
        )
    if _MASK not in settings.fields:
        raise UserError(
            f"Expected a loader with {_MASK} among its fields, found {', '.join(settings.fields)}; add it, because it "
            "says which tokens have a target."
        )


def _apart(numbers: list[Int64[np.ndarray, "_"]]) -> Int64[np.ndarray, " document"]:
    """All arrays one after another, numbered from 0, without common numbers."""
    values, above = [np.zeros(0, np.int64)], 0
    for column in numbers:
        distinct, places = np.unique(column, return_inverse=True)
        values.append(places + above)
        above += len(distinct)
    return np.concatenate(values)


def _families(datasets: tuple[Dataset, ...]) -> tuple[str, ...]:
    """The families in which a document has one group, in all datasets."""
    first, *other_families = map(document_families, datasets)
    return tuple(family for family in first if all(family in other for other in other_families))


def _check_families(datasets: tuple[Dataset, ...], families: tuple[str, ...]) -> None:
    """Raise a `UserError` for a family that a dataset does not have; datasets of chats have those of turns too."""
    of_turns = _OF_TURNS if any(dataset.is_chat.any() for dataset in datasets) else ()
    for dataset, family in product(datasets, families):
        if family not in of_turns and family not in dataset.group_names:
            names = ", ".join([*dataset.group_names, *of_turns])
            raise UserError(f"Expected a family among {names}, found {family!r}.")


def _groups(
    datasets: tuple[Dataset, ...], kept: list[Int64[np.ndarray, "_"]], family: str
) -> tuple[tuple[str, ...], Int64[np.ndarray, " document"], list[Int64[np.ndarray, "_"]]]:
    """The names of a family's groups, and the group of every kept document and of all documents of every dataset.

    Groups with the same name are one group.
    """
    codes = [document_codes(dataset, family) for dataset in datasets]
    names = joined_groups(datasets, family)
    place = {name: index for index, name in enumerate(names)}
    own_places = [np.array([place[name] for name in dataset.group_names[family]], np.int64) for dataset in datasets]
    every = [places[codes_of_dataset] for places, codes_of_dataset in zip(own_places, codes, strict=True)]
    return names, np.concatenate([codes[documents] for codes, documents in zip(every, kept, strict=True)]), every


def _composition(
    datasets: tuple[Dataset, ...],
    kept: list[Int64[np.ndarray, "_"]],
    families: Mapping[str, tuple[tuple[str, ...], np.ndarray, list[np.ndarray] | None]],
    *,
    masked: bool,
) -> Composition:
    """The lengths and groups of the kept documents, and the tokens of all; if `masked`, not all tokens are targets."""
    lengths = [np.asarray(dataset.tokens.document_lengths) for dataset in datasets]
    dataset_of = np.repeat(np.arange(len(datasets)), [len(documents) for documents in kept])

    def table(every: list[np.ndarray], num_groups: int) -> Float64[np.ndarray, "dataset group bin"]:
        parts = zip(every, lengths, strict=True)
        return np.stack([tokens_by_group(codes, num_groups, of_dataset) for codes, of_dataset in parts])

    whole = table([np.zeros(len(own_lengths), np.int64) for own_lengths in lengths], 1)[:, 0]
    # Which turns the other documents have is not known.
    no_tokens = np.zeros_like(whole)[:, None]
    family_tables = {
        name: Family(codes, no_tokens.repeat(len(names), axis=1), is_known=False, has_effects=False)
        if every is None
        else Family(codes, table(every, len(names)), has_effects=name != "length")
        for name, (names, codes, every) in families.items()
    }
    of_kept = np.concatenate([of_dataset[documents] for of_dataset, documents in zip(lengths, kept, strict=True)])
    return Composition(dataset_of, _apart(kept), of_kept.astype(np.int64), whole, family_tables, is_known=not masked)


def _turn_groups(tables: list[_Table], family: str) -> tuple[tuple[str, ...], Int64[np.ndarray, " part"], None]:
    """The names of roles, or numbers of turns or answers, and the group of every part; others are the last group."""
    codes = np.concatenate([getattr(table, f"{family}s") for table in tables])
    number = int(codes.max(initial=0)) + 1
    names = ROLES if family == "role" else tuple(str(turn + 1) for turn in range(number))
    return (*names, _OTHER_PARTS[family == "answer"]), np.where(codes < 0, len(names), codes), None


def _summed(loader: Loader) -> Callable[..., tuple[Sums, Sums]]:
    """The compiled sums of a loader's batches; every process gets the sums of all rows."""
    sharding = loader.batches.windows.settings.sharding
    if not isinstance(sharding, jax.sharding.NamedSharding):
        return jax.jit(_segment_sums)
    everywhere = jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec())
    return jax.jit(_segment_sums, out_shardings=everywhere)


def _segment_sums(
    losses: Float[Array, "row token"], mask: Array, starts: Int32[Array, "row segment"]
) -> tuple[Sums, Sums]:
    """The summed loss of every segment of every row, and its number of targets."""
    # The target of a place is the token of the next place: it belongs to the document of that token. If segments are
    # merged, the last place of a segment has the first token of the next document as its target.
    places = jnp.arange(1, losses.shape[1] + 1)

    def of_row(
        losses: Float[Array, " token"], is_target: Array, starts: Int32[Array, " segment"]
    ) -> tuple[Float[Array, " segment"], Float[Array, " segment"]]:
        segment = jnp.maximum(jnp.searchsorted(starts, places, side="right") - 1, 0)
        none = jnp.zeros(len(starts), jnp.float32)
        kept = jnp.where(is_target, losses.astype(jnp.float32), 0.0)
        return none.at[segment].add(kept), none.at[segment].add(is_target.astype(jnp.float32))

    return jax.vmap(of_row)(losses, mask != 0, starts)


def _results(
    loader: Loader,
    table: _Table,
    summed: Callable[..., tuple[Sums, Sums]],
    losses_of: Callable[[Batch], Float[Array, "row token"]],
    num_batches: int | None,
) -> Iterator[tuple[Int64[np.ndarray, " row"], tuple[np.ndarray, np.ndarray]]]:
    """Yield the sequences of every batch, and their segments' sums, on the host in float64."""
    windows = loader.batches.windows
    if num_batches is None and loader.num_batches is None:
        raise UserError("Expected a loader with a number of epochs, found num_epochs=None; give num_batches.")
    size, mask = windows.settings.global_batch_size, windows.settings.names.get(_MASK, _MASK)
    waiting: list[Any] = []
    with closing(iter(loader)) as batches:
        left = num_batches
        while left != 0:
            position = batches.position
            if (batch := next(batches, None)) is None:
                break
            left = None if left is None else left - 1
            rows = loader.run.at(np.arange(position, min(position + size, windows.end)))
            losses = losses_of(batch)
            if np.shape(losses) != batch[mask].shape:
                raise UserError(
                    f"Expected the loss of every token, an array {batch[mask].shape}, found {np.shape(losses)}; return "
                    "the losses before their mean."
                )
            waiting.append((rows, summed(losses, batch[mask], table.starts(rows, size))))
            if len(waiting) > 1:  # the devices compute the next batch while the host waits for this one
                yield _fetched(*waiting.pop(0))
        for sums in waiting:
            yield _fetched(*sums)


def _fetched(rows: np.ndarray, sums: tuple[Sums, Sums]) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    of_losses, of_targets = (np.asarray(part, np.float64) for part in sums)
    return rows, (of_losses, of_targets)
