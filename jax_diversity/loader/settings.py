"""The settings that `make_loader` and `stream_batches` share, checked once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from jax_diversity.foundation.checks import whole_number
from jax_diversity.foundation.errors import UserError
from jax_diversity.records.decoding import FIELDS

ENDLESS = 2**62
"""The number of positions of a run without a last epoch."""

ORIGIN_FIELDS = ("dataset_index", "sequence_index")
"""The fields that say where each row of a batch of several datasets comes from."""

_DTYPES = ("int32", "int64", "uint32", "float32")
_SMALLEST = {
    "global_batch_size": 1,
    "num_epochs": 1,
    "start_position": 0,
    "host_index": 0,
    "num_hosts": 1,
    "num_prefetch": 0,
    "num_threads": 1,
    "num_workers": 0,
}


@dataclass(frozen=True)
class LoaderSettings:
    """Settings of a loader; `make_loader` documents each. Make one with `checked`."""

    global_batch_size: int
    num_epochs: int | None = 1
    start_position: int = 0
    drop_remainder: bool = True
    host_index: int = 0
    num_hosts: int = 1
    sharding: jax.sharding.Sharding | None = None
    fields: tuple[str, ...] = FIELDS
    names: Mapping[str, str] = field(default_factory=dict)
    dtype: str = "int32"
    merge_segments: bool = False
    num_prefetch: int = 2
    num_threads: int = 1
    num_workers: int = 0

    @classmethod
    def checked(cls, **given: Any) -> LoaderSettings:
        """Settings as a user gives them, as plain values.

        Whole numbers become Python's own, which JSON can hold: the position in a saved state is computed from them.

        Raises:
            UserError: the first setting that is not valid.
        """
        for name, smallest in _SMALLEST.items():
            if name in given and not (name == "num_epochs" and given[name] is None):
                given[name] = whole_number(name, given[name], smallest)
        given["names"] = dict(given.get("names") or {})
        _check_fields(fields := given.get("fields", FIELDS), given["names"])
        given["fields"] = tuple(fields)
        for name in {"drop_remainder", "merge_segments"} & given.keys():
            if not isinstance(given[name], bool | np.bool_):  # any other value would silently count as one of them
                raise UserError(f"Expected {name} to be True or False, found {given[name]!r}.")
        if (sharding := given.get("sharding")) is not None:
            _check_sharding(sharding, given.get("num_hosts", 1))
        given["dtype"] = _dtype_name(given.get("dtype", "int32"), on_devices=sharding is not None)
        settings = cls(**given)
        if settings.num_workers and not settings.num_prefetch:
            raise UserError("Expected num_prefetch >= 1 with num_workers, found 0: workers make batches ahead.")
        return settings

    def end(self, num_positions: int) -> int:
        """The position after the last epoch, of epochs with that many positions."""
        return ENDLESS if self.num_epochs is None else num_positions * self.num_epochs


def _check_fields(fields: Any, names: Mapping[str, str]) -> None:
    listed = isinstance(fields, Collection) and not isinstance(fields, str)
    unknown = [field for field in fields if field not in FIELDS] if listed else fields
    if unknown or not listed or not fields:
        raise UserError(f"Expected a list of fields among {', '.join(FIELDS)}, found {unknown or fields!r}.")
    known = {*FIELDS, *ORIGIN_FIELDS}
    if unknown := sorted(set(names) - known):
        raise UserError(f"Expected names of fields ({', '.join(sorted(known))}), found {unknown}.")
    named = [names.get(field, field) for field in (*fields, *ORIGIN_FIELDS)]
    if len(set(named)) != len(named):
        raise UserError(f"Expected different names for different fields, found {named}.")


def _dtype_name(dtype: Any, *, on_devices: bool) -> str:
    """A type's name; on devices it must be one that JAX does not narrow."""
    try:
        chosen = np.dtype("O" if dtype is None else dtype)
    except TypeError:
        chosen = np.dtype("O")
    if chosen not in map(np.dtype, _DTYPES):
        raise UserError(f"Expected dtype to be {', '.join(_DTYPES[:-1])} or {_DTYPES[-1]}, found {dtype!r}.")
    if on_devices and (kept := jax.dtypes.canonicalize_dtype(chosen)) != chosen:
        raise UserError(
            f"Expected a dtype that JAX keeps with sharding=, found {chosen.name}, of which it makes {kept.name}; "
            f'take {kept.name}, or call jax.config.update("jax_enable_x64", True) first.'
        )
    return chosen.name


def _check_sharding(sharding: Any, num_hosts: int) -> None:
    if num_hosts != 1:
        raise UserError(
            f"Expected sharding= without num_hosts, found num_hosts={num_hosts}: the sharding says which "
            "rows each process holds."
        )
    if not isinstance(sharding, jax.sharding.Sharding):
        raise UserError(f"Expected a jax.sharding.Sharding, such as a NamedSharding, found {sharding!r}.")
