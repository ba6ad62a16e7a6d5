"""The report of built datasets: its values, checked against the dataset's own files."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import jax_diversity as jd
from jax_diversity.foundation.figures.plain import as_json
from jax_diversity.lab.settings import TrainConfig
from jax_diversity.ordering.measures.floors import window_floor
from jax_diversity.ordering.measures.windows import place, window_deviation
from jax_diversity.ordering.settings import OrderConfig
from jax_diversity.pipeline.build import Build, recorded_config
from jax_diversity.sequences.characteristics.settings import CharacteristicsConfig
from jax_diversity.sequences.clustering.settings import ClusterConfig
from jax_diversity.streaming.run.inspection import Inspector
from tests.support.report_values import HOSTILE, make_explanation
from tests.support.tiny_corpus import TOPICS, tiny_config

BATCH_SIZE = 4
_HOSTILE = [text for text in HOSTILE if "\ud800" not in text]


def write_hostile_corpus(folder: Path, num_documents: int = 150) -> Path:
    """Titles, sources and languages that are markup, control characters or megabytes; some are absent."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    records = []
    for index in range(num_documents):
        words = rng.choice(TOPICS[list(TOPICS)[index % 4]].split(), int(rng.lognormal(3.5, 0.8)) + 5)
        text = _HOSTILE[index % len(_HOSTILE)]
        record: dict[str, Any] = {"id": f"{index} {text[:40]}", "text": " ".join(words), "source": text[:200]}
        record |= {"title": text} if index % 3 else {}
        record |= {"language": text[:20]} if index % 2 else {}
        records.append(record)
    records += [dict(records[0], id="again"), dict(records[0], id="and again"), dict(records[1], id="once more")]
    (folder / "part.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    corpus = write_hostile_corpus(tmp_path_factory.mktemp("corpus") / "texts")
    config = dataclasses.replace(
        tiny_config(corpus, tmp_path_factory.mktemp("built") / "out"),
        train=TrainConfig(batch_size=BATCH_SIZE),
        orders=(OrderConfig("uniform_shuffle"), OrderConfig("balance"), OrderConfig("cluster_sorted")),
        characteristics=CharacteristicsConfig(families=("cluster", "length", "source"), length_bins=5),
    )
    Build(config).run_all()
    return Path(config.out)


@pytest.fixture(scope="module")
def values(built: Path) -> dict[str, Any]:
    return json.loads((built / "report.json").read_text())


def drawn(values: dict[str, Any], name: str) -> dict[str, Any]:
    return next(order for order in values["ordering"]["orders"] if order["name"] == name)


def test_profiles_lie_above_the_floor_and_the_shuffle_in_its_band(built: Path, values: dict[str, Any]) -> None:
    chars = jd.open_dataset(built).characteristics
    for family in chars.families:
        references = values["ordering"]["profile_references"][family]
        counts, target = chars.counts[family], chars.target_share(family)
        assert references["sizes"] == [2**k for k in range(chars.num_sequences.bit_length())]
        floors = [window_floor(counts, target, size, chars.sequence_length) for size in references["sizes"]]
        assert references["floor"] == pytest.approx(floors, rel=1e-5)
        assert references["shuffle"]["num_seeds"] == 5
        for offset in ("0", "half"):
            band, own = references["shuffle"][offset], drawn(values, "uniform_shuffle")["profile"][family][offset]
            assert band["sizes"] == own["sizes"]
            rows = zip(band["mean_low"], band["mean"], own["mean"], band["mean_high"], strict=True)
            # The dataset's shuffle has the first of the seeds; means of all are between the extremes.
            assert all(low <= mean <= high and low <= shuffle <= high for low, mean, shuffle, high in rows)
        for order in values["ordering"]["orders"]:
            means = order["profile"][family]["0"]["mean"]
            assert all(mean >= floor - 1e-5 for mean, floor in zip(means, floors, strict=True))
    balanced, as_sorted = (drawn(values, name)["profile"]["cluster"] for name in ("balance", "cluster_sorted"))
    assert balanced["0"]["mean"][4] < as_sorted["0"]["mean"][4]


def test_a_dataset_draws_the_figures_of_its_report(built: Path, values: dict[str, Any]) -> None:
    dataset = jd.open_dataset(built)
    figure = dataset.plot("heat", ordering="balance", family="length")
    assert figure.values == values
    assert (figure.choices["focus"], figure.choices["family"]) == ("balance", "length")
    for choice in ({"figure": "hat"}, {"ordering": "mine"}, {"family": "host name"}, {"window": 7}):
        with pytest.raises(jd.UserError, match=r"Expected (figure|ordering|family|window) to be one of"):
            dataset.plot(**choice)


def test_heat_maps_hold_the_largest_groups_by_name(built: Path, values: dict[str, Any]) -> None:
    dataset = jd.open_dataset(built)
    names = [cluster["name"] for cluster in json.loads((built / "clusters" / "clusters.json").read_text())]
    for order in values["ordering"]["orders"]:
        heat_map = order["heat_map"]["cluster"]
        target = dataset.characteristics.target_share("cluster")
        largest = np.argsort(-target, kind="stable")
        assert [group["name"] for group in heat_map["groups"]] == [names[group] for group in largest]
        assert np.array(heat_map["share"]).sum(axis=0) == pytest.approx(1, abs=0.01)  # all four groups are shown
        assert len(heat_map["share"][0]) == heat_map["num_bins"]
        first = dataset.orderings[order["name"]].indices[: heat_map["bin_size"]]
        tokens = dataset.characteristics.counts["cluster"][first].sum(axis=0)
        shares = np.array(heat_map["share"])[:, 0]
        np.testing.assert_allclose(shares, (tokens / tokens.sum())[largest], atol=1e-3)


def test_the_batches_are_the_best_and_the_worst_and_none_is_both(built: Path, values: dict[str, Any]) -> None:
    dataset = jd.open_dataset(built)
    chars = dataset.characteristics
    batches = values["ordering"]["batches"]
    assert batches["batch_size"] == BATCH_SIZE
    assert list(batches["orders"]) == sorted(dataset.orderings)
    for name, families in batches["orders"].items():
        for family, extremes in families.items():
            placed = place(chars.counts[family], dataset.orderings[name].indices)
            tv = np.sort(window_deviation(placed, chars.target_share(family), BATCH_SIZE))
            assert [batch["tv"] for batch in extremes["best"]] == pytest.approx(tv[:3], rel=1e-5)
            assert [batch["tv"] for batch in extremes["worst"]] == pytest.approx(tv[::-1][:3], rel=1e-5)
            steps = [batch["step"] for batch in (*extremes["best"], *extremes["worst"])]
            assert len(set(steps)) == 6


def test_a_batch_is_opened_to_what_training_reads(built: Path, values: dict[str, Any]) -> None:
    dataset = jd.open_dataset(built)
    inspector = Inspector(jd.make_run(dataset, "balance"), BATCH_SIZE)
    stored = {row["id"]: row for row in dataset.documents.to_table(columns=["id", "title", "text"]).to_pylist()}
    seen: Counter[str] = Counter()
    for batch in values["ordering"]["batches"]["orders"]["balance"]["cluster"]["worst"]:
        seen_by_training = inspector.batch(batch["step"])
        assert batch["position"] == seen_by_training.position
        assert batch["num_more_rows"] == BATCH_SIZE - len(batch["rows"])
        for row, expected in zip(batch["rows"], seen_by_training.sequences, strict=False):
            assert (row["row"], row["sequence_index"]) == (expected.row, expected.sequence_index)
            assert len(row["segments"]) + row["num_more_segments"] == len(expected.segments)
            for segment, part in zip(row["segments"], expected.segments, strict=False):
                document = part.about["id"]
                assert segment["tokens"] == part.num_tokens
                # One printable line of the id; what it begins with tells documents apart.
                assert segment["document"].split(" ")[0] == document.split(" ")[0]
                if not stored[document]["title"]:
                    assert stored[document]["text"].startswith(segment["title"].removesuffix("…"))
                    seen["untitled"] += 1
                seen["titled"] += bool(stored[document]["title"])
        share = seen_by_training.families["cluster"]
        assert batch["tv"] == pytest.approx(share.total_variation, rel=1e-5)
        for found, (_, here, target) in zip(batch["differences"], share.largest_differences(6), strict=False):
            assert (found["share"], found["target"]) == pytest.approx((here, target), rel=1e-3)
    assert seen["untitled"]
    assert seen["titled"]


def test_hostile_text_of_a_corpus_is_harmless_in_values_and_page(built: Path) -> None:
    for text in strings(json.loads((built / "report.json").read_text())):
        assert not any(ord(letter) < 32 or 0x7F <= ord(letter) < 0xA0 for letter in text)
        assert not set("\u2028\u2029\u202d\u202e\u2066\u2067\u2068") & set(text)
        assert len(text) <= 1000
    page = (built / "report.html").read_text()
    assert "window.harmed" in page  # the corpus's text is in it ...
    for start in ("<script>window", "<img src=x", "<!--<script", '<a href="https://example'):
        assert start not in page  # ... but not as markup


def strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for key, part in value.items() for text in (key, *strings(part))]
    if isinstance(value, list):
        return [text for part in value for text in strings(part)]
    return [value] if isinstance(value, str) else []


def test_the_corpus_is_counted_as_stored(built: Path, values: dict[str, Any]) -> None:
    table = pq.read_table(built / "characteristics" / "documents.parquet")
    copies = Counter(table["duplicate_group"].to_pylist())
    assert values["corpus"]["num_duplicate_groups"] == sum(number > 1 for number in copies.values()) > 0
    assert values["corpus"]["largest_duplicate_group"] == max(copies.values()) == 3
    by_source = Counter(table["source"].to_pylist())
    assert sum(row["documents"] for row in values["corpus"]["sources"]["rows"]) == table.num_rows
    assert max(row["documents"] for row in values["corpus"]["sources"]["rows"]) == max(by_source.values())
    languages = {row["name"]: row["documents"] for row in values["corpus"]["languages"]["rows"]}
    assert languages["unknown"] == table["language"].null_count > 0


def test_the_batch_size_of_training_is_that_of_the_opened_batches(built: Path, tmp_path: Path) -> None:
    out = shutil.copytree(built, tmp_path / "out")
    config = recorded_config(out)
    assert Build(config).run_stage("report").counts["orderings"] == ["uniform_shuffle", "balance", "cluster_sorted"]
    number = jd.open_dataset(out).num_sequences
    for size, expected in ((number // 2, [1, 1]), (number, [0, 1]), (number + 1, None)):
        changed = dataclasses.replace(config, train=TrainConfig(batch_size=size))
        assert not Build(changed).run_stage("report").kept
        batches = json.loads((out / "report.json").read_text())["ordering"]["batches"]
        opened = batches and batches["orders"]["balance"]["cluster"]
        assert (opened and [len(opened["best"]), len(opened["worst"])]) == expected


def test_gradients_and_waits_of_a_run_are_drawn(built: Path, tmp_path: Path) -> None:
    out = shutil.copytree(built, tmp_path / "out")
    dataset = jd.open_dataset(out)
    folder = out / "training" / "balance"
    folder.mkdir(parents=True)
    header = {"dataset": dataset.fingerprint, "ordering": dataset.orderings["balance"].fingerprint}
    steps: list[dict[str, Any]] = [
        {"step": step, "loss": 5.0 / (step + 1), "input_wait_seconds": 0.25} for step in (0, 1)
    ]
    steps[1] |= {"gradient_diversity": 1.5, "stable_rank": 3.25, "validation_loss": 4.5}
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (header, *steps)))
    Build(recorded_config(out)).run_stage("report")
    (run,) = json.loads((out / "report.json").read_text())["training"]
    assert run["num_steps"] == 2
    assert {key: run["loss"]["curve"][key] for key in ("position", "mean")} == {
        "position": [0.0, 1.0],
        "mean": [5.0, 2.5],
    }
    assert (run["gradient_diversity"]["last"], run["stable_rank"]["last"]) == (1.5, 3.25)
    assert run["input_wait"]["curve"]["mean"] == [0.25, 0.25]


def test_explained_gradients_of_this_run_are_shown(built: Path, tmp_path: Path) -> None:
    out = shutil.copytree(built, tmp_path / "out")
    dataset = jd.open_dataset(out)
    folder = out / "training" / "balance"
    (folder / "explained").mkdir(parents=True)
    header = {"dataset": dataset.fingerprint, "ordering": dataset.orderings["balance"].fingerprint}
    lines = (header, {"step": 0, "loss": 5.0})
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def store(name: str, **changed: Any) -> None:
        (folder / "explained" / f"{name}.json").write_text(json.dumps({**header, **make_explanation(40), **changed}))

    store("40")
    store("9", num_steps=9, noise_scale=None)
    store("50", ordering="another")
    store("60", dataset="another")
    store("70", shares=[{"family": "cluster"}])
    (folder / "explained" / "80.json").write_text("{")
    assert not Build(recorded_config(out)).run_stage("report").kept
    (run,) = json.loads((out / "report.json").read_text())["training"]
    early, late = run["explained"]
    assert (early["num_steps"], late["num_steps"], early["noise_scale"]) == (9, 40, None)
    assert late == as_json(make_explanation(40))
    assert Build(recorded_config(out)).run_stage("report").kept
    store("40", sentence="Another one.")
    assert not Build(recorded_config(out)).run_stage("report").kept


def test_a_dataset_of_one_sequence_has_a_report(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    lines = [json.dumps({"id": str(index), "text": f"onion butter oven {index}"}) for index in range(4)]
    (folder / "part.jsonl").write_text("\n".join(lines) + "\n")
    config = tiny_config(folder, tmp_path / "out")
    packing = dataclasses.replace(config.packing, sequence_length=16, validation_fraction=0.0)
    config = dataclasses.replace(config, packing=packing, cluster=ClusterConfig(num_clusters=1))
    Build(config).run_all()
    assert jd.open_dataset(config.out).num_sequences == 1
    values = json.loads((tmp_path / "out" / "report.json").read_text())
    assert values["corpus"]["languages"] is None
    assert values["corpus"]["num_duplicate_groups"] == 0
    assert values["ordering"]["batches"] is None
    assert values["ordering"]["orders"][0]["profile"]["cluster"]["0"]["sizes"] == [1]
    assert values["ordering"]["orders"][0]["profile"]["cluster"]["half"]["sizes"] == []
    assert values["verdicts"] == []
