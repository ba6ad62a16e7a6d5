"""What refinement does on the accelerator: the best exchanges between two cells, for many pairs at once.

`refinement` says what a cell is, what an exchange changes and why it is a matrix product. Here

- each pair's steering `Y_i - Y_j` is summed in integers: exact, whatever the order in which an accelerator adds;
- both cells' rows are made dense, dealt at random into blocks, and every block is multiplied with its counterpart;
- blocks offer their best exchange, the best offers are accepted first, each only if it still gains after those
  before it, and so on until nothing gains.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float32, Float64, Int32

from jax_diversity.ordering.deviation import Rows, build_rows, padded
from jax_diversity.ordering.objective import Features

_MAX_ROUNDS = 32  # of offers in one pair; most pairs end after two or three


class Tables(NamedTuple):
    """The sequences' rows and what scales them: `v_s` is (counts - τ tokens) times the scale, then the extras."""

    rows: Rows
    extras: Float32[Array, "sequence extra"]
    targets: Float32[Array, " column"]
    scale: Float32[Array, " column"]


class Pairing(NamedTuple):
    """Which cells are paired, and what their exchange changes.

    `offsets` lead from the first cell of a pair to the cells that `Y_i - Y_j` is made of; `weights` is their part.
    """

    distance: Int32[Array, ""]
    offsets: Int32[Array, " neighbour"]
    weights: Int32[Array, " neighbour"]
    leverage: Float32[Array, ""]
    num_cells: Int32[Array, ""]


class Sizes(NamedTuple):
    """What a compilation depends on besides the tables' shapes."""

    cell: int
    num_blocks: int
    pairs_at_once: int


class Drawn(NamedTuple):
    """The two cells' rows, as dealt into blocks; values scaled."""

    columns: Int32[Array, "2 row slot"]
    values: Float32[Array, "2 row slot"]
    tokens: Float32[Array, "2 row"]
    dense: Float32[Array, "2 row feature"]
    squares: Float32[Array, "2 row"]


class Search(NamedTuple):
    """The state of a pair: `f`, who has not moved yet, who is where."""

    pulls: Float32[Array, "2 row"]
    free: Bool[Array, "2 row"]
    sequences: Int32[Array, "2 row"]
    num_exchanged: Int32[Array, ""]
    num_rounds: Int32[Array, ""]
    going: Bool[Array, ""]


def build_tables(features: Features, length: int, floors: Float64[np.ndarray, " sequence"]) -> Tables:
    """The features on the device, scaled to sequence lengths; the extras centred."""
    norms = math.sqrt(features.column_weights[-1]) * features.norms.astype(np.float64) / length
    extras = np.stack([norms - norms.mean(), floors - floors.mean()], axis=1).astype(np.float32)
    rows = build_rows(features)
    return Tables(
        rows=rows,
        extras=jnp.asarray(np.pad(extras, ((0, len(rows.tokens) - len(extras)), (0, 0)))),
        targets=jnp.asarray(features.targets[:-1], jnp.float32),
        scale=jnp.asarray(np.sqrt(features.column_weights[:-1]) / length, jnp.float32),
    )


def build_pairing(distance: int, cells_per_window: int, num_cells: int) -> Pairing:
    """What pairs at a distance have in common; of the same shapes at every distance."""

    def shared(apart: int) -> int:
        return max(cells_per_window - abs(apart), 0)

    candidates = np.arange(-cells_per_window + 1, distance + cells_per_window)
    weights = np.array([shared(offset) - shared(offset - distance) for offset in candidates.tolist()])
    size = 2 * (2 * cells_per_window - 1)
    used = np.flatnonzero(weights)
    return Pairing(
        distance=jnp.int32(distance),
        offsets=padded(candidates[used].astype(np.int32), size),
        weights=padded(weights[used].astype(np.int32), size),
        leverage=jnp.float32(2 * (shared(0) - shared(distance))),
        num_cells=jnp.int32(num_cells),
    )


@functools.partial(jax.jit, static_argnames="sizes")
def exchange(
    tables: Tables,
    order: Int32[Array, " position"],
    firsts: Int32[Array, " pair"],
    dealt: Int32[Array, "pair 2 row"],
    pairing: Pairing,
    sizes: Sizes,
) -> tuple[Int32[Array, " position"], Int32[Array, ""]]:
    """Exchange sequences between the cells of every pair.

    Args:
        tables: the corpus.
        order: the sequence at every position.
        firsts: first cells of pairs that share no window; -1 is no pair.
        dealt: for both cells of every pair their rows in the order in which they fill the blocks.
        pairing: the distance to the second cells.
        sizes: what is compiled for.

    Returns:
        The new order, and the number of exchanges.
    """
    positions, sequences, num_exchanged = lax.map(
        lambda pair: _exchange_pair(tables, order, pair[0], pair[1], pairing, sizes),
        (firsts, dealt),
        batch_size=sizes.pairs_at_once,
    )
    return order.at[positions.ravel()].set(sequences.ravel(), mode="drop"), num_exchanged.sum()


def _exchange_pair(
    tables: Tables,
    order: Int32[Array, " position"],
    first: Int32[Array, ""],
    dealt: Int32[Array, "2 row"],
    pairing: Pairing,
    sizes: Sizes,
) -> tuple[Int32[Array, "2 row"], Int32[Array, "2 row"], Int32[Array, ""]]:
    cells = jnp.maximum(first, 0) + jnp.stack([jnp.int32(0), pairing.distance])
    positions = cells[:, None] * sizes.cell + dealt
    drawn = _draw(tables, order[positions])
    blocks = drawn.dense.reshape(2, sizes.num_blocks, -1, drawn.dense.shape[-1])
    squares = drawn.squares.reshape(2, sizes.num_blocks, -1)
    products = jnp.einsum("nic,njc->nij", blocks[0], blocks[1], precision=lax.Precision.HIGHEST)
    spread = pairing.leverage * (squares[0][:, :, None] + squares[1][:, None, :] - 2 * products)
    pulls = 2 * _along(tables, drawn, _difference(tables, order, cells[0], pairing, sizes.cell))
    # Far above the rounding of float32: an exchange must truly gain.
    least = 1e-4 * pairing.leverage * drawn.squares.max() + 4e-6 * jnp.abs(pulls).max()
    start = Search(pulls, jnp.ones_like(positions, bool), order[positions], jnp.int32(0), jnp.int32(0), first >= 0)
    found = lax.while_loop(
        lambda search: search.going & (search.num_rounds < _MAX_ROUNDS),
        lambda search: _improve(tables, drawn, spread, search, pairing.leverage, least),
        start,
    )
    return jnp.where(first >= 0, positions, len(order)), found.sequences, found.num_exchanged


def _improve(
    tables: Tables,
    drawn: Drawn,
    spread: Float32[Array, "block row row"],
    search: Search,
    leverage: Float32[Array, ""],
    least: Float32[Array, ""],
) -> Search:
    """Every block offers its best exchange; the best first, those are accepted that gain."""
    num_blocks, size, _ = spread.shape
    pulls = jnp.where(search.free, search.pulls, jnp.array([[-jnp.inf], [jnp.inf]])).reshape(2, num_blocks, size)
    change = spread + pulls[1][:, None, :] - pulls[0][:, :, None]
    lowest = change.min(axis=2)
    left = lowest.argmin(axis=1)
    right = jnp.take_along_axis(change, left[:, None, None], axis=1)[:, 0].argmin(axis=1)
    rows = jnp.arange(num_blocks) * size + jnp.stack([left, right])
    moved = drawn.dense[1, rows[1]] - drawn.dense[0, rows[0]]
    crossed = 2 * leverage * jnp.einsum("ac,bc->ab", moved, moved, precision=lax.Precision.HIGHEST)
    taken = _accept(lowest.min(axis=1), crossed, least)
    step = leverage * jnp.where(taken[:, None], moved, 0).sum(axis=0)
    sides = jnp.arange(2)[:, None]
    here = search.sequences[sides, rows]
    return Search(
        pulls=search.pulls + 2 * _along(tables, drawn, step),
        free=search.free.at[sides, rows].set(search.free[sides, rows] & ~taken),
        sequences=search.sequences.at[sides, rows].set(jnp.where(taken, here[::-1], here)),
        num_exchanged=search.num_exchanged + taken.sum(dtype=jnp.int32),
        num_rounds=search.num_rounds + 1,
        going=taken.any(),
    )


def _accept(
    changes: Float32[Array, " block"], crossed: Float32[Array, "block block"], least: Float32[Array, ""]
) -> Bool[Array, " block"]:
    """Which offers are accepted; each accepted one adds its row of `crossed` to the others' changes."""

    def accept(_: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
        changes, taken = state
        best = jnp.where(taken, jnp.inf, changes).argmin()
        gains = ~taken[best] & (changes[best] < -least)
        return jnp.where(gains, changes + crossed[best], changes), taken.at[best].set(taken[best] | gains)

    return lax.fori_loop(0, len(changes), accept, (changes, jnp.zeros(len(changes), bool)))[1]


def _read(rows: Rows, sequences: Int32[Array, "*any"], num_columns: int) -> tuple[Array, Array]:
    """Columns and counts; unused slots hold a column past the end and a count of zero."""
    slots = rows.starts[sequences][..., None] + rows.slots
    used = slots < rows.starts[sequences + 1][..., None]
    return jnp.where(used, rows.columns[slots], num_columns), jnp.where(used, rows.values[slots], 0)


def _draw(tables: Tables, sequences: Int32[Array, "2 row"]) -> Drawn:
    columns, counts = _read(tables.rows, sequences, len(tables.targets))
    values = counts * tables.scale.at[columns].get(mode="fill", fill_value=0)
    tokens = tables.rows.tokens[sequences]
    side, row = jnp.arange(2)[:, None, None], jnp.arange(sequences.shape[1])[None, :, None]
    # A row's columns differ: no two values meet, and the sum does not depend on an order.
    dense = (-tokens[..., None] * tables.targets * tables.scale).at[side, row, columns].add(values, mode="drop")
    dense = jnp.concatenate([dense, tables.extras[sequences]], axis=2)
    return Drawn(columns, values, tokens, dense, (dense**2).sum(axis=2))


def _along(tables: Tables, drawn: Drawn, direction: Float32[Array, " feature"]) -> Float32[Array, "2 row"]:
    """`<direction, v_s>` of every row, by its non-zeros."""
    num_columns = len(tables.targets)
    steady = _halving_sum(direction[:num_columns] * tables.targets * tables.scale)
    read = direction[:num_columns].at[drawn.columns].get(mode="fill", fill_value=0)
    extras = sum(drawn.dense[..., column] * direction[column] for column in (num_columns, num_columns + 1))
    return (drawn.values * read).sum(axis=-1) - drawn.tokens * steady + extras


def _difference(
    tables: Tables, order: Array, first: Int32[Array, ""], pairing: Pairing, cell_size: int
) -> Float32[Array, " feature"]:
    """`Y_i - Y_j`; windows that hang over the ends count with what they hold."""
    cells = first + pairing.offsets
    weights = jnp.where((cells >= 0) & (cells < pairing.num_cells), pairing.weights, 0)
    within = jnp.clip(cells, 0, pairing.num_cells - 1)
    sequences = order[within[:, None] * cell_size + jnp.arange(cell_size)]
    columns, counts = _read(tables.rows, sequences, len(tables.targets))
    weighted = weights[:, None, None] * counts.astype(jnp.int32)
    summed = jnp.zeros(len(tables.targets), jnp.int32).at[columns].add(weighted, mode="drop")
    tokens = (weights[:, None] * tables.rows.tokens[sequences].astype(jnp.int32)).sum(dtype=jnp.int32)
    excess = (summed.astype(jnp.float32) - tokens.astype(jnp.float32) * tables.targets) * tables.scale
    extras = _halving_sum((weights[:, None, None] * tables.extras[sequences]).reshape(-1, tables.extras.shape[1]))
    return jnp.concatenate([excess, extras])


def _halving_sum(values: Float32[Array, "row *any"]) -> Float32[Array, "*any"]:
    """The sum over the first axis, halves added to halves: of the same rounding however many pairs run at once."""
    while len(values) > 1:
        half = -(-len(values) // 2)
        values = values[:half] + jnp.pad(values[half:], [(0, 2 * half - len(values))] + [(0, 0)] * (values.ndim - 1))
    return values[0]
