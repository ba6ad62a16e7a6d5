"""A thousand random corruptions of record files: each is found or harmless, none returns other tokens."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.foundation.errors import UserError
from tests.support.corruptions import CORRUPTIONS
from tests.support.tiny_dataset import write_tiny_dataset

NUM_CORRUPTIONS = 1000


@pytest.mark.first(1)
@pytest.mark.parametrize("layout", ["packed", "ordered"])
def test_no_corruption_returns_wrong_tokens(tmp_path: Path, layout: str) -> None:
    root = write_tiny_dataset(tmp_path / "out", layout=layout, sequences_per_file=12).root
    sound = tmp_path / "sound"
    shutil.copytree(root / "records", sound)
    reading = {"global_batch_size": 8, "drop_remainder": False, "fields": ("inputs",), "num_prefetch": 0}
    expected = [batch["inputs"] for batch in jd.make_loader(root, **reading)]
    paths = sorted((root / "records").glob("train-*.array_record"))
    assert len(paths) >= 3
    outcomes: Counter[tuple[str, str]] = Counter()
    for seed in range(NUM_CORRUPTIONS // 2):
        rng = np.random.default_rng(seed)
        corrupt = CORRUPTIONS[seed % len(CORRUPTIONS)]
        corrupt(paths, rng)
        try:
            found = [batch["inputs"] for batch in jd.make_loader(root, **reading)]
        except UserError:
            outcomes[corrupt.__name__, "found"] += 1
        else:
            outcomes[corrupt.__name__, "harmless"] += 1
            assert len(found) == len(expected), (corrupt.__name__, seed)
            assert all(np.array_equal(*pair) for pair in zip(found, expected, strict=True)), (
                corrupt.__name__,
                seed,
            )
        for path in paths:
            shutil.copyfile(sound / path.name, path)
    for name in ("truncate", "swap", "delete", "duplicate", "cut_front"):
        assert not outcomes[name, "harmless"], outcomes
    assert outcomes["flip", "found"] > outcomes["flip", "harmless"]
