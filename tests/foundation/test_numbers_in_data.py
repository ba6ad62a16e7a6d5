"""Numbers of other people's data, and libraries that do not import."""

from __future__ import annotations

import pytest

from jax_diversity.foundation.checks import number_in_data
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.libraries import optional

pytestmark = pytest.mark.core


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("-12", -12), ("+7", 7), ("9" * 18, 10**18 - 1)]
    + [
        (text, None)
        for text in ("", "9" * 19, "9" * 5000, "\u0661\u0662", "\uff11", "1_2", " 1", "1\n", "1.0", "nan", "\u00b2")
    ],
)
def test_numbers(text: str, number: int | None) -> None:
    assert number_in_data(text) == number


@pytest.mark.parametrize("error", ["ImportError('no lxml.html.clean')", "OSError('no libx.so')", "AttributeError('x')"])
def test_a_library_that_does_not_import_is_an_error(tmp_path, monkeypatch: pytest.MonkeyPatch, error: str) -> None:
    name = f"broken_{error[:5].lower()}"
    (tmp_path / f"{name}.py").write_text(f"raise {error}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=rf"library {name}, found no library that can be imported \(.*; pip install"):
        optional(name, "preparation")
