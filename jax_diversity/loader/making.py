"""A loader from datasets, an ordering and some counts, all of them checked."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, SupportsIndex

import jax
import numpy as np

from jax_diversity.dataset import Dataset, open_dataset
from jax_diversity.dataset.orderings import is_file_name, load_ordering
from jax_diversity.foundation.errors import UserError
from jax_diversity.loader.batches import OrderedBatches
from jax_diversity.loader.iteration import Ahead, Loader
from jax_diversity.loader.orders import EpochOrders, Order, OrderFile, OrderIndex, ScheduleIndex
from jax_diversity.loader.placing import Placement
from jax_diversity.loader.sources import ORIGIN, ConcatenatedSource, RecordSource, SequenceSource
from jax_diversity.loader.windows import ENDLESS, Windows
from jax_diversity.records.decoding import FIELDS
from jax_diversity.schema import Ordering, Schedule

_DTYPES = ("int32", "int64", "uint32", "float32")


def make_loader(
    dataset: str | Path | Dataset | Sequence[str | Path | Dataset],
    *,
    ordering: Any = "balance",
    global_batch_size: SupportsIndex,
    num_epochs: SupportsIndex | None = 1,
    seed: SupportsIndex = 0,
    start_position: SupportsIndex = 0,
    drop_remainder: bool = True,
    host_index: SupportsIndex = 0,
    num_hosts: SupportsIndex = 1,
    sharding: Any = None,
    fields: Sequence[str] = FIELDS,
    names: Mapping[str, str] | None = None,
    dtype: str | type | np.dtype = "int32",
    merge_segments: bool = False,
    num_prefetch: SupportsIndex = 2,
    num_threads: SupportsIndex = 1,
    num_workers: SupportsIndex = 0,
    cache_folder: str | Path | None = None,
    sequence_length: SupportsIndex | None = None,
) -> Loader:
    """A Grain dataset of batches in an ordering's order.

    Args:
        dataset: a built dataset, its folder or its address on an object store; or several, whose sequences count
            end to end in a blend.
        ordering: the name of one of the dataset's orderings, a .npy file, or an ordering itself (any sequence of
            integers); a schedule or blend, which may repeat and omit sequences; or a function from the epoch
            (0, 1 ...) to its ordering, for another order in every epoch. Of several datasets: a blend, a schedule
            or an ordering over all their sequences.
        global_batch_size: B, sequences of a batch over all hosts.
        num_epochs: how often every sequence comes, or a schedule is run through; None never ends.
        seed: kept for what draws; every epoch follows the ordering itself, so nothing does yet.
        start_position: the global position of the first batch.
        drop_remainder: what becomes of the very last sequences, when they do not fill a batch: dropped, or, when
            False, filled up with rows of padding only. Every host sees the same number of batches either way.
        host_index: this host (`jax.process_index()`); not with `sharding`, which knows.
        num_hosts: all hosts (`jax.process_count()`); divides the batch.
        sharding: a `jax.sharding.Sharding` of arrays (row, token): batches are then global `jax.Array`s, placed on
            the devices ahead of time. Row j of the batch is row j of the array, whatever the number of processes.
        fields: which arrays a batch holds. Each is memory to be written: `("inputs",)` alone comes about twice as
            fast as all six.
        names: field -> the name it has in a batch, such as {"inputs": "tokens"}; the same where not given. The
            fields' own names are those that MaxText and the Flax examples read.
        dtype: of the arrays: int32, int64, uint32 or float32. With `sharding`, int64 needs JAX's
            `jax_enable_x64`.
        merge_segments: number all of a sequence's segments 1 and count positions through, so that a document
            attends to those before it and its first token is a target; False keeps documents apart.
        num_prefetch: batches made ahead in the background; 0 makes each when asked for.
        num_threads: threads that make them.
        num_workers: processes that make them instead; they take seconds to start. The program's own file must be
            importable without running it (`if __name__ == "__main__":`), as for all processes of Python's.
        cache_folder: where files of a dataset on an object store are kept, see `open_dataset`. A record file is
            fetched whole when it is first needed; `stream_batches` keeps none.
        sequence_length: L that the model expects; rows of another length are refused. None takes any.

    Returns:
        A `grain.IterDataset` of dicts of arrays (B / num_hosts, L), see `records.decode`; of several datasets with
        `dataset_index` and `sequence_index` of every row besides. Its iterator's state is the next position and the
        fingerprints of dataset and ordering; it may be restored with another batch size, or number of hosts,
        threads or workers.

    Raises:
        UserError: a setting that cannot be (a count that is no whole number, too), an unknown ordering, one made
            for another number of sequences or that lies in another dataset, sequences of another length than the
            model expects.

    An ordering that says of itself that it was made of other token counts than the dataset's orderings is followed
    with a warning: it may be one by weights or matrices of your own.

    Example:
        >>> for batch in make_loader("out/", ordering="balance", global_batch_size=64):
        ...     batch["inputs"].shape
        (64, 512)
    """
    whole_number("seed", seed)
    source, order = _opened(dataset, ordering, cache_folder)
    _check_length(source, sequence_length)
    return assemble(
        source,
        order,
        global_batch_size=global_batch_size,
        num_epochs=num_epochs,
        start_position=start_position,
        drop_remainder=drop_remainder,
        host_index=host_index,
        num_hosts=num_hosts,
        sharding=sharding,
        fields=fields,
        names=names,
        dtype=dtype,
        merge_segments=merge_segments,
        num_prefetch=num_prefetch,
        num_threads=num_threads,
        num_workers=num_workers,
    )


def assemble(
    source: SequenceSource,
    order: Order,
    *,
    global_batch_size: Any,
    num_epochs: Any,
    start_position: Any,
    drop_remainder: bool,
    host_index: Any,
    num_hosts: Any,
    sharding: Any,
    fields: Sequence[str],
    names: Mapping[str, str] | None,
    dtype: Any,
    merge_segments: bool,
    num_prefetch: Any,
    num_threads: Any,
    num_workers: Any = 0,
    kind: type[Loader] = Loader,
) -> Loader:
    """A loader of what is open already; the arguments are those of `make_loader`, here checked.

    Raises:
        UserError: a setting that cannot be.
    """
    counts = {"global_batch_size": global_batch_size, "start_position": start_position}
    counts |= {"host_index": host_index, "num_hosts": num_hosts}
    whole: dict[str, Any] = {name: whole_number(name, value) for name, value in counts.items()}
    num_epochs = None if num_epochs is None else whole_number("num_epochs", num_epochs)
    ahead = _ahead(num_prefetch=num_prefetch, num_threads=num_threads, num_workers=num_workers)
    check_fields(fields, names)
    dtype = _checked_dtype(dtype, on_devices=sharding is not None)
    check_switches(drop_remainder=drop_remainder, merge_segments=merge_segments)
    end = ENDLESS if num_epochs is None else len(order) * num_epochs
    windows = Windows(num_sequences=len(order), end=end, drop_remainder=drop_remainder, **whole)
    placement = None
    if sharding is not None:
        placement = _placement(sharding, windows, source.width)
        windows = replace(windows, row_numbers=placement.row_numbers)
    batches = OrderedBatches(source, order, windows, fields, merge_segments=merge_segments, names=names, dtype=dtype)
    return kind(batches, ahead, placement)


def whole_number(name: str, value: Any) -> int:
    """A count as Python's own integer, which JSON can hold."""
    try:
        return operator.index(value)
    except TypeError:
        raise UserError(f"Expected {name} to be a whole number, found {value!r}.") from None


def _check_length(source: SequenceSource, expected: Any) -> None:
    if expected is not None and source.width != (expected := whole_number("sequence_length", expected)):
        raise UserError(
            f"Expected sequences of {expected} tokens, found {source.width} in {source!r}; pack with "
            f"packing.sequence_length={expected}, or give the model that length."
        )


def _ahead(**counts: Any) -> Ahead:
    whole = {name: whole_number(name, value) for name, value in counts.items()}
    for name, least in (("num_prefetch", 0), ("num_threads", 1), ("num_workers", 0)):
        if whole[name] < least:
            raise UserError(f"Expected {name} >= {least}, found {whole[name]}.")
    if whole["num_workers"] and not whole["num_prefetch"]:
        raise UserError("Expected num_prefetch >= 1 with num_workers, found 0: workers make batches ahead.")
    return Ahead(**whole)


def check_fields(fields: Any, names: Mapping[str, str] | None = None) -> None:
    """Refuse fields that no batch has, and two of one name.

    Raises:
        UserError: no such field, none at all, or fields that would share a name.
    """
    listed = isinstance(fields, Collection) and not isinstance(fields, str)
    unknown = [field for field in fields if field not in FIELDS] if listed else fields
    if unknown or not listed or not fields:
        raise UserError(f"Expected a list of fields among {', '.join(FIELDS)}, found {unknown or fields!r}.")
    known = {*FIELDS, *ORIGIN}
    if unknown := sorted(set(names or {}) - known):
        raise UserError(f"Expected names of fields ({', '.join(sorted(known))}), found {unknown}.")
    named = [(names or {}).get(field, field) for field in (*fields, *ORIGIN)]
    if len(set(named)) != len(named):
        raise UserError(f"Expected different names for different fields, found {named}.")


def check_switches(**values: Any) -> None:
    """Refuse what is neither True nor False: any other value would count as one of them.

    Raises:
        UserError: another value.
    """
    for name, value in values.items():
        if not isinstance(value, bool | np.bool_):
            raise UserError(f"Expected {name} to be True or False, found {value!r}.")


def _checked_dtype(dtype: Any, *, on_devices: bool) -> str:
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


def _placement(sharding: Any, windows: Windows, width: int) -> Placement:
    if windows.num_hosts != 1:
        raise UserError(
            f"Expected sharding= without num_hosts, found num_hosts={windows.num_hosts}: the sharding says which "
            "rows each process holds."
        )
    if not isinstance(sharding, jax.sharding.Sharding):
        raise UserError(f"Expected a sharding of JAX's, such as a NamedSharding, found {sharding!r}.")
    return Placement(sharding, (windows.global_batch_size, width))


def _opened(dataset: Any, ordering: Any, cache_folder: str | Path | None) -> tuple[SequenceSource, Order]:
    """What is read, and in which order."""
    if isinstance(dataset, str | Path | Dataset):
        if hasattr(ordering, "to_schedule"):  # a blend
            raise UserError(
                f"Expected the list of the datasets that were blended, found one dataset with {ordering!r}; give "
                "make_loader([first, second, ...], ordering=blend)."
            )
        opened = open_any(dataset, cache_folder)
        source, order = _record_source(opened), order_over(opened.num_sequences, ordering, opened)
        if isinstance(order, OrderIndex) and source.layout and source.layout.fingerprint == order.fingerprint:
            source.records = source.records.forward()
        return source, order
    if not isinstance(dataset, Iterable):
        raise UserError(f"Expected a dataset, its folder or address, or several of them, found {dataset!r}.")
    datasets = [open_any(each, cache_folder) for each in dataset]
    if not datasets:
        raise UserError("Expected at least one dataset, found none.")
    sources = [_record_source(each) for each in datasets]
    widths = sorted({source.width for source in sources})
    if len(widths) > 1:
        raise UserError(f"Expected datasets with sequences of one length, found lengths {widths}.")
    sizes = tuple(map(len, sources))
    if hasattr(ordering, "to_schedule"):
        _check_blended(ordering.num_sequences, sizes)
        ordering = ordering.to_schedule()
    if isinstance(ordering, str) and not is_file_name(ordering):
        raise UserError(
            f"Expected a blend, a schedule or an ordering over all {sum(sizes)} sequences of several datasets, "
            f"found the name {ordering!r}; make one with jax_diversity.blend."
        )
    return ConcatenatedSource(sources), order_over(sum(sizes), ordering)


def _check_blended(blended: Sequence[int], sizes: Sequence[int]) -> None:
    if len(blended) != len(sizes):
        raise UserError(f"Expected the {len(blended)} datasets of the blend, in its order, found {len(sizes)}.")
    for index, (expected, found) in enumerate(zip(blended, sizes, strict=True)):
        if expected != found:
            raise UserError(
                f"Expected a blend of these datasets, in this order; dataset {index} has {found} sequences, the "
                f"blend's {expected}. Blend them anew, or give those that were blended."
            )


def open_rows(dataset: str | Path | Dataset) -> RecordSource:
    """A dataset's sequences by number, whatever the layout of its records."""
    return _record_source(open_any(dataset))


def resolve_order(dataset: str | Path | Dataset, ordering: Any) -> Order:
    """What `ordering` means for a dataset, see `make_loader`.

    Raises:
        UserError: an unknown ordering, or one made for another number of sequences.
    """
    opened = open_any(dataset)
    return order_over(opened.num_sequences, ordering, opened)


def open_any(dataset: str | Path | Dataset, cache_folder: str | Path | None = None) -> Dataset:
    """A dataset that is open already, or that lies in a folder or at an address.

    Raises:
        UserError: none of these, or no dataset there.
    """
    if not isinstance(dataset, str | Path | Dataset):
        raise UserError(f"Expected a dataset, or its folder or address, found {dataset!r}.")
    return dataset if isinstance(dataset, Dataset) else open_dataset(dataset, cache_folder=cache_folder)


def _record_source(dataset: Dataset) -> RecordSource:
    name = dataset.layout_ordering
    layout = None if name is None else named_order(dataset, name)
    return RecordSource(dataset.records, layout, dataset.fingerprint)


def named_order(dataset: Dataset, name: str) -> OrderIndex:
    """One of a dataset's orderings, left on disk where the manifest says how to know it again.

    Raises:
        UserError: an unknown ordering, a changed file, or one for another number of sequences.
    """
    path, fingerprint = dataset.ordering_file(name)
    if fingerprint is None:
        return OrderIndex(_checked_length(dataset.orderings[name], dataset.num_sequences), path.absolute())
    return OrderFile(path.absolute(), fingerprint, dataset.num_sequences)


def _checked_length(ordering: Ordering, num_sequences: int) -> Ordering:
    if len(ordering) != num_sequences:
        raise UserError(
            f"Expected an ordering of the dataset's {num_sequences} sequences, found {len(ordering)}; "
            "make it anew with `jax-diversity order`."
        )
    return ordering


def order_over(num_sequences: int, ordering: Any, dataset: Dataset | None = None) -> Order:
    """What `ordering` means for so many sequences; only a dataset knows names of orderings.

    Raises:
        UserError: an unknown ordering, or one made for another number of sequences.
    """
    if isinstance(ordering, Schedule):
        if ordering.num_sequences != num_sequences:
            raise UserError(
                f"Expected a schedule over the dataset's {num_sequences} sequences, found one over "
                f"{ordering.num_sequences}; it was made for another dataset."
            )
        if dataset is not None:
            dataset.check_origin(ordering)
        return ScheduleIndex(ordering)
    if callable(ordering):
        make: Any = ordering
        return EpochOrders(make, num_sequences)
    path = None
    if is_file_name(ordering):
        path = Path(ordering).absolute()
        ordering = load_ordering(path)
    elif isinstance(ordering, str) and dataset is not None:
        return named_order(dataset, ordering)
    elif not isinstance(ordering, Ordering):
        ordering = _positions(ordering)
    order = OrderIndex(_checked_length(ordering, num_sequences), path)
    if dataset is not None:
        dataset.check_origin(ordering, path)
    return order


def _positions(ordering: Any) -> Ordering:
    """An ordering given as plain numbers."""
    try:
        indices = np.asarray(ordering)
        if indices.dtype.kind not in "iu":
            found = f"{indices.dtype} of shape {indices.shape}" if indices.dtype != object else repr(ordering)
            raise UserError(f"Expected an ordering of whole numbers, found {found}.")
        return Ordering(indices.astype(np.int64))
    except ValueError as error:
        raise UserError(str(error)) from None
