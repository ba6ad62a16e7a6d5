"""Parts of a balanced stream that are ordered at the same time, each by a pool of its own.

The stream is cut into parts of equal size. Which sequences come before a part is known before any part is ordered, so
the part's pool starts from the exact deviation of all earlier sequences (`Plan.part`). At a cut, the deviation of a
stream is larger than that of an ordering: a pool would correct it at once, with unbalanced windows. Therefore sequences
on both sides of each cut are exchanged first, until the deviation there stops falling.

The number of parts depends only on the number of sequences. The ordering is therefore the same for any number of
threads, devices and hosts.
"""

from __future__ import annotations

import contextvars
import itertools
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float64, Int64
from scipy.sparse import csr_array

from jax_diversity.foundation.devices import default_device, is_accelerator, processor
from jax_diversity.foundation.processes import in_threads, num_cores
from jax_diversity.foundation.progress import Advance
from jax_diversity.ordering.features import Features
from jax_diversity.ordering.mesh import flat_mesh, from_all_processes, shared_checkpoint
from jax_diversity.ordering.plan import Plan, PrefixSums, inverse
from jax_diversity.ordering.pool import PoolSelector, PoolSettings, PoolSizes, run_together
from jax_diversity.ordering.running import Checkpoint, drive

REACH = 8192
"""Number of sequences on each side of a cut that may be exchanged."""
_MOST_PARTS, _MOST_BYTES = 256, 2**32
"""Number of parts that an accelerator orders at once, and bytes of all their pools' tables. The arrays of a call need
about three times as many bytes."""
_STEPS_OF_A_CORE = 5
"""Number of sequences that a core places while an accelerator places one sequence in each of many pools."""
_LEAST_GAIN = 1e-3
"""Exchanges stop when one lowers `||D||²` by less than this share of a sequence's mean `||v||²`."""


def parts_of(num_sequences: int, part_size: int) -> int:
    """Return the number of parts, 1, 2, 4, 8 ..., so that a part has about `part_size` sequences.

    Example:
        >>> parts_of(100_000, 32_768)
        4
    """
    # Powers of two: 2, 4, 8 ... cores get equal loads, and the cuts are boundaries of the stream's halving.
    num_sequences = max(num_sequences, 1)
    return 1 << min(max(round(np.log2(num_sequences / part_size)), 0), num_sequences.bit_length() - 1)


class CutSides:
    """The sequences on the two sides of a cut, as many on the left as on the right, and the deviation D at the cut.

    An exchange of the sequences x (left) and y (right) changes D to `D - v_x + v_y`. Deferred columns are left out:
    they would need most of the time, and each of them has a small part of the deviation.
    """

    def __init__(
        self,
        features: Features,
        rows: Int64[np.ndarray, " row"],
        targets: Float64[np.ndarray, " column"],
        deviation: Float64[np.ndarray, " column"],
    ) -> None:
        kept = np.flatnonzero(~features.deferred[:-1])
        self._weights = features.column_weights[kept]
        self._norm_weight = features.column_weights[-1]
        entries, lengths = features.entries(rows), features.lengths(rows)
        values, columns = features.values[entries].astype(np.float64), features.columns[entries].astype(np.int32)
        counts = csr_array((values, columns, np.append(0, np.cumsum(lengths))), shape=(len(rows), len(targets) - 1))
        self._counts = csr_array(counts[:, kept]) if len(kept) < counts.shape[1] else counts
        self._tokens = features.tokens[rows].astype(np.float64)
        self._norms = features.norms[rows] - targets[-1]
        # `<λ τ, c_s>` and `<λ τ, τ>`. NumPy's sum has the same order of additions on every machine, unlike BLAS.
        weighted_targets = self._weights * targets[kept]
        self._along_target = self._counts @ weighted_targets
        self._target_square = float((weighted_targets * targets[kept]).sum())
        # `<λ D, v_s>`; an exchange changes D, and so these products.
        weighted = self._weights * deviation[kept]
        self._products = self._counts @ weighted - float((weighted * targets[kept]).sum()) * self._tokens
        self._products += self._norm_weight * float(deviation[-1]) * self._norms
        squares = self._square_norms()
        self._least_gain = _LEAST_GAIN * float(squares.mean())
        self._was_left = np.arange(len(rows)) < len(rows) // 2
        # `||v_s||²` of the sequences that may leave their side or join the left; else infinity.
        self._leaving, self._joining = squares.copy(), squares
        self._leaving[~self._was_left] = self._joining[self._was_left] = np.inf

    def _products_of(self, row: int) -> Float64[np.ndarray, " row"]:
        """Return `<λ v_row, v_s>` of all sequences."""
        entries, tokens = slice(*self._counts.indptr[row : row + 2]), self._tokens[row]
        weighted, columns = np.zeros_like(self._weights), self._counts.indices[entries]
        weighted[columns] = self._weights[columns] * self._counts.data[entries]
        products = self._counts @ weighted
        # <c_x - t_x τ, c_s - t_s τ> = <c_x, c_s> - t_x <τ, c_s> - t_s (<τ, c_x> - t_x <τ, τ>), all weighted by λ.
        products -= tokens * self._along_target
        products -= (self._along_target[row] - tokens * self._target_square) * self._tokens
        if self._norm_weight:
            products += self._norm_weight * self._norms[row] * self._norms
        return products

    def _square_norms(self) -> Float64[np.ndarray, " row"]:
        """Return `||v_s||²` with the weights λ."""
        squares = csr_array((self._counts.data**2, self._counts.indices, self._counts.indptr), self._counts.shape)
        excess = self._tokens * (self._tokens * self._target_square - 2.0 * self._along_target)
        return squares @ self._weights + excess + self._norm_weight * self._norms**2

    def exchange(self) -> bool:
        """Exchange the best sequence of the left and the best for it if `||D||²` falls; return whether it did."""
        # ||D - v_x||² - ||D||², then ||D - v_x + v_y||² - ||D - v_x||².
        leaving = self._leaving - 2.0 * self._products
        x = int(np.argmin(leaving))
        of_x = self._products_of(x)
        self._products -= of_x
        joining = self._joining + 2.0 * self._products
        y = int(np.argmin(joining))
        if leaving[x] + joining[y] > -self._least_gain:
            return False
        self._products += self._products_of(y)
        self._leaving[y], self._joining[x] = self._joining[y], self._leaving[x]
        self._leaving[x] = self._joining[y] = np.inf
        return True

    def arranged(self) -> Int64[np.ndarray, " row"]:
        """Return the rows in their new order: an exchanged sequence has the place of one from the other side."""
        rows, is_left = np.arange(len(self._tokens)), np.isfinite(self._leaving)
        left, right = np.flatnonzero(self._was_left & ~is_left), np.flatnonzero(~self._was_left & is_left)
        rows[left], rows[right] = right, left
        return rows


def repair_cuts(plan: Plan, stream: Int64[np.ndarray, " remaining"], bounds: Sequence[int]) -> list[PrefixSums]:
    """Exchange sequences across each cut of the stream, in place, and return the sums before each part.

    Args:
        plan: features, targets and consumed sequences.
        stream: the remaining sequences.
        bounds: where the parts begin, and the end of the last.
    """
    first = len(plan.consumed)
    of_parts = [plan.before(stream[a:b], first + a) for a, b in itertools.pairwise(bounds)]
    sums = list(itertools.accumulate(of_parts[:-1], PrefixSums.plus, initial=plan.before(plan.consumed)))
    reach = min(REACH, min(b - a for a, b in itertools.pairwise(bounds)) // 2)

    def repair(number: int) -> None:
        cut = bounds[number]
        left = slice(cut - reach, cut)
        places = np.arange(cut - reach, cut + reach)
        phase = int(np.searchsorted(plan.starts, first + cut, side="right")) - 1
        sides = CutSides(plan.features, stream[places], plan.targets[phase], plan.carried + sums[number].excess)
        while sides.exchange():
            pass
        former = plan.before(stream[left], first + left.start)
        stream[places] = stream[places][sides.arranged()]
        sums[number] = sums[number].plus(plan.before(stream[left], first + left.start)).minus(former)

    # The cuts do not share sequences, so that they are repaired at the same time.
    in_threads(repair, range(1, len(bounds) - 1) if reach else ())
    return sums


def select_in_parts(
    plan: Plan,
    stream: Int64[np.ndarray, " remaining"],
    numbers: Int64[np.ndarray, " sequence"],
    settings: PoolSettings,
    *,
    num_parts: int,
) -> Int64[np.ndarray, " remaining"]:
    """Order the plan's remaining sequences in parts, several at the same time; see `pool.select_from_pool`.

    On processors, as many parts are ordered at the same time as there are cores; on accelerators, many parts on each
    device of the mesh, or on the default device if there are many parts. The devices do not communicate.
    """
    bounds = [len(stream) * part // num_parts for part in range(num_parts + 1)]
    objective, advance, devices = settings.objective, settings.advance, flat_mesh(settings.mesh)
    befores = repair_cuts(plan, stream, bounds)
    places = inverse(numbers)
    # A part's sequences in the order of `numbers`, so that the first of equal candidates has the lowest index.
    streams = [stream[a:b] for a, b in itertools.pairwise(bounds)]
    sorted_streams = [np.argsort(places[part]) for part in streams]
    parts = [part[by_number] for part, by_number in zip(streams, sorted_streams, strict=True)]
    after = befores[-1].plus(plan.before(parts[-1], len(plan.consumed) + bounds[-2]))
    deviations = [plan.carried + sums.excess for sums in (*befores, after)]  # before every part, and at the end
    # Windows reach back from the first part to the consumed sequences, whose order is known, but not from other parts.
    last_consumed = plan.consumed[max(len(plan.consumed) - max(objective.windows, default=0), 0) :]
    befores[0] = befores[0].minus(plan.before(last_consumed, len(plan.consumed) - len(last_consumed)))
    known_before = [last_consumed] + [last_consumed[:0]] * (len(parts) - 1)
    sizes = PoolSizes.of(
        plan.features,
        [np.concatenate(rows) for rows in zip(known_before, parts, strict=True)],
        max(map(len, parts)),
        settings.pool_size,
    )

    def start_part(number: int) -> tuple[PoolSelector, Plan]:
        part_plan = plan.part(parts[number], len(plan.consumed) + bounds[number], befores[number], known_before[number])
        if len(plan.targets) > 1:
            part_plan = part_plan.straightened(deviations[number], deviations[number + 1])
        places = len(known_before[number]) + inverse(sorted_streams[number])
        return PoolSelector(part_plan, objective, places, sizes, aging=settings.aging), part_plan

    def order_parts(numbers: Sequence[int], advance: Advance) -> list[Int64[np.ndarray, " _part"]]:
        # The deviation before a part is known, so an interrupted run repeats at most the parts that were not finished.
        if len(numbers) == 1:
            placed = [drive(*start_part(numbers[0]), advance, Checkpoint())]
        else:
            with jax.default_device(processor()):
                started = [start_part(number) for number in numbers]
            orders = run_together(
                [selector for selector, _ in started], [len(parts[number]) for number in numbers], advance
            )
            placed = [order[len(part_plan.consumed) :] for order, (_, part_plan) in zip(orders, started, strict=True)]
        return [
            parts[number][order[: len(parts[number])] - len(known_before[number])]
            for number, order in zip(numbers, placed, strict=True)
        ]

    indices = np.empty_like(stream)
    finished = np.zeros(len(parts), bool)
    kept = shared_checkpoint(settings.checkpoint or Checkpoint(), devices)
    if saved := kept.load():
        indices, finished = saved["indices"], saved["finished"]
        advance(int(np.diff(bounds)[finished].sum()))

    def state() -> dict[str, np.ndarray]:
        return {"indices": indices, "finished": finished}

    try:
        waiting = np.flatnonzero(~finished).tolist()
        # The targets of a run change at the same step for all of its pools, so with several targets pools run alone.
        at_once = _most_at_once(plan.features, sizes) if len(plan.targets) == 1 else 1
        for number, placed in _in_processes(waiting, order_parts, advance, devices, at_once):
            indices[bounds[number] : bounds[number + 1]] = placed
            finished[number] = True
            if not finished.all():
                kept.save_when_due(state)
    except KeyboardInterrupt:
        kept.save(state())
        raise
    kept.remove()
    return indices


def _most_at_once(features: Features, sizes: PoolSizes) -> int:
    """Return the number of parts that an accelerator orders at the same time."""
    table = sizes.num_slots * len(features.targets) * np.dtype(sizes.table_type).itemsize
    return max(min(_MOST_BYTES // table, _MOST_PARTS), 1)


OrderParts = Callable[[Sequence[int], Advance], list[Int64[np.ndarray, " _part"]]]


def _in_processes(
    numbers: list[int], order_parts: OrderParts, advance: Advance, mesh: Mesh | None, at_once: int
) -> Iterator[tuple[int, Int64[np.ndarray, " _part"]]]:
    """Yield all parts. If the mesh has devices of several processes, each orders some parts, and all get all."""
    workers = _worker_devices(mesh, len(numbers) if at_once > 1 else 1)
    at_once = at_once if is_accelerator(workers[0]) else 1
    if mesh is None or not mesh.is_multi_process:
        yield from _in_threads(numbers, order_parts, advance, workers, at_once)
        return
    processes = sorted({device.process_index for device in mesh.devices.flat})
    rank, num_processes = processes.index(jax.process_index()), len(processes)
    # The processes exchange their parts after every round. All processes take part in every exchange.
    size = num_processes * len(workers) * at_once
    for first in range(0, len(numbers), size):
        round_numbers = numbers[first : first + size]
        process_orders = dict(_in_threads(round_numbers[rank::num_processes], order_parts, advance, workers, at_once))
        for other, orders in enumerate(
            from_all_processes(mesh, [process_orders[number] for number in round_numbers[rank::num_processes]])
        ):
            if other != rank:
                advance(sum(map(len, orders)))
            yield from zip(round_numbers[other::num_processes], orders, strict=True)


def _worker_devices(mesh: Mesh | None, num_parts: int) -> list[Any]:
    """Return the device of every thread: every accelerator of this process, or one processor for each core.

    Without a mesh, an accelerator orders only if there are so many parts that it is faster than the processors.
    """
    if mesh is None:
        device = default_device()
        if is_accelerator(device) and num_parts < _STEPS_OF_A_CORE * num_cores():
            device = processor()
        devices = [device]
    else:
        devices = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
    return devices if is_accelerator(devices[0]) else devices[:1] * num_cores()


class _Stopped(Exception):
    """Ends a thread whose result is not needed any more."""


def _in_threads(
    numbers: list[int], order_parts: OrderParts, advance: Advance, workers: Sequence[Any], at_once: int
) -> Iterator[tuple[int, Int64[np.ndarray, " _part"]]]:
    """Yield the parts as they are finished. Each worker orders some parts at a time. Only this thread calls `advance`.

    A worker takes at most `at_once` parts, and no more than its share.
    """
    waiting, messages = queue.SimpleQueue[list[int]](), queue.SimpleQueue[Any]()
    stopped = threading.Event()
    # All rounds of a worker get nearly the same number of parts.
    num_rounds = -(-len(numbers) // (at_once * len(workers)))
    size = max(-(-len(numbers) // max(num_rounds * len(workers), 1)), 1) if at_once > 1 else 1
    for first in range(0, len(numbers), size):
        waiting.put(numbers[first : first + size])

    def tell(amount: int) -> None:
        if stopped.is_set():
            raise _Stopped
        messages.put(amount)

    def work(device: Any) -> None:
        try:
            with jax.default_device(device):
                while True:
                    taken = waiting.get_nowait()
                    for order in zip(taken, order_parts(taken, tell), strict=True):
                        messages.put(order)
        except queue.Empty:
            messages.put(None)
        except BaseException as error:
            messages.put(error)

    # The context has the display of progress, which shows when a thread compiles.
    threads = [
        threading.Thread(target=contextvars.copy_context().run, args=(work, device), daemon=True)
        for device in workers[: len(numbers)]
    ]
    for thread in threads:
        thread.start()
    try:
        running = len(threads)
        while running:
            message = messages.get()
            if message is None:
                running -= 1
            elif isinstance(message, BaseException):
                raise message
            elif isinstance(message, int):
                advance(message)
            else:
                yield message
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
