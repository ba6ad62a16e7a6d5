"""Rows over a mesh of devices: every device holds a slice of each block of rows, and a copy of all centroids."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from jax_diversity.foundation.devices import flat_mesh

AXIS = "rows"
BY_ROW: Any = PartitionSpec(AXIS)
EVERYWHERE: Any = PartitionSpec()


def row_mesh(mesh: Any) -> Mesh:
    """The devices of a mesh of any axes as one axis; None is this process's first device.

    Raises:
        UserError: no mesh of devices, or one without a device of this process.
    """
    if mesh is None:
        return Mesh(np.array(jax.local_devices()[:1]), (AXIS,), axis_types=(AxisType.Auto,))
    return flat_mesh(mesh, AXIS)


def place(mesh: Mesh, values: np.ndarray, spec: Any) -> Array:
    """An array on the mesh; of several processes, each brings the same values and keeps its devices' part."""
    sharding = NamedSharding(mesh, spec)
    if sharding.is_fully_addressable:
        return jax.device_put(values, sharding)
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def fetch(mesh: Mesh, array: Array) -> np.ndarray:
    """All of an array that lies on the mesh, in every process."""
    if not (array.is_fully_addressable or array.is_fully_replicated):
        array = jax.jit(lambda part: part, out_shardings=NamedSharding(mesh, EVERYWHERE))(array)
    return np.asarray(array)
