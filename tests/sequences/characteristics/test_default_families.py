"""Families that are balanced where none are named: which, by what weights, and what is said of the others."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.foundation.artifacts import OutputFolder
from jax_diversity.ordering.settings import OrderConfig
from jax_diversity.pipeline.build import Build, recorded_config
from jax_diversity.report.words import MAX_FIELDS, families_sentence, unbalanced_sentence
from jax_diversity.sequences.characteristics.settings import CharacteristicsConfig, default_families


@pytest.mark.parametrize(
    ("num_groups", "families"),
    [
        (
            {"cluster": 9, "length": 9, "source": 2, "language": 2, "host": 9},
            ["cluster", "length", "source", "language"],
        ),
        ({"cluster": 9, "length": 9, "source": 1, "language": 2}, ["cluster", "length", "language"]),
        ({"cluster": 9, "length": 9, "source": 1, "tokens": 300}, ["cluster", "length", "tokens"]),
        # The published objectives are of clusters and lengths, also in a corpus of one document.
        ({"cluster": 1, "length": 1, "source": 1, "language": 0}, ["cluster", "length"]),
    ],
)
def test_families_of_more_than_one_group(num_groups: dict[str, int], families: list[str]) -> None:
    found = default_families(num_groups)
    assert list(found) == families
    assert all(weight > 0 for weight in found.values())
    assert found["cluster"] == 1  # the others' weights are relative to it


@pytest.mark.campaign
def test_a_default_build_balances_what_it_found_and_says_what_it_did_not(tiny_dataset: Path) -> None:
    dataset = jd.open_dataset(tiny_dataset)
    chars = dataset.characteristics
    assert chars.families == ("cluster", "length", "source", "tokens")  # one language only
    assert chars.weights == default_families({"source": 4, "tokens": 300})
    summary = OutputFolder(tiny_dataset).stages["characterize"]["summary"]
    # The corpus has one language, one host and no copies: what has one group is balanced whatever the order.
    assert summary == "cluster 4, length 5, source 4, tokens 300 groups; not balanced: field year"
    report = json.loads((tiny_dataset / "report.json").read_text())
    assert report["ordering"]["balanced"] == "The orderings balance `cluster`, `length`, `source` and `tokens`."
    assert report["ordering"]["unbalanced"].startswith("They do not balance the metadata field `year`:")
    measured = json.loads((tiny_dataset / "orderings" / "balance.json").read_text())
    assert measured["characteristics"] == chars.fingerprint


def test_weights_of_an_ordering_replace_those_of_its_families_alone(tiny_dataset: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tiny_dataset, copy)
    # The corpus has one language: it is balanced whatever its weight.
    order = OrderConfig(
        "greedy", name="weighed", objective=jd.Objective(family_weights={"language": 2.0, "source": 3.0})
    )
    Build(recorded_config(copy)).run_orders([order])
    chars = jd.open_dataset(tiny_dataset).characteristics
    weighed = jd.order(chars.with_weights({**chars.weights, "source": 3.0}), "greedy").indices
    np.testing.assert_array_equal(jd.open_dataset(copy).orderings["weighed"].indices, weighed)


def test_a_list_of_families_stays_as_it_is() -> None:
    config = CharacteristicsConfig(families=("cluster", "language"))
    assert config.possible_families == ("cluster", "language")
    with pytest.raises(jd.UserError, match=re.escape("families of the characteristics (cluster, language), foun")):
        OrderConfig(objective=jd.Objective(family_weights={"source": 1.0})).check("orders[0]", config.possible_families)


@pytest.mark.parametrize(
    ("num_fields", "end"),
    [(0, "`host` (3 groups):"), (1, "or the metadata field `f0`:"), (11, f"`f{MAX_FIELDS - 1}` and 3 more:")],
)
def test_the_report_says_what_is_not_balanced(num_fields: int, end: str) -> None:
    fields = [f"f{index}" for index in range(num_fields)]
    counts = {"families": ["cluster"], "num_groups": {"cluster": 7, "host": 3}, "other_fields": fields}
    assert families_sentence(counts) == "The orderings balance `cluster`."
    sentence = unbalanced_sentence(counts)
    assert sentence.startswith("They do not balance `host` (3 groups)")
    assert f"{end} each further family makes the others less even." in sentence
    assert unbalanced_sentence({**counts, "num_groups": {"cluster": 7}, "other_fields": []}) == ""
