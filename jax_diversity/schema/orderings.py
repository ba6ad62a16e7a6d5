"""Orders: an order gives the sequence at every position of training. In an ordering, every sequence occurs once.

An ordering is stored in two files. `NAME.npy` is an array that any program can read. `NAME.json` says how the ordering
was made. It also has a fingerprint, which shows whether the array was changed after it was saved.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from jax_diversity.foundation.artifacts import write_array, write_text
from jax_diversity.foundation.checks import check_type
from jax_diversity.foundation.errors import UserError, in_one_line
from jax_diversity.foundation.tables import Display, Displayed
from jax_diversity.foundation.wording import counted

# The .json contains these values besides `info`. Entries of `info` with these names are not stored.
_DERIVED = ("num_sequences", "fingerprint")
_SHOWN = 8
"""The number of sequence indices that a notebook shows."""


class Order(ABC):
    """The sequence at every position of training: in memory (`Positions`, `Ordering`), in a file, or of a run."""

    info: Mapping[str, Any]
    """How the order was made, for people and for checks; the order can be used without it."""
    is_bijection = False
    """Whether every sequence occurs exactly once."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of positions."""

    @property
    @abstractmethod
    def num_sequences(self) -> int:
        """Number of sequences of the datasets; indices are below it."""

    @property
    @abstractmethod
    def indices(self) -> Int64[np.ndarray, " position"]:
        """The sequence at every position, read-only."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Hash of the sequences at all positions."""

    def at(self, positions: Int64[np.ndarray, " row"]) -> Int64[np.ndarray, " row"]:
        """The sequences at some positions, each from 0 to the length - 1; a run begins again after its end."""
        return self.indices[positions]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.indices, dtype, copy=copy)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({counted(len(self), 'position')}, fingerprint {self.fingerprint[:16]})"


class Positions(Order):
    """An order in memory that may repeat sequences and leave sequences out.

    Raises:
        UserError: `indices` is not one axis of integers, or has an integer outside 0 .. num_sequences - 1.
    """

    _name = "positions"  # in error messages

    def __init__(self, indices: Any, num_sequences: int, info: Mapping[str, Any] | None = None) -> None:
        # We copy the user's array. It stays writable, and later changes of it do not change this value.
        self._indices = np.array(as_integers(self._name, indices, below=num_sequences))
        self._indices.setflags(write=False)
        self._num_sequences, self.info = num_sequences, MappingProxyType(dict(info or {}))

    def __len__(self) -> int:
        return len(self.indices)

    def __reduce__(self) -> tuple[Any, ...]:
        # `__init__` makes the array read-only again: an array from a pickle is writable. A `MappingProxyType` cannot be
        # pickled.
        return Positions, (self.indices, self.num_sequences, dict(self.info))

    @property
    def num_sequences(self) -> int:
        """Number of sequences of the datasets; indices are below it."""
        return self._num_sequences

    @property
    def indices(self) -> Int64[np.ndarray, " position"]:
        """The sequence at every position, read-only."""
        return self._indices

    @property
    def fingerprint(self) -> str:
        """Hash of the indices and of the number of sequences."""
        digest = hashlib.sha256(f"positions over {self.num_sequences} sequences\n".encode())
        digest.update(self.indices.tobytes())
        return digest.hexdigest()


class Ordering(Positions, Displayed):
    """A bijection from positions of training to sequence indices. It can be used like the array of these indices.

    Args:
        indices: the sequence at every position; the array is copied.
        info: how the ordering was made (method, objective, seed, fingerprint of the characteristics ...). It is for
            people and for checks; the ordering can be used without it.

    Pickles and copies are read-only too.

    Raises:
        ValueError: `indices` is not a permutation of 0 .. n - 1.

    Example:
        >>> ordering = Ordering(np.array([2, 0, 1]))
        >>> ordering.indices
        array([2, 0, 1])
        >>> int(ordering[0]), np.asarray(ordering[1:])
        (2, array([0, 1]))
    """

    is_bijection = True
    _name = "an ordering's indices"

    def __init__(self, indices: Any, info: Mapping[str, Any] | None = None) -> None:
        indices = as_integers(self._name, indices)
        super().__init__(indices, len(indices), info)
        # There are as many indices as sequences, and all are in range. So if none is repeated, none is missing.
        times = np.bincount(self.indices, minlength=len(self))
        if times.max(initial=0) > 1:
            repeated = int(times.argmax())
            raise UserError(
                f"An ordering of {len(self)} sequences must have each once, found {repeated} {times[repeated]} "
                "times; to repeat sequences, make a run: make_run(dataset, positions=...)."
            )

    # An ordering behaves like the array of its indices: functions for sequences or arrays accept it.
    def __getitem__(self, position: Any) -> Any:
        return self.indices[position]

    def __iter__(self) -> Iterator[np.int64]:
        return iter(self.indices)

    def __reduce__(self) -> tuple[Any, ...]:
        return Ordering, (self.indices, dict(self.info))

    def __repr__(self) -> str:
        method = self.info.get("method", "unknown method")
        return f"Ordering({counted(len(self), 'sequence')}, {method}, fingerprint {self.fingerprint[:16]})"

    def _display(self) -> Display:
        first = ", ".join(map(str, self.indices[:_SHOWN].tolist()))
        more = ", ..." if len(self) > _SHOWN else ""
        rows = [[name, str(self.info[name])] for name in ("method", "seed") if name in self.info]
        rows += [["first sequences", f"{first}{more}"], ["fingerprint", self.fingerprint[:16]]]
        return Display(f"Ordering of {counted(len(self), 'sequence')}", [("", [["", ""], *rows])])

    @property
    def fingerprint(self) -> str:
        """Hash of the indices; `info` is not part of it."""
        return hashlib.sha256(self.indices.tobytes()).hexdigest()

    def save(self, path: str | Path) -> None:
        """Write `path` (.npy, readable by any program) and a .json with `info` and the fingerprint in the same folder.

        Each file is replaced atomically. If one file is new and the other is old, `load` raises an error.

        Raises:
            ValueError: the name does not end in .npy; `info` has values that JSON cannot store. Nothing is written.
        """
        path = Path(path)
        if path.suffix != ".npy":
            raise UserError(f"An ordering's file name must end in .npy, found {path.name!r}.")
        info = {key: value for key, value in self.info.items() if key not in _DERIVED}
        description = {**info, "num_sequences": len(self), "fingerprint": self.fingerprint}
        # We make the text first: if `info` cannot be stored, the old array must stay.
        try:
            text = json.dumps(description, indent=2, sort_keys=True, default=_plain_value) + "\n"
        except (TypeError, ValueError) as error:
            raise UserError(f"Expected an ordering's info to have JSON values, found: {error}.") from None
        # If the process is killed between the two writes, the array is new and the fingerprint old. `load` finds this.
        write_array(path, self.indices)
        write_text(path.with_suffix(".json"), text)

    @classmethod
    def load(cls, path: str | Path) -> Ordering:
        """Read the files of `save`, or any .npy with one axis of integers, without a .json.

        Raises:
            ValueError: another kind of file; not a bijection; the array was changed after it was saved, or the .json is
                from another ordering.
        """
        path = Path(path)
        try:
            # We do not use np.load: it treats other files as pickles and advises to allow pickles.
            values = np.lib.format.open_memmap(path, mode="r")
        except FileNotFoundError:
            raise UserError(f"Expected an ordering at {path}, found no such file.") from None
        except Exception as error:  # a broken header makes NumPy raise various errors
            raise UserError(f"Expected an ordering (.npy) at {path}: {in_one_line(error)}") from None
        description = _read_about(path.with_suffix(".json"))
        try:
            indices = as_integers("an ordering's indices", values)
            loaded = cls(indices, {key: value for key, value in description.items() if key not in _DERIVED})
        except ValueError as error:
            raise UserError(f"Expected an ordering (.npy) at {path}: {error}") from None
        # This also finds the result of a `save` that was killed: the .npy is new, but the .json is from the old array.
        if description and description["fingerprint"] != loaded.fingerprint:
            raise UserError(
                f"{path} was changed after it was saved: its fingerprint is {loaded.fingerprint[:16]}, "
                f"{path.stem}.json has {description['fingerprint'][:16]}; restore the file or delete the .json."
            )
        return loaded


def check_ordering(name: str, value: Any) -> None:
    """Raise an error for an argument that is not an `Ordering`."""
    check_type(name, value, Ordering, "an Ordering; make one with jd.order")


def as_integers(name: str, values: Any, least: int = 0, below: int = 2**63) -> Int64[np.ndarray, " value"]:
    """Check that a user's values are one axis of integers, and return them as int64. An int64 array is not copied."""
    try:
        values = np.asarray(values)
    except Exception as error:  # rows of different lengths; errors of other libraries' arrays
        raise UserError(f"Expected {name} to be one axis of integers, found: {in_one_line(error)}.") from None
    # An empty axis may have any type: NumPy makes a float64 array of an empty list.
    if values.ndim != 1 or (values.dtype.kind not in "iu" and values.size):
        raise UserError(f"Expected {name} to be one axis of integers, found {values.dtype} of shape {values.shape}.")
    outside = (values < least) | (values >= below)
    if outside.any():
        upper = "" if below == 2**63 else f" and below {below}"
        place = int(np.argmax(outside))
        raise UserError(f"Expected {name} >= {least}{upper}, found {values[place]} at place {place}.")
    return values.astype(np.int64, copy=False)


def as_floats(name: str, value: Any) -> Float64[np.ndarray, "..."]:
    """Check that a user's values are real numbers, in an array of any shape."""
    try:
        values = np.asarray(value)
        if values.dtype.kind == "c":
            raise TypeError(f"complex numbers ({values.dtype})")
        return values.astype(np.float64) if values.dtype.kind in "iuf" else np.asarray(value, np.float64)
    except Exception as error:  # arrays of other libraries raise various errors when NumPy converts them
        raise UserError(f"Expected {name} to be numbers, found: {in_one_line(error)}.") from None


def _plain_value(value: Any) -> Any:
    """Convert mappings and NumPy's numbers and arrays to values that JSON can store."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{value!r} of the type {type(value).__name__}")


def _read_about(path: Path) -> dict[str, Any]:
    """Return the content of an ordering's .json; empty if there is no such file."""
    try:
        description = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError, OSError) as error:
        raise UserError(f"Expected {path} to describe its ordering, found invalid JSON ({error}); delete it.") from None
    if not isinstance(description, dict) or not isinstance(description.get("fingerprint"), str):
        raise UserError(f"Expected {path} to describe its ordering, found no fingerprint in it; move it elsewhere.")
    return description
