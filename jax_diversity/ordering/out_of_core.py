"""A balanced order of counts in files. Memory grows with the number of sequences that are held at the same time.

1. **Totals**: the files are read once, in *chunks* of equal numbers of sequences. Their sums are the targets.
2. **Halving**: each chunk is halved to K blocks, one for each *part* of the order, and spooled by part. The walks know
   the deviation that the earlier chunks left at every cut between two parts, so that errors do not add up.
3. **Repair**: at each cut, sequences of both sides are exchanged until the deviation there stops falling.
4. **Ordering**: each part is read and ordered like a corpus of its own, from the known deviation before it.

Chunks and parts depend only on the numbers of sequences, so the order does not depend on the division into files or on
the number of threads. The state is in a folder beside the order: a run that was killed continues at its chunk, cut or
part, and ends with the same bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from jax_diversity.foundation.artifacts import fingerprint, write_text
from jax_diversity.foundation.checks import as_whole_number, check_function, check_type
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.folders import locked, space_for
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.ordering.balance import check_options, order_stream
from jax_diversity.ordering.base import METHODS
from jax_diversity.ordering.halving import balanced_stream, halve, sort_by_group
from jax_diversity.ordering.objective import Features, Objective
from jax_diversity.ordering.parts import REACH, CutSides, parts_of
from jax_diversity.ordering.plan import Plan, tie_numbers
from jax_diversity.ordering.running import Checkpoint
from jax_diversity.schema import Characteristics
from jax_diversity.schema.count_files import CountBlock, StoredCounts, open_counts
from jax_diversity.schema.spool import Rows, Spool

_METHOD = "balance"
_FOLDER = ".unfinished"
_ARRAY = "order.npy"
_NUMBERS_TOGETHER = 1 << 20


def order_files(
    files: Any,
    path: str | Path,
    *,
    seed: int = 0,
    objective: Objective | None = None,
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
        sequences_in_memory: about how many sequences are in memory at the same time. The number determines the memory
            (a million sequences of ten counts need about a gigabyte) and, together with the counts, the order.
        advance: called with the number of positions filled since its last call.
        options: the options of the method `balance`, without `mesh`.

    Returns:
        The content of the .json.

    Raises:
        ValueError: files that `Characteristics.from_files` refuses, or that were changed since an interrupted call; the
            folder of another order; a name that does not end in .npy; a full disk; the errors of `jd.order`.

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
    folder = path.with_name(path.name + _FOLDER)
    with locked(folder), space_for(folder):
        run = _Run(opened, folder, seed, objective, size, options)
        run.totals()
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

    def excess(self, targets: Float64[np.ndarray, " column"]) -> Float64[np.ndarray, "*parts column"]:
        """Return the sums of the excesses; the norm column is last."""
        # The sums are whole numbers, exact in float64 up to 2^53 tokens.
        columns = self.columns - np.multiply.outer(self.tokens, targets[:-1])
        norms = self.norms - self.number * targets[-1]
        return np.concatenate([columns, np.asarray(norms)[..., None]], axis=-1)


@dataclass(frozen=True)
class _Run:
    """One order, whose state is in its folder."""

    files: StoredCounts
    folder: Path
    seed: int
    objective: Objective
    sequences_in_memory: int
    options: Mapping[str, Any]

    @property
    def num_parts(self) -> int:
        """K, a power of two."""
        return parts_of(self.files.num_sequences, self.sequences_in_memory)

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
        for block in self.files.blocks(self.bounds):
            Characteristics.of_block(self.files, block)  # checks the counts
            features = self._features(block)
            own = _Sums.of(features, np.arange(len(block)))
            sums = own if sums is None else _Sums(*(a + b for a, b in zip(sums, own, strict=True)))
            digests.append(block.digest)
        sums = _Sums.of(self._features(self.files.read(0, 0)), np.arange(0)) if sums is None else sums
        state.save(_as_arrays({**sums._asdict(), "digests": np.array(digests, "U64")}))

    def _targets(self) -> tuple[Float64[np.ndarray, " column"], list[str]]:
        """Return the targets and the hash of every chunk."""
        stored = _loaded(self._state("totals"))
        sums = _Sums(*(stored[name] for name in _Sums._fields))
        # As in `Features.build`: every family counts all tokens.
        shares = sums.columns / max(int(sums.tokens), 1)
        return np.append(shares, sums.norms / max(int(sums.number), 1)), stored["digests"].tolist()

    def halve(self) -> None:
        """Halve every chunk and spool its blocks by part; the state has the chunks that are done."""
        state, spool = self._state("halved"), self._spool
        targets, digests = self._targets()
        num_parts, bounds = self.num_parts, self.bounds
        num_columns = len(targets) - 1
        zeros = np.zeros(num_parts, np.int64)
        sums = _Sums(np.zeros((num_parts, num_columns), np.int64), zeros, np.zeros(num_parts), zeros)
        sizes, first_chunk = zeros, 0
        if (stored := state.load()) is not None:
            sums, sizes = _Sums(*(stored[name] for name in _Sums._fields)), stored["sizes"]
            first_chunk = int(stored["num_chunks"])
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
            rng = np.random.default_rng([self.seed, 0, chunk])
            arranged = sort_by_group(features, np.arange(len(block)), rng)
            carried = np.pad(np.cumsum(sums.excess(targets), axis=0), ((1, 0), (0, 0)))
            carried -= np.multiply.outer(np.linspace(0, 1, num_parts + 1), carried[-1])
            blocks = halve(features, arranged, num_parts.bit_length() - 1, True, carried, capacity)
            rows = [members[members >= 0] for members in blocks]
            added = [_Sums.of(features, members) for members in rows]
            sums = _Sums(*(a + np.stack(b) for a, b in zip(sums, zip(*added, strict=True), strict=True)))
            numbers = bounds[chunk] + np.arange(len(block))
            of_chunk = Rows(numbers, block)
            for part, members in enumerate(rows):
                if len(members):
                    spool.append(part, of_chunk.take(members))
            spool.sync()
            state.save(_as_arrays({**sums._asdict(), "sizes": spool.sizes(), "num_chunks": chunk + 1}))
        if not digests:
            state.save(_as_arrays({**sums._asdict(), "sizes": sizes, "num_chunks": 0}))

    def _sums(self) -> _Sums:
        """Return the sums of every part, before exchanges."""
        stored = _loaded(self._state("halved"))
        return _Sums(*(stored[name] for name in _Sums._fields))

    def repair(self) -> None:
        """Exchange sequences across every cut; each cut's file has the exchanged rows and the change of the sums."""
        targets, _ = self._targets()
        sums = self._sums()
        deviations, reach = np.cumsum(sums.excess(targets), axis=0), _reach(sums)
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
            features = self._features(sides.block, targets)
            exchanged = CutSides(features, np.arange(2 * reach), targets, deviations[cut - 1])
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
        targets, _ = self._targets()
        sums, state, path = self._sums(), self._state("ordered"), self.folder / _ARRAY
        ends = np.cumsum(sums.number)
        deviations = np.pad(np.cumsum(sums.excess(targets), axis=0), ((1, 0), (0, 0)))
        stored = state.load()
        first_part = 0 if stored is None else int(stored["num_parts"])
        if stored is None:
            with path.open("wb") as file:
                about = {"descr": "<i8", "fortran_order": False, "shape": (self.files.num_sequences,)}
                np.lib.format.write_array_header_1_0(file, about)
        elif first_part:
            advance(int(ends[first_part - 1]))
        capacity = int(sums.number.max(initial=0))
        for part in range(first_part, self.num_parts):
            if not sums.number[part]:  # fewer sequences than parts
                continue
            rows, before = self._part(part, deviations[part])
            ordered = self._order_part(part, rows.block, targets, before, capacity, advance)
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
        targets: Float64[np.ndarray, " column"],
        before: Float64[np.ndarray, " column"],
        capacity: int,
        advance: Advance,
    ) -> Int64[np.ndarray, " row"]:
        features = self._features(block, targets)
        everyone = np.arange(len(block))
        head_start = np.zeros(len(features.apart.share), np.int64)
        plan = Plan(features, (0,), targets[None], everyone[:0], before, head_start)
        given = dict(self.options)
        num_parts = parts_of(len(block), given.pop("part_size"))
        numbers = tie_numbers(len(block), given.pop("ties"), [self.seed, part])
        seed = [self.seed, 1, part]
        stream = balanced_stream(features, everyone, seed, num_parts, before, capacity)
        return order_stream(plan, self.objective, stream, numbers, num_parts, advance=advance, **given)

    def publish(self, path: Path) -> dict[str, Any]:
        """Write the description, and move the order to its name."""
        array = self.folder / _ARRAY
        content = json.dumps(_loaded(self._state("totals"))["digests"].tolist())
        about = {**self.info, "counts": hashlib.sha256(content.encode()).hexdigest()}
        about |= {"num_sequences": self.files.num_sequences}
        if array.exists():  # otherwise a run that was killed after the last step below has already moved it
            about["fingerprint"] = _check_and_hash(array, self.files.num_sequences)
            text = json.dumps(about, indent=2, sort_keys=True) + "\n"
            write_text(path.with_suffix(".json"), text)
            os.replace(array, path)
        return json.loads(path.with_suffix(".json").read_bytes())


def _reach(sums: _Sums) -> int:
    """Return the number of sequences on each side of a cut that may be exchanged."""
    return min(REACH, int(sums.number.min()) // 2)


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
