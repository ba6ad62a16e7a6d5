"""Meshes of devices with one axis, and the choice between accelerators and processors."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from jax_diversity.foundation.errors import UserError


def is_accelerator(device: Any) -> bool:
    """Return whether a device is a GPU or a TPU."""
    return device.platform != "cpu"


def processor() -> Any:
    """Return this machine's processor as a device of JAX; the default device if JAX may not use processors."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS=cuda, for example
        return default_device()


def default_device() -> Any:
    """Return the device on which JAX computes if nothing else is said."""
    return next(iter(jax.device_put(np.int32(0)).devices()))


def flat_mesh(mesh: Any, axis: str) -> Mesh:
    """A mesh of the same devices with one axis; raises a `UserError` if no device belongs to this process."""
    if not isinstance(mesh, Mesh):
        raise UserError(
            f"Expected mesh to be a jax.sharding.Mesh, found {type(mesh).__name__}; "
            f'make one with jax.make_mesh((8,), ("{axis}",)).'
        )
    devices = mesh.devices.reshape(-1)
    if jax.process_index() not in {device.process_index for device in devices}:
        raise UserError(
            f"Expected a mesh with devices of this process, number {jax.process_index()}, found devices of processes "
            f"{sorted({device.process_index for device in devices})}; make the mesh from jax.devices()."
        )
    # Always Auto: the compiler chooses the shardings inside a program; they are not part of its types.
    return Mesh(devices, (axis,), axis_types=(AxisType.Auto,))


def first_devices(number: int, axis: str) -> Mesh:
    """A mesh of the first `number` devices of JAX, with one axis; raises a `UserError` if there are fewer."""
    present = jax.devices()
    if number > len(present):
        raise UserError(f"Expected at most the {len(present)} devices of JAX ({present[0].platform}), found {number}.")
    return Mesh(np.array(present[:number]), (axis,), axis_types=(AxisType.Auto,))
