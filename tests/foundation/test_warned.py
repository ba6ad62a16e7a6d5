"""Warnings of the package name the user's line, or no line."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.foundation import warned
from jax_diversity.ordering.shortages import UnmetTargets

PACKAGE = Path(jd.__file__).parent


def test_targets_that_cannot_be_met_name_the_line_of_the_call() -> None:
    counts = np.zeros((40, 2), np.int64)
    counts[:, 0], counts[:2] = 8, [0, 8]
    chars = jd.Characteristics.from_counts({"topic": counts})
    with pytest.warns(UnmetTargets) as caught:
        jd.order(chars, targets={"topic": [0.1, 0.9]})
    assert [warning.filename for warning in caught] == [__file__]


def test_a_warning_in_a_thread_names_no_line() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        thread = threading.Thread(target=warned.warn, args=("text",))
        thread.start()
        thread.join()
        warned.warn("text")
    assert [(each.filename, each.lineno > 0) for each in caught] == [("jax-diversity", False), (__file__, True)]


def test_a_warning_is_shown_once_for_a_line() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            warned.warn("a text of this test")
    assert len(caught) == 1


def test_no_other_module_gives_warnings() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    assert [path.name for path, text in texts.items() if "warnings.warn(" in text or "stacklevel" in text] == []
