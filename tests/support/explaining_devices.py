"""Explain gradients on one device and on four, and print how much the results differ."""

from __future__ import annotations

import json
from dataclasses import astuple

import jax
import numpy as np

import jax_diversity as jd
from tests.lab.test_explaining import explained_case, linear_loss, rows_of

if __name__ == "__main__":
    chars, gradients, weights = explained_case()
    rows = rows_of(gradients, 102)  # rows that four devices cannot share evenly, and a smaller last batch
    mesh = jax.make_mesh((4,), ("data",))
    one, several = (
        jd.explain_gradients(linear_loss, weights, rows, chars, batch_size=64, mesh=each) for each in (None, mesh)
    )
    pairs = ((several.shares["adam"][family], share) for family, share in one.shares["adam"].items())
    differences = [np.subtract(astuple(other), astuple(share)) for other, share in pairs]
    printed = {"shares": float(np.abs(differences).max()), "noise": several.noise_scale / one.noise_scale - 1}
    print(json.dumps({**printed, "devices": len(jax.devices())}))
