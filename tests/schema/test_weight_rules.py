"""The language of rules that give weights."""

from __future__ import annotations

import pytest

from jax_diversity.foundation.errors import UserError
from jax_diversity.schema.weights import parse_rules


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        ({"source": 2.0}, "rules such as source=web-.*, quality>=0.8 or quality@cluster>=0.8 .* found 'source'"),
        ({"=web": 2.0}, "Expected rules such as"),
        ({"quality>=high": 2.0}, "'quality>=high' to compare with a number, found 'high'"),
        ({"quality>=nan": 2.0}, "to compare with a number, found 'nan'"),
        ({"quality@cluster=1": 2.0}, "to compare a mean by >=, <=, < or >, found ="),
        ({"quality@cluster!=1": 2.0}, "to compare a mean by >=, <=, < or >, found !="),
        ({"source=web": -1.0}, "packing.weights of 'source=web' to be finite and >= 0, found -1.0"),
        ({"source=web": float("nan")}, "to be finite and >= 0, found nan"),
        ({"source=web": 1e9}, r"'source=web' to be at most 1,000, found 1e\+09"),
    ],
)
def test_rules_that_cannot_be_read(weights: dict[str, float], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        parse_rules(weights, "packing.weights")


@pytest.mark.parametrize(
    ("text", "matched", "others"),
    [
        ("source=web-*", ["web-1", "web-"], ["web", None, "a web-1"]),
        ("source = c[1] ", ["c[1]", "c1"], ["c2"]),  # a text is also matched as it stands
        ("source!=web-*", ["web", None], ["web-1"]),
        ("good=true", [True], [False, 1, None, "True"]),
        ("quality>=0.5", [0.5, 1, 10**400], [0.4, None, True, "1", float("nan")]),
        ("quality<1", [0, -1.5], [1, None]),
        ("number=3", [3, "3"], [3.0, None]),
    ],
)
def test_values_that_a_rule_matches(text: str, matched: list, others: list) -> None:
    (rule,) = parse_rules({text: 2}, "weights")
    assert [rule.matches(value) for value in (*matched, *others)] == [True] * len(matched) + [False] * len(others)


def test_rules_of_one_family_are_names_of_groups() -> None:
    (rule,) = parse_rules({"lang=en": 1e9}, "weights", "dataset")
    assert (rule.name, rule.sign, rule.value, rule.factor) == ("dataset", "=", "lang=en", 1e9)
