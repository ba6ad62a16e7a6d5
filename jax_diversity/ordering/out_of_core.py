"""A balanced order of counts in files. Memory grows with the number of sequences that are held at the same time.

1. **Totals**: the files are read once, in *chunks* of equal numbers of sequences. Their sums are the targets.
2. **Halving**: each chunk is halved to K blocks, one for each *part* of the order, and spooled by part. The walks know
   the deviation that the earlier chunks left at every cut between two parts, so that errors do not add up.
3. **Repair**: at each cut, sequences of both sides are exchanged until the deviation there stops falling.
4. **Ordering**: each part is read and ordered like a corpus of its own, from the known deviation before it.

If targets change during the run, the blocks of a chunk do not have equal mixtures: each group's sequences go to the
parts whose positions need them, as in `balance.follow_targets`. How many tokens of a group a part needs is known from
the totals.

Chunks and parts depend only on the numbers of sequences, so the order does not depend on the division into files or on
the number of threads. The state is in a folder beside the order: a run that was killed continues at its chunk, cut or
part, and ends with the same bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from jax_diversity.foundation.artifacts import fingerprint, write_text
from jax_diversity.foundation.checks import as_whole_number, check_function, check_type
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.folders import locked, space_for
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.ordering.balance import Asked, check_options, differing_family, follow_targets, order_stream
from jax_diversity.ordering.base import METHODS
from jax_diversity.ordering.halving import balanced_stream, halve, sort_by_group
from jax_diversity.ordering.objective import Features, Objective
from jax_diversity.ordering.parts import CutSides, parts_of
from jax_diversity.ordering.plan import (
    Plan,
    Targets,
    as_consumed,
    phases_between,
    plain_targets,
    target_table,
    tie_numbers,
)
from jax_diversity.ordering.running import Checkpoint
from jax_diversity.ordering.shortages import UnmetTargets, shortages_of
from jax_diversity.counts import Characteristics
from jax_diversity.counts.files import CountBlock, StoredCounts, open_counts
from jax_diversity.counts.spool import Rows, Spool

_METHOD = "balance"
_FOLDER = ".unfinished"
_ARRAY = "order.npy"
_NUMBERS_TOGETHER = 1 << 20
_KNOWN = "known/"
_REACH = 32_768
"""Number of sequences on each side of a cut that may be exchanged: four times as many as at the cuts of parts in
memory. With 8,192, the deviation at the cuts is larger than elsewhere."""
_BISECTIONS, _FARTHEST = 100, 2.0**60


def order_files(
    files: Any,
    path: str | Path,
    *,
    seed: int = 0,
    objective: Objective | None = None,
    targets: Targets | Mapping[str, Any] | None = None,
    consumed: Any = None,
    sequences_in_memory: int = 1 << 20,
    advance: Advance = ignore,
    **options: Any,
) -> dict[str, Any]:
    """Order the sequences of files with the method `balance`, without reading all counts into memory.

    A call that was interrupted or killed continues where it stopped when it is repeated. Until the end its state is in
    the folder `PATH.unfinished`, which needs about 60 bytes for a sequence of ten counts.

    Args:
        files: as in `Characteristics.from_files`; or a built dataset, or its folder or address.
        path: the order's name, which ends in .npy. As with `Ordering.save`, a .json with its description is beside it.
        seed: an integer >= 0.
        objective: as in `jd.order`; None means `Objective()`, with the batch size of the files, if they have one, as
            its window.
        targets: target shares that replace the corpus's own shares, as in `jd.order`.
        consumed: the sequences that training has already used, in their order, as in `jd.order`. They stay first.
        sequences_in_memory: about how many sequences are in memory at the same time. The number determines the memory
            (a million sequences of ten counts need about a gigabyte) and, together with the counts, the order.
        advance: called with the number of positions filled since its last call.
        options: the options of the method `balance`, without `mesh`.

    Returns:
        The content of the .json.

    Raises:
        ValueError: files that `Characteristics.from_files` refuses, or that were changed since an interrupted call; the
            folder of another order; a name that does not end in .npy; a full disk; the errors of `jd.order`.

    Warns:
        UnmetTargets: targets need more tokens of a group than the corpus has.

    Example:
        >>> chars.save("counts/part-00000.parquet")
        >>> about = order_files("counts", "order.npy")
        >>> Ordering.load("order.npy").num_sequences == about["num_sequences"]
        True
    """
    check_type("objective", objective, Objective | None, "a jd.Objective")
    check_function("advance", advance)
    check_type("path", path, str | Path, "the path of a file")
    path = Path(path)
    if path.suffix != ".npy":
        raise UserError(f"An ordering's file name must end in .npy, found {path.name!r}.")
    seed = as_whole_number("seed", seed)
    size = as_whole_number("sequences_in_memory", sequences_in_memory, 1)
    METHODS.check_options(_METHOD, options)
    if options.pop("mesh", None) is not None:
        raise UserError("Expected no mesh with order_files, found one; each part uses the default device or all cores.")
    options = {name: value for name, value in {**METHODS.options(_METHOD), **options}.items() if name != "mesh"}
    check_options(**options)
    opened = open_counts(files)
    if objective is None:
        window = opened.batch_size
        objective = Objective() if window is None or window > opened.num_sequences else Objective(windows=(window,))
    objective.check_families(opened.families)
    objective.check_method(_METHOD)
    used = np.zeros(0, np.int64) if consumed is None else as_consumed(consumed, opened.num_sequences)
    folder = path.with_name(path.name + _FOLDER)
    run = _Run(opened, folder, seed, objective, size, options, targets, used, consumed is not None)
    run.check_targets()
    with locked(folder), space_for(folder):
        run.totals()
        run.warn_of_shortages()
        run.halve()
        run.repair()
        run.order(advance)
        about = run.publish(path)
        shutil.rmtree(folder)  # before the lock is released
    return about


class _Sums(NamedTuple):
    """Sums over sequences: the counts of every column, the tokens and the norms; and the number of sequences."""

    columns: Int64[np.ndarray, "*parts column"]
    tokens: Int64[np.ndarray, "*parts"]
    norms: Float64[np.ndarray, "*parts"]
    number: Int64[np.ndarray, "*parts"]

    @classmethod
    def of(cls, features: Features, rows: Int64[np.ndarray, " row"]) -> _Sums:
        """Return the sums over some rows."""
        norms = features.norms[rows].sum(dtype=np.float64)
        columns, tokens = features.totals(rows)[:-1].astype(np.int64), features.tokens[rows].sum()
        return cls(columns, np.asarray(tokens), np.asarray(norms), np.asarray(len(rows)))

    def plus(self, other: _Sums) -> _Sums:
        """Add other sums."""
        return _Sums(*(a + b for a, b in zip(self, other, strict=True)))

    def excess(self, targets: Float64[np.ndarray, "*parts_or_none column"]) -> Float64[np.ndarray, "*parts column"]:
        """Return the sums of the excesses; the norm column is last."""
        # The sums are whole numbers, exact in float64 up to 2^53 tokens.
        columns = self.columns - self.tokens[..., None] * targets[..., :-1]
        norms = self.norms - self.number * targets[..., -1]
        return np.concatenate([columns, np.asarray(norms)[..., None]], axis=-1)


class _Schedule(NamedTuple):
    """The targets of all positions.

    Attributes:
        starts: the first positions of the phases.
        table: the targets of every phase; the norm column is last.
        consumed: the deviation after the consumed sequences.
    """

    starts: tuple[int, ...]
    table: Float64[np.ndarray, "phase column"]
    consumed: Float64[np.ndarray, " column"]

    def at(self, position: int) -> Float64[np.ndarray, " column"]:
        """Return the targets of a position."""
        return self.table[int(np.searchsorted(self.starts, position, side="right")) - 1]


class _PlanSums:
    """What targets and consumed sequences need of the totals.

    They are the sums over the consumed sequences of every phase, and the tokens and numbers of the other sequences by
    their heaviest group, for every family.
    """

    def __init__(self, num_phases: int, columns: Mapping[str, slice], num_groups: Mapping[str, int]) -> None:
        zeros = np.zeros(num_phases, np.int64)
        num_columns = sum(num_groups[family] for family in columns)
        self._consumed = _Sums(np.zeros((num_phases, num_columns), np.int64), zeros, np.zeros(num_phases), zeros)
        # The additional last group of a family has the sequences without tokens.
        self._heaviest = {family: np.zeros((2, num_groups[family] + 1), np.int64) for family in columns}
        self._columns = columns

    def add(self, features: Features, rows: Int64[np.ndarray, " row"], phases: Int64[np.ndarray, " row"]) -> None:
        """Add a chunk; `rows` and `phases` are those of its consumed sequences."""
        added = [_Sums.of(features, rows[phases == phase]) for phase in range(len(self._consumed.number))]
        stacked = (np.stack(each) for each in zip(*added, strict=True))
        self._consumed = self._consumed.plus(_Sums(*stacked))
        left = np.delete(np.arange(features.num_sequences), rows)
        for family, sums in self._heaviest.items():
            groups = features.heaviest(self._columns[family])[0][left]
            sums[0] += np.bincount(groups, features.tokens[left], sums.shape[1]).astype(np.int64)
            sums[1] += np.bincount(groups, minlength=sums.shape[1])

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all arrays by name."""
        sums = {f"consumed/{name}": each for name, each in self._consumed._asdict().items()}
        return sums | {f"heaviest/{family}": each for family, each in self._heaviest.items()}

    @staticmethod
    def consumed_of(stored: Mapping[str, np.ndarray]) -> _Sums:
        """Return the sums over the consumed sequences of every phase from the arrays."""
        return _Sums(*(stored[f"consumed/{name}"] for name in _Sums._fields))

    @staticmethod
    def heaviest_of(
        stored: Mapping[str, np.ndarray], columns: Mapping[str, slice], chosen: slice
    ) -> tuple[Int64[np.ndarray, " group"], Int64[np.ndarray, " group"]]:
        """Return the tokens and the numbers of the sequences by heaviest group, of the family with some columns."""
        (family,) = (name for name, its in columns.items() if its == chosen)
        tokens, numbers = stored[f"heaviest/{family}"]
        return tokens, numbers


class _Followed(NamedTuple):
    """The division of the groups of a family among the parts.

    Attributes:
        family: the family's columns.
        tokens: the tokens of all sequences with the same heaviest group.
        wanted: how many of these tokens are before the end of every part.
    """

    family: slice
    tokens: Int64[np.ndarray, " group"]
    wanted: Float64[np.ndarray, "group part"]

    @classmethod
    def of(
        cls,
        family: slice,
        asked: Asked,
        tokens: Int64[np.ndarray, " group"],
        numbers: Int64[np.ndarray, " group"],
        num_parts: int,
    ) -> _Followed:
        """Choose the cuts so that all parts get equally many sequences."""

        def before(position: float) -> Float64[np.ndarray, " group"]:
            # No position needs the sequences without tokens.
            return np.where(tokens > 0, np.minimum(asked.tokens_before(position), tokens), 0.0)

        wanted = []
        for cut in range(1, num_parts):
            low, high = 0.0, float(asked.knots[-1])
            of_cut = numbers.sum() * cut / num_parts

            def placed(position: float) -> float:
                return float((numbers * before(position) / np.maximum(tokens, 1)).sum())

            while placed(high) < of_cut and high < _FARTHEST * asked.knots[-1]:
                high *= 2
            for _ in range(_BISECTIONS):
                middle = (low + high) / 2
                low, high = (middle, high) if placed(middle) < of_cut else (low, middle)
            wanted.append(before(high))
        return cls(family, tokens, np.stack([*wanted, tokens.astype(np.float64)], axis=1))

    def divide(
        self, features: Features, stream: Int64[np.ndarray, " row"], placed: Int64[np.ndarray, "group part"]
    ) -> tuple[list[Int64[np.ndarray, " _member"]], Int64[np.ndarray, "group part"]]:
        """Divide the balanced stream of a chunk; `placed` are the tokens before the parts' ends, of the chunks so far.

        If a chunk has too many tokens before an end, the next one has too few: errors do not add up.
        """
        groups = features.heaviest(self.family)[0][stream]
        num_parts, placed = placed.shape[1], placed.copy()
        part_of = np.full(len(stream), num_parts - 1)
        for group in np.unique(groups):
            members = np.flatnonzero(groups == group)
            tokens = np.cumsum(features.tokens[stream[members]])
            if tokens[-1]:  # sequences without tokens are in the last part
                middles = tokens - np.diff(tokens, prepend=0) / 2
                share = (placed[group, -1] + tokens[-1]) / int(self.tokens[group])
                bounds = np.maximum.accumulate(self.wanted[group] * share - placed[group])
                part_of[members] = np.minimum(np.searchsorted(bounds, middles), num_parts - 1)
            ends = np.searchsorted(part_of[members], np.arange(num_parts), side="right")
            placed[group] += np.append(0, tokens)[ends]
        return [stream[part_of == part] for part in range(num_parts)], placed


@dataclass(frozen=True)
class _Run:
    """One order, whose state is in its folder."""

    files: StoredCounts
    folder: Path
    seed: int
    objective: Objective
    sequences_in_memory: int
    options: Mapping[str, Any]
    targets: Targets | Mapping[str, Any] | None
    consumed: Int64[np.ndarray, " consumed"]
    continues: bool

    @property
    def num_parts(self) -> int:
        """K, a power of two."""
        return parts_of(self.files.num_sequences - len(self.consumed), self.sequences_in_memory)

    @property
    def span(self) -> tuple[int, int]:
        """The first position after the consumed sequences, and the end."""
        return len(self.consumed), self.files.num_sequences

    @property
    def has_plan(self) -> bool:
        """Whether there are targets or consumed sequences."""
        return self.targets is not None or self.continues

    @cached_property
    def _by_sequence(self) -> Int64[np.ndarray, " consumed"]:
        """The positions of the consumed sequences, by sequence."""
        return np.argsort(self.consumed)

    def _consumed_of(self, first: int, stop: int) -> tuple[Int64[np.ndarray, " row"], Int64[np.ndarray, " row"]]:
        """Return the rows of the consumed sequences between two sequences, and their positions."""
        sequences = self.consumed[self._by_sequence]
        own = slice(*np.searchsorted(sequences, [first, stop]).tolist())
        return sequences[own] - first, self._by_sequence[own]

    @cached_property
    def _columns(self) -> Mapping[str, slice]:
        """The columns of the families."""
        return self._features(self.files.read(0, 0)).family_columns

    @property
    def _starts(self) -> tuple[int, ...]:
        """The first positions of the given phases."""
        return self.targets.starts if isinstance(self.targets, Targets) else (0,)

    def check_targets(self) -> None:
        """Check that the targets fit the counts, before anything is read."""
        if self.targets is not None:
            own = np.zeros(sum(self.files.num_groups[family] for family in self._columns) + 1)
            target_table(self.targets, own, self._columns, self.files.families, 0, own, None)

    @property
    def bounds(self) -> list[int]:
        """The first sequences of the chunks, and the end."""
        number, total = -(-self.files.num_sequences // self.sequences_in_memory), self.files.num_sequences
        return [total * chunk // max(number, 1) for chunk in range(number + 1)]

    @property
    def info(self) -> dict[str, Any]:
        """The description of the order, without the values that are known only at the end."""
        return {
            "method": _METHOD,
            "seed": self.seed,
            "objective": dataclasses.asdict(self.objective),
            "options": {**self.options, "sequences_in_memory": self.sequences_in_memory},
        }

    def _state(self, name: str) -> Checkpoint:
        files = self.files
        about = [dict(files.num_groups), dict(files.weights), files.sequence_length, files.num_sequences]
        info = {**self.info, "options": repr(sorted(self.info["options"].items()))}
        if self.has_plan:
            digest = hashlib.sha256(self.consumed.tobytes()).hexdigest()
            kind = isinstance(self.targets, Targets)  # a mapping holds only from the consumed sequences on
            about += [None if self.targets is None else [Targets.of(self.targets).fingerprint, kind], digest]
        return Checkpoint(self.folder / name, fingerprint(info, about))

    @property
    def _spool(self) -> Spool:
        return Spool(self.folder, self.num_parts)

    def _features(self, block: CountBlock, targets: Float64[np.ndarray, " column"] | None = None) -> Features:
        """Make the features of some sequences; `targets` are those of the corpus."""
        files = self.files
        counts = block.counts(files.num_groups)
        own = (block.documents, block.copies, None, None)
        chars = Characteristics(counts, files.weights, files.sequence_length, *own)
        # The halving spreads a document's sequences over all parts: of n sequences a part has n times its share of the
        # corpus. The weight of a document grows with the root of n.
        weight = self.objective.document_weight * np.sqrt(files.num_sequences / max(len(block), 1))
        features = Features.build(chars, replace(self.objective, document_weight=float(weight)))
        return features if targets is None else replace(features, targets=targets)

    def totals(self) -> None:
        """Read all files, check the counts, and keep their sums and the hash of every chunk."""
        state = self._state("totals")
        if state.load() is not None:
            return
        sums, digests = None, []
        of_plan = _PlanSums(len(self._starts), self._columns, self.files.num_groups) if self.has_plan else None
        known: list[Rows] = []
        for (first, stop), block in zip(itertools.pairwise(self.bounds), self.files.blocks(self.bounds), strict=True):
            Characteristics.of_block(self.files, block)  # checks the counts
            features = self._features(block)
            own = _Sums.of(features, np.arange(len(block)))
            sums = own if sums is None else sums.plus(own)
            digests.append(block.digest)
            if of_plan is not None:
                rows, positions = self._consumed_of(first, stop)
                of_plan.add(features, rows, np.searchsorted(self._starts, positions, side="right") - 1)
                last = positions >= len(self.consumed) - max(self.objective.windows, default=0)
                known.append(Rows(positions[last], block.take(rows[last])))
        sums = _Sums.of(self._features(self.files.read(0, 0)), np.arange(0)) if sums is None else sums
        found = {**sums._asdict(), "digests": np.array(digests, "U64")}
        if of_plan is not None:
            found |= of_plan.arrays()
        if known:
            rows_known = Rows.joined(known)
            by_position = rows_known.take(np.argsort(rows_known.numbers))
            found |= {f"{_KNOWN}{name}": each for name, each in by_position.arrays().items()}
        state.save(_as_arrays(found))

    def _totals(self) -> tuple[_Sums, Mapping[str, np.ndarray]]:
        """Return the sums over all sequences, and the whole state."""
        stored = _loaded(self._state("totals"))
        return _Sums(*(stored[name] for name in _Sums._fields)), stored

    def _targets(self) -> tuple[Float64[np.ndarray, " column"], list[str]]:
        """Return the shares of the corpus and the hash of every chunk."""
        sums, stored = self._totals()
        # As in `Features.build`: every family counts all tokens.
        shares = sums.columns / max(int(sums.tokens), 1)
        return np.append(shares, sums.norms / max(int(sums.number), 1)), stored["digests"].tolist()

    def _known(self) -> Rows | None:
        """Return the last consumed sequences, to which windows reach back, by position."""
        _, stored = self._totals()
        arrays = {name.removeprefix(_KNOWN): each for name, each in stored.items() if name.startswith(_KNOWN)}
        return Rows.from_arrays(arrays) if arrays else None

    @cached_property
    def _schedule(self) -> _Schedule:
        """The targets of all positions."""
        own, _ = self._targets()
        if not self.has_plan:
            return _Schedule((0,), own[None], np.zeros(len(own)))
        sums, stored = self._totals()
        consumed = _PlanSums.consumed_of(stored)
        number, num_left = int(consumed.number.sum()), int(sums.number - consumed.number.sum())
        starts, table = (0,), own[None]
        if self.targets is not None:
            seen = np.append(consumed.columns.sum(axis=0), 0.0).astype(np.float64)
            means = None
            if number and num_left:
                of_consumed = float(consumed.norms.sum())
                means = (of_consumed / number, (float(sums.norms) - of_consumed) / num_left)
            starts, table = target_table(self.targets, own, self._columns, self.files.families, number, seen, means)
        # The consumed sequences have only positions of the first phase if the targets are a mapping.
        excess = consumed.excess(table[: len(self._starts)]).sum(axis=0)
        return _Schedule(starts, table, excess)

    def _remaining(self) -> _Sums:
        """Return the sums over the sequences that are not consumed."""
        sums, stored = self._totals()
        if not self.has_plan:
            return sums
        consumed = _PlanSums.consumed_of(stored)
        return _Sums(*(a - b.sum(axis=0) for a, b in zip(sums, consumed, strict=True)))

    def warn_of_shortages(self) -> None:
        """Warn if targets need more tokens of a group than the remaining sequences have."""
        if self.targets is None:
            return
        given, remaining = Targets.of(self.targets), self._remaining()
        totals = {family: remaining.columns[self._columns[family]] for family in given.shares}
        if lacking := shortages_of(given, totals, int(remaining.tokens), self.span):
            first = lacking[0]
            names = self.files.names.get(first.family)
            name = str(first.group) if names is None else names[first.group]
            warnings.warn(first.sentence(name, len(lacking) - 1), UnmetTargets, stacklevel=3)

    def _followed(self) -> _Followed | None:
        """Return how the groups are divided among the parts; None if all parts get the same mixture."""
        remaining = self._remaining()
        if not self.has_plan or not int(remaining.number):
            return None
        schedule = self._schedule
        totals = np.append(remaining.columns, 0).astype(np.float64)
        family = differing_family(schedule.starts, schedule.table, self._columns, self.span, totals)
        if family is None:
            return None
        mean_tokens = int(remaining.tokens) / int(remaining.number)
        shares, deviation = schedule.table[:, family], schedule.consumed[family]
        asked = Asked.of(schedule.starts, shares, self.span, mean_tokens, deviation)
        tokens, numbers = _PlanSums.heaviest_of(self._totals()[1], self._columns, family)
        return _Followed.of(family, asked, tokens, numbers, self.num_parts)

    def _part_targets(self, sums: _Sums) -> Float64[np.ndarray, "part column"]:
        """Return the mean target of the positions of every part."""
        schedule, (first, stop) = self._schedule, self.span
        ends = first + np.cumsum(sums.number)
        bounds = np.append(schedule.starts, stop)
        found = []
        for start, end in zip(ends - sums.number, ends, strict=True):
            held = np.maximum(np.minimum(bounds[1:], end) - np.maximum(bounds[:-1], start), 0)
            phase = int(np.argmax(held))
            # One phase keeps its exact targets.
            of_part = held @ schedule.table / max(int(held.sum()), 1)
            found.append(schedule.table[phase] if held[phase] == held.sum() else of_part)
        return np.array(found)

    def _deviations(self, sums: _Sums) -> Float64[np.ndarray, "cut column"]:
        """Return the deviation before every part, and at the end."""
        excess = sums.excess(self._part_targets(sums))
        return self._schedule.consumed + np.pad(np.cumsum(excess, axis=0), ((1, 0), (0, 0)))

    def halve(self) -> None:
        """Halve every chunk and spool its blocks by part; the state has the chunks that are done."""
        state, spool = self._state("halved"), self._spool
        targets, digests = self._targets()
        num_parts, bounds = self.num_parts, self.bounds
        num_columns = len(targets) - 1
        zeros = np.zeros(num_parts, np.int64)
        followed = self._followed()
        placed = None if followed is None else np.zeros(followed.wanted.shape, np.int64)
        sums = _Sums(np.zeros((num_parts, num_columns), np.int64), zeros, np.zeros(num_parts), zeros)
        sizes, first_chunk = zeros, 0
        if (stored := state.load()) is not None:
            sums, sizes = _Sums(*(stored[name] for name in _Sums._fields)), stored["sizes"]
            first_chunk = int(stored["num_chunks"])
            placed = stored.get("placed")
        if first_chunk == len(digests) and stored is not None:
            return
        spool.cut_back(sizes)
        capacity = int(np.diff(bounds).max(initial=0))
        for chunk in range(first_chunk, len(digests)):
            block = self.files.read(bounds[chunk], bounds[chunk + 1])
            if block.digest != digests[chunk]:
                raise UserError(
                    f"Expected the files of counts to stay as they were, found other counts of the sequences "
                    f"{bounds[chunk]:,} to {bounds[chunk + 1] - 1:,} than before; delete {self.folder} and start again."
                )
            # The targets of a chunk are its own shares, so that every part gets an equal share of its excess. After
            # the last chunk the sum of all excesses is zero.
            features = self._features(block)
            everyone = np.arange(len(block))
            if len(self.consumed):
                everyone = np.delete(everyone, self._consumed_of(bounds[chunk], bounds[chunk + 1])[0])
            seed = [self.seed, 0, chunk]
            if followed is None or placed is None:
                rng = np.random.default_rng(seed)
                arranged = everyone[sort_by_group(features, everyone, rng)]
                carried = np.pad(np.cumsum(sums.excess(targets), axis=0), ((1, 0), (0, 0)))
                carried -= np.multiply.outer(np.linspace(0, 1, num_parts + 1), carried[-1])
                blocks = halve(features, arranged, num_parts.bit_length() - 1, True, carried, capacity)
                rows = [members[members >= 0] for members in blocks]
            else:
                stream = balanced_stream(features, everyone, seed, num_parts, capacity=capacity)
                rows, placed = followed.divide(features, stream, placed)
            added = [_Sums.of(features, members) for members in rows]
            sums = _Sums(*(a + np.stack(b) for a, b in zip(sums, zip(*added, strict=True), strict=True)))
            numbers = bounds[chunk] + np.arange(len(block))
            of_chunk = Rows(numbers, block)
            for part, members in enumerate(rows):
                if len(members):
                    spool.append(part, of_chunk.take(members))
            spool.sync()
            done = {**sums._asdict(), "sizes": spool.sizes(), "num_chunks": chunk + 1}
            state.save(_as_arrays(done if placed is None else {**done, "placed": placed}))
        if not digests:
            state.save(_as_arrays({**sums._asdict(), "sizes": sizes, "num_chunks": 0}))

    def _sums(self) -> _Sums:
        """Return the sums of every part, before exchanges."""
        stored = _loaded(self._state("halved"))
        return _Sums(*(stored[name] for name in _Sums._fields))

    def repair(self) -> None:
        """Exchange sequences across every cut; each cut's file has the exchanged rows and the change of the sums."""
        sums, schedule = self._sums(), self._schedule
        deviations, reach = self._deviations(sums), _reach(sums)
        first_positions = self.span[0] + np.cumsum(sums.number)
        left: tuple[int, Rows] | None = None
        for cut in range(1, self.num_parts if reach else 1):
            state = self._state(f"cut-{cut:06}")
            if state.load() is not None:
                continue
            rows = left[1] if left is not None and left[0] == cut - 1 else self._spool.read(cut - 1)
            left = cut, self._spool.read(cut)
            # The sides are spread over their parts. The two cuts of a part share no sequence.
            places = _every_other(len(rows.numbers), reach, 1), _every_other(len(left[1].numbers), reach, 0)
            sides = Rows.joined([rows.take(places[0]), left[1].take(places[1])])
            targets = schedule.at(int(first_positions[cut - 1]))
            features = self._features(sides.block, targets)
            exchanged = CutSides(features, np.arange(2 * reach), targets, deviations[cut])
            while exchanged.exchange():
                pass
            arranged = exchanged.arranged()
            to_right = np.flatnonzero(arranged[:reach] >= reach)
            to_left = arranged[to_right]
            change = _Sums.of(features, to_left).excess(targets) - _Sums.of(features, to_right).excess(targets)
            moved = {f"{name}/right": each for name, each in sides.take(to_right).arrays().items()}
            moved |= {f"{name}/left": each for name, each in sides.take(to_left).arrays().items()}
            state.save(
                {
                    **moved,
                    "places_left": places[0][to_right],
                    "places_right": places[1][to_left - reach],
                    "change": change,
                }
            )

    def _part(self, part: int, before: Float64[np.ndarray, " column"]) -> tuple[Rows, Float64[np.ndarray, " column"]]:
        """Return a part's rows by sequence, and the deviation before the part, after the exchanges."""
        rows = self._spool.read(part)
        kept, joining = np.ones(len(rows.numbers), bool), []
        for cut, side in ((part, "right"), (part + 1, "left")):
            if 0 < cut < self.num_parts and _reach(self._sums()):
                stored = _loaded(self._state(f"cut-{cut:06}"))
                kept[stored[f"places_{side}"]] = False
                joining.append(Rows.from_arrays(_of_side(stored, side)))
                before = before + stored["change"] if side == "right" else before
        rows = Rows.joined([rows.take(np.flatnonzero(kept)), *joining])
        return rows.take(np.argsort(rows.numbers)), before

    def order(self, advance: Advance) -> None:
        """Order every part and write it at its place in the array; the state has the number of parts that are done."""
        sums, state, path = self._sums(), self._state("ordered"), self.folder / _ARRAY
        ends = self.span[0] + np.cumsum(sums.number)
        deviations = self._deviations(sums)
        stored = state.load()
        first_part = 0 if stored is None else int(stored["num_parts"])
        if stored is None:
            with path.open("wb") as file:
                about = {"descr": "<i8", "fortran_order": False, "shape": (self.files.num_sequences,)}
                np.lib.format.write_array_header_1_0(file, about)
                file.write(self.consumed.astype("<i8").tobytes())
        elif first_part:
            advance(int(ends[first_part - 1]) - self.span[0])
        capacity = int(sums.number.max(initial=0))
        for part in range(first_part, self.num_parts):
            if not sums.number[part]:  # fewer sequences than parts
                continue
            rows, before = self._part(part, deviations[part])
            first_position, known = int(ends[part] - sums.number[part]), self._known() if not part else None
            block = rows.block if known is None else CountBlock.joined([known.block, rows.block])
            ordered = self._order_part(part, block, first_position, before, capacity, advance)
            ordered = ordered - (len(block) - len(rows.numbers))
            with path.open("r+b") as file:
                file.seek(0, os.SEEK_END)
                offset = _array_start(path) + 8 * int(ends[part] - sums.number[part])
                if file.tell() < offset:
                    raise UserError(
                        f"Expected {offset:,} bytes in {path}, found {file.tell():,}; the file was cut: delete "
                        f"{self.folder} and start again."
                    )
                file.seek(offset)
                file.write(rows.numbers[ordered].astype("<i8").tobytes())
                file.truncate()
                file.flush()
                os.fsync(file.fileno())
            state.save(_as_arrays({"num_parts": part + 1}))

    def _order_part(
        self,
        part: int,
        block: CountBlock,
        first_position: int,
        before: Float64[np.ndarray, " column"],
        capacity: int,
        advance: Advance,
    ) -> Int64[np.ndarray, " row"]:
        """Order the rows of a part; the rows before them are the last consumed sequences."""
        schedule, num_known = self._schedule, 0
        if not part:
            num_known = min(len(self.consumed), max(self.objective.windows, default=0))
        phases, starts = phases_between(schedule.starts, first_position - num_known, len(block))
        table = schedule.table[phases]
        features = self._features(block, table[0])
        everyone = np.arange(len(block))
        head_start = np.zeros(len(features.apart.share), np.int64)
        plan = Plan(features, starts, table, everyone[:num_known], before, head_start)
        plan = replace(plan, carried=before - plan.excess(plan.consumed))
        given = dict(self.options)
        remaining = everyone[num_known:]
        num_parts = parts_of(len(remaining), given.pop("part_size"))
        numbers = tie_numbers(len(block), given.pop("ties"), [self.seed, part])
        seed = [self.seed, 1, part]
        carried = before if len(table) == 1 else None
        stream = balanced_stream(features, remaining, seed, num_parts, carried, capacity)
        if self.has_plan:
            stream = follow_targets(plan, stream)
        return order_stream(plan, self.objective, stream, numbers, num_parts, advance=advance, **given)

    def publish(self, path: Path) -> dict[str, Any]:
        """Write the description, and move the order to its name."""
        array = self.folder / _ARRAY
        content = json.dumps(_loaded(self._state("totals"))["digests"].tolist())
        about = {**self.info, "counts": hashlib.sha256(content.encode()).hexdigest()}
        about |= {"num_sequences": self.files.num_sequences}
        if self.targets is not None:
            schedule = self._schedule
            columns = {family: self._columns[family] for family in Targets.of(self.targets).shares}
            about["targets"] = plain_targets(schedule.starts, schedule.table, columns)
        if self.continues:
            about["replanned_at"] = len(self.consumed)
        if array.exists():  # otherwise a run that was killed after the last step below has already moved it
            about["fingerprint"] = _check_and_hash(array, self.files.num_sequences)
            text = json.dumps(about, indent=2, sort_keys=True) + "\n"
            write_text(path.with_suffix(".json"), text)
            os.replace(array, path)
        return json.loads(path.with_suffix(".json").read_bytes())


def _reach(sums: _Sums) -> int:
    """Return the number of sequences on each side of a cut that may be exchanged."""
    return min(_REACH, int(sums.number.min()) // 2)


def _every_other(number: int, reach: int, first: int) -> Int64[np.ndarray, " row"]:
    """Return `reach` evenly spread rows; `first` = 0 and `first` = 1 have no row in common."""
    return (2 * np.arange(reach) + first) * number // max(2 * reach, 1)


def _of_side(stored: Mapping[str, np.ndarray], side: str) -> dict[str, np.ndarray]:
    """Return the arrays of the rows that were moved to a side."""
    return {name.removesuffix(f"/{side}"): each for name, each in stored.items() if name.endswith(f"/{side}")}


def _as_arrays(values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in values.items()}


def _loaded(state: Checkpoint) -> Mapping[str, np.ndarray]:
    """Load the state of a finished pass."""
    stored = state.load()
    if stored is None:
        raise UserError(f"Expected the file {state.path}, found none; delete its folder and start again.")
    return stored


def _array_start(path: Path) -> int:
    with path.open("rb") as file:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        return file.tell()


def _check_and_hash(path: Path, num_sequences: int) -> str:
    """Return the fingerprint of an ordering's array, as `Ordering.fingerprint`; refuse one that is not a bijection."""
    digest, seen = hashlib.sha256(), np.zeros(-(-num_sequences // 8), np.uint8)
    number = 0
    with path.open("rb") as file:
        file.seek(_array_start(path))
        # The pages of a mapped file would count as this process's memory.
        while len(block := np.fromfile(file, "<i8", _NUMBERS_TOGETHER)):
            if not 0 <= block.min() <= block.max() < num_sequences:
                break
            number += len(block)
            digest.update(block.tobytes())
            np.bitwise_or.at(seen, block >> 3, (1 << (block & 7)).astype(np.uint8))
    if number != num_sequences or int(np.bitwise_count(seen).sum()) != num_sequences:
        raise UserError(
            f"Expected each of {num_sequences:,} sequences once in {path}; delete its folder and start again."
        )
    return digest.hexdigest()
