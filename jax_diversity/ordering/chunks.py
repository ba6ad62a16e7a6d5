"""A plan for counts of several chunks: each part of the order is planned like a corpus of its own.

1. **Totals**: the counts are read once, chunk by chunk. Their sums are the targets.
2. **Halving**: each chunk is halved to K blocks, one for each *part* of the order, and spooled by part. The walks know
   the deviation that the earlier chunks left at every cut between two parts, so that errors do not add up.
3. **Repair**: at each cut, sequences of both sides are exchanged until the deviation there stops falling.
4. **Ordering**: each part is read, and ordered by the method from the known deviation before it.

If targets change during the run, the blocks of a chunk do not have equal mixtures: each group's sequences go to the
parts whose positions need them, as in `balance.follow_targets`. How many tokens of a group a part needs is known from
the totals.

Chunks and parts depend only on the numbers of sequences and entries, so the order depends neither on the division into
files nor on the number of threads. The state is in a folder: a run that was killed continues at its chunk, cut or part,
and ends with the same order.
"""

from __future__ import annotations

import hashlib
import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float64, Int64
from scipy.sparse import csr_array

from jax_diversity.counts import Characteristics, TokenCounts
from jax_diversity.counts.spool import Rows, Spool
from jax_diversity.counts.targets import Targets
from jax_diversity.counts.token_counts import CountsDigest
from jax_diversity.foundation.artifacts import fingerprint
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.folders import space_for
from jax_diversity.foundation.locks import locked
from jax_diversity.foundation.progress import Advance
from jax_diversity.ordering.demand import HeaviestGroups, TargetDemand, differing_family
from jax_diversity.ordering.features import Features, SeparatedGroups
from jax_diversity.ordering.halving import balanced_stream, halve, sort_by_group
from jax_diversity.ordering.mesh import flat_mesh, from_all_processes
from jax_diversity.ordering.objective import Objective
from jax_diversity.ordering.parts import CutSides, parts_of
from jax_diversity.ordering.plan import (
    Plan,
    PlannedPart,
    as_consumed,
    as_epoch,
    group_head_start,
    inverse,
    phases_between,
    plain_targets,
    target_table,
)
from jax_diversity.ordering.running import Checkpoint

_FOLDER = "chunks"
_KNOWN = "known/"
_REACH = 32_768
"""Number of sequences on each side of a cut that may be exchanged: four times as many as at the cuts of parts in
memory. With 8,192, the deviation at the cuts is larger than elsewhere."""
_BISECTIONS, _FARTHEST = 100, 2.0**60

OrderPart = Callable[[PlannedPart], Int64[np.ndarray, " _remaining"]]
"""Orders the remaining sequences of a part's plan."""


@contextmanager
def planned(
    counts: TokenCounts,
    objective: Objective,
    targets: Targets | Mapping[str, Any] | None = None,
    consumed: Any = None,
    previous: Any = None,
    *,
    seed: int = 0,
    identity: Mapping[str, Any] | None = None,
    folder: Path | None = None,
    mesh: Mesh | None = None,
) -> Iterator[Plan | ChunkedPlan]:
    """Make the plan of an order: one `Plan` for counts of one chunk, else a `ChunkedPlan`.

    Args:
        counts: the counts.
        objective: the weights of the rule.
        targets: see `base.order`, as the next two.
        consumed: the sequences that training has already used.
        previous: the ordering of the previous epoch.
        seed: decides how similar sequences are divided among parts.
        identity: what else decides the order, as JSON values.
        folder: where a plan of several chunks keeps its state; None means a temporary folder. What the plan has written
            is removed when it was used without an error.
        mesh: devices of the method; their processes keep states of their own.
    """
    devices = flat_mesh(mesh)
    bounds = counts.chunk_bounds
    if len(bounds) == 2:
        yield Plan.build(counts.rows(*bounds), objective, targets, consumed, previous)
        return
    with tempfile.TemporaryDirectory(prefix="jax-diversity-") as temporary:
        state_folder = Path(temporary if folder is None else folder) / _FOLDER
        if devices is not None and devices.is_multi_process:
            state_folder = state_folder.with_name(f"{_FOLDER}-{jax.process_index()}")
        with locked(state_folder), space_for(state_folder):
            plan = ChunkedPlan(counts, objective, targets, consumed, previous, seed, identity, state_folder, devices)
            plan.read_totals()
            yield plan
            shutil.rmtree(state_folder)  # before the lock is released


class ExcessSums(NamedTuple):
    """Sums over sequences: the counts of every column, the tokens and the norms; and the number of sequences."""

    columns: Int64[np.ndarray, "*parts column"]
    tokens: Int64[np.ndarray, "*parts"]
    norms: Float64[np.ndarray, "*parts"]
    number: Int64[np.ndarray, "*parts"]

    @classmethod
    def of(cls, features: Features, rows: Int64[np.ndarray, " row"]) -> ExcessSums:
        """Return the sums over some rows."""
        norms = features.norms[rows].sum(dtype=np.float64)
        columns, tokens = features.totals(rows)[:-1].astype(np.int64), features.tokens[rows].sum()
        return cls(columns, np.asarray(tokens), np.asarray(norms), np.asarray(len(rows)))

    def plus(self, other: ExcessSums) -> ExcessSums:
        """Add other sums."""
        return ExcessSums(*(a + b for a, b in zip(self, other, strict=True)))

    def excess(self, targets: Float64[np.ndarray, "*parts_or_none column"]) -> Float64[np.ndarray, "*parts column"]:
        """Return the sums of the excesses; the norm column is last."""
        # The sums are whole numbers, exact in float64 up to 2^53 tokens.
        columns = self.columns - self.tokens[..., None] * targets[..., :-1]
        norms = self.norms - self.number * targets[..., -1]
        return np.concatenate([columns, np.asarray(norms)[..., None]], axis=-1)


class TargetSchedule(NamedTuple):
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


class _ConsumedSums:
    """What targets and consumed sequences need of the totals.

    They are the sums over the consumed sequences of every phase, and over the other sequences by their heaviest group,
    for every family.
    """

    def __init__(self, num_phases: int, columns: Mapping[str, slice], num_groups: Mapping[str, int]) -> None:
        zeros = np.zeros(num_phases, np.int64)
        num_columns = sum(num_groups[family] for family in columns)
        self._consumed = ExcessSums(np.zeros((num_phases, num_columns), np.int64), zeros, np.zeros(num_phases), zeros)
        self._heaviest = {
            family: HeaviestGroups(
                csr_array((num_groups[family] + 1, num_groups[family]), dtype=np.int64),
                np.zeros(num_groups[family] + 1, np.int64),
            )
            for family in columns
        }
        self._columns = columns

    def add(self, features: Features, rows: Int64[np.ndarray, " row"], phases: Int64[np.ndarray, " row"]) -> None:
        """Add a chunk; `rows` and `phases` are those of its consumed sequences."""
        added = [ExcessSums.of(features, rows[phases == phase]) for phase in range(len(self._consumed.number))]
        stacked = (np.stack(columns) for columns in zip(*added, strict=True))
        self._consumed = self._consumed.plus(ExcessSums(*stacked))
        left = np.delete(np.arange(features.num_sequences), rows)
        for family, sums in self._heaviest.items():
            self._heaviest[family] = sums.plus(HeaviestGroups.of(features, self._columns[family], left))

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all arrays by name."""
        sums = {f"consumed/{name}": sum_ for name, sum_ in self._consumed._asdict().items()}
        for family, (tokens, numbers) in self._heaviest.items():
            parts = {"data": tokens.data, "indices": tokens.indices, "indptr": tokens.indptr, "numbers": numbers}
            sums |= {f"heaviest/{family}/{name}": part for name, part in parts.items()}
        return sums

    @staticmethod
    def consumed_of(stored: Mapping[str, np.ndarray]) -> ExcessSums:
        """Return the sums over the consumed sequences of every phase from the arrays."""
        return ExcessSums(*(stored[f"consumed/{name}"] for name in ExcessSums._fields))

    @staticmethod
    def heaviest_of(stored: Mapping[str, np.ndarray], columns: Mapping[str, slice], chosen: slice) -> HeaviestGroups:
        """Return the sums over the sequences by heaviest group, of the family with some columns."""
        (family,) = (name for name, its in columns.items() if its == chosen)
        matrix, num_groups = (
            (stored[f"heaviest/{family}/{name}"] for name in ("data", "indices", "indptr")),
            chosen.stop - chosen.start,
        )
        tokens = csr_array(tuple(matrix), shape=(num_groups + 1, num_groups))
        return HeaviestGroups(tokens, stored[f"heaviest/{family}/numbers"])


class GroupDivision(NamedTuple):
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
        demand: TargetDemand,
        sequences: HeaviestGroups,
        num_parts: int,
    ) -> GroupDivision:
        """Choose the cuts so that all parts get equally many sequences."""
        tokens, numbers = sequences.sizes, sequences.numbers

        def before(position: float) -> Float64[np.ndarray, " group"]:
            # No position needs the sequences without tokens.
            return np.where(tokens > 0, np.minimum(demand.tokens_before(position), tokens), 0.0)

        share_rows = []
        for cut in range(1, num_parts):
            low, high = 0.0, float(demand.knots[-1])
            of_cut = numbers.sum() * cut / num_parts

            def placed(position: float) -> float:
                return float((numbers * before(position) / np.maximum(tokens, 1)).sum())

            while placed(high) < of_cut and high < _FARTHEST * demand.knots[-1]:
                high *= 2
            for _ in range(_BISECTIONS):
                middle = (low + high) / 2
                low, high = (middle, high) if placed(middle) < of_cut else (low, middle)
            share_rows.append(before(high))
        return cls(family, tokens, np.stack([*share_rows, tokens.astype(np.float64)], axis=1))

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


class ChunkedPlan:
    """The plan of an order of several chunks, whose state is in its folder; see `planned` for the arguments.

    Attributes:
        consumed: the consumed sequences, which stay first.
    """

    def __init__(
        self,
        counts: TokenCounts,
        objective: Objective,
        targets: Targets | Mapping[str, Any] | None,
        consumed: Any,
        previous: Any,
        seed: int,
        identity: Mapping[str, Any] | None,
        folder: Path,
        mesh: Mesh | None,
    ) -> None:
        number = counts.num_sequences
        self._counts, self._objective, self._targets, self._seed = counts, objective, targets, seed
        self._folder, self._mesh = folder, mesh
        self._bounds = counts.chunk_bounds
        self.consumed = np.zeros(0, np.int64) if consumed is None else as_consumed(consumed, number)
        # The position of every sequence in the previous epoch.
        self._previous = None if previous is None else inverse(as_epoch(previous, number))
        self._follows = targets is not None or consumed is not None
        self._empty = counts.rows(0, 0)
        self._columns = self._features(self._empty).family_columns
        self._spool = Spool(folder, self.num_parts, self._empty)
        if targets is not None:  # an error before the counts are read
            shares = np.zeros(sum(counts.num_groups[family] for family in self._columns) + 1)
            target_table(targets, shares, self._columns, counts.families, 0, shares, None)
        described = [dict(counts.num_groups), dict(counts.weights), counts.sequence_length, number]
        marks = [
            hashlib.sha256(indices.tobytes()).hexdigest()
            for indices in (self.consumed, self._previous)
            if indices is not None
        ]
        # A mapping holds only from the consumed sequences on.
        followed = None if targets is None else [Targets.of(targets).fingerprint, isinstance(targets, Targets)]
        self._identity = fingerprint({"order": identity}, seed, described, marks, followed, self._follows)

    @property
    def num_parts(self) -> int:
        """K, a power of two: a part has about as many sequences as a chunk."""
        num_chunks = len(self._bounds) - 1
        return parts_of(self.span[1] - self.span[0], -(-self._counts.num_sequences // num_chunks))

    @property
    def span(self) -> tuple[int, int]:
        """The first position after the consumed sequences, and the end."""
        return len(self.consumed), self._counts.num_sequences

    @property
    def fingerprint(self) -> str:
        """A hash of the targets, the consumed sequences and the previous epoch."""
        schedule = self._schedule
        parts = [repr(schedule.starts).encode(), schedule.table.tobytes(), self.consumed.tobytes()]
        if self._previous is not None:
            parts.append(self._previous.tobytes())
        return hashlib.sha256(b"".join(parts)).hexdigest()

    def counts_fingerprint(self, counts: TokenCounts) -> str:
        """Return the fingerprint of the counts of this plan, which were hashed when they were read."""
        return str(self._totals["fingerprint"])

    def plain_targets(self, families: Sequence[str]) -> dict[str, Any]:
        """Return the starts and some families' shares as JSON values, see `Plan.plain_targets`."""
        schedule = self._schedule
        return plain_targets(schedule.starts, schedule.table, {name: self._columns[name] for name in families})

    def remaining_totals(self, families: Sequence[str]) -> tuple[dict[str, Int64[np.ndarray, " _group"]], int]:
        """Return the tokens of some families' groups, and all tokens, of the sequences that are not consumed."""
        remaining = self._remaining
        return {name: remaining.columns[self._columns[name]] for name in families}, int(remaining.tokens)

    def _state(self, name: str) -> Checkpoint:
        return Checkpoint(self._folder / name, self._identity)

    def _loaded(self, name: str) -> Mapping[str, np.ndarray]:
        """Load the state of a finished pass."""
        stored = self._state(name).load()
        if stored is None:
            raise UserError(f"Expected the file {self._folder / name}, found none; delete its folder and start again.")
        return stored

    def _features(self, counts: Characteristics, targets: Float64[np.ndarray, " column"] | None = None) -> Features:
        """Make the features of some sequences; `targets` are those of the corpus."""
        # The halving spreads a document's sequences over all parts: of n sequences a part has n times its share of the
        # corpus. The weight of a document grows with the root of n.
        share = self._counts.num_sequences / max(counts.num_sequences, 1)
        weight = float(self._objective.document_weight * np.sqrt(share))
        features = Features.build(counts, replace(self._objective, document_weight=weight))
        return features if targets is None else replace(features, targets=targets)

    # ---- consumed sequences

    @cached_property
    def _by_sequence(self) -> Int64[np.ndarray, " consumed"]:
        """The positions of the consumed sequences, by sequence."""
        return np.argsort(self.consumed)

    def _consumed_between(self, first: int, stop: int) -> tuple[Int64[np.ndarray, " _row"], Int64[np.ndarray, " _row"]]:
        """Return the rows of the consumed sequences between two sequences, and their positions."""
        sequences = self.consumed[self._by_sequence]
        places = slice(*np.searchsorted(sequences, [first, stop]).tolist())
        return sequences[places] - first, self._by_sequence[places]

    # ---- 1. totals

    def read_totals(self) -> None:
        """Read all counts, and keep their sums and the hash of every chunk."""
        state = self._state("totals")
        if state.load() is not None:
            return
        starts = self._targets.starts if isinstance(self._targets, Targets) else (0,)
        sums, digests, digest = ExcessSums.of(self._features(self._empty), np.arange(0)), [], CountsDigest(self._counts)
        of_consumed = _ConsumedSums(len(starts), self._columns, self._counts.num_groups) if self._follows else None
        last_rows, ends = [Rows(np.zeros(0, np.int64), self._empty)], _GroupEnds()
        for (first, stop), chunk in zip(itertools.pairwise(self._bounds), self._counts.chunks(), strict=True):
            features = self._features(chunk)
            sums = sums.plus(ExcessSums.of(features, np.arange(chunk.num_sequences)))
            digest.add(chunk)
            digests.append(chunk.fingerprint)
            if of_consumed is not None:
                rows, positions = self._consumed_between(first, stop)
                of_consumed.add(features, rows, np.searchsorted(starts, positions, side="right") - 1)
                last = positions >= len(self.consumed) - max(self._objective.windows, default=0)
                last_rows.append(Rows(positions[last], chunk.take(rows[last])))
            if self._previous is not None:
                ends.add(chunk, self._previous[first:stop])
        totals = {**sums._asdict(), "digests": np.array(digests), "fingerprint": np.array(digest.hexdigest())}
        if of_consumed is not None:
            totals |= of_consumed.arrays()
        rows_known = Rows.joined(last_rows)
        by_position = rows_known.take(np.argsort(rows_known.numbers))
        totals |= {f"{_KNOWN}{name}": values for name, values in by_position.arrays().items()} | ends.arrays()
        state.save(_as_arrays(totals))

    @cached_property
    def _totals(self) -> Mapping[str, np.ndarray]:
        return self._loaded("totals")

    @property
    def _total_sums(self) -> ExcessSums:
        return ExcessSums(*(self._totals[name] for name in ExcessSums._fields))

    @property
    def _shares(self) -> Float64[np.ndarray, " column"]:
        """The shares of the corpus, and the mean norm."""
        sums = self._total_sums
        # As in `Features.build`: every family counts all tokens.
        return np.append(sums.columns / max(int(sums.tokens), 1), sums.norms / max(int(sums.number), 1))

    def _known(self) -> Rows:
        """Return the last consumed sequences, to which windows reach back, by position."""
        arrays = {name.removeprefix(_KNOWN): array for name, array in self._totals.items() if name.startswith(_KNOWN)}
        return Rows.from_arrays(arrays, self._empty)

    @cached_property
    def _schedule(self) -> TargetSchedule:
        """The targets of all positions."""
        corpus_shares = self._shares
        if not self._follows:
            return TargetSchedule((0,), corpus_shares[None], np.zeros(len(corpus_shares)))
        sums, consumed = self._total_sums, _ConsumedSums.consumed_of(self._totals)
        number, num_left = int(consumed.number.sum()), int(sums.number - consumed.number.sum())
        starts, table = (0,), corpus_shares[None]
        if self._targets is not None:
            seen = np.append(consumed.columns.sum(axis=0), 0.0).astype(np.float64)
            means = None
            if number and num_left:
                of_consumed = float(consumed.norms.sum())
                means = (of_consumed / number, (float(sums.norms) - of_consumed) / num_left)
            families = self._counts.families
            starts, table = target_table(self._targets, corpus_shares, self._columns, families, number, seen, means)
        # The consumed sequences have only positions of the first phase if the targets are a mapping.
        excess = consumed.excess(table[: len(consumed.number)]).sum(axis=0)
        return TargetSchedule(starts, table, excess)

    @cached_property
    def _remaining(self) -> ExcessSums:
        """The sums over the sequences that are not consumed."""
        sums = self._total_sums
        if not self._follows:
            return sums
        consumed = _ConsumedSums.consumed_of(self._totals)
        return ExcessSums(*(a - b.sum(axis=0) for a, b in zip(sums, consumed, strict=True)))

    # ---- 2. halving

    def _division(self) -> GroupDivision | None:
        """Return how the groups are divided among the parts; None if all parts get the same mixture."""
        remaining = self._remaining
        if not self._follows or not int(remaining.number):
            return None
        schedule = self._schedule
        totals = np.append(remaining.columns, 0).astype(np.float64)
        family = differing_family(schedule.starts, schedule.table, self._columns, self.span, totals)
        if family is None:
            return None
        mean_tokens = int(remaining.tokens) / int(remaining.number)
        shares, deviation = schedule.table[:, family], schedule.consumed[family]
        demand = TargetDemand.of(schedule.starts, shares, self.span, mean_tokens, deviation)
        sequences = _ConsumedSums.heaviest_of(self._totals, self._columns, family)
        return GroupDivision.of(family, demand.corrected(sequences), sequences, self.num_parts)

    def _part_targets(self, sums: ExcessSums) -> Float64[np.ndarray, "part column"]:
        """Return the mean target of the positions of every part."""
        schedule, (first, stop) = self._schedule, self.span
        ends = first + np.cumsum(sums.number)
        bounds = np.append(schedule.starts, stop)
        targets = []
        for start, end in zip(ends - sums.number, ends, strict=True):
            num_positions = np.maximum(np.minimum(bounds[1:], end) - np.maximum(bounds[:-1], start), 0)
            phase = int(np.argmax(num_positions))
            # One phase keeps its exact targets.
            of_part = num_positions @ schedule.table / max(int(num_positions.sum()), 1)
            targets.append(schedule.table[phase] if num_positions[phase] == num_positions.sum() else of_part)
        return np.array(targets)

    def _deviations(self, sums: ExcessSums) -> Float64[np.ndarray, "cut column"]:
        """Return the deviation before every part, and at the end."""
        excess = sums.excess(self._part_targets(sums))
        return self._schedule.consumed + np.pad(np.cumsum(excess, axis=0), ((1, 0), (0, 0)))

    def _halve(self) -> None:
        """Halve every chunk and spool its blocks by part; the state has the chunks that are done."""
        state, spool, bounds = self._state("halved"), self._spool, self._bounds
        targets, digests = self._shares, self._totals["digests"].tolist()
        num_parts, num_columns = self.num_parts, len(targets) - 1
        zeros = np.zeros(num_parts, np.int64)
        division = self._division()
        placed = None if division is None else np.zeros(division.wanted.shape, np.int64)
        sums = ExcessSums(np.zeros((num_parts, num_columns), np.int64), zeros, np.zeros(num_parts), zeros)
        sizes, first_chunk = zeros, 0
        if (stored := state.load()) is not None:
            sums, sizes = ExcessSums(*(stored[name] for name in ExcessSums._fields)), stored["sizes"]
            first_chunk = int(stored["num_chunks"])
            placed = stored.get("placed")
        if first_chunk == len(digests):
            return
        spool.cut_back(sizes)
        capacity = int(np.diff(bounds).max(initial=0))
        for number in range(first_chunk, len(digests)):
            first, stop = bounds[number], bounds[number + 1]
            chunk = self._counts.rows(first, stop)
            if chunk.fingerprint != digests[number]:
                raise UserError(
                    f"Expected the counts to stay as they were, found other counts of the sequences {first:,} to "
                    f"{stop - 1:,} than before; delete {self._folder} and start again."
                )
            # The targets of a chunk are its own shares, so that every part gets an equal share of its excess. After
            # the last chunk the sum of all excesses is zero.
            features = self._features(chunk)
            everyone = np.arange(chunk.num_sequences)
            if len(self.consumed):
                everyone = np.delete(everyone, self._consumed_between(first, stop)[0])
            seed = [self._seed, number, 1]  # a part has [seed, part]
            if division is None or placed is None:
                arranged = everyone[sort_by_group(features, everyone, np.random.default_rng(seed))]
                carried = np.pad(np.cumsum(sums.excess(targets), axis=0), ((1, 0), (0, 0)))
                carried -= np.multiply.outer(np.linspace(0, 1, num_parts + 1), carried[-1])
                blocks = halve(features, arranged, num_parts.bit_length() - 1, True, carried, capacity)
                of_parts = [members[members >= 0] for members in blocks]
            else:
                stream = balanced_stream(features, everyone, seed, num_parts, capacity=capacity)
                of_parts, placed = division.divide(features, stream, placed)
            added = [ExcessSums.of(features, members) for members in of_parts]
            sums = ExcessSums(*(a + np.stack(b) for a, b in zip(sums, zip(*added, strict=True), strict=True)))
            rows = Rows(first + np.arange(chunk.num_sequences), chunk)
            for part, members in enumerate(of_parts):
                if len(members):
                    spool.append(part, rows.take(members))
            spool.sync()
            done = {**sums._asdict(), "sizes": spool.sizes(), "num_chunks": number + 1}
            state.save(_as_arrays(done if placed is None else {**done, "placed": placed}))

    @cached_property
    def _part_sums(self) -> ExcessSums:
        """The sums of every part, before exchanges."""
        stored = self._loaded("halved")
        return ExcessSums(*(stored[name] for name in ExcessSums._fields))

    # ---- 3. repair

    def _repair(self) -> None:
        """Exchange sequences across every cut; each cut's file has the exchanged rows and the change of the sums."""
        sums, schedule = self._part_sums, self._schedule
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
            features = self._features(sides.counts, targets)
            exchanged = CutSides(features, np.arange(2 * reach), targets, deviations[cut])
            while exchanged.exchange():
                pass
            arranged = exchanged.arranged()
            to_right = np.flatnonzero(arranged[:reach] >= reach)
            to_left = arranged[to_right]
            joining, leaving = (ExcessSums.of(features, rows).excess(targets) for rows in (to_left, to_right))
            moved = {f"{name}/right": array for name, array in sides.take(to_right).arrays().items()}
            moved |= {f"{name}/left": array for name, array in sides.take(to_left).arrays().items()}
            places_of_moved = {"places_left": places[0][to_right], "places_right": places[1][to_left - reach]}
            state.save({**moved, **places_of_moved, "change": joining - leaving})

    # ---- 4. ordering

    def in_parts(self, order_part: OrderPart, advance: Advance) -> Int64[np.ndarray, " _remaining"]:
        """Order every part, and keep its order in a file; return the remaining sequences in their order."""
        self._halve()
        self._repair()
        sums = self._part_sums
        ends = self.span[0] + np.cumsum(sums.number)
        deviations = self._deviations(sums)
        done: list[Int64[np.ndarray, " _part"]] = []
        for part in range(self._num_finished()):
            done.append(self._loaded(f"part-{part:06}")["sequences"])
            advance(len(done[-1]))
        for part in range(len(done), self.num_parts):
            if not sums.number[part]:  # fewer sequences than parts
                done.append(np.zeros(0, np.int64))
                continue
            sequences, planned_part = self._part(part, int(ends[part] - sums.number[part]), deviations[part])
            done.append(sequences[order_part(planned_part)])
            self._state(f"part-{part:06}").save({"sequences": done[-1]})
        return np.concatenate(done)

    def _num_finished(self) -> int:
        """Return the number of finished parts, the same in all processes of the mesh, which order a part together."""
        states = (self._state(f"part-{part:06}") for part in range(self.num_parts))
        number = sum(1 for _ in itertools.takewhile(lambda state: state.read() is not None, states))
        if self._mesh is not None and self._mesh.is_multi_process:
            numbers = from_all_processes(self._mesh, [np.array([number])])
            number = min(int(numbers_of_chunk[0][0]) for numbers_of_chunk in numbers)
        return number

    def _part_rows(
        self, part: int, before: Float64[np.ndarray, " column"]
    ) -> tuple[Rows, Float64[np.ndarray, " column"]]:
        """Return a part's rows by sequence, and the deviation before the part, after the exchanges."""
        rows = self._spool.read(part)
        kept, joining = np.ones(len(rows.numbers), bool), []
        for cut, side in ((part, "right"), (part + 1, "left")):
            if 0 < cut < self.num_parts and _reach(self._part_sums):
                stored = self._loaded(f"cut-{cut:06}")
                kept[stored[f"places_{side}"]] = False
                joining.append(Rows.from_arrays(_of_side(stored, side), self._empty))
                before = before + stored["change"] if side == "right" else before
        together = Rows.joined([rows, *joining])
        places = np.append(np.flatnonzero(kept), np.arange(len(kept), len(together.numbers)))
        return together.take(places[np.argsort(together.numbers[places])]), before

    def _part(
        self, part: int, first_position: int, before: Float64[np.ndarray, " column"]
    ) -> tuple[Int64[np.ndarray, " _sequence"], PlannedPart]:
        """Return the sequences of a part's plan, and the plan; the last consumed sequences come before the part."""
        rows, before = self._part_rows(part, before)
        known_rows = self._known() if not part else rows.take(np.arange(0))
        num_known = len(known_rows.numbers)
        numbers = np.append(self.consumed[known_rows.numbers], rows.numbers)
        chars = Characteristics.joined([known_rows.counts, rows.counts])
        del rows
        schedule = self._schedule
        phases, starts = phases_between(schedule.starts, first_position - num_known, len(numbers))
        table = schedule.table[phases]
        features = self._features(chars, table[0])
        head_start = np.zeros(len(features.apart.share), np.int64)
        if self._previous is not None and not part:
            head_start = self._head_start(features)
        plan = Plan(features, starts, table, np.arange(num_known), before, head_start)
        plan = replace(plan, carried=before - plan.excess(plan.consumed))
        return numbers, PlannedPart(
            number=part,
            plan=plan,
            deviation=before if len(table) == 1 else None,
            capacity=int(self._part_sums.number.max(initial=0)),
            follows=self._follows,
        )

    def _head_start(self, features: Features) -> Int64[np.ndarray, " group"]:
        """Return the head start of the first part's groups; see `plan.group_head_start`."""
        last, sizes = _GroupEnds.of_groups(self._totals, features.apart)
        return group_head_start(features, last, sizes, self._counts.num_sequences)


class _GroupEnds:
    """The last position in the previous epoch, and the number of sequences, of every document and group of copies."""

    def __init__(self) -> None:
        none = np.zeros(0, np.int64)
        self._columns = dict.fromkeys(("documents", "copies"), (none, none, none))

    def add(self, chunk: Characteristics, positions: Int64[np.ndarray, " row"]) -> None:
        """Add the sequences of a chunk, which had these positions."""
        for kind, columns in self._columns.items():
            members = getattr(chunk, kind)
            if members is None:
                continue
            members = members[:, None] if members.ndim == 1 else members
            row, column = np.nonzero(members >= 0)
            entries = members[row, column], positions[row], np.ones(len(row), np.int64)
            numbers, last, sizes = (np.concatenate(pair) for pair in zip(columns, entries, strict=True))
            numbers, place = np.unique(numbers, return_inverse=True)
            latest = np.zeros(len(numbers), np.int64)
            np.maximum.at(latest, place, last)
            self._columns[kind] = numbers, latest, np.bincount(place, sizes, len(numbers)).astype(np.int64)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all arrays by name."""
        return {
            f"ends/{kind}/{name}": values
            for kind, columns in self._columns.items()
            for name, values in zip(("numbers", "last", "sizes"), columns, strict=True)
        }

    @staticmethod
    def of_groups(
        stored: Mapping[str, np.ndarray], apart: SeparatedGroups
    ) -> tuple[Int64[np.ndarray, " group"], Int64[np.ndarray, " group"]]:
        """Return the last positions and the numbers of sequences of the groups that are kept apart."""
        parts = []
        for kind, columns in (("documents", slice(apart.num_documents)), ("copies", slice(apart.num_documents, None))):
            places = np.searchsorted(stored[f"ends/{kind}/numbers"], apart.numbers[columns])
            parts.append([stored[f"ends/{kind}/{name}"][places] for name in ("last", "sizes")])
        last, sizes = (np.concatenate(pair) for pair in zip(*parts, strict=True))
        return last, sizes


def _reach(sums: ExcessSums) -> int:
    """Return the number of sequences on each side of a cut that may be exchanged."""
    return min(_REACH, int(sums.number.min()) // 2)


def _every_other(number: int, reach: int, first: int) -> Int64[np.ndarray, " row"]:
    """Return `reach` evenly spread rows; `first` = 0 and `first` = 1 have no row in common."""
    return (2 * np.arange(reach) + first) * number // max(2 * reach, 1)


def _of_side(stored: Mapping[str, np.ndarray], side: str) -> dict[str, np.ndarray]:
    """Return the arrays of the rows that were moved to a side."""
    return {name.removesuffix(f"/{side}"): array for name, array in stored.items() if name.endswith(f"/{side}")}


def _as_arrays(values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in values.items()}
