"""Making and changing stored runs: epochs in fresh orders, mixtures by weight, additions, skipped positions.

Every dataset is read epoch after epoch. Each epoch has its own order. The order takes the end of the previous epoch
into account: sequences of one document, and copies, stay apart across the boundary. Datasets are mixed by the rule of
`interleaving`, or ordered jointly (`mixture`). A change keeps all earlier positions. Sequences that were used in an
epoch are not repeated in it: the rest of the epoch is ordered again. The method counts the used sequences as already
placed.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
from jaxtyping import Int64

from jax_diversity.counts import Characteristics
from jax_diversity.counts.targets import Targets
from jax_diversity.foundation.artifacts import write_array
from jax_diversity.foundation.checks import as_whole_number, check_type
from jax_diversity.foundation.errors import UserError, did_you_mean, quoted
from jax_diversity.foundation.locks import locked
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.foundation.warned import warn
from jax_diversity.ordering.base import METHODS, check_uses, order
from jax_diversity.ordering.objective import Objective, as_objective
from jax_diversity.ordering.plan import as_epoch
from jax_diversity.schema import Ordering
from jax_diversity.schema.prepared import evaluation_lists
from jax_diversity.streaming.dataset import Dataset
from jax_diversity.streaming.run.background import Maker
from jax_diversity.streaming.run.content import Content, Member, Part, Slice, Version
from jax_diversity.streaming.run.leaks import TrainingPart, training_part
from jax_diversity.streaming.run.mixture import (
    NumberQueue,
    consecutively,
    has_own_shares,
    in_turn,
    jointly,
    sized,
    unread,
)
from jax_diversity.streaming.run.run import SCHEDULE_FILE, Datasets, open_datasets, times_before
from jax_diversity.streaming.run.settings import DATASET, Mixture
from jax_diversity.streaming.run.stored import StoredRun, relative, schedule_folder

_SHORTEST_PART = 1 << 16
"""The smallest number of positions in a part: half a megabyte of numbers."""
_ORDER_SETTINGS = ("method", "seed", "objective", "targets")


def create_schedule(
    path: str | Path,
    datasets: Datasets,
    *,
    ordering: str | Ordering | None = None,
    background: bool = False,
    advance: Advance = ignore,
    **settings: Any,
) -> StoredRun:
    """Make a run of several epochs or datasets and store it.

    Args:
        path: a folder for the run, such as `out/schedules/run`; it must not contain a run yet.
        datasets: a built dataset, its folder or address, or several. All datasets with a weight above zero must have
            the same sequence length.
        ordering: the order of the first epoch, for a run of one dataset: an ordering, or the name of a stored one.
            Training that used this ordering can continue in the run from any position
            (`make_loader(start_position=...)`).
        background: whether to return after the first part (about an epoch); a thread makes the other parts. A reader
            in any process waits for parts that are not ready. The thread stops when its process ends; after that,
            readers of a missing part raise an error with the position from which `extend_schedule` can continue.
        advance: called with the number of positions ordered since its last call.
        settings: the fields of `Mixture` set the length of the run and the mixture of datasets: `num_epochs` or
            `num_positions`, `weights`, `targets` of the family `dataset`, `joint`, `interleaving`, `held_out` and
            others. `method`, `seed`, `objective`, `targets` and the method's options set the order of every epoch, as
            in `order`. `balance`, `greedy` and `greedy_pool` take the end of the previous epoch into account. The first
            epoch has the seed `seed`, the next one `seed + 1`, and so on, so that all epochs have different orders.
            `targets` are the target shares of every epoch; their phases are positions within an epoch. Without an
            `objective`, windows of the batch size of the datasets are balanced; the description of the version says
            which.

    Raises:
        UserError: the folder already contains a run, or another process writes to it; an unknown setting; datasets
            that train on each other's held-out texts, unless `held_out` allows it; unequal sequence lengths; both
            `num_epochs` and `num_positions`; datasets of several feature spaces in a joint order; a weight with an
            unknown name, or shares that whole sequences cannot reach; a limit on repetitions that cannot be kept;
            settings that `order` refuses.

    Example:
        >>> run = create_schedule("run", ["web", "code"], weights=[3, 1], num_positions=1_000_000)
        >>> loader = make_loader(run, global_batch_size=64)
    """
    root, opened = schedule_folder(path), open_datasets(datasets)
    mixture, order_settings = _divided(settings)
    part = training_part(opened, mixture.held_out)
    mixture, total = sized(mixture, part.datasets)
    orders = _Orders(advance=advance, **order_settings)
    if ordering is not None:
        orders.first = _first_order(ordering, opened, mixture)

    def steps() -> Generator[StoredRun, None, None]:
        with locked(root):
            if (root / SCHEDULE_FILE).exists():
                raise UserError(
                    f"Expected a folder without a schedule, found one at {root}; change it with extend_schedule, or "
                    "name another folder."
                )
            members = tuple(_member(dataset, root) for dataset in opened)
            pieces = orders.continued(np.zeros(0, np.int64), part, total, mixture)
            content = Content(secrets.token_hex(16), members, (), ())
            change = f"created{mixture}{part.change}"
            targeted = orders.targeted(mixture, part, np.zeros(0, np.int64))
            yield from _stored(
                root, content, (), pieces, total, orders, mixture, opened, change, targeted, as_made=background
            )

    return _made(root, steps(), orders, background)


def extend_schedule(
    schedule: StoredRun,
    *,
    position: SupportsIndex | None = None,
    datasets: Datasets = (),
    background: bool = False,
    advance: Advance = ignore,
    **settings: Any,
) -> StoredRun:
    """Add a version that changes the run from a position on: its length, weights or targets, or its datasets.

    All earlier positions stay the same, bit for bit. Sequences that were used in the current epoch of a dataset are not
    repeated in it; all other sequences are read before the next epoch begins.

    Args:
        schedule: the last version of a stored run.
        position: the first position that changes, such as a checkpoint's; None means the end of the run.
        datasets: datasets to add; from the position on, sequences may have another length.
        background: see `create_schedule`.
        advance: see `create_schedule`.
        settings: see `create_schedule`. `seed` defaults to the seed of the previous version; the number of the epoch is
            added to it, so that later epochs get new seeds. No other setting is kept. Length, weights and targets apply
            from the position on. `weights` contains all datasets, old ones first. Without a length the run keeps its
            end; if the position is the end, the run gets one more epoch. Positions before the change count towards
            `max_repeats`.

    Returns:
        The new version of the run. Its loader accepts the state of a loader of an earlier version, if the state's
        position is not after the change.

    Raises:
        UserError: the version is not the last; the position is beyond the end; another process changes the run; and
            the errors of `create_schedule`.

    Example:
        >>> run = extend_schedule(run, position=640_000, datasets=["books"], weights=[3, 1, 2])
    """
    _check_stored(schedule)
    added = open_datasets(datasets)
    opened = [*schedule.datasets, *added]
    place = len(schedule) if position is None else as_whole_number("position", position, 0, len(schedule))
    if settings.get("num_epochs") is None and settings.get("num_positions") is None and place < len(schedule):
        settings["num_positions"] = len(schedule) - place
    mixture, order_settings = _divided(settings)
    if order_settings.get("seed") is None:
        order_settings["seed"] = schedule.content.versions[schedule.version - 1].seed
    part = training_part(opened, mixture.held_out)
    mixture, total = sized(mixture, part.datasets)
    orders = _Orders(advance=advance, **order_settings)
    root, kept = schedule.root, schedule.before(place)

    def steps() -> Generator[StoredRun, None, None]:
        # Read before the folder is locked: a missing part is an error only while no process holds the lock.
        history = schedule.history(place)
        with locked(root):
            content = _unchanged(schedule)
            content = replace(content, datasets=(*content.datasets, *(_member(dataset, root) for dataset in added)))
            pieces = orders.continued(history, part, total, mixture)
            change = f"from position {place:,} on{mixture}{part.change}"
            targeted = orders.targeted(mixture, part, history)
            yield from _stored(
                root, content, kept, pieces, total, orders, mixture, opened, change, targeted, as_made=background
            )

    return _made(root, steps(), orders, background)


def _divided(settings: Mapping[str, Any]) -> tuple[Mixture, dict[str, Any]]:
    """The settings of the mixture, and the settings by which its epochs are ordered."""
    of_mixture = [setting.name for setting in fields(Mixture)]
    method = settings.get("method", "balance")
    METHODS.check_name(method)
    names = [*of_mixture, *_ORDER_SETTINGS, *METHODS.option_names(method)]
    for name in settings:
        if name not in names:
            raise UserError(
                f"Unknown setting {quoted(name)}; expected one of {', '.join(names)}{did_you_mean(name, names)}"
            )
    check_uses(method, **{name: settings[name] for name in _ORDER_SETTINGS[1:] if settings.get(name) is not None})
    chosen = {name: value for name, value in settings.items() if name in of_mixture}
    return Mixture(**chosen), {name: value for name, value in settings.items() if name not in of_mixture}


def skip_positions(schedule: StoredRun, start: SupportsIndex, stop: SupportsIndex) -> StoredRun:
    """Add a version without some positions, such as a batch that made the loss diverge.

    All later sequences move forward by the number of skipped positions. Skipped sequences are not read later in their
    epoch. To undo a skip, call `extend_schedule` with a position before it.

    Args:
        schedule: the last version of a stored run.
        start: the first position that is left out.
        stop: the first position after the skipped ones.

    Raises:
        UserError: the version is not the last; positions beyond the end; another process changes the run.

    Example:
        >>> run = skip_positions(run, 64 * 1200, 64 * 1201)  # step 1200 of batches of 64
    """
    _check_stored(schedule)
    first = as_whole_number("start", start, 0, len(schedule))
    last = as_whole_number("stop", stop, first, len(schedule))
    with locked(schedule.root):
        content = _unchanged(schedule)
        current = content.versions[-1]
        slices: list[Slice] = []
        position = 0
        for slice_of_version in current.slices:
            if slice_of_version.skipped:
                slices.append(slice_of_version)
                continue
            # The bounds of the skipped positions: clipped to this slice, then converted to indices of the part.
            cuts = [
                slice_of_version.start + min(max(cut - position, 0), len(slice_of_version)) for cut in (first, last)
            ]
            bounds = [slice_of_version.start, *cuts, slice_of_version.stop]
            pieces = zip(bounds[:-1], bounds[1:], (False, True, False), strict=True)
            slices += [
                Slice(slice_of_version.part, begin, end, skipped) for begin, end, skipped in pieces if begin < end
            ]
            position += len(slice_of_version)
        version = Version(tuple(slices), current.num_datasets, f"positions {first:,} to {last:,} skipped", current.seed)
        content = replace(content, versions=(*content.versions, version))
        content.write(schedule.root)
    return StoredRun(schedule.root, content, len(content.versions), schedule.given)


class _Orders:
    """Orders epochs with the settings of `order`."""

    def __init__(
        self,
        method: str = "balance",
        seed: SupportsIndex = 0,
        objective: Objective | str | None = None,
        targets: Targets | Mapping[str, Any] | None = None,
        *,
        advance: Advance,
        **options: Any,
    ) -> None:
        self.method, self.seed, self.advance = method, as_whole_number("seed", seed, 0), advance
        self.first: Ordering | None = None
        self.objective, self.targets, self.options = as_objective(objective), targets, options

    def windows_of(self, datasets: Sequence[Dataset]) -> str:
        """The windows that are balanced, for the description of a version; empty without windows."""
        windows: set[int] = set()
        if METHODS.takes(self.method, "objective"):
            of_datasets = (dataset.batch_size for dataset in datasets)
            windows = {size for size in of_datasets if size} if self.objective is None else {*self.objective.windows}
        return f", windows of {', '.join(map(str, sorted(windows)))}" if windows else ""

    @property
    def target_families(self) -> tuple[str, ...]:
        """The families with targets."""
        shares = getattr(self.targets, "shares", self.targets)
        return tuple(map(str, shares)) if isinstance(shares, Mapping) else ()

    def targeted(self, mixture: Mixture, part: TrainingPart, history: Int64[np.ndarray, " used"]) -> tuple[str, ...]:
        """The value `targeted` of a version that continues after a history."""
        is_moving = has_own_shares(mixture, part.datasets, part.own_numbers(history))
        return (*self.target_families, *([DATASET] if is_moving else []))

    def continued(
        self, history: Int64[np.ndarray, " used"], part: TrainingPart, count: int, mixture: Mixture
    ) -> Iterator[Int64[np.ndarray, " _position"]]:
        """The next `count` sequences after a history; skipped sequences count as used."""
        pieces = self._pieces(part.own_numbers(history), part.datasets, count, mixture)
        return pieces if part.numbers is None else (part.numbers[piece] for piece in pieces)

    def _pieces(
        self, history: Int64[np.ndarray, " used"], datasets: Sequence[Dataset], count: int, mixture: Mixture
    ) -> Iterator[Int64[np.ndarray, " _position"]]:
        if mixture.consecutive:
            return consecutively(datasets, history, count, self.epoch)
        if not mixture.is_joint:
            return in_turn(mixture, datasets, history, count, self.epochs)
        if self.targets is not None:
            raise UserError("Expected a joint order without targets, found targets; give their shares as weights.")
        return jointly(mixture, datasets, history, count, self.part)

    def epochs(self, dataset: Dataset, used: Int64[np.ndarray, " used"]) -> Iterator[Int64[np.ndarray, " position"]]:
        """Yield the rest of a dataset's current epoch after the sequences `used`, then all later epochs."""
        # Each sequence has its own number of epochs: in a joint order, groups can be in different epochs.
        before = times_before(used)
        epoch = int(np.bincount(used, minlength=dataset.num_sequences).min())
        previous = used[before == epoch - 1] if epoch else None
        while True:
            consumed = used[before == epoch]
            rest = self.epoch(dataset, epoch, previous, consumed)
            yield rest
            previous, epoch = np.concatenate([consumed, rest]), epoch + 1

    def epoch(self, dataset: Dataset, epoch: int, previous: Any, consumed: Any = ()) -> Int64[np.ndarray, " position"]:
        """Order the rest of an epoch after its beginning (`consumed`); `previous` is the order before."""
        if epoch == 0 and self.first is not None:  # only in a new schedule, where nothing was consumed
            return self.first.indices
        settings = {} if self.targets is None else {"targets": self.targets}
        if METHODS.takes(self.method, "plan"):
            settings |= {"previous": None if previous is None else Ordering(previous)}
            settings |= {"consumed": consumed} if len(consumed) else {}
        elif len(consumed):
            METHODS.check_takes(self.method, "plan", "continue from the middle of an epoch")
        return self._made(dataset.characteristics, epoch, settings)[len(consumed) :]

    def part(self, chars: Characteristics, num_before: int, number: int) -> Int64[np.ndarray, " position"]:
        """Order the sequences from number `num_before` on.

        The sequences with smaller numbers were already read, in the order of their numbers.
        """
        before = np.arange(num_before)
        rest = np.arange(num_before, chars.num_sequences)
        if not num_before or not METHODS.takes(self.method, "plan"):
            return rest[self._made(chars.take(rest), number, {})]
        # The targets are the shares of this part alone. Earlier sequences are used only to keep documents and copies
        # apart.
        objective = Objective() if self.objective is None else self.objective
        own_chars, families = chars.take(rest), objective.resolved_weights(chars)
        targets = {family: own_chars.target_share(family) for family in families}
        return self._made(chars, number, {"consumed": before, "targets": targets})[num_before:]

    def _made(self, chars: Characteristics, number: int, settings: Mapping[str, Any]) -> Int64[np.ndarray, " position"]:
        settings = {"objective": self.objective, **self.options, **settings}
        if METHODS.takes(self.method, "seed"):
            settings["seed"] = self.seed + number
        return order(chars, self.method, advance=self.advance, **settings).indices


def _check_stored(schedule: StoredRun) -> None:
    check_type("schedule", schedule, StoredRun, "a StoredRun; open one with jd.open_schedule")


def _first_order(ordering: str | Ordering, datasets: Sequence[Dataset], mixture: Mixture) -> Ordering:
    if len(datasets) != 1 or mixture.is_joint:
        description = "a joint order" if mixture.is_joint else f"{len(datasets)} datasets"
        raise UserError(
            f"Expected ordering only in a run of one dataset that is not joint, found {description}; leave "
            "ordering out."
        )
    if isinstance(ordering, str):
        return datasets[0].find_ordering(ordering)
    return Ordering(as_epoch(ordering, datasets[0].num_sequences))


def _made(root: Path, steps: Generator[StoredRun, None, None], orders: _Orders, background: bool) -> StoredRun:
    """Execute all steps and return the last StoredRun.

    With `background`, a thread executes the steps; return the StoredRun of the first step.
    """
    if not background:
        return list(steps)[-1]
    maker: Maker[StoredRun] = Maker(root)
    orders.advance = maker.advancing(orders.advance)
    return maker.first(steps)


def _stored(
    root: Path,
    content: Content,
    kept: tuple[Slice, ...],
    pieces: Iterator[Int64[np.ndarray, " _piece"]],
    total: int,
    orders: _Orders,
    mixture: Mixture,
    datasets: Sequence[Dataset],
    change: str,
    targeted: tuple[str, ...],
    *,
    as_made: bool,
) -> Generator[StoredRun, None, None]:
    """Write parts of about an epoch.

    The version is stored once, after the last part; if `as_made` is true, it is stored after every part.

    Warns:
        UserWarning: no position of the version reads a dataset.
    """
    seed = f", seed {orders.seed}" if METHODS.takes(orders.method, "seed") else ""
    of_targets = f", targets of {' and '.join(orders.target_families)}" if orders.target_families else ""
    change = f"{change}; ordered by {orders.method}{seed}{orders.windows_of(datasets)}{of_targets}"
    before, key = content.parts, secrets.token_hex(16)
    epoch = sum(dataset.num_sequences for dataset in datasets)
    length = epoch * -(-_SHORTEST_PART // epoch)
    lengths = [min(length, total - start) for start in range(0, total, length)]
    numbers = range(len(before), len(before) + len(lengths))
    planned: list[Part] = []
    slices = (Slice(number, 0, size) for number, size in zip(numbers, lengths, strict=True))
    version = Version((*kept, *slices), len(datasets), change, orders.seed, targeted)
    versions = (*content.versions, version)
    num_read = np.zeros(len(datasets), np.int64)
    ends, stream = np.cumsum([dataset.num_sequences for dataset in datasets]), NumberQueue(pieces)
    for index, length in enumerate(lengths):
        part = stream.take(length)
        if not planned:
            # All sequences of one call have one length.
            tokens = datasets[int(np.searchsorted(ends, part[0], side="right"))].sequence_length
            for number, size in zip(numbers, lengths, strict=True):
                planned.append(Part(f"part-{number:06d}.npy", size, tokens, f"{key}-{number}"))
        # The part is written before the schedule file. After a kill between the two writes, the part is an unused
        # file, and a later part of the same name overwrites it.
        write_array(root / planned[index].file, part)
        planned[index] = replace(planned[index], fingerprint=hashlib.sha256(part.tobytes()).hexdigest())
        num_read += np.bincount(np.searchsorted(ends, part, side="right"), minlength=len(ends))
        is_last = index == len(planned) - 1
        if is_last and not num_read.all():
            # Positions of earlier versions, too, may read a dataset that the new ones do not read.
            extended = replace(content, parts=(*before, *planned), versions=versions)
            earlier = StoredRun(root, extended, len(versions), datasets)
            num_read += np.bincount(earlier.places(np.arange(len(earlier) - total))[0], minlength=len(ends))
            if lacking := unread(mixture, datasets, num_read, total):
                change = f"{change}, no position reads {', '.join(lacking)}"
                versions = (*content.versions[: len(versions) - 1], replace(version, change=change))
                warn(
                    f"No position of the run at {root} reads the dataset {', '.join(lacking)}; raise its weight (a "
                    "dataset that the weights do not name has weight 0), make the run longer, or leave the dataset out."
                )
        if as_made or is_last:
            content = replace(content, parts=(*before, *planned), versions=versions)
            content.write(root)
            yield StoredRun(root, content, len(versions), datasets)


def _unchanged(schedule: StoredRun) -> Content:
    """The content of the run's file; raises a `UserError` if a version was added after the run was opened."""
    content = Content.read(schedule.root / SCHEDULE_FILE)
    if content.id != schedule.content.id or len(content.versions) != schedule.version:
        raise UserError(
            f"Expected version {schedule.version} to be the last of the schedule at {schedule.root}, found "
            f"{len(content.versions)}; open the schedule again, and look at the changes."
        )
    return content


def _member(dataset: Dataset, root: Path) -> Member:
    sizes = dataset.num_sequences, dataset.sequence_length, dataset.num_loss_tokens
    lists = evaluation_lists(dataset.stored)
    return Member(relative(dataset.address, root), dataset.fingerprint, *sizes, lists)
