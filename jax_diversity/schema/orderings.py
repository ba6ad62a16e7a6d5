"""Which sequence comes when: orderings, which are bijections, and schedules, which may repeat and omit.

Both are stored as `NAME.npy`, which any program can read, and `NAME.json` with a note on how it was made and a
fingerprint that tells whether the array was changed since it was saved.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.artifacts import write_array, write_text
from jax_diversity.foundation.checks import instance_of, whole_number
from jax_diversity.foundation.errors import UserError, in_one_line


def check_ordering(name: str, value: Any, kind: Any = None) -> None:
    """Refuse an argument that is no `Ordering`, or none of some other kinds."""
    instance_of(name, value, kind or Ordering, "an Ordering; make one with jd.order")


def integers(name: str, values: Any, least: int = 0, below: int = 2**63) -> Int64[np.ndarray, " value"]:
    """A user's values, checked to be one axis of integers; no copy where they are int64 already."""
    try:
        values = np.asarray(values)
    except Exception as error:  # rows of many lengths; what other libraries' arrays raise
        raise UserError(f"Expected {name} to be one axis of integers, found: {in_one_line(error)}.") from None
    # An empty axis may be of any type: an empty list is float64 to NumPy.
    if values.ndim != 1 or (values.dtype.kind not in "iu" and values.size):
        raise UserError(f"Expected {name} to be one axis of integers, found {values.dtype} of shape {values.shape}.")
    outside = (values < least) | (values >= below)
    if outside.any():
        upper = "" if below == 2**63 else f" and below {below}"
        place = int(np.argmax(outside))
        raise UserError(f"Expected {name} >= {least}{upper}, found {values[place]} at place {place}.")
    return values.astype(np.int64, copy=False)


# What the .json holds besides `info`; entries of `info` under these names are not stored.
_DERIVED = ("num_sequences", "num_positions", "fingerprint")


class _Stored:
    """What orderings and schedules share: the array's length, fingerprint and files."""

    indices: Int64[np.ndarray, " position"]
    info: Mapping[str, Any]

    _NAME: ClassVar[str]

    def __len__(self) -> int:
        return len(self.indices)

    # Read as the array of its indices, so that whatever takes a sequence or an array takes an ordering.
    def __getitem__(self, position: Any) -> Any:
        return self.indices[position]

    def __iter__(self) -> Iterator[np.int64]:
        return iter(self.indices)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.indices, dtype, copy=copy)

    def __reduce__(self) -> tuple[type[Any], tuple[Any, ...]]:
        # `vars` keeps the order of the fields, which is that of the constructor's arguments. A proxy cannot be pickled.
        return type(self), tuple({**vars(self), "info": dict(self.info)}.values())

    def __repr__(self) -> str:
        size = " over ".join(f"{number} {name}" for name, number in self._sizes.items())
        method = self.info.get("method", "unknown method")
        return f"{type(self).__name__}({size}, {method}, fingerprint {self.fingerprint[:16]})"

    @property
    def fingerprint(self) -> str:
        """Hash of the indices and, of a schedule, of the number of sequences; `info` is not part of it."""
        digest = hashlib.sha256(self._header)
        digest.update(self.indices.tobytes())
        return digest.hexdigest()

    @property
    def _header(self) -> bytes:
        # Empty for an ordering: its fingerprint is the hash of the array alone.
        return b""

    @property
    def _sizes(self) -> dict[str, int]:
        return {"sequences": len(self)}

    def _freeze(self, indices: Int64[np.ndarray, " position"]) -> None:
        # A copy: the user's array stays writable, and what is written to it later does not reach this value.
        indices = np.array(indices)
        indices.setflags(write=False)
        object.__setattr__(self, "indices", indices)
        object.__setattr__(self, "info", MappingProxyType(dict(self.info)))

    def save(self, path: str | Path) -> None:
        """Write `path` (.npy, readable by any program) and, beside it, a .json with `info` and the fingerprint.

        Each file is replaced atomically; `load` refuses a new .npy beside an old .json.

        Raises:
            ValueError: the name does not end in .npy; `info` holds what JSON cannot (nothing is written then).
        """
        path = Path(path)
        if path.suffix != ".npy":
            raise UserError(f"{self._NAME}'s file name must end in .npy, found {path.name!r}.")
        sizes = {f"num_{name}": number for name, number in self._sizes.items()}
        info = {key: value for key, value in self.info.items() if key not in _DERIVED}
        about = {**info, **sizes, "fingerprint": self.fingerprint}
        # The text is made first: an `info` that cannot be stored must not replace the array.
        try:
            text = json.dumps(about, indent=2, sort_keys=True, default=_plain_value) + "\n"
        except (TypeError, ValueError) as error:
            raise UserError(f"{self._NAME}'s info must be what JSON can hold, found: {error}.") from None
        # A kill between the two leaves an old fingerprint beside the new array, which `load` finds.
        write_array(path, self.indices)
        write_text(path.with_suffix(".json"), text)


@dataclass(frozen=True, eq=False, repr=False)
class Ordering(_Stored):
    """A bijection from positions of training to sequence indices; reads as the array of them.

    Attributes:
        indices: the sequence at every position, read-only.
        info: how it was made (method, objective, seed, fingerprint of the characteristics ...), for people
            and for checks; never needed to use the ordering.

    Pickles and copies are read-only too.

    Raises:
        ValueError: `indices` is no permutation of 0 .. n - 1.

    Example:
        >>> ordering = Ordering(np.array([2, 0, 1]))
        >>> ordering.indices
        array([2, 0, 1])
        >>> int(ordering[0]), np.asarray(ordering[1:])
        (2, array([0, 1]))
    """

    indices: Int64[np.ndarray, " sequence"]
    info: Mapping[str, Any] = field(default_factory=dict)

    _NAME: ClassVar[str] = "An ordering"

    def __post_init__(self) -> None:
        indices = integers("an ordering's indices", self.indices)
        num_sequences = len(indices)
        indices = integers("an ordering's indices", indices, below=num_sequences)
        # As many indices as sequences, all in range: if none is repeated, none is missing.
        times = np.bincount(indices, minlength=num_sequences)
        if times.max(initial=0) > 1:
            repeated = int(times.argmax())
            raise UserError(
                f"An ordering of {num_sequences} sequences must hold each once, found {repeated} {times[repeated]} "
                "times; what may repeat sequences is a Schedule, or a blend."
            )
        self._freeze(indices)

    @property
    def num_sequences(self) -> int:
        """Number of sequences of the dataset; each comes once."""
        return len(self)

    @classmethod
    def load(cls, path: str | Path) -> Ordering:
        """Read what `save` wrote, or any one-axis .npy of integers that has no .json beside it.

        Raises:
            ValueError: not such a file, no bijection, changed since it was saved, or a .json that is not its own.
        """
        return _load(cls, Path(path))


@dataclass(frozen=True, eq=False, repr=False)
class Schedule(_Stored):
    """A plan of training that may repeat and omit sequences: epochs, blends, truncated and re-planned runs.

    It reads as the array of its indices.

    Attributes:
        indices: the sequence at every position, read-only; as many positions as the plan is long.
        num_sequences: number of sequences of the dataset that `indices` point into.
        info: how it was made, for people and for checks; never needed to use the schedule.

    Pickles and copies are read-only too.

    Raises:
        ValueError: an index outside 0 .. num_sequences - 1, or indices that are no axis of integers.

    Example:
        >>> schedule = Schedule(np.array([2, 0, 2]), num_sequences=4)
        >>> schedule.counts
        array([1, 0, 2, 0])
    """

    indices: Int64[np.ndarray, " position"]
    num_sequences: int
    info: Mapping[str, Any] = field(default_factory=dict)

    _NAME: ClassVar[str] = "A schedule"

    def __post_init__(self) -> None:
        num_sequences = whole_number("a schedule's num_sequences", self.num_sequences)
        object.__setattr__(self, "num_sequences", num_sequences)
        self._freeze(integers("a schedule's indices", self.indices, below=num_sequences))

    @property
    def counts(self) -> Int64[np.ndarray, " sequence"]:
        """How often every sequence occurs."""
        return np.bincount(self.indices, minlength=self.num_sequences).astype(np.int64)

    @property
    def is_bijection(self) -> bool:
        """Whether every sequence occurs exactly once."""
        return len(self) == self.num_sequences and bool((self.counts == 1).all())

    def to_ordering(self) -> Ordering:
        """The same positions as an `Ordering`.

        Raises:
            ValueError: a sequence is left out or comes more than once.
        """
        if not self.is_bijection:
            counts = self.counts
            bad = int(np.argmax(counts != 1))
            raise UserError(
                f"Expected a schedule with each of the {self.num_sequences} sequences once to make an ordering of, "
                f"found sequence {bad} {counts[bad]} times; use the schedule itself."
            )
        return Ordering(self.indices, self.info)

    @property
    def _header(self) -> bytes:
        return f"schedule of {self.num_sequences} sequences\n".encode()

    @property
    def _sizes(self) -> dict[str, int]:
        return {"positions": len(self), "sequences": self.num_sequences}

    @classmethod
    def load(cls, path: str | Path, num_sequences: int | None = None) -> Schedule:
        """Read what `save` wrote, or any one-axis .npy of integers that has no .json beside it.

        Args:
            path: the .npy file.
            num_sequences: the dataset's number of sequences, for a file without a .json; if there is one, the two
                numbers must be equal.

        Raises:
            ValueError: not such a file, indices outside the dataset, made for a dataset of another size, changed
                since it was saved, or a .json that is not its own.
        """
        loaded = _load(cls, Path(path), num_sequences)
        if num_sequences is not None and loaded.num_sequences != num_sequences:
            raise UserError(
                f"Expected a schedule over {num_sequences} sequences at {path}, found one over "
                f"{loaded.num_sequences}; it was made for another dataset."
            )
        return loaded


def _load(kind: Any, path: Path, num_sequences: int | None = None) -> Any:
    """Read both files; `num_sequences` is for a schedule without a .json."""
    name = kind._NAME.lower()
    try:
        # Unlike np.load, which takes other files for pickles and advises to allow them.
        values = np.lib.format.open_memmap(path, mode="r")
    except FileNotFoundError:
        raise UserError(f"Expected {name} at {path}, found no such file.") from None
    except Exception as error:  # a broken header makes NumPy raise half a dozen kinds
        raise UserError(f"Expected {name} (.npy) at {path}: {in_one_line(error)}") from None
    about = _read_about(path.with_suffix(".json"), name.split()[-1])
    held = Schedule if "num_positions" in about else Ordering
    info = {key: value for key, value in about.items() if key not in _DERIVED}
    try:
        if about and held is not kind:
            raise UserError(f"it holds {held._NAME.lower()}; use {held.__name__}.load.")
        indices, size = integers(f"{name}'s indices", values), about.get("num_sequences", num_sequences)
        if kind is Ordering:
            loaded = Ordering(indices, info)
        elif size is None:
            raise UserError("no .json beside it says how many sequences the dataset has; pass num_sequences.")
        else:
            loaded = Schedule(indices, whole_number("a schedule's num_sequences", size), info)
    except ValueError as error:
        raise UserError(f"Expected {name} (.npy) at {path}: {error}") from None
    # Also finds a .npy that a killed `save` replaced while the .json is still that of the earlier array.
    if about and about["fingerprint"] != loaded.fingerprint:
        raise UserError(
            f"{path} was changed after it was saved: its fingerprint is {loaded.fingerprint[:16]}, "
            f"{path.stem}.json says {about['fingerprint'][:16]}; restore the file or delete the .json."
        )
    return loaded


def is_schedule(path: Path) -> bool:
    """Tell whether the .json beside a .npy says that it holds a schedule; it is none without."""
    return "num_positions" in _read_about(path.with_suffix(".json"), "ordering")


def _plain_value(value: Any) -> Any:
    """NumPy's numbers and arrays as JSON can hold them."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{value!r} of the type {type(value).__name__}")


def _read_about(path: Path, name: str) -> dict[str, Any]:
    """The content of the .json beside an ordering or schedule; empty if there is none."""
    try:
        about = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError, OSError) as error:
        raise UserError(f"Expected {path} to describe its {name}, found no JSON ({error}); delete it.") from None
    if not isinstance(about, dict) or not isinstance(about.get("fingerprint"), str):
        raise UserError(f"Expected {path} to describe its {name}, found no fingerprint in it; move it elsewhere.")
    return about
