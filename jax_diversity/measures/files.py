"""Measure an order of counts in files. Memory grows with a part of the order, not with the corpus.

1. The order is read once; the pairs of sequence and position are divided by the part of the files with the sequence.
2. The files are read once; the rows are spooled by the part of the order that has their position.
3. The parts of the order are measured one after another. One vector of whole numbers per family, the sum of all earlier
   counts, and the rows of unfinished windows are carried from part to part.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64
from scipy.sparse import csr_array, vstack

from jax_diversity.counts import Characteristics
from jax_diversity.counts.files import StoredCounts, open_counts
from jax_diversity.counts.spool import Rows, Spool
from jax_diversity.foundation.artifacts import NO_ARRAY
from jax_diversity.foundation.checks import as_tuple, as_whole_number, check_function, check_type
from jax_diversity.foundation.errors import UserError, in_one_line
from jax_diversity.foundation.folders import locked, space_for
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.measures.curves import Envelope
from jax_diversity.measures.drawn import MeasuredOrder, window_curve
from jax_diversity.measures.floors import ideal_token_shuffle, sequence_excess
from jax_diversity.measures.prefixes import prefix_deviation
from jax_diversity.measures.sliding import window_maximum, window_tv_all
from jax_diversity.measures.windows import aligned_windows, blocks, cumulative_tokens, group_sums, row_sums

_FOLDER, _PAIRS = ".measuring", "pairs-"
Read = Callable[[int, int], Int64[np.ndarray, " position"]]
"""Reads the sequences at the positions `first` up to `stop`."""


def measure_files(
    files: Any,
    ordering: str | Path,
    windows: Sequence[int] = (256,),
    advance: Advance = ignore,
    *,
    every_start: bool = False,
) -> dict[str, Any]:
    """Measure an order of counts in files, without reading all counts into memory.

    Temporary files beside the order need about 80 bytes for a sequence of ten counts.

    Args:
        files: as in `Characteristics.from_files`; or a built dataset, or its folder or address.
        ordering: the .npy of `order_files` or `Ordering.save`, or another permutation.
        windows: window sizes in sequences, each between 1 and the number of sequences.
        advance: called with the number of positions done.
        every_start: whether to also measure the window TV of all start positions.

    Returns:
        The values of `Balance.summary()`, without those of shifted windows, windows of equal tokens, groups per batch,
        the bound, and gaps of documents. `repeats_mean` and `repeats_worst` exist if the files have documents.

    Raises:
        ValueError: files that `Characteristics.from_files` refuses; an array that is not a permutation of their
            sequences; a window size out of range.

    Example:
        >>> chars.save("counts/part-00000.parquet")
        >>> about = order_files("counts", "order.npy")
        >>> measure_files("counts", "order.npy", (64,))["families"]["topic"]["windows"]["64"]["tv_mean"]
        0.12
    """
    check_type("ordering", ordering, str | Path, "the path of a .npy file")
    check_function("advance", advance)
    opened = open_counts(files)
    path = Path(ordering)
    indices = _opened(path, opened.num_sequences)

    def read(first: int, stop: int) -> Int64[np.ndarray, " position"]:
        # The pages of a mapped file would count as this process's memory.
        offset = indices.offset + first * indices.dtype.itemsize
        return np.fromfile(path, indices.dtype, stop - first, offset=offset).astype(np.int64)

    # The name is fixed, so that the next call removes what a killed one has left.
    folder = path.with_name(path.name + _FOLDER)
    return measure_counts(opened, read, windows, folder, advance, every_start=every_start).summary


def reader(indices: Int64[np.ndarray, " position"]) -> Read:
    """Return a function that reads parts of an array."""
    return lambda first, stop: indices[first:stop]


def measure_counts(
    counts: StoredCounts,
    read: Read,
    windows: Sequence[int],
    folder: Path,
    advance: Advance = ignore,
    *,
    every_start: bool = False,
) -> MeasuredOrder:
    """Measure an order of stored counts; see `measure_files`.

    Args:
        counts: the counts.
        read: reads a part of the order.
        windows: window sizes.
        folder: for temporary files; it is removed.
        advance: called with the number of positions done.
        every_start: whether to also measure the window TV of all start positions.
    """
    sizes = tuple(as_whole_number("every window size", size, 1, counts.num_sequences) for size in as_tuple(windows))
    number = max(-(-counts.num_sequences // counts.sequences_together), 1)
    bounds = [counts.num_sequences * part // number for part in range(number + 1)]
    with locked(folder), space_for(folder):
        for left in [*folder.glob(f"{_PAIRS}*"), *folder.glob("*.spool")]:
            left.unlink()
        try:
            _divide(read, bounds, folder)
            spool = Spool(folder, number)
            measures = _spool_by_position(counts, bounds, folder, spool, sizes, every_start)
            for part, (first, stop) in enumerate(itertools.pairwise(bounds)):
                if first == stop:  # no sequences at all
                    break
                rows = spool.read(part)
                measures.add(rows.take(np.argsort(rows.numbers)))
                advance(stop - first)
        finally:
            shutil.rmtree(folder)  # before the lock is released
    return MeasuredOrder(measures.summary(), measures.curves())


def _opened(path: Path, num_sequences: int) -> np.memmap:
    try:
        indices = np.lib.format.open_memmap(path, mode="r")
    except FileNotFoundError:
        raise UserError(f"Expected an ordering at {path}, found no such file.") from None
    except NO_ARRAY as error:
        raise UserError(f"Expected an ordering (.npy) at {path}: {in_one_line(error)}") from None
    if indices.shape != (num_sequences,) or indices.dtype.kind not in "iu":
        raise UserError(
            f"Expected an ordering of {num_sequences:,} sequences at {path}, found {indices.dtype} of the shape "
            f"{indices.shape}; it was made for other files."
        )
    return indices


def _divide(read: Read, bounds: Sequence[int], folder: Path) -> None:
    """Write the pairs (sequence, position) of every part of the files into a file."""
    for first, stop in itertools.pairwise(bounds):
        sequences = read(first, stop)
        part = np.searchsorted(bounds, sequences, side="right") - 1
        if len(sequences) and not 0 <= part.min() <= part.max() < len(bounds) - 1:
            raise UserError(f"Expected sequences 0 to {bounds[-1] - 1}, found {sequences.min()} .. {sequences.max()}.")
        by_part = np.argsort(part, kind="stable")
        pairs = np.stack([sequences, np.arange(first, stop)], axis=1)[by_part]
        ends = np.searchsorted(part[by_part], np.arange(len(bounds)))
        for number, (start, end) in enumerate(itertools.pairwise(ends)):
            with (folder / f"{_PAIRS}{number}").open("ab") as file:
                file.write(pairs[start:end].tobytes())


def _spool_by_position(
    files: StoredCounts, bounds: Sequence[int], folder: Path, spool: Spool, sizes: tuple[int, ...], every_start: bool
) -> _Measures:
    """Spool all rows by position; return the measures, which know the shares and the mean norm of all sequences."""
    totals = {family: np.zeros(number, np.int64) for family, number in files.num_groups.items()}
    norms, known = 0.0, set[str]()
    for number, (first, stop) in enumerate(itertools.pairwise(bounds)):
        block = files.read(first, stop)
        chars = Characteristics.of_block(files, block)
        pairs = np.fromfile(folder / f"{_PAIRS}{number}", np.int64).reshape(-1, 2)
        times = np.bincount(pairs[:, 0] - first, minlength=stop - first)
        if not (times == 1).all():
            wrong = int(np.argmax(times != 1))
            raise UserError(f"Expected each sequence once in the ordering, found {first + wrong} {times[wrong]} times.")
        position = pairs[np.argsort(pairs[:, 0]), 1]
        by_position = np.argsort(position)
        rows = Rows(position, block).take(by_position)
        ends = np.searchsorted(rows.numbers, bounds)
        for part, (start, end) in enumerate(itertools.pairwise(ends)):
            if start < end:
                spool.append(part, rows.take(np.arange(start, end)))
        for family, matrix in chars.counts.items():
            for _, entries in blocks(matrix):
                totals[family] += group_sums(entries, len(totals[family]))
        norms += float(_norms(chars.counts[files.families[0]]).sum())
        held = {"documents": block.documents, "copies": block.copies}
        known |= {name for name, groups in held.items() if groups is not None and (groups.ndim == 1 or groups.size)}
        (folder / f"{_PAIRS}{number}").unlink()
    # For a corpus without tokens all shares are 0, not NaN.
    targets = {family: total / max(float(total.sum()), 1.0) for family, total in totals.items()}
    return _Measures(files, targets, norms / max(files.num_sequences, 1), sizes, every_start, known)


def _norms(counts: csr_array) -> Float64[np.ndarray, " row"]:
    return np.sqrt(row_sums(counts, lambda _, tokens: tokens.astype(np.float64) ** 2))


class _Measures:
    """All measures; the rows are added in the order of the positions."""

    def __init__(
        self,
        files: StoredCounts,
        targets: dict[str, Float64[np.ndarray, " group"]],
        mean_norm: float,
        sizes: tuple[int, ...],
        every_start: bool,
        known: Collection[str],
    ) -> None:
        length = files.sequence_length
        self._files, self._sizes, self._mean_norm = files, sizes, mean_norm
        self._families = {
            family: _FamilyMeasures(target, sizes, length, files.num_sequences, every_start)
            for family, target in targets.items()
        }
        self._drift, self._largest_drift = 0.0, 0.0
        self._drift_curve = Envelope(files.num_sequences)
        self._repeats = {name: {size: _Repeats(size) for size in sizes} for name in sorted(known)}

    def add(self, rows: Rows) -> None:
        """Measure the next positions."""
        counts = rows.block.counts(self._files.num_groups)
        for family, measures in self._families.items():
            measures.add(counts[family])
        drift = self._drift + np.cumsum(_norms(counts[self._files.families[0]]) - self._mean_norm)
        self._drift = float(drift[-1])
        self._largest_drift = max(self._largest_drift, float(np.abs(drift).max()))
        self._drift_curve.add(drift / self._files.sequence_length)
        for name, by_size in self._repeats.items():
            for repeats in by_size.values():
                repeats.add(getattr(rows.block, name))

    def summary(self) -> dict[str, Any]:
        """Return all values, as plain numbers."""
        found: dict[str, Any] = {
            "families": {family: measures.summary() for family, measures in self._families.items()},
            "norm_drift_max": self._largest_drift / self._files.sequence_length,
        }
        for name, by_size in self._repeats.items():
            found[name] = {"windows": {str(size): each.summary() for size, each in by_size.items()}}
        return found

    def curves(self) -> dict[str, Any]:
        """Return all curves, see `MeasuredOrder`."""
        return {
            "prefix": {family: measures.prefix.points() for family, measures in self._families.items()},
            "windows": {family: measures.window_curves() for family, measures in self._families.items()},
            "norm_drift": self._drift_curve.points(),
        }


class _FamilyMeasures:
    """The measures of one family."""

    def __init__(
        self,
        target: Float64[np.ndarray, " group"],
        sizes: tuple[int, ...],
        sequence_length: int,
        num_sequences: int,
        every_start: bool,
    ) -> None:
        self._target, self._length, self._num_sequences = target, sequence_length, num_sequences
        self._every_start = every_start
        self._sums, self._total = np.zeros(len(target), np.int64), 0
        self.prefix, self._num_entries = Envelope(num_sequences), 0
        # The rows from `_first` on, which windows still need; the next aligned window and the next start of each size.
        self._kept, self._first = csr_array((0, len(target)), dtype=np.int32), 0
        self._next = {size: [0, 0] for size in sizes}
        self._windows: dict[int, list[Float64[np.ndarray, " window"]]] = {size: [] for size in sizes}
        self._largest_l2 = dict.fromkeys(sizes, 0.0)
        self._largest = dict.fromkeys(sizes, 0.0)
        self._of_starts = {size: [0.0, 0.0] for size in sizes}
        # The sum of the floors' excesses, and the largest of them, which are left out.
        self._floors: dict[int, tuple[float, Float64[np.ndarray, " _largest"]]] = dict.fromkeys(
            sizes, (0.0, np.zeros(0))
        )

    def add(self, placed: csr_array) -> None:
        """Measure the next positions, whose counts are given."""
        target, length = self._target, self._length
        tokens = np.diff(cumulative_tokens(placed))
        deviations = prefix_deviation(placed, tokens, target, length, before=(self._sums, self._total))
        self.prefix.add(deviations)
        for _, entries in blocks(placed):
            self._sums = self._sums + group_sums(entries, len(target))
        self._total += int(tokens.sum())
        self._num_entries += len(placed.data)
        rows = csr_array(vstack([self._kept, placed], format="csr")) if self._kept.shape[0] else placed
        stop = self._first + rows.shape[0]
        for size, places in self._next.items():
            self._add_floor(placed, size)
            aligned, start = places
            found = aligned_windows(rows, target, size, aligned - self._first)
            self._windows[size].append(found.tv)
            self._largest_l2[size] = max(self._largest_l2[size], float(found.l2.max(initial=0.0)))
            if stop - start >= size:
                from_start = rows[start - self._first :]
                self._largest[size] = max(self._largest[size], window_maximum(from_start, target, size))
                if self._every_start:
                    of_starts, sums = window_tv_all(from_start, target, size), self._of_starts[size]
                    sums[0] += of_starts.mean * (stop - start - size + 1)
                    sums[1] = max(sums[1], of_starts.worst)
            places[:] = aligned + len(found.tv) * size, max(stop - size + 1, start)
        first = min(min(places) for places in self._next.values()) if self._next else stop
        self._kept, self._first = csr_array(rows[first - self._first :]), first

    def _add_floor(self, placed: csr_array, size: int) -> None:
        """Add the excess of every sequence."""
        excess = sequence_excess(placed, self._target, size, self._length)
        total, largest = self._floors[size]
        both = np.sort(np.append(largest, excess))
        num_left_out = self._num_sequences % size
        self._floors[size] = total + float(excess.sum()), both[len(both) - min(num_left_out, len(both)) :]

    def summary(self) -> dict[str, Any]:
        """Return the values of this family."""
        windows = {}
        for size in self._windows:
            tv, (total, largest) = self._tv(size), self._floors[size]
            number = len(tv)
            windows[str(size)] = {
                "tv_mean": float(tv.mean()),
                "tv_best": float(tv.min()),
                "tv_worst": float(tv.max()),
                "tv_floor": (total - float(largest.sum())) / number,
                "tv_ideal_token_shuffle": ideal_token_shuffle(self._target, size, self._length),
                "l2_worst": self._largest_l2[size],
                "max_share_deviation": self._largest[size],
            }
            if self._every_start:
                of_starts = self._of_starts[size]
                windows[str(size)]["tv_mean_every_start"] = of_starts[0] / (self._num_sequences - size + 1)
                windows[str(size)]["tv_worst_every_start"] = of_starts[1]
        return {
            "prefix_l2_max": self.prefix.largest,
            "groups_per_sequence_mean": self._num_entries / max(self._num_sequences, 1),
            "windows": windows,
        }

    def window_curves(self) -> dict[str, Any]:
        """Return the curve of the windows of each size, and the position of the worst window."""
        return {str(size): window_curve(self._tv(size), size) for size in self._windows}

    def _tv(self, size: int) -> Float64[np.ndarray, " window"]:
        return np.concatenate([np.zeros(0), *self._windows[size]])


class _Repeats:
    """The repeats of documents or copies in aligned windows of one size; see `documents.DocumentSpread`."""

    def __init__(self, size: int) -> None:
        self._size, self._kept = size, np.zeros((0, 1), np.int64)
        self._sum, self._worst, self._number = 0, 0, 0

    def add(self, groups: Int64[np.ndarray, "position ..."]) -> None:
        """Count the next positions' repeats; `groups` are documents, or the groups of copies (position, member)."""
        groups = groups.reshape(len(groups), -1)
        width = max(groups.shape[1], self._kept.shape[1])
        groups = np.concatenate([_widened(self._kept, width), _widened(groups, width)])
        number = len(groups) // self._size
        self._kept = groups[number * self._size :]
        # A sequence has each group once, so that every equal pair is of two positions.
        whole = np.sort(groups[: number * self._size].reshape(number, self._size * width), axis=1)
        repeats = ((np.diff(whole, axis=1) == 0) & (whole[:, 1:] >= 0)).sum(axis=1)
        self._sum, self._number = self._sum + int(repeats.sum()), self._number + number
        self._worst = max(self._worst, int(repeats.max(initial=0)))

    def summary(self) -> dict[str, float]:
        """Return the mean and the largest number of repeats of a window."""
        return {"repeats_mean": self._sum / max(self._number, 1), "repeats_worst": float(self._worst)}


def _widened(groups: Int64[np.ndarray, "position member"], width: int) -> Int64[np.ndarray, "position wider"]:
    return np.pad(groups, ((0, 0), (0, width - groups.shape[1])), constant_values=-1)
