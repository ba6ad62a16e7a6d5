"""The form "norms" of an objective, against a dense float64 reference that is written straight from its formula."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

from jax_diversity import Characteristics, Objective, UserError, order, shuffle_blocks
from jax_diversity.counts.targets import Targets
from jax_diversity.foundation.settings import settings_from_plain
from jax_diversity.ordering import greedy, running
from jax_diversity.ordering.settings import OrderConfig
from tests.support.many_devices import Interrupted
from tests.support.synthetic import synthetic_characteristics

F2, F3 = Objective.f2(0.7, form="norms"), Objective.f3(0.5, form="norms")
ALL = Objective(norm_weight=0.3, self_weight=1.0, document_weight=0.0, form="norms")


def walk(
    chars: Characteristics,
    objective: Objective,
    choose: Callable[[int, np.ndarray], int],
    targets: Targets | None = None,
) -> np.ndarray:
    """Place at every position what `choose` takes, of the position and all sequences' scores (inf where placed).

    The score is `Σ_f λ_f ||T_f + c_f - τ_f (S + t)|| + λ |N + ||c|| - expected|`, in sequence lengths. Where targets
    move, each sequence counts against the target of its position.
    """
    weights = objective.resolved_weights(chars)
    counts = {family: chars.counts[family].toarray().astype(np.float64) for family in chars.families}
    norms = np.linalg.norm(counts[chars.families[0]], axis=1)
    placed = {family: np.zeros(counts[family].shape[1]) for family in weights}
    left = np.ones(len(norms), bool)
    norm_sum, indices = 0.0, []
    for position in range(len(norms)):
        scores = objective.norm_weight * np.abs(norm_sum + norms - (position + 1) * norms.mean())
        excess = {}
        for family, weight in weights.items():
            target = counts[family].sum(axis=0) / counts[family].sum()
            if targets is not None and family in targets.shares:
                phase = int(np.searchsorted(targets.starts, position, side="right")) - 1
                target = targets.shares[family][phase]
            excess[family] = counts[family] - chars.tokens[:, None] * target
            scores = scores + weight * np.linalg.norm(placed[family] + excess[family], axis=1)
        chosen = choose(position, np.where(left, scores, np.inf) / chars.sequence_length)
        for family in weights:
            placed[family] += excess[family][chosen]
        norm_sum += norms[chosen]
        left[chosen] = False
        indices.append(chosen)
    return np.array(indices)


def largest_excess(
    chars: Characteristics, objective: Objective, indices: np.ndarray, targets: Targets | None = None
) -> float:
    """The largest excess of a chosen sequence's score over the best one, in sequence lengths."""
    excesses = []

    def choose(position: int, scores: np.ndarray) -> int:
        excesses.append(scores[indices[position]] - scores.min())
        return indices[position]

    walk(chars, objective, choose, targets)
    return max(excesses)


def random_characteristics(seed: int, num_sequences: int = 80, num_topics: int = 8) -> Characteristics:
    """Every second corpus of unequal token counts, every third of copies."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 334, num_sequences) if seed % 2 else np.full(num_sequences, 333)

    def counts(num_groups: int) -> np.ndarray:
        shares = rng.dirichlet(np.full(num_groups, 0.4), len(tokens))
        return np.stack([rng.multinomial(*row) for row in zip(tokens, shares, strict=True)])

    families = {"topic": counts(num_topics), "half": counts(3)}
    copied = rng.integers(0, 30, len(tokens)) if seed % 3 == 0 else np.arange(len(tokens))
    return Characteristics.from_counts({family: rows[copied] for family, rows in families.items()})


@pytest.fixture(autouse=True)
def one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """All sequences in one table of one width, so that the corpora share a compilation."""
    monkeypatch.setattr(greedy, "_GATHERS_PER_TABLE", 10**9)


@pytest.mark.parametrize("seed", range(12))
def test_every_position_is_that_of_the_float64_reference(seed: int) -> None:
    chars = random_characteristics(seed)
    rows = np.hstack([chars.counts[family].toarray() for family in chars.families])
    for objective in (F2, (F3, ALL)[seed % 2]):
        expected = walk(chars, objective, lambda _, scores: int(scores.argmin()))
        indices = order(chars, "greedy", objective=objective).indices
        # Copies are one choice.
        np.testing.assert_array_equal(rows[indices], rows[expected])


def test_excess_on_a_common_corpus_and_on_families_of_few_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among equal scores rounding may choose, also the reference's; a score above the best one is not chosen."""
    monkeypatch.setattr(greedy, "_GATHERS_PER_TABLE", 1000)
    for chars in (synthetic_characteristics(200), random_characteristics(1, 200, num_topics=2)):
        assert largest_excess(chars, F3, order(chars, "greedy", objective=F3).indices) <= 1e-6


def test_rows_wider_than_the_unrolled_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greedy, "_MAX_UNROLLED", 4)
    jax.clear_caches()
    chars = random_characteristics(1)
    assert largest_excess(chars, ALL, order(chars, "greedy", objective=ALL).indices) <= 1e-6
    jax.clear_caches()


def test_moving_targets_and_consumed_sequences() -> None:
    chars = random_characteristics(1)
    targets = Targets((0, 20, 55), {"half": np.array([[0.6, 0.2, 0.2], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]])})
    indices = order(chars, "greedy", objective=F3, targets=targets).indices
    assert largest_excess(chars, F3, indices, targets) <= 1e-6
    rest = order(chars, "greedy", objective=F3, targets=targets, consumed=indices[:30])[30:]
    np.testing.assert_array_equal(rest, indices[30:])


def test_an_interrupted_run_ends_with_the_same_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "STEPS_PER_CALL", 16)
    chars = random_characteristics(3)
    whole = order(chars, "greedy", objective=F3).indices
    path = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        order(chars, "greedy", objective=F3, folder=path, advance=Interrupted(32))
    with pytest.raises(UserError, match="belongs to another run"):
        order(chars, "greedy", objective=Objective.f3(0.5), folder=path)
    told: list[int] = []
    resumed = order(chars, "greedy", objective=F3, folder=path, advance=told.append)
    assert told[0] >= 32
    np.testing.assert_array_equal(resumed.indices, whole)


def test_of_one_family_both_forms_are_one_order() -> None:
    """A root changes no comparison: the forms of f1 agree, those of f2 and f3 do not."""
    chars = random_characteristics(2)

    def both(objective: Objective) -> list[np.ndarray]:
        forms = (objective, dataclasses.replace(objective, form="norms"))
        return [order(chars, "greedy", objective=form).indices for form in forms]

    np.testing.assert_array_equal(*both(Objective.f1()))
    for objective in (Objective.f2(), Objective.f3()):
        squares, norms = both(objective)
        assert (squares == norms).mean() < 0.5


def test_families_that_never_deviate() -> None:
    """Their norm is zero, or what rounding leaves, at every step; a sequence may be empty."""
    topic = np.array([[6, 0], [0, 6], [5, 1], [2, 4], [1, 5], [3, 3], [4, 2], [0, 0]])
    # In float64 the excess (1, 1, 4) - 6 (1, 1, 4)/6 has a square of less than nothing.
    for even in ([6], [2, 4], [1, 1, 4]):
        counts = np.array([*[even] * 7, [0] * len(even)])
        chars = Characteristics.from_counts({"topic": topic, "even": counts})
        indices = order(chars, "greedy", objective=F3).indices
        np.testing.assert_array_equal(np.sort(indices), np.arange(8))
        assert largest_excess(chars, F3, indices) <= 1e-6


def test_the_form_is_in_the_orderings_info() -> None:
    chars = random_characteristics(0)
    info = {form: order(chars, "greedy", objective=Objective.f3(form=form)).info for form in ("squares", "norms")}
    assert [json.loads(json.dumps(dict(info[form])))["objective"]["form"] for form in info] == ["squares", "norms"]
    assert (Objective().form, Objective.f2().form, Objective.f3().form) == ("squares",) * 3


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"form": "norms"}, r"with the form 'norms', found 0.5, 0.04 and \(\); take Objective.f2 or f3"),
        ({"form": "norms", "self_weight": 1.0}, r"found 1, 0.04 and \(\)"),
        ({"form": "norms", "self_weight": 1.0, "document_weight": 0.0, "windows": (16,)}, r"found 1, 0 and \(16,\)"),
    ],
)
def test_bad_forms(given: dict, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Objective(**given)


def test_blocks_of_the_greedy_take_norms() -> None:
    chars = random_characteristics(0)
    blocks = order(chars, "greedy_block_shuffle", objective=F3, block_size=8)
    assert blocks.fingerprint == shuffle_blocks(order(chars, "greedy", objective=F3), 8).fingerprint
    OrderConfig("greedy_block_shuffle", objective=Objective.f3(form="norms")).check("orders[0]", ("cluster", "length"))


@pytest.mark.parametrize("method", ["balance", "greedy_pool"])
def test_other_methods_refuse_norms(method: str) -> None:
    sentence = f"the method greedy or greedy_block_shuffle with the objective's form 'norms', found '{method}'; take"
    with pytest.raises(UserError, match=sentence):
        order(random_characteristics(0), method, objective=F3)
    with pytest.raises(UserError, match=f"Ordering '{method}': .*{sentence}"):
        OrderConfig(method, objective=Objective.f3(form="norms")).check("orders[0]", ("cluster", "length"))


def test_settings_choose_the_form() -> None:
    chosen = settings_from_plain(Objective, {"base": "f2", "form": "norms", "norm_weight": 0.7})
    assert chosen == F2
    OrderConfig("greedy", objective=chosen).check("orders[0]", ("cluster", "length"))
    assert settings_from_plain(OrderConfig, {"objective": "f3"}).objective == Objective.f3()
    with pytest.raises(UserError, match=r"objective: .* no windows with the form 'norms'"):
        settings_from_plain(OrderConfig, {"objective": {"base": "f3", "form": "norms", "windows": [8]}})
