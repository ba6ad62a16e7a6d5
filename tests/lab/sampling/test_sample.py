"""Samples: they hold the mixture of all, are disjoint, come from counts, datasets and Parquet files, and are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import jax_diversity as jd
from jax_diversity.cli.main import main
from jax_diversity.lab.sampling import selection
from tests.support.synthetic import synthetic_characteristics


@pytest.fixture(scope="module")
def chars() -> jd.Characteristics:
    return synthetic_characteristics(2000, num_clusters=40).take(np.arange(2000))


def test_a_sample_is_the_beginning_of_a_balanced_order(chars: jd.Characteristics) -> None:
    chosen = jd.sample(chars, 100, seed=3)
    order = jd.order(chars, seed=3)
    np.testing.assert_array_equal(chosen.positions, order.indices[:100])
    np.testing.assert_array_equal(np.asarray(chosen), chosen.positions)
    assert (len(chosen), chosen[0], chosen.num_all) == (100, order[0], 2000)
    measured = jd.measure(chars, order, windows=(100,))
    for family in chars.families:
        assert chosen.tv[family] == pytest.approx(measured.window_tv[family][100][0])
        assert chosen.tv[family] < 0.6 * chosen.random_tv[family]
    shuffle = jd.measure(chars, jd.order(chars, "uniform_shuffle"), windows=(100,))
    assert chosen.random_tv["cluster"] == pytest.approx(shuffle.window_tv["cluster"][100].mean(), rel=0.1)
    assert "cluster" in str(chosen)
    assert "100 of 2,000 sequences" in str(chosen)


def test_a_share_and_several_samples(chars: jd.Characteristics) -> None:
    parts = jd.sample(chars, 0.1, num_samples=3)
    assert [len(part) for part in parts] == [200] * 3
    together = np.concatenate([part.positions for part in parts])
    assert len(np.unique(together)) == 600
    np.testing.assert_array_equal(together, jd.order(chars).indices[:600])
    assert all(part.tv["cluster"] < 0.6 * part.random_tv["cluster"] for part in parts)
    first = parts[0].prefix(50)
    np.testing.assert_array_equal(first.positions, parts[0].positions[:50])
    assert first.random_tv["cluster"] > parts[0].random_tv["cluster"]


@pytest.mark.campaign
def test_a_small_sample_orders_only_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    many = synthetic_characteristics(6000, num_clusters=40).take(np.arange(6000))
    whole = jd.sample(many, 100)
    monkeypatch.setattr(selection, "_CANDIDATES", 1400)
    ordered = []
    original = selection.order

    def noted(characteristics: jd.Characteristics, **options: Any) -> jd.Ordering:
        ordered.append(characteristics.num_sequences)
        return original(characteristics, **options)

    monkeypatch.setattr(selection, "order", noted)
    part = jd.sample(many, 100)
    assert ordered == [1500]
    assert len(np.unique(part.positions)) == 100
    assert part.positions.max() >= 1500  # of all sequences, not of the first
    for family in many.families:
        assert part.tv[family] < 1.15 * whole.tv[family] + 0.005


def test_values_become_a_family(chars: jd.Characteristics) -> None:
    losses = np.random.default_rng(0).normal(size=2000)
    plain, balanced = jd.sample(chars, 200), jd.sample(chars, 200, values={"loss": losses})
    assert balanced.characteristics.families == (*chars.families, "loss")
    assert balanced.tv["loss"] < 0.2 * balanced.random_tv["loss"]
    off = [abs(losses[each.positions].mean() - losses.mean()) for each in (plain, balanced)]
    assert off[1] < 0.02 < 0.07  # a random sample's standard error is .07


def test_saved_samples_are_the_same(chars: jd.Characteristics, tmp_path: Path) -> None:
    chosen = jd.sample(chars, 100)
    chosen.save(tmp_path / "a.npz")
    chosen.save(tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    again = jd.Sample.load(tmp_path / "a.npz")
    np.testing.assert_array_equal(again.positions, chosen.positions)
    assert again.tv == chosen.tv
    assert str(again) == str(chosen)
    losses = np.random.default_rng(0).normal(size=100)
    assert jd.estimate(losses, again) == jd.estimate(losses, chosen)
    chosen.save(tmp_path / "only.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "only.npy"), chosen.positions)
    (tmp_path / "other.npz").write_bytes(b"no archive")
    for path, sentence in (
        (tmp_path / "none.npz", "found no such file"),
        (tmp_path / "other.npz", "found another or a damaged file"),
        (tmp_path / "only.npy", "found another or a damaged file"),
    ):
        with pytest.raises(jd.UserError, match=sentence):
            jd.Sample.load(path)


def test_sequences_of_a_dataset(tiny_dataset: Path, tmp_path: Path) -> None:
    dataset = jd.open_dataset(tiny_dataset)
    chosen = jd.sample(tiny_dataset, 64)
    assert set(chosen.names["source"]) == set(dataset.group_names["source"])
    path = tmp_path / "chosen.parquet"
    chosen.write(path, dataset)
    table = pq.read_table(path)
    assert table["sequence"].to_pylist() == chosen.positions.tolist()
    row = dataset.records.read_sequences(chosen.positions[:1], fields=("inputs", "inputs_segmentation"))
    assert table["tokens"][0].as_py() == row["inputs"][0][row["inputs_segmentation"][0] > 0].tolist()
    assert table["text"][0].as_py()
    with pytest.raises(jd.UserError, match=r"found that .* exists"):
        chosen.write(path, dataset)
    # The loader reads a sample as a run.
    run = jd.make_run(dataset, positions=chosen.positions)
    batch = next(iter(jd.make_loader(run, global_batch_size=64)))
    np.testing.assert_array_equal(batch["inputs"][0], row["inputs"][0])


def test_documents_of_a_dataset(tiny_dataset: Path, tmp_path: Path) -> None:
    dataset = jd.open_dataset(tiny_dataset)
    chosen = jd.sample(dataset, 60, of="documents")
    trained_on = np.unique(dataset.segments.document_index)
    assert chosen.num_all == len(trained_on) < 400
    assert set(chosen.positions) <= set(trained_on)  # no validation document
    for family in ("cluster", "source", "length"):
        assert chosen.tv[family] < 0.05
    assert chosen.tv["tokens"] < chosen.random_tv["tokens"]
    ids = dataset.documents.to_table(columns=["id"])["id"].to_pylist()
    assert list(chosen.ids or ()) == [ids[place] for place in chosen.positions]
    chosen.write(tmp_path / "documents.parquet", tiny_dataset)
    table = pq.read_table(tmp_path / "documents.parquet")
    assert table["id"].to_pylist() == list(chosen.ids or ())
    assert {"text", "source"} <= set(table.column_names)
    # One number for each document of the dataset, of which the sample's and the others' are found by their numbers.
    lengths = dataset.tokens.document_lengths.astype(float)
    found = jd.estimate(lengths[chosen.positions], chosen, lengths + np.arange(len(lengths)) % 3)
    assert abs(found.mean - lengths[trained_on].mean()) < 0.5
    chosen.save(tmp_path / "documents.npz")
    assert jd.Sample.load(tmp_path / "documents.npz").ids == chosen.ids


def test_documents_of_a_parquet_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = {
        "en": ["the", "ship", "sails", "on", "the", "sea"],
        "de": ["das", "schiff", "segelt", "auf", "dem", "meer"],
    }
    rows = []
    for number in range(600):
        language = "en" if rng.random() < 0.7 else "de"
        text = " ".join(rng.choice(words[language], rng.integers(3, 60)))
        rows.append(
            {"id": f"d{number}", "text": text, "language": language, "score": rng.normal(), "url": f"x{number}"}
        )
    path = tmp_path / "documents.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    chosen = jd.sample(path, 100)
    assert chosen.kind == "documents"
    assert set(chosen.tv) == {"length", "language", "score", "words"}
    share = np.mean([rows[place]["language"] == "en" for place in chosen])
    assert abs(share - np.mean([row["language"] == "en" for row in rows])) < 0.02
    assert chosen.ids == tuple(rows[place]["id"] for place in chosen)
    chosen.write(tmp_path / "chosen.parquet", path)
    assert pq.read_table(tmp_path / "chosen.parquet")["id"].to_pylist() == list(chosen.ids or ())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((0,), ">= 1, found 0"),
        ((2001,), "at most all 2,000 sequences in a sample, found 2001"),
        ((1.0,), "share above 0 and below 1, found 1.0"),
        ((0.0001,), "at least one of the 2,000 sequences, found 0.0001"),
        ((True,), "found True"),
        ((10, {"of": "documents"}), "found token counts"),
        ((10, {"num_samples": 0}), "num_samples"),
        ((1000, {"num_samples": 3}), "found 1,000 in each of 3 samples"),
        ((10, {"seed": -1}), "seed"),
        ((10, {"values": {"loss": [1.0]}}), "2,000 numbers"),
        ((10, {"values": {"loss": np.full(2000, np.nan)}}), "finite, found nan at place 0"),
        ((10, {"values": {"loss": np.full(2000, 2.0)}}), "that differ, found equal values"),
        ((10, {"values": {"cluster": np.arange(2000)}}), "which is a family"),
    ],
)
def test_wrong_arguments_are_one_sentence(chars: jd.Characteristics, arguments: tuple, sentence: str) -> None:
    size, options = arguments[0], arguments[1] if len(arguments) > 1 else {}
    with pytest.raises(jd.UserError, match=sentence.replace("(", r"\(")):
        jd.sample(chars, size, **options)


def test_given_positions(chars: jd.Characteristics) -> None:
    given = np.random.default_rng(0).permutation(2000)[:50]
    np.testing.assert_array_equal(jd.Sample.of(chars, given).positions, given)
    for wrong in ([], [1, 1], [2000], [-1], [0.5]):
        with pytest.raises(jd.UserError, match=r"positions?"):
            jd.Sample.of(chars, wrong)


def test_the_command(tiny_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    dataset = jd.open_dataset(tiny_dataset)
    losses = np.random.default_rng(0).normal(size=dataset.num_sequences)
    np.save(tmp_path / "loss.npy", losses)
    begin = ["sample", "--out", str(tiny_dataset), "--quiet"]
    target = tmp_path / "s.npz"
    command = [*begin, "--n", "20", "--num-samples", "2", "--values", str(tmp_path / "loss.npy"), "--to", str(target)]
    assert main(command) == 0
    assert "2 samples without a common one" in capsys.readouterr().out
    parts = [jd.Sample.load(tmp_path / f"s-{place}.npz") for place in range(2)]
    expected = jd.sample(dataset, 20, values={"loss": losses}, num_samples=2)
    for part, each in zip(parts, expected, strict=True):
        np.testing.assert_array_equal(part.positions, each.positions)
    assert main([*begin, "--share", "0.1", "--of", "documents", "--to", str(tmp_path / "d.parquet")]) == 0
    assert pq.read_table(tmp_path / "d.parquet").num_rows == round(
        0.1 * len(np.unique(dataset.segments.document_index))
    )
    capsys.readouterr()
    assert main([*begin, "--precision", "0.2", "--losses", str(tmp_path / "loss.npy")]) == 0
    shown = capsys.readouterr().out
    assert "balanced" in shown
    assert "tokens" in shown
    np.save(tmp_path / "pilot.npy", losses[jd.sample(dataset, 100).positions])
    jd.sample(dataset, 100).save(tmp_path / "pilot.npz")
    pilot = ["--losses", str(tmp_path / "pilot.npy"), "--pilot", str(tmp_path / "pilot.npz")]
    assert main([*begin, "--precision", "0.2", *pilot]) == 0
    capsys.readouterr()
    for wrong, sentence in (
        ([], "found neither"),
        (["--n", "5", "--share", "0.1"], "found both"),
        (["--n", "0"], "found 0"),
        (["--share", "2"], "found 2.0"),
        (["--n", "5", "--to", str(tmp_path / "s.txt")], "ends in .npz, .npy, .parquet"),
        (["--n", "5", "--to", str(tmp_path / "d.parquet")], "exists"),
        (["--n", "5", "--values", str(tmp_path / "none.npy")], "no such file"),
        (["--n", "5", "--losses", "x.npy"], "only with --precision"),
        (["--precision", "0.1"], "found none"),
        (["--precision", "-1", "--losses", str(tmp_path / "loss.npy")], "above 0, found -1"),
        (["--precision", "0.1", "--losses", str(tmp_path / "pilot.npy")], "found the shape"),
        (["--precision", "0.1", "--n", "5", "--losses", "x"], "without --n"),
    ):
        assert main([*begin, *wrong]) == 2
        assert sentence in capsys.readouterr().err


def test_damaged_samples_are_one_sentence_or_the_same_sample(chars: jd.Characteristics, tmp_path: Path) -> None:
    """One of 300 bits is flipped; checksums of the archive find nearly all of them."""
    chosen = jd.sample(chars, 50)
    chosen.save(tmp_path / "a.npz")
    content, rng, refused = (tmp_path / "a.npz").read_bytes(), np.random.default_rng(0), 0
    for bit in rng.choice(8 * len(content), 300, replace=False).tolist():
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        (tmp_path / "b.npz").write_bytes(damaged)
        try:
            found = jd.Sample.load(tmp_path / "b.npz")
        except jd.UserError:
            refused += 1
        else:
            np.testing.assert_array_equal(found.positions, chosen.positions)
            assert found.tv == chosen.tv
    assert refused > 200


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("positions", lambda values: -values - 1, "positions >= 0"),
        ("positions", np.zeros_like, "each position once"),
        ("positions", lambda values: values + 10**9, "positions >= 0 and below"),
        ("positions", lambda values: values.astype(float), "another or a damaged file"),
        ("positions", lambda values: values[:-1], "another or a damaged file"),
        ("share-0", lambda values: values * np.nan, "shares of cluster"),
        ("share-0", lambda values: -values, "shares of cluster"),
        ("data-0", lambda values: -values, "another or a damaged file"),
        ("indices-0", lambda values: values + 10**6, "another or a damaged file"),
        ("indptr-0", lambda values: values[::-1], "another or a damaged file"),
        ("info", lambda value: np.asarray(str(value).replace('"num_all": 2000', '"num_all": 3')), "num_all"),
        ("info", lambda value: np.asarray(str(value).replace('"sequences"', '"rows"')), "kind"),
        ("info", lambda value: np.asarray("[]"), "another or a damaged file"),
        ("all_tokens", lambda value: np.ones(2, np.int64), "2000 all_tokens, found 2"),
        ("numbers", lambda value: np.arange(2000) * 2 + 1, "among the numbers"),
        ("ids", lambda value: np.array(["a"]), "50 ids, found 1"),
    ],
)
def test_edited_samples_are_one_sentence(
    name: str, change: Any, sentence: str, chars: jd.Characteristics, tmp_path: Path
) -> None:
    jd.sample(chars, 50).save(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as stored:
        arrays = {each: stored[each] for each in stored.files}
    arrays[name] = change(arrays.get(name))
    np.savez(tmp_path / "b.npz", allow_pickle=False, **arrays)
    with pytest.raises(jd.UserError, match=sentence):
        jd.Sample.load(tmp_path / "b.npz")
