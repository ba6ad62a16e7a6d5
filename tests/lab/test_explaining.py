"""What characteristics explain of gradients is what a plain reference says, and lies in its interval."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.cli.main import main
from jax_diversity.foundation.progress import Progress
from jax_diversity.lab.explaining.chosen import batch_or_usual
from jax_diversity.lab.explaining.explain import ALL, document_blocks
from jax_diversity.lab.explaining.regression import basis_of, explained_share
from jax_diversity.lab.explaining.sketching import sketch, sketch_gradients
from jax_diversity.lab.explaining.stored import read_explanations
from jax_diversity.lab.explaining.windows import window_variance
from jax_diversity.pipeline.build import Build, recorded_config
from tests.support.programs import answers, start
from tests.support.tiny_corpus import tiny_config, write_corpus


def topics(num_sequences: int, num_groups: int, rng: np.random.Generator) -> np.ndarray:
    counts = np.zeros((num_sequences, num_groups), np.int64)
    counts[np.arange(num_sequences), rng.integers(0, num_groups, num_sequences)] = 16
    return counts


def with_share(counts: np.ndarray, share: float, num_numbers: int, rng: np.random.Generator) -> np.ndarray:
    """Values of which the counts explain a known share of the variance in the population."""
    means = rng.normal(size=(counts.shape[1], num_numbers))
    means -= means.mean(axis=0)  # the groups are equally likely
    means /= np.sqrt((means**2).mean(axis=0))
    rows = np.sqrt(share) * means[counts.argmax(axis=1)]
    return rows + np.sqrt(1 - share) * rng.normal(size=(len(counts), num_numbers))


def plain_adjusted(values: np.ndarray, features: np.ndarray) -> float:
    """Adjusted R² by least squares, without any shortcut."""
    design = np.column_stack([np.ones(len(values)), features])
    fit, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
    left = ((values - design @ fit) ** 2).sum() / (len(values) - rank)
    return 1 - left / (((values - values.mean(axis=0)) ** 2).sum() / (len(values) - 1))


def test_the_share_and_its_interval_equal_a_slow_reference():
    rng = np.random.default_rng(0)
    counts = np.concatenate([topics(120, 5, rng), rng.multinomial(16, np.full(9, 1 / 9), 120)], axis=1)
    counts[:, 3] = np.arange(120) == 7  # a group that one block alone has
    values, blocks = rng.normal(size=(120, 6)) + counts[:, :6], np.arange(120) % 10
    found = explained_share(values, basis_of(counts, "both"), blocks)
    assert found.value == pytest.approx(plain_adjusted(values, counts))
    without = np.array([plain_adjusted(values[blocks != block], counts[blocks != block]) for block in range(10)])
    error = np.sqrt(9 / 10 * ((without - without.mean()) ** 2).sum())
    assert found.reach == pytest.approx(error * 2.2621571628)  # Student's quantile for 9 degrees of freedom
    assert (found.low + found.high) / 2 == pytest.approx(found.value)


@pytest.mark.parametrize("share", [0.0, 0.17, 0.6])
def test_a_known_share_lies_in_its_interval_and_permuted_rows_explain_nothing(share):
    rng = np.random.default_rng(1)
    held, by_chance = 0, []
    for _ in range(40):
        counts = topics(600, 12, rng)
        found = explained_share(
            with_share(counts, share, 20, rng), basis_of(counts, "topic"), rng.integers(0, 32, len(counts))
        )
        held += found.low <= share <= found.high
        by_chance.append(found.by_chance)
    assert held >= 34  # 38 of 40 are expected; 34 and more have a probability of .99
    assert abs(np.mean(by_chance)) < 0.005


def test_windows_of_a_shuffle_have_the_variance_one_and_windows_of_an_exact_order_less():
    rng = np.random.default_rng(2)
    counts = np.repeat(np.eye(4, dtype=np.int64), 400, axis=0) * 16
    values, blocks = with_share(counts, 0.5, 50, rng), rng.integers(0, 32, 1600)
    in_turns = np.arange(1600).reshape(4, 400).T.ravel()  # every window of 16 holds 4 sequences of each topic
    shuffles = [rng.permutation(1600) for _ in range(4)]
    for window in (16, 64):
        assert window_variance(values, shuffles, window, blocks).value == pytest.approx(1, abs=0.06)
        found = window_variance(values, [in_turns], window, blocks)
        assert found.low < 0.5 < found.high
        assert found.value == pytest.approx(0.5, abs=0.06)
        assert found.by_chance == pytest.approx(1, abs=0.12)


def linear_loss(weights, row):
    return sum(jnp.vdot(each, row[name]) for name, each in weights.items())


def rows_of(gradients: dict[str, np.ndarray], size: int) -> list[dict[str, np.ndarray]]:
    number = len(next(iter(gradients.values())))
    return [{name: each[start : start + size] for name, each in gradients.items()} for start in range(0, number, size)]


def test_sketches_equal_a_plain_reference():
    rng = np.random.default_rng(3)
    gradients = {
        "matrix": rng.normal(0.3, 1, (25, 4, 3)).astype(np.float32),
        "vector": rng.normal(0, 0.01, (25, 5)).astype(np.float32),
    }
    gradients["vector"][:, 2] = 0  # an entry that no sequence changes
    zeros = {name: jnp.zeros(each.shape[1:]) for name, each in gradients.items()}
    found = sketch_gradients(linear_loss, zeros, rows_of(gradients, 10), batch_size=8, sketch_size=64)
    mean = {name: each.mean(axis=0) for name, each in gradients.items()}
    spread = {name: each.var(axis=0, ddof=1) for name, each in gradients.items()}
    assert found.variance == pytest.approx(sum(each.sum() for each in spread.values()), rel=1e-5)
    square = sum((each**2).sum() for each in mean.values()) - found.variance / 25
    assert found.mean_square == pytest.approx(square, rel=1e-4)
    assert found.noise_scale == pytest.approx(found.variance / square, rel=1e-4)
    for row in (0, 24):
        one = {name: each[row] for name, each in gradients.items()}
        raw = jax.tree.map(lambda each, centre: each - centre, one, mean)
        np.testing.assert_allclose(found.raw[row], sketch(raw, 64), atol=1e-5)
        scaled = {
            name: np.divide(
                one[name],
                np.sqrt(0.95 * (mean[name] ** 2 + spread[name] / 8) + 0.05 * (one[name] / 8) ** 2),
                out=np.zeros_like(one[name]),
                where=one[name] != 0,
            )
            for name in one
        }
        np.testing.assert_allclose(found.adam[row], sketch(scaled, 64), rtol=1e-4, atol=1e-4)


def explained_case(num_sequences: int = 512):
    rng = np.random.default_rng(4)
    counts = topics(num_sequences, 6, rng)
    halves = np.stack([counts[:, :3].sum(axis=1), counts[:, 3:].sum(axis=1)], axis=1)
    chars = jd.Characteristics.from_counts({"topic": counts, "half": halves})
    gradients = {"w": (with_share(counts, 0.5, 40, rng) + 0.5).astype(np.float32)}
    return chars, gradients, {"w": jnp.ones(40)}


def test_an_explanation_says_what_an_order_is_worth():
    chars, gradients, weights = explained_case()
    found = jd.explain_gradients(linear_loss, weights, rows_of(gradients, 100), chars, batch_size=64)
    share = found.shares["raw"]
    assert list(share) == ["topic", "half", ALL]
    assert share["topic"].low < 0.5 < share["topic"].high
    assert share["half"].value < share["topic"].value
    assert share[ALL].value == pytest.approx(share["topic"].value, abs=1e-9)  # the halves add nothing to the topics
    assert set(found.windows["raw"]["balance"]) == {16, 64}
    assert found.windows["raw"]["balance"][64].value < 0.7
    ratio = found.windows["raw"]["balance"][64]
    worth = " (95 % interval ".join(f"{64 / each:,.0f}" for each in (ratio.value, ratio.high))
    number = f"{len(chars.tokens):,}"
    assert (
        f"A batch of 64 in the order balance of these {number} sequences is worth a shuffled batch of {worth} to "
        f"{64 / ratio.low:,.0f})."
    ) in found.sentence
    assert f"{share[ALL].value:.0%}" in found.sentence
    scaled, of_batch = found.shares["adam"][ALL], found.windows["adam"]["balance"][64]
    assert (
        f"With scaled gradients the share is {scaled.value:.0%} ± {scaled.reach * 100:.0f}, and this batch"
        in found.sentence
    )
    assert f"and this batch is worth {64 / of_batch.value:,.0f} (95 % interval" in found.sentence
    assert found.picture.startswith("<svg")


def test_explanations_are_aligned_in_a_terminal_and_tables_in_a_notebook():
    chars, gradients, weights = explained_case()
    found = jd.explain_gradients(linear_loss, weights, rows_of(gradients, 100), chars, batch_size=64)
    text, page = str(found), found._repr_html_()
    assert "|" not in text.replace("||", "")
    assert max(map(len, text.splitlines())) <= 80
    header, topic = (next(line for line in text.splitlines() if line.startswith(name)) for name in ("family", "topic"))
    assert header.index("gradients") + len("gradients") == topic.index("±") + len("± 0.123")  # the ends of a column
    assert "nan" not in text
    lines = [re.sub("<[^>]+>", " ", line).split() for line in page.split("<tr>")]
    assert ["family", "groups", "gradients"] in [line[:3] for line in lines]
    assert ["topic", "6"] in [line[:2] for line in lines]
    assert page.count("<b>Variance of the mean of a window, shuffle = 1: ") == page.count("<table>") - 1 > 1


def test_values_of_ones_own():
    chars, gradients, _ = explained_case()
    shuffle = [jd.order(chars, method="uniform_shuffle", seed=seed) for seed in range(3)]
    found = jd.explain_values(gradients["w"], chars, batch_size=16, orders={"shuffle": shuffle})
    assert found.shares["values"]["topic"].low < 0.5 < found.shares["values"]["topic"].high
    assert found.windows["values"]["shuffle"][16].value == pytest.approx(1, abs=0.15)
    constant = jd.explain_values(chars.counts["topic"].toarray()[:, 0], chars, batch_size=16)
    assert constant.shares["values"]["topic"].value == pytest.approx(1)


def test_sequences_of_one_document_are_in_one_block():
    chars = jd.Characteristics.from_counts({"a": np.full((200, 1), 4)}, documents=np.arange(200) // 4)
    blocks = document_blocks(chars)
    assert (blocks.reshape(50, 4) == blocks.reshape(50, 4)[:, :1]).all()
    assert len(np.unique(blocks)) == 32


class Unread:
    """Batches that must not be read."""

    def __iter__(self):
        raise AssertionError


def bad_cases():
    chars, gradients, weights = explained_case()
    rows = rows_of(gradients, 100)

    def run(loss=linear_loss, weights=weights, batches=rows, chars=chars, **options):
        return lambda: jd.explain_gradients(loss, weights, batches, chars, **{"batch_size": 64, **options})

    def nan(weights, row):
        return linear_loss(weights, row) * jnp.nan

    few = jd.Characteristics.from_counts(chars.counts, documents=np.arange(512) % 31)
    other = jd.Characteristics.from_counts({"topic": np.full((500, 1), 4)})
    wide = jd.Characteristics.from_counts({"id": np.eye(512, dtype=np.int64)})
    order = jd.order(other)
    yield "no scalar", run(lambda weights, row: weights["w"] * row["w"]), "one floating-point number"
    yield "NaN", run(nan), "Expected finite losses, found nan for sequence 0"
    yield "zeros", run(lambda weights, row: jnp.sum(weights["w"])), "found equal ones or zeros"
    yield "batch", run(batch_size=513), "a batch of at most the 512 sequences"
    yield "no batch", run(batch_size=0), "batch_size"
    yield "other sequences", run(chars=other), "found the values of 512"
    # What depends on the characteristics alone is found before any gradient is computed.
    yield "few documents", run(chars=few, batches=Unread()), "at least 32 documents, found 31"
    yield (
        "wide",
        run(chars=wide, batches=Unread()),
        "least 685 sequences to explain gradients by the 512 groups of all ",
    )
    yield "iterator", run(batches=iter(rows)), "found an iterator"
    yield "nothing", run(batches=[]), "at least two sequences"
    yield "ragged", run(batches=[{"w": np.ones((3, 40)), "v": np.ones(2)}]), "the same number of rows"
    yield "other order", run(orders={"own": [order]}, batches=Unread()), "found another one in 'own'"
    yield "values", lambda: jd.explain_values(np.full(512, np.nan), chars), "Expected finite numbers"
    yield "equal values", lambda: jd.explain_values(np.ones(512), chars), "not all equal"


@pytest.mark.parametrize(("call", "words"), [pytest.param(*case[1:], id=case[0]) for case in bad_cases()])
def test_bad_input_is_one_sentence(call, words):
    with pytest.raises(jd.UserError) as error:
        call()
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.campaign
def test_several_devices_give_the_same_explanation():
    found = answers(start("explaining_devices", num_devices=4))[0]
    assert found["devices"] == 4
    assert found["shares"] < 1e-4
    assert abs(found["noise"]) < 1e-4


@pytest.fixture(scope="module")
def trained(tiny_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small dataset, and a training run of two steps in it."""
    out = shutil.copytree(tiny_dataset, tmp_path_factory.mktemp("explained") / "out")
    model = ["--train.width=8", "--train.num-layers=1", "--train.num-heads=2", "--train.validation-batches=0"]
    assert main(["train", "--out", str(out), "--train.num-steps=2", *model, "--quiet"]) == 0
    return out


def test_the_verb_explains_the_last_checkpoint(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    picture = tmp_path / "worth.svg"
    explain = ["lab", "explain", "--out", str(trained), "--sequences", "700", "--batch-size", "16", "--quiet"]
    assert main([*explain, "--picture", str(picture)]) == 0
    text = capsys.readouterr().out
    assert " ".join(text.split()).startswith("At the checkpoint after 2 steps: The families explain ")
    assert picture.read_text(encoding="utf-8").startswith("<svg")
    run = trained / "training" / "balance"
    for checkpoint in (run, run / "checkpoints" / "2"):
        assert main([*explain, "--checkpoint", str(checkpoint)]) == 0
        assert capsys.readouterr().out == text
    # Stored beside the run, so the report shows it.
    dataset = jd.open_dataset(trained)
    fingerprints = dataset.fingerprint, dataset.orderings["balance"].fingerprint
    (stored,) = read_explanations(trained, "balance", *fingerprints)
    assert stored["num_steps"] == 2
    assert stored["sentence"] in " ".join(text.split())
    for row in stored["shares"]:
        assert re.search(rf"^{row['family']} +{row['num_groups']:,} ", text, re.MULTILINE)
        assert f"{row['value']:.3f} ± {(row['high'] - row['low']) / 2:.3f}" in text
    assert {row["order"] for row in stored["windows"]} == {"balance"}
    assert read_explanations(trained, "balance", "other sequences", fingerprints[1]) == []
    Build(recorded_config(trained)).run_stage("report")
    (shown,) = json.loads((trained / "report.json").read_text())["training"]
    assert [each["sentence"] for each in shown["explained"]] == [stored["sentence"]]


def test_the_batch_size_is_that_of_the_build() -> None:
    for given, known, number, expected in (
        (None, None, 700, 256),
        (None, 24, 700, 24),
        (None, 400, 300, 256),
        (32, 24, 700, 32),
    ):
        dataset = create_autospec(jd.Dataset, instance=True, batch_size=known, num_sequences=number)
        assert batch_or_usual(given, dataset, 4096) == expected


def test_a_checkpoint_from_elsewhere_is_explained_but_not_stored(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run = shutil.copytree(trained / "training" / "balance", tmp_path / "balance", ignore=lambda *_: ["explained"])
    options = ["--out", str(trained), "--sequences", "700", "--batch-size", "16", "--quiet"]
    assert main(["lab", "explain", *options, "--checkpoint", str(run)]) == 0
    assert "The families explain" in capsys.readouterr().out
    assert not (run / "explained").exists()


@pytest.mark.campaign
def test_wrong_checkpoints_and_pictures_are_one_sentence(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    config = tiny_config(write_corpus(tmp_path / "corpus", 60), tmp_path / "other")
    Build(replace(config, tokenizer=replace(config.tokenizer, vocab_size=280))).run_all()
    damaged = shutil.copytree(trained / "training" / "balance" / "checkpoints" / "2", tmp_path / "2")
    (damaged / "checkpoint.json").write_text("{}")
    cases = [
        (tmp_path / "other", [], "Expected a checkpoint of the lab in "),
        (tmp_path / "other", ["--checkpoint", str(trained / "training" / "balance")], "280 token ids, found 300"),
        (
            trained,
            ["--checkpoint", str(tmp_path / "nowhere")],
            f"found none; run `jax-diversity train --out {trained}`",
        ),
        (trained, ["--checkpoint", str(damaged)], "name another checkpoint"),
        (trained, ["--picture", str(tmp_path / "no-folder" / "worth.svg")], "in an existing folder for the picture"),
        (trained, ["--sequences", "45"], "to explain gradients by the "),
        (trained, ["--sequences", "20"], "Expected sequences of at least 32 documents, found "),
        (trained, ["--sequences", "15"], "Expected a batch of at most the 15 sequences that are explained, found 16"),
    ]
    for out, options, words in cases:
        assert main(["lab", "explain", "--out", str(out), "--batch-size", "16", "--quiet", *options]) == 2
        assert words in " ".join(capsys.readouterr().err.split())


def test_a_checkpoint_of_a_run_that_diverged_is_refused(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jax_diversity.lab.explaining import checkpoint

    def restore(folder: Path, template: tuple) -> tuple:
        return jax.tree.map(lambda leaf: leaf * jnp.nan, template)

    monkeypatch.setattr(checkpoint, "restore_arrays", restore)
    with pytest.raises(jd.UserError, match=r"Expected finite weights in the checkpoint .*2, found NaN .*diverged"):
        checkpoint.explain_checkpoint(jd.open_dataset(trained), progress=Progress(quiet=True))


VALUES = np.random.default_rng(0).normal(size=400)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"values": "abc"}, "values to be numbers, found: could not convert"),
        ({"values": [[1], [2, 3]] * 200}, "values to be numbers"),
        ({"values": {"a": 1}}, "values to be numbers"),
        ({"values": VALUES * 1j}, "values to be numbers, found: complex"),
        ({"values": None}, "finite numbers"),
        ({"values": []}, r"not all equal, found an array of shape \(0, 1\)"),
        ({"values": np.ones(400)}, "not all equal"),
        ({"values": VALUES[:9]}, "the 400 sequences of the characteristics, found the values of 9"),
        ({"orders": [1]}, "orders to be a mapping"),
        ({"orders": "balance"}, "orders to be a mapping"),
        ({"orders": {"a": None}}, r"orders\['a'\] to be several orderings, found None"),
        ({"orders": {"a": []}}, "at least one ordering for each name, found none for 'a'"),
        ({"orders": {"a": np.arange(400)}}, "found another one in 'a'"),
        ({"orders": {"a": [np.arange(400.0)]}}, "found another one in 'a'"),
        ({"orders": {"a": [[[1], [2, 3]]]}}, "found another one in 'a'"),
        ({"batch_size": "a"}, "batch_size to be a whole number"),
    ],
)
def test_wrong_values_and_orders_are_one_sentence(change: dict[str, Any], sentence: str) -> None:
    chars = jd.Characteristics.from_counts({"topic": ["a", "b", "c", "d"] * 100})
    arguments: dict[str, Any] = {"values": VALUES, "batch_size": 16, "orders": {}} | change
    with pytest.raises(jd.UserError, match=sentence):
        jd.explain_values(arguments.pop("values"), chars, **arguments)


@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_the_unit_of_values_has_no_effect(unit: float) -> None:
    chars = jd.Characteristics.from_counts({"topic": ["a", "b", "c", "d"] * 100})
    values = VALUES + np.arange(400) % 4
    found, plain = (
        jd.explain_values(each, chars, batch_size=16, orders={}).shares["values"]["topic"]
        for each in (values * unit, values)
    )
    assert (found.value, found.error) == pytest.approx((plain.value, plain.error), rel=1e-6)
