"""Embeddings made on 1, 2 and 4 emulated devices beside one device's own: a program that a test starts.

    XLA_FLAGS=--xla_force_host_platform_device_count=4 python -m tests.support.many_devices_qwen3 FOLDER

FOLDER holds a checkpoint. Prints one line of JSON: the largest difference to one device's vectors by number of
devices, the largest share of the parameters that one device of four holds, the collectives of the program for four,
and the platforms that it lowers for.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.sharding import Mesh

from jax_diversity.sequences.embedding.qwen3 import qwen3
from jax_diversity.sequences.embedding.qwen3_model import PlacedModel
from tests.support.tiny_qwen3 import TEXTS

NUM_DEVICES = (2, 4)
SETTINGS: Any = {"max_tokens": 90, "batch_tokens": 1_000, "dtype": "float32"}


def devices(number: int) -> Mesh:
    """A mesh of the first devices, of two axes where there are four."""
    chosen = np.array(jax.devices()[:number])
    return Mesh(chosen.reshape(2, 2), ("data", "tensor")) if number == 4 else Mesh(chosen, ("any name",))


def largest_share(model: PlacedModel) -> float:
    """The largest part of all parameters' bytes on one device."""
    held: dict[Any, int] = {}
    leaves = jax.tree.leaves(model.parameters)
    for leaf in leaves:
        for shard in leaf.addressable_shards:
            held[shard.device] = held.get(shard.device, 0) + shard.data.nbytes
    return max(held.values()) / sum(leaf.nbytes for leaf in leaves)


def main() -> None:
    """Compare, count and lower."""
    folder = sys.argv[1]
    alone = qwen3(path=folder, mesh=devices(1), **SETTINGS).embed(TEXTS)
    embedders = {number: qwen3(path=folder, mesh=devices(number), **SETTINGS) for number in NUM_DEVICES}
    everywhere = qwen3(path=folder, **SETTINGS)  # without a mesh: all devices
    model = embedders[4]._model
    arguments = (model.parameters, jnp.zeros((8, 64), jnp.int32), jnp.ones(8, jnp.int32))
    program = model.program.lower(*arguments).compile().as_text()
    answer = {
        "differences": {
            number: float(np.abs(embedder.embed(TEXTS) - alone).max()) for number, embedder in embedders.items()
        },
        "by_default": everywhere._model.mesh.size,
        "largest_share": largest_share(model),
        "gathered": sorted(set(re.findall(r"= (\S+) all-gather\(", program))),
        "collectives": sorted(set(re.findall(r"\b(all-[a-z-]+|reduce-scatter|collective-permute)\(", program))),
        "platforms": export.export(model.program, platforms=["tpu"])(*arguments).platforms,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
