"""Normal forms of texts, and of rows of marks that Python sorts in quadratic time."""

from __future__ import annotations

import sys
from unicodedata import combining, normalize

import numpy as np
import pytest

from jax_diversity.foundation.text import normal_forms
from jax_diversity.foundation.text.normal_forms import Form, normal_form, text_hash

pytestmark = pytest.mark.core
FORMS: tuple[Form, ...] = ("NFC", "NFD", "NFKC", "NFKD")
ODD = "\u0344\u0340\u0f73\u0f75\u0f81\uff9e\uff9f\u3099\u0301\u0323\u1e69\uac00\ufb01e "


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_that_of_python(form: Form) -> None:
    rng = np.random.default_rng(0)
    marks = [chr(code) for code in range(sys.maxunicode + 1) if combining(chr(code))]
    for alphabet in (marks, [*ODD], [*marks[:40], *ODD], [chr(code) for code in range(0x20, 0xD000)]):
        for length in (1, 30, 31, 32, 45, 46, 300):
            text = "".join(alphabet[place] for place in rng.integers(len(alphabet), size=length))
            assert normal_form(form, text) == normalize(form, text)


@pytest.mark.parametrize("form", ["NFKC", "NFKD"])
@pytest.mark.parametrize("unit", ["\u0301\u0323", "\uff9e\u0301", "\u0f73\u0301", "\u0344\u0323"])
@pytest.mark.parametrize("start", range(15))
def test_python_gets_long_rows_sorted(form: Form, unit: str, start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    monkeypatch.setattr(normal_forms, "normalize", lambda form, text: texts.append(text) or normalize(form, text))
    text = "a" * start + unit * 16
    assert normal_form(form, text) == normalize(form, text)
    classes = [combining(mark) for mark in texts[-1][start:]]
    assert classes == sorted(classes)


def test_a_byte_order_mark_inside_a_text_does_not_hide_a_copy() -> None:
    assert text_hash("one\ufeff text") == text_hash("one text") == text_hash("\ufeffone text")
