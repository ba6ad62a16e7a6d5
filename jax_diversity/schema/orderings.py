"""Orderings: the sequence at every position; every sequence occurs once.

An ordering is stored as `NAME.npy`, which any program can read, and `NAME.json` with how it was made and a
fingerprint that shows whether the array was changed since it was saved.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.artifacts import write_array, write_text
from jax_diversity.foundation.checks import check_type
from jax_diversity.foundation.errors import UserError, in_one_line

# The .json holds these besides `info`; entries of `info` with these names are not stored.
_DERIVED = ("num_sequences", "fingerprint")


@dataclass(frozen=True, eq=False, repr=False)
class Ordering:
    """A bijection from positions of training to sequence indices; usable as the array of these indices.

    Attributes:
        indices: the sequence at every position, read-only.
        info: how it was made (method, objective, seed, fingerprint of the characteristics ...), for people
            and for checks; never needed to use the ordering.

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

    indices: Int64[np.ndarray, " sequence"]
    info: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        indices = as_integers("an ordering's indices", self.indices)
        num_sequences = len(indices)
        indices = as_integers("an ordering's indices", indices, below=num_sequences)
        # As many indices as sequences, all in range: if none is repeated, none is missing.
        times = np.bincount(indices, minlength=num_sequences)
        if times.max(initial=0) > 1:
            repeated = int(times.argmax())
            raise UserError(
                f"An ordering of {num_sequences} sequences must hold each once, found {repeated} {times[repeated]} "
                "times; positions that repeat sequences are a run: make_run(dataset, positions=...)."
            )
        # A copy: the user's array stays writable, and later changes of it do not change this value.
        indices = np.array(indices)
        indices.setflags(write=False)
        object.__setattr__(self, "indices", indices)
        object.__setattr__(self, "info", MappingProxyType(dict(self.info)))

    def __len__(self) -> int:
        return len(self.indices)

    # An ordering reads as the array of its indices: functions that take a sequence or an array accept it.
    def __getitem__(self, position: Any) -> Any:
        return self.indices[position]

    def __iter__(self) -> Iterator[np.int64]:
        return iter(self.indices)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.indices, dtype, copy=copy)

    def __reduce__(self) -> tuple[Any, ...]:
        return Ordering, (self.indices, dict(self.info))  # a proxy cannot be pickled

    def __repr__(self) -> str:
        method = self.info.get("method", "unknown method")
        return f"Ordering({len(self)} sequences, {method}, fingerprint {self.fingerprint[:16]})"

    @property
    def num_sequences(self) -> int:
        """Number of sequences of the dataset; each occurs once."""
        return len(self)

    @property
    def fingerprint(self) -> str:
        """Hash of the indices; `info` is not part of it."""
        return hashlib.sha256(self.indices.tobytes()).hexdigest()

    def save(self, path: str | Path) -> None:
        """Write `path` (.npy, readable by any program) and, beside it, a .json with `info` and the fingerprint.

        Each file is replaced atomically; `load` refuses a new .npy beside an old .json.

        Raises:
            ValueError: the name does not end in .npy; `info` holds values that JSON cannot store; nothing is written.
        """
        path = Path(path)
        if path.suffix != ".npy":
            raise UserError(f"An ordering's file name must end in .npy, found {path.name!r}.")
        info = {key: value for key, value in self.info.items() if key not in _DERIVED}
        about = {**info, "num_sequences": len(self), "fingerprint": self.fingerprint}
        # The text is made first: an `info` that cannot be stored must not replace the array.
        try:
            text = json.dumps(about, indent=2, sort_keys=True, default=_plain_value) + "\n"
        except (TypeError, ValueError) as error:
            raise UserError(f"Expected an ordering's info to hold JSON values, found: {error}.") from None
        # A kill between the two leaves an old fingerprint beside the new array, which `load` finds.
        write_array(path, self.indices)
        write_text(path.with_suffix(".json"), text)

    @classmethod
    def load(cls, path: str | Path) -> Ordering:
        """Read the files of `save`, or any one-axis .npy of integers without a .json beside it.

        Raises:
            ValueError: not such a file, not a bijection, changed since it was saved, or the .json of another ordering.
        """
        path = Path(path)
        try:
            # Not np.load: it treats other files as pickles and advises to allow pickles.
            values = np.lib.format.open_memmap(path, mode="r")
        except FileNotFoundError:
            raise UserError(f"Expected an ordering at {path}, found no such file.") from None
        except Exception as error:  # a broken header makes NumPy raise various errors
            raise UserError(f"Expected an ordering (.npy) at {path}: {in_one_line(error)}") from None
        about = _read_about(path.with_suffix(".json"))
        try:
            indices = as_integers("an ordering's indices", values)
            loaded = cls(indices, {key: value for key, value in about.items() if key not in _DERIVED})
        except ValueError as error:
            raise UserError(f"Expected an ordering (.npy) at {path}: {error}") from None
        # Also finds a .npy that a killed `save` replaced while the .json still belongs to the earlier array.
        if about and about["fingerprint"] != loaded.fingerprint:
            raise UserError(
                f"{path} was changed after it was saved: its fingerprint is {loaded.fingerprint[:16]}, "
                f"{path.stem}.json has {about['fingerprint'][:16]}; restore the file or delete the .json."
            )
        return loaded


class Positions:
    """The sequence at every position of a run, which may repeat and leave out sequences.

    Attributes:
        indices: the sequence at every position, read-only.
        num_sequences: the number of sequences that `indices` refer to.
        info: how they were made.

    Raises:
        UserError: `indices` is not an axis of integers, or holds one outside 0 .. num_sequences - 1.
    """

    def __init__(self, indices: Any, num_sequences: int, info: Mapping[str, Any] | None = None) -> None:
        # A copy: the user's array stays writable, and later changes of it do not change this value.
        self.indices = np.array(as_integers("positions", indices, below=num_sequences))
        self.indices.setflags(write=False)
        self.num_sequences, self.info = num_sequences, dict(info or {})

    def __len__(self) -> int:
        return len(self.indices)

    def __reduce__(self) -> tuple[Any, ...]:
        return Positions, (self.indices, self.num_sequences, self.info)  # an array's pickle is writable

    @property
    def fingerprint(self) -> str:
        """Hash of the indices and of the number of sequences."""
        digest = hashlib.sha256(f"positions over {self.num_sequences} sequences\n".encode())
        digest.update(self.indices.tobytes())
        return digest.hexdigest()


def check_ordering(name: str, value: Any) -> None:
    """Refuse an argument that is not an `Ordering`."""
    check_type(name, value, Ordering, "an Ordering; make one with jd.order")


def as_integers(name: str, values: Any, least: int = 0, below: int = 2**63) -> Int64[np.ndarray, " value"]:
    """Check that a user's values are one axis of integers; they are not copied if they are int64 already."""
    try:
        values = np.asarray(values)
    except Exception as error:  # rows of different lengths; errors of other libraries' arrays
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


def _plain_value(value: Any) -> Any:
    """NumPy's numbers and arrays as JSON can hold them."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{value!r} of the type {type(value).__name__}")


def _read_about(path: Path) -> dict[str, Any]:
    """The content of the .json beside an ordering; empty if there is none."""
    try:
        about = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError, OSError) as error:
        raise UserError(f"Expected {path} to describe its ordering, found invalid JSON ({error}); delete it.") from None
    if not isinstance(about, dict) or not isinstance(about.get("fingerprint"), str):
        raise UserError(f"Expected {path} to describe its ordering, found no fingerprint in it; move it elsewhere.")
    return about
