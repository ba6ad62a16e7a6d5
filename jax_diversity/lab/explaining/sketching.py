"""Sketches of the gradients of single sequences: one pass over the sequences, in bounded memory, over all devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from jax_diversity.foundation.devices import flat_mesh
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance, ignore

Loss = Callable[[Any, Any], Array]
"""A function of parameters and one sequence (a pytree of arrays without a leading axis) that returns its loss."""
_AXIS = "sequences"
_TOGETHER = 8  # gradients that a device holds at the same time
_OWN_WEIGHT = 0.05  # 1 - β₂ of Adam, as in the lab's optimiser


def sketch(gradients: Any, size: int, seed: int = 0) -> Float[Array, " size"]:
    """The count sketch of a pytree of arrays: each entry is added, with a random sign, to one of `size` numbers.

    The inner product of two sketches of one seed is an unbiased estimate of the pytrees' inner product; its variance is
    at most 2 ||a||² ||b||² / size (Charikar, Chen and Farach-Colton 2002, "Finding frequent items in data streams").

    Example:
        >>> sketch({"weight": jnp.ones((8, 8))}, size=16).shape
        (16,)
    """
    total = jnp.zeros(size, jnp.float32)
    for number, leaf in enumerate(jax.tree.leaves(gradients)):
        place, sign = jax.random.split(jax.random.fold_in(jax.random.key(seed), number))
        places = jax.random.randint(place, (leaf.size,), 0, size)
        signs = jax.random.rademacher(sign, (leaf.size,), jnp.float32)
        total = total.at[places].add(signs * leaf.reshape(-1).astype(jnp.float32))
    return total


class Sketches(NamedTuple):
    """What is kept of the sequences' gradients.

    Attributes:
        raw: sketches of the gradients (sequence, number).
        adam: sketches of the gradients as Adam scales them.
        losses: the sequences' losses.
        mean_square: squared norm of the mean gradient, without bias from the sample's size.
        variance: sum of the variances of all entries of a gradient.
    """

    raw: Float[np.ndarray, "sequence number"]
    adam: Float[np.ndarray, "sequence number"]
    losses: Float[np.ndarray, " sequence"]
    mean_square: float
    variance: float

    @property
    def noise_scale(self) -> float:
        """The variance of a gradient divided by the squared norm of the mean, in sequences; infinite without a mean.

        It is the "simple" noise scale of McCandlish, Kaplan and Amodei 2018, "An empirical model of large-batch
        training", equation 2.9.
        """
        return self.variance / self.mean_square if self.mean_square > 0 else float("inf")


def sketch_gradients(
    loss: Loss,
    parameters: Any,
    batches: Iterable[Any],
    *,
    batch_size: int,
    sketch_size: int,
    seed: int = 0,
    mesh: Mesh | None = None,
    advance: Advance = ignore,
) -> Sketches:
    """Sketch the gradient of every sequence, raw and as Adam scales it.

    The batches are read twice. The first pass computes the losses, and the mean and the mean square of every entry of a
    gradient. The second moment of the gradient of a batch of B then is `v = mean² + variance / B`. The second pass
    sketches `g` and `g / sqrt(.95 v + .05 (g / B)²)`: with `1 / sqrt(v)` alone, a few rows of rare tokens would decide.

    Args:
        loss: the loss of one sequence.
        parameters: a pytree of arrays.
        batches: pytrees of arrays (row, ...). They must be readable twice, as a list is.
        batch_size: B, the number of sequences in a batch of training.
        sketch_size: numbers in a sketch.
        seed: seed of the sketch.
        mesh: the devices that share the rows; None means one device.
        advance: called with the number of sequences after every batch of both passes.

    Raises:
        UserError: an iterator; fewer than two sequences; batches without rows or with arrays of different lengths; a
            loss that is not a scalar, or not finite; gradients that are all zero or not finite.
    """
    if isinstance(batches, Iterator):
        raise UserError(
            "Expected batches that can be read twice, such as a list, found an iterator; pass list(batches)."
        )
    mesh = None if mesh is None else flat_mesh(mesh, _AXIS)
    if mesh is not None:
        parameters = jax.device_put(parameters, NamedSharding(mesh, PartitionSpec()))
    losses, mean, variances = _moments(loss, parameters, batches, mesh, advance)
    number = len(losses)
    variance = sum(float(leaf.sum()) for leaf in jax.tree.leaves(variances))
    norm = sum(float((leaf**2).sum()) for leaf in jax.tree.leaves(mean))
    if not np.isfinite(variance + norm):
        raise UserError("Expected finite gradients, found NaN or infinite ones; check the loss and the parameters.")
    if not variance > 0:
        raise UserError(
            "Expected gradients that differ between sequences, found equal ones or zeros; check that the loss depends "
            "on the parameters and on the sequence."
        )
    second = jax.tree.map(lambda centre, variance: centre**2 + variance / batch_size, mean, variances)
    centre, second = jax.tree.map(lambda leaf: leaf.astype(np.float32), (mean, second))
    if mesh is not None:
        centre, second = jax.device_put((centre, second), NamedSharding(mesh, PartitionSpec()))
    reduce_rows = _compiled_sketches(loss, batch_size, sketch_size, seed, mesh)
    parts: list[tuple[np.ndarray, np.ndarray]] = []
    for rows, _, count in _padded(batches, mesh):
        raw, scaled = reduce_rows(parameters, rows, centre, second)
        parts.append((np.asarray(raw)[:count], np.asarray(scaled)[:count]))
        advance(count)
    if sum(len(raw) for raw, _ in parts) != number:
        raise UserError("Expected the same batches in both passes, found another number of sequences in the second.")
    raw, scaled = (np.concatenate(pieces) for pieces in zip(*parts, strict=True))
    # The squared norm of a sample's mean is too large by variance / n.
    return Sketches(raw, scaled, losses, norm - variance / number, variance)


def _moments(
    loss: Loss, parameters: Any, batches: Iterable[Any], mesh: Mesh | None, advance: Advance
) -> tuple[Float[np.ndarray, " sequence"], Any, Any]:
    """The first pass: the losses, and the mean and the variance of every entry of a gradient."""
    add_rows = _compiled_sums(loss, mesh)
    number, losses, totals = 0, [], None
    for rows, is_real, count in _padded(batches, mesh):
        if not number:
            _check_scalar(loss, parameters, rows)
        values, *sums = add_rows(parameters, rows, is_real)
        of_rows = np.asarray(values)[:count]
        if not np.isfinite(of_rows).all():
            row = int(np.flatnonzero(~np.isfinite(of_rows))[0])
            raise UserError(
                f"Expected finite losses, found {of_rows[row]} for sequence {number + row} of the batches; check the "
                "loss and the parameters, or remove the sequence."
            )
        losses.append(of_rows)
        # Sums over many batches: float64, because the variance is a difference.
        wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tuple(sums))
        totals = wide if totals is None else jax.tree.map(np.add, totals, wide)
        number += count
        advance(count)
    if totals is None or number < 2:
        raise UserError(f"Expected the gradients of at least two sequences, found batches with {number}.")
    mean, squares = jax.tree.map(lambda leaf: leaf / number, totals)
    variances = jax.tree.map(
        lambda centre, square: np.maximum(square - centre**2, 0) * number / (number - 1), mean, squares
    )
    return np.concatenate(losses), mean, variances


def _compiled_sums(loss: Loss, mesh: Mesh | None) -> Callable[..., Any]:
    """Losses of some rows, and the sums and sums of squares of their gradients; one gradient at a time."""
    gradient_of = jax.value_and_grad(loss)

    def add(parameters: Any, rows: Any, is_real: Array) -> tuple[Array, Any, Any]:
        def one(carry: tuple[Any, Any], row_and_flag: tuple[Any, Array]) -> tuple[tuple[Any, Any], Array]:
            total, squares = carry
            row, real = row_and_flag
            value, gradient = gradient_of(parameters, row)
            wide = jax.tree.map(lambda leaf: jnp.where(real, leaf.astype(jnp.float32), 0), gradient)
            total = jax.tree.map(jnp.add, total, wide)
            return (total, jax.tree.map(lambda before, leaf: before + leaf * leaf, squares, wide)), value

        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), parameters)
        (total, squares), values = jax.lax.scan(one, (zeros, zeros), (rows, is_real))
        if mesh is not None:
            total, squares = jax.lax.psum((total, squares), _AXIS)
        return values, total, squares

    sharded, whole = PartitionSpec(_AXIS), PartitionSpec()
    return _compiled(add, mesh, (whole, sharded, sharded), (sharded, whole, whole))


def _compiled_sketches(
    loss: Loss, batch_size: int, sketch_size: int, seed: int, mesh: Mesh | None
) -> Callable[..., Any]:
    """Sketches of the gradients of some rows, minus the mean, and as Adam scales them."""

    def scaled_by_adam(gradient: Array, second: Array) -> Array:
        squares = jnp.square(gradient / batch_size)
        # Zero where no sequence has a gradient, such as in the row of a token that the sample does not contain.
        root = jnp.sqrt((1 - _OWN_WEIGHT) * second + _OWN_WEIGHT * squares + 1e-30)
        return jnp.where(second > 0, gradient / root, 0)

    def reduce(parameters: Any, rows: Any, mean: Any, second: Any) -> tuple[Array, Array]:
        def one(row: Any) -> tuple[Array, Array]:
            gradient = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), jax.grad(loss)(parameters, row))
            # Sketches are linear. Without the mean, their entries are small, and float32 is exact enough.
            raw = jax.tree.map(jnp.subtract, gradient, mean)
            scaled = jax.tree.map(scaled_by_adam, gradient, second)
            return sketch(raw, sketch_size, seed), sketch(scaled, sketch_size, seed)

        return jax.lax.map(one, rows, batch_size=_TOGETHER)

    sharded, whole = PartitionSpec(_AXIS), PartitionSpec()
    return _compiled(reduce, mesh, (whole, sharded, whole, whole), (sharded, sharded))


def _compiled(function: Callable[..., Any], mesh: Mesh | None, in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    if mesh is None:
        return jax.jit(function)
    mapped = jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    return jax.jit(mapped)


def _padded(batches: Iterable[Any], mesh: Mesh | None) -> Iterator[tuple[Any, Any, int]]:
    """Batches of one size, filled with copies of their first row; which rows are real; and their number."""
    multiple, size = 1 if mesh is None else mesh.devices.size, 0
    for batch in batches:
        leaves = jax.tree.leaves(batch)
        lengths = {np.shape(leaf)[0] if np.ndim(leaf) else 0 for leaf in leaves}
        if len(lengths) != 1 or 0 in lengths:
            raise UserError(
                f"Expected batches of arrays with the same number of rows, at least one, found {sorted(lengths)} rows."
            )
        count = lengths.pop()
        # All batches have the size of the largest so far, so that a smaller last batch needs no compilation.
        size = max(size, -(-count // multiple) * multiple)
        places = np.append(np.arange(count), np.zeros(size - count, np.int64))
        rows = jax.tree.map(lambda leaf, places=places: np.asarray(leaf)[places], batch)
        flags = np.arange(size) < count
        if mesh is not None:
            rows, flags = jax.device_put((rows, flags), NamedSharding(mesh, PartitionSpec(_AXIS)))
        yield rows, flags, count


def _check_scalar(loss: Loss, parameters: Any, rows: Any) -> None:
    row = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), rows)
    shapes = jax.eval_shape(loss, parameters, row)
    if not isinstance(shapes, jax.ShapeDtypeStruct) or shapes.shape or not jnp.issubdtype(shapes.dtype, jnp.floating):
        raise UserError(
            f"Expected a loss that returns one floating-point number for one sequence, found "
            f"{jax.tree.map(lambda leaf: f'{leaf.dtype}{list(leaf.shape)}', shapes)}; use its mean, for example."
        )
