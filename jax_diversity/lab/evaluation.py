"""Mean losses of documents with intervals, of all tokens and by group, computed from a model's loss of every token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, Int32, Int64
from scipy import stats

from jax_diversity.dataset import Dataset
from jax_diversity.foundation.checks import as_tuple, as_whole_number, check_function
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.wording import counted
from jax_diversity.lab.group_losses import document_codes
from jax_diversity.loader.iteration import Batch
from jax_diversity.loader.loader import Loader
from jax_diversity.run.joining import joined_groups
from jax_diversity.run.run import Run

_MASK = "targets_segmentation"
_LEVEL = 0.95


class MeanLoss(NamedTuple):
    """A mean loss, or a difference of mean losses, in nats per target token.

    Attributes:
        mean: the mean over all target tokens.
        error: its standard error; NaN for fewer than two documents.
        low: lower end of the 95 % interval; NaN for fewer than two documents.
        high: upper end of the 95 % interval; NaN for fewer than two documents.
        num_targets: number of target tokens.
        num_documents: number of documents with target tokens; copies of a document count once.
    """

    mean: float
    error: float
    low: float
    high: float
    num_targets: int
    num_documents: int

    def __str__(self) -> str:
        reach = "" if np.isnan(self.error) else f" ± {self.high - self.mean:.4f}"
        number = f"{counted(self.num_targets, 'token')}, {counted(self.num_documents, 'document')}"
        return f"{self.mean:.4f}{reach} nats per token ({number})"


@dataclass(frozen=True, eq=False)
class Evaluated:
    """The losses of some documents; an `Evaluator` returns it. The difference of two is that of two models.

    **The interval.** The documents are the units: a mean over all documents is compared with the means that leave out
    one document (the jackknife; Quenouille 1956, *Notes on bias in estimation*; Tukey 1958). The interval of 95 % uses
    Student's quantile for the effective number of documents (Kish 1965, *Survey Sampling*), which is smaller than their
    number if their lengths differ. It estimates the mean loss of the text from which the documents are drawn at random,
    not of the documents alone. Copies count as one document. If the documents or sequences are a balanced sample, the
    actual error is smaller and the interval is too wide. Groups with few documents have intervals that are only rough.

    Attributes:
        sums: summed loss of every document, in nats.
        counts: number of target tokens of every document.
        copies: the number of every document's group of copies.
        groups: family -> the names of its groups, and the group of every document.

    Example:
        >>> found = evaluate(lambda batch: token_losses(model, batch))
        >>> print(found.loss)
        3.1250 ± 0.0210 nats per token (1,843,200 tokens, 1,204 documents)
        >>> found.by_group("source")["web"].mean
        3.21
        >>> (found - before).loss.high < 0  # the model is better than before, by an interval over the same documents
        True
    """

    sums: Float64[np.ndarray, " document"]
    counts: Int64[np.ndarray, " document"]
    copies: Int64[np.ndarray, " document"]
    groups: Mapping[str, tuple[tuple[str, ...], Int64[np.ndarray, " document"]]]

    @cached_property
    def loss(self) -> MeanLoss:
        """The mean loss of all target tokens."""
        return self._means(np.zeros(len(self.sums), np.int64), 1)[0]

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
        means = zip(names, self._means(codes, len(names)), strict=True)
        return {name: each for name, each in means if each.num_targets}

    def reference(self, family: str) -> dict[str, Float64[np.ndarray, " group"]]:
        """The mean losses of a family's groups as reference losses for `watch_batches`; NaN for groups without targets.

        Raises:
            UserError: the evaluator was made without this family.
        """
        known = self.by_group(family)
        names = self.groups[family][0]
        return {family: np.array([known[name].mean if name in known else np.nan for name in names])}

    def values(self, name: str = "validation_loss") -> dict[str, float]:
        """The means and the ends of their intervals as values for a log, such as `TrainingLog`.

        With the default name they are `validation_loss`, `validation_loss_low`, `validation_loss_high`, and for every
        group `validation_loss/FAMILY/GROUP`, `validation_loss_low/FAMILY/GROUP`, `validation_loss_high/FAMILY/GROUP`.
        An interval that does not exist is left out.
        """
        found = {"": self.loss}
        for family in self.groups:
            found |= {f"/{family}/{group}": each for group, each in self.by_group(family).items()}
        values = {}
        for place, each in found.items():
            ends = {"": each.mean, "_low": each.low, "_high": each.high}
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
        return replace(self, sums=self.sums - other.sums)

    def __str__(self) -> str:
        return str(self.loss)

    def _means(self, groups: Int64[np.ndarray, " document"], num_groups: int) -> list[MeanLoss]:
        """The mean of every group; copies within a group are one unit of the jackknife."""
        held = self.counts > 0
        width = int(self.copies.max(initial=0)) + 1
        units, unit = np.unique(groups[held] * width + self.copies[held], return_inverse=True)
        group = units // width
        sums = np.bincount(unit, self.sums[held], len(units))
        counts = np.bincount(unit, self.counts[held], len(units))
        total, targets = np.bincount(group, sums, num_groups), np.bincount(group, counts, num_groups)
        number = np.bincount(group, minlength=num_groups)
        with np.errstate(divide="ignore", invalid="ignore"):  # groups with less than two documents have no interval
            means = total / targets
            others = (total[group] - sums) / (targets[group] - counts)
            centre = np.bincount(group, others, num_groups) / number
            squares = np.bincount(group, (others - centre[group]) ** 2, num_groups)
            error = np.sqrt(squares * (number - 1) / number)
            # Long documents decide a mean: this is the number of equal documents of the same effect (Kish 1965).
            effective = targets**2 / np.bincount(group, counts**2, num_groups)
        error[number < 2] = np.nan
        reach = stats.t.ppf((1 + _LEVEL) / 2, np.fmax(effective - 1, 1)) * error
        columns = (means, error, means - reach, means + reach, targets.astype(np.int64), number)
        return [MeanLoss(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


class Evaluator:
    """Compute mean losses with intervals over the batches of loaders, again and again during training.

    A function of your own gives the loss of every token of a batch. The evaluator sums these losses on the devices by
    the segments of the documents, and on the host, in float64, by document and by group. It works with any loader of
    `make_loader` whose batches have `targets_segmentation`: of the validation split, or of training sequences; with
    `sharding=` on a mesh of one process or several; with merged segments and with masked prompts.

    Args:
        loaders: one loader, or several whose documents are evaluated together.
        by: a family in which a document has one group (source, language, cluster ...), or several families.

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
        self._tables = [_Table(loader.run) for loader in loaders]
        self._sums = [_summed(loader) for loader in loaders]
        self.loaders = loaders
        self._bounds = np.cumsum([0, *(table.num_documents for table in self._tables)])
        kept = [documents for table in self._tables for documents in table.documents]
        self._copies = _apart(
            [dataset.duplicate_groups[documents] for dataset, documents in zip(datasets, kept, strict=True)]
        )
        self._groups = {str(family): _groups(datasets, kept, str(family)) for family in as_tuple(by)}

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
        return Evaluated(sums, counts.astype(np.int64), self._copies, self._groups)


Sums = Float[Array, "row segment"]


class _Table:
    """The segments of a run's sequences: where each one begins, and its document.

    Attributes:
        documents: for every dataset, the documents that its sequences contain, ascending.
        num_documents: the number of these documents, over all datasets.
    """

    def __init__(self, run: Run) -> None:
        parts = [dataset.segments for dataset in run.datasets]
        found = [np.unique(part.document_index, return_inverse=True) for part in parts]
        self.documents = [documents for documents, _ in found]
        before = np.cumsum([0, *map(len, self.documents)])
        self.num_documents = int(before[-1])
        self._document = np.concatenate([own + first for (_, own), first in zip(found, before[:-1], strict=True)])
        self._position = np.concatenate([part.position for part in parts])
        numbers = [np.bincount(part.sequence_index, minlength=part.num_sequences) for part in parts]
        self._number = np.concatenate(numbers)
        self._first = np.cumsum(self._number) - self._number
        self._column = np.arange(self._number.max(initial=1))

    def _places(self, rows: Int64[np.ndarray, " row"]) -> tuple[np.ndarray, np.ndarray]:
        """The indices of the rows' segments, (row, segment), and which of them exist."""
        held = self._column < self._number[rows][:, None]
        return np.where(held, self._first[rows][:, None] + self._column, 0), held

    def starts(self, rows: Int64[np.ndarray, " row"], num_rows: int) -> Int32[np.ndarray, "{num_rows} segment"]:
        """The tokens at which the segments of some sequences begin; rows of padding are added."""
        places, held = self._places(rows)
        starts = np.full((num_rows, len(self._column)), np.iinfo(np.int32).max, np.int32)
        starts[: len(rows)][held] = self._position[places[held]]
        return starts

    def add(
        self, to: Float64[np.ndarray, " document"], rows: Int64[np.ndarray, " row"], values: Float64[np.ndarray, "_ _"]
    ) -> None:
        """Add the values of the segments of some sequences to those of their documents."""
        places, held = self._places(rows)
        np.add.at(to, self._document[places[held]], values[: len(rows)][held])


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
    found, above = [np.zeros(0, np.int64)], 0
    for each in numbers:
        distinct, own = np.unique(each, return_inverse=True)
        found.append(own + above)
        above += len(distinct)
    return np.concatenate(found)


def _groups(
    datasets: tuple[Dataset, ...], kept: list[Int64[np.ndarray, "_"]], family: str
) -> tuple[tuple[str, ...], Int64[np.ndarray, " document"]]:
    """The names of a family's groups, and the group of every document; groups with the same name are one group."""
    codes = [document_codes(dataset, family)[documents] for dataset, documents in zip(datasets, kept, strict=True)]
    names = joined_groups(datasets, family)
    place = {name: index for index, name in enumerate(names)}
    own = [np.array([place[name] for name in dataset.group_names[family]], np.int64) for dataset in datasets]
    return names, np.concatenate([places[code] for places, code in zip(own, codes, strict=True)])


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
        for each in waiting:
            yield _fetched(*each)


def _fetched(rows: np.ndarray, sums: tuple[Sums, Sums]) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    of_losses, of_targets = (np.asarray(each, np.float64) for each in sums)
    return rows, (of_losses, of_targets)
