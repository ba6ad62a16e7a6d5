"""Printed numbers have their nouns in the right form, also where there is one of something."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.cli.main import main
from jax_diversity.foundation.wording import counted
from jax_diversity.lab.noise import LossNoise

WRONG = re.compile(r"(?<![\d.,])1 [a-z]+(?<!les)s\b")


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (0, "document", "0 documents"),
        (1, "batch", "1 batch"),
        (2, "batch", "2 batches"),
        (3, "pass", "3 passes"),
        (1, "copy", "1 copy"),
        (22_727, "copy", "22,727 copies"),
        (2, "more family", "2 more families"),
    ],
)
def test_numbers_with_nouns(number: int, noun: str, text: str) -> None:
    assert counted(number, noun) == text


def test_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text("One document about gardens. " * 20, encoding="utf-8")
    out = ["--out", str(tmp_path / "out")]
    assert main(["prepare", "--corpus.paths", str(tmp_path / "text.txt"), *out]) == 0
    assert main(["tokenize", "--tokenizer.kind", "bytes", *out]) == 0
    assert main(["verify", *out]) == 0
    shown = " ".join("".join(capsys.readouterr()).split())
    assert "prepare 1 document, 0.0 MB of text" in shown
    assert not WRONG.findall(shown)


def test_values_of_one() -> None:
    chars = jd.Characteristics.from_counts([[3]])
    ordering, packed = jd.Ordering(np.arange(1)), jd.pack(np.array([5]), 5)
    texts = (
        chars._repr_html_(),
        repr(ordering),
        ordering._repr_html_(),
        repr(packed),
        str(LossNoise({1: 0.1}, {1: 0.3})),
    )
    for text in (repr(chars), *texts):
        assert "1 " in text
        assert not WRONG.findall(text)
