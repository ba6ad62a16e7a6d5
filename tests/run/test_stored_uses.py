"""What takes a stored schedule over several datasets: inspect, measure, export and report, against direct reading."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from jax_diversity.export.rows import OrderedSequences, Sequences
from jax_diversity.report.run_page import render_run

import jax_diversity as jd
from jax_diversity.cli.main import main
from jax_diversity.export.levanter import LevanterDataset
from jax_diversity.export.megatron import Description, write_megatron
from jax_diversity.export.olmo import write_olmo, write_olmo_tokens
from jax_diversity.export.pytorch import OrderedBatchSampler
from jax_diversity.export.settings import OlmoExportConfig
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Progress
from jax_diversity.measures.balance import own_shares
from jax_diversity.report.run import run_values
from jax_diversity.run.inspection import ScheduleInspector
from jax_diversity.run.joining import joined_characteristics
from tests.support.maxtext import read_as_maxtext
from tests.support.tiny_dataset import TinyDataset, reference_row, write_tiny_dataset


@pytest.fixture(scope="module")
def tinies(tmp_path_factory: pytest.TempPathFactory) -> tuple[TinyDataset, TinyDataset]:
    root = tmp_path_factory.mktemp("uses")
    return (
        write_tiny_dataset(root / "web", num_documents=60, features="common"),
        write_tiny_dataset(root / "code", num_documents=25, seed=1, layout="ordered", features="common"),
    )


@pytest.fixture(scope="module")
def run(tinies: tuple[TinyDataset, TinyDataset]) -> jd.Run:
    """Three parts: an epoch of the first dataset, both from position 40 on, an epoch more; with a skip within."""
    web, code = (each.root for each in tinies)
    made = jd.create_schedule(web.parent / "run", web, num_epochs=1.5)
    made = jd.extend_schedule(made, position=40, datasets=[code], weights=[1, 2], num_positions=120)
    made = jd.extend_schedule(made, position=130, weights=[2, 1], num_positions=100)
    return jd.skip_positions(made, 48, 64)


@pytest.fixture(scope="module")
def one(tinies: tuple[TinyDataset, TinyDataset]) -> jd.Run:
    """Two epochs of the first dataset, the second cut by a skip."""
    made = jd.create_schedule(tinies[0].root.parent / "one", tinies[0].root, num_epochs=2)
    return jd.skip_positions(made, 100, 108)


def numbers_of(run: jd.Run) -> np.ndarray:
    return run.at(np.arange(len(run)))


def epochs_of(run: jd.Run) -> np.ndarray:
    """The epoch of every position by plain counting, what was skipped included."""
    epochs, given = [], [0] * len(run.members)
    at = iter(numbers_of(run).tolist())
    slices = run.content.versions[run.version - 1].slices
    parts = [np.load(run.root / part.file) for part in run.content.parts]
    for each in slices:
        for number in parts[each.part][each.start : each.stop].tolist():
            index = int(number >= run.offsets[1]) if len(run.members) > 1 else 0
            if not each.skipped:
                assert next(at) == number
                epochs.append(given[index] // run.members[index].num_sequences)
            given[index] += 1
    return np.array(epochs)


def documents_in(dataset: jd.Dataset, sequence: int) -> list[str]:
    segments, ids = dataset.segments, list(dataset.document_store.ids())
    return [ids[index] for index in segments.document_index[segments.sequence_index == sequence].tolist()]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main([*arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


# Inspect


def test_a_batch_of_a_run_holds_what_its_segments_say(run: jd.Run) -> None:
    assert len({each.part for each in run.content.versions[-1].slices}) == 3
    inspector, epochs = ScheduleInspector(run, 8), epochs_of(run)
    assert epochs.max() > 0
    for step in range(len(run) // 8):
        batch = inspector.batch(step, compare=False)
        dataset, sequence = run.places(np.arange(8 * step, 8 * step + 8))
        assert [row.position for row in batch.sequences] == list(range(8 * step, 8 * step + 8))
        assert [row.dataset for row in batch.sequences] == dataset.tolist()
        assert [row.epoch for row in batch.sequences] == epochs[8 * step : 8 * step + 8].tolist()
        for row, index, number in zip(batch.sequences, dataset, sequence, strict=True):
            assert row.sequence_index == number
            found = [segment.about["id"] for segment in row.segments]
            assert found == documents_in(run.datasets[index], number)
    parts = [inspector.batch(5, host_index=host, num_hosts=2).sequences for host in range(2)]
    assert (*parts[0], *parts[1]) == inspector.batch(5).sequences


def test_the_families_of_a_batch_are_those_of_the_joined_counts(run: jd.Run, one: jd.Run) -> None:
    for each, targets in ((run, own_shares(joined_characteristics(run.datasets), run)), (one, None)):
        chars = joined_characteristics(each.datasets)
        measured = jd.measure(chars, each, windows=(8,), targets=targets)
        inspector = ScheduleInspector(each, 8)
        deviations = inspector.deviations()
        for family, tv in measured.window_tv.items():
            np.testing.assert_allclose(deviations[family], tv[8])
            view = inspector.batch(6).families[family]
            assert view.total_variation == pytest.approx(tv[8][6])
            assert len(view.names) == len(view.share) == chars.counts[family].shape[1]
        assert measured.documents is not None
        assert [inspector.batch(step).num_repeats for step in range(len(each) // 8)] == measured.documents.repeats[
            8
        ].tolist()


def test_a_document_is_found_in_all_epochs_and_datasets(run: jd.Run) -> None:
    epochs, (dataset, sequence) = epochs_of(run), run.places(np.arange(len(run)))
    uses = ScheduleInspector(run, 8).uses("document-7")  # both datasets have one
    expected = []
    for position in range(len(run)):
        segments = run.datasets[dataset[position]].segments
        held = (segments.sequence_index == sequence[position]) & (segments.document_index == 7)
        for offset, length in zip(segments.document_offset[held], segments.length[held], strict=True):
            expected.append(
                (dataset[position], epochs[position], position, position // 8, position % 8, offset, length)
            )
    assert {index for index, *_ in expected} == {0, 1}
    fields = ("dataset", "epoch", "position", "step", "row", "document_offset", "num_tokens")
    assert [tuple(getattr(use, name) for name in fields) for use in uses] == expected
    assert ScheduleInspector(run, 8).uses("document-62") == []  # kept for validation in the first


def test_inspect_prints_steps_and_documents(run: jd.Run, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["inspect", "--schedule", str(run.root), "--batch-size", "8"]
    assert main([*common, "--step", "9", "--rows", "5"]) == 0
    shown = capsys.readouterr().out
    assert "step 9 of 'run', version 4: position 72, 8 rows" in shown
    assert "and 3 rows more" in shown
    assert "../code" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert main([*common, "--step", "9", "--json"]) == 0
    batch = json.loads(capsys.readouterr().out)
    assert len(batch["sequences"]) == 8
    assert batch["families"]["length"]["all_batches"]["number"] == len(run) // 8
    assert main([*common, "--document", "document-7", "--json"]) == 0
    uses = json.loads(capsys.readouterr().out)
    assert main([*common, "--document", "document-7"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(uses) + 2
    # An earlier version knows the first dataset only.
    assert main([*common, "--version", "1", "--document", "document-7", "--json"]) == 0
    assert {use["dataset"] for use in json.loads(capsys.readouterr().out)} == {0}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--document", "nobody"], "found 'nobody'"),
        (["--version", "9"], "version to be a whole number >= 1 and <= 4"),
        (["--ordering", "balance"], "--schedule or --ordering, found both"),
        (["--out", "elsewhere"], "--schedule or --out, found both"),
        (["--step", "9999"], "step to be a whole number"),
        (["--batch-size", "9999"], "global batch size in 1 .."),
        (["--rank", "2", "--num-hosts", "2"], "host 2 of 2"),
    ],
)
def test_inspect_refuses_in_one_sentence(
    run: jd.Run, capsys: pytest.CaptureFixture[str], options: list[str], sentence: str
) -> None:
    common = () if "--batch-size" in options else ("--batch-size", "8")
    assert sentence in refused(capsys, "inspect", "--schedule", str(run.root), *common, *options)


def test_a_schedule_that_moved_is_named(run: jd.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in (["inspect", "--batch-size", "8"], ["measure"]):
        assert "no schedule.json" in refused(capsys, *verb, "--schedule", str(tmp_path / "none"))
        assert "--schedule with --version 1" in refused(capsys, *verb, "--version", "1")


# Measure


def test_a_run_is_measured_by_joined_characteristics_and_its_own_shares(
    run: jd.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    chars = joined_characteristics(run.datasets)
    shares = {}
    for family, counts in chars.counts.items():
        tokens = counts[numbers_of(run)].sum(axis=0)
        shares[family] = tokens / tokens.sum()
    expected = jd.measure(chars, run.to_order(), windows=(8, 32), targets=shares).summary()
    command = ["measure", "--schedule", str(run.root), "--windows", "8", "32", "--quiet"]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["run"]
    for family, about in expected["families"].items():
        for size, values in about["windows"].items():
            for name, value in values.items():
                assert found["families"][family]["windows"][size][name] == pytest.approx(value), name
            # The shuffle is one of the same positions: to close its gap is no matter of the mixture.
            assert found["families"][family]["windows"][size]["gap_closed"] is not None
    assert found["documents"] == expected["documents"]
    # The whole run is its own mixture.
    assert jd.measure(chars, run, windows=(len(run),), targets=shares).window_tv["length"][len(run)] == pytest.approx(0)
    assert main([*command, "--profile", "--families", "length"]) == 0
    shown = capsys.readouterr().out
    assert "cluster" not in shown
    assert "uniform_shuffle" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_clusters_of_other_feature_spaces_are_left_out(
    tinies: tuple[TinyDataset, TinyDataset], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_tiny_dataset(tmp_path / "other", num_documents=25, seed=2, features="other").root
    run = jd.create_schedule(tmp_path / "run", [tinies[0].root, other], num_positions=40)
    assert main(["measure", "--schedule", str(run.root), "--windows", "8", "--json", "--quiet"]) == 0
    assert [*json.loads(capsys.readouterr().out)["run"]["families"]] == ["length"]
    assert [*ScheduleInspector(run, 8).batch(0).families] == ["length"]
    command = ["measure", "--schedule", str(run.root), "--windows", "8"]
    assert "every family to be one of length, found" in refused(capsys, *command, "--families", "cluster")


def test_a_run_of_one_dataset_is_measured_as_its_saved_positions(
    one: jd.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = str(tmp_path / "one.npy")
    one.to_order().save(saved)
    options = ["--windows", "8", "32", "--json", "--quiet", "--profile"]
    assert main(["measure", "--out", str(one.datasets[0].root), "--order", saved, *options]) == 0
    expected = json.loads(capsys.readouterr().out)[saved]
    assert main(["measure", "--schedule", str(one.root), *options]) == 0
    assert json.loads(capsys.readouterr().out) == {"one": expected}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--orderings", "balance"], "--schedule or --orderings, found both"),
        (["--order", "a.npy"], "--schedule or --order, found both"),
        (["--families", "nothing"], "every family to be one of cluster, length"),
        (["--windows", "99999"], "every window size to be a whole number"),
    ],
)
def test_measure_refuses_in_one_sentence(
    run: jd.Run, capsys: pytest.CaptureFixture[str], options: list[str], sentence: str
) -> None:
    windows = () if "--windows" in options else ("--windows", "8")
    assert sentence in refused(capsys, "measure", "--schedule", str(run.root), *windows, *options)


# Exports


def tokens_of(tinies: tuple[TinyDataset, TinyDataset], run: jd.Run, position: int) -> list[int]:
    """The tokens at a position, one at a time from the documents."""
    dataset, sequence = (int(values[0]) for values in run.places(np.array([position])))
    row = reference_row(tinies[dataset].segments, tinies[dataset].store, sequence)
    return row["inputs"][row["inputs_segmentation"] > 0].tolist()


def test_rows_of_a_run_are_those_of_its_loader(run: jd.Run) -> None:
    sequences = pickle.loads(pickle.dumps(OrderedSequences(run)))
    assert len(sequences) == len(run)
    batches = list(jd.make_loader(run, global_batch_size=7))
    for step, rows in enumerate(sequences.stream(0, 7 * len(batches), 7)):
        for field, values in rows.items():
            np.testing.assert_array_equal(values, batches[step][field])
    examples = asyncio.run(LevanterDataset(run).get_batch([8, 100]))
    np.testing.assert_array_equal(examples[1]["tokens"], sequences.read_positions(np.array([100]))["inputs"][0])
    for wrong in (-1, sequences.num_sequences):
        with pytest.raises(IndexError):
            sequences.read(np.array([wrong]))
    with pytest.raises(UserError, match="no ordering with a run's schedule"):
        OrderedSequences(run, "balance")


def test_a_batch_sampler_follows_a_run_and_its_versions(run: jd.Run) -> None:
    sampler = OrderedBatchSampler(run, None, 8)
    batches = list(sampler)
    np.testing.assert_array_equal(np.concatenate(batches), numbers_of(run)[: 8 * len(batches)])
    # Version 2 was changed at position 130, version 3 by a skip at 48.
    later = OrderedBatchSampler(run, None, 8)
    later.resume(OrderedBatchSampler(run.with_version(2), None, 8).state(6))
    assert list(later) == batches[6:]
    with pytest.raises(UserError, match="Expected a state of the ordering"):
        later.resume(OrderedBatchSampler(run.with_version(2), None, 8).state(7))


def test_npy_holds_the_numbers_and_where_datasets_begin(
    run: jd.Run, one: jd.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["export", "--quiet", "--target", str(tmp_path), "--schedule"]
    assert main([*command, str(run.root)]) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "run.npy"), numbers_of(run))
    about = json.loads((tmp_path / "run-datasets.json").read_text())
    assert [each["first"] for each in about] == run.offsets[:-1].tolist()
    assert [each["fingerprint"] for each in about] == [dataset.fingerprint for dataset in run.datasets]
    assert main([*command, str(one.root), "--documents"]) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "one.npy"), numbers_of(one))
    assert not (tmp_path / "one-datasets.json").exists()
    documents = np.load(tmp_path / "one-documents.npy").tolist()
    first: dict[int, None] = {}
    segments = one.datasets[0].segments
    for number in numbers_of(one):
        first |= dict.fromkeys(segments.document_index[segments.sequence_index == number].tolist())
    assert documents == list(first)
    assert main([*command, str(run.root), "--version", "1", "--overwrite"]) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "run.npy"), numbers_of(run.with_version(1)))


def test_maxtext_reads_the_run(
    tinies: tuple[TinyDataset, TinyDataset], run: jd.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["export", "--quiet", "--schedule", str(run.root), "--to", "maxtext", "--target", str(tmp_path)]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert f"{len(run):,} records" in shown
    assert f"each of the {run.offsets[-1]:,} sequences is written as often as it comes" in shown
    expected = [tokens_of(tinies, run, position) for position in range(len(run))]
    assert read_as_maxtext(tmp_path / "maxtext.yml") == expected


@pytest.mark.parametrize("loader", ["numpy", "numpy_2024", "composable"])
def test_olmo_s_epochs_are_the_run(run: jd.Run, tmp_path: Path, loader: str) -> None:
    """Read as OLMo-core does: of every epoch's file as many indices as whole batches of all instances."""
    batch_size, num_instances = 8, int(run.offsets[-1])
    config = OlmoExportConfig(loader, seed=3, global_batch_size=batch_size)  # pyright: ignore[reportArgumentType]
    written = write_olmo(run.to_order(), tmp_path, config, sequence_length=16)
    total = batch_size * (num_instances // batch_size)
    assert num_instances % batch_size
    assert len(written.files) == -(-len(run) // total) > 1
    read = np.concatenate([np.fromfile(path, "<u4")[:total].reshape(-1, batch_size) for path in written.files])
    num_steps = len(run) // batch_size
    assert f"train {num_steps} steps" in written.line
    np.testing.assert_array_equal(read[:num_steps].ravel(), numbers_of(run)[: num_steps * batch_size])
    assert read.max() < num_instances


def test_olmo_s_instances_are_all_datasets_sequences(tinies: tuple[TinyDataset, TinyDataset], tmp_path: Path) -> None:
    # Without the padded last sequence, which OLMo-core cannot tell from tokens.
    roots = [each.root for each in tinies]
    run = jd.create_schedule(tmp_path / "run", roots, num_positions=20)
    with pytest.raises(UserError, match="full of tokens"):
        write_olmo_tokens(Sequences(run), tmp_path / "sequences.npy")


def test_megatron_reads_the_run(one: jd.Run, tmp_path: Path) -> None:
    """As `GPTDataset` does: position i is sample `shuffle_index[i]`, from that row of the sample index to the next."""
    num_samples = one.datasets[0].num_sequences
    samples = np.stack([np.arange(num_samples + 1) // 3, np.arange(num_samples + 1) % 3], axis=1).astype(np.int32)
    about = Description("tokens", len(one), 1, 16, None, {"class": "a"}).text
    short = jd.Schedule(numbers_of(one)[:20], num_samples)
    for name, schedule, text in (
        ("long", one.to_order(), about),
        ("short", short, Description("tokens", 20, 1, 16, None, {}).text),
    ):
        folder = tmp_path / name
        write_megatron(schedule, np.arange(num_samples, dtype=np.int32), samples, text, folder)
        found = {each: np.load(next(folder.glob(f"*-{each}_index.npy"))) for each in ("sample", "shuffle")}
        length = len(found["sample"]) - 1  # the length that Megatron sees
        assert length == len(found["shuffle"]) == max(len(schedule), num_samples)
        at = found["shuffle"][: len(schedule)]
        np.testing.assert_array_equal(at, schedule.indices)
        np.testing.assert_array_equal(found["sample"][found["shuffle"]], samples[found["shuffle"]])
        np.testing.assert_array_equal(found["sample"][found["shuffle"] + 1], samples[found["shuffle"] + 1])
    with pytest.raises(UserError, match=r"num_samples in 1 .. 20, the positions of the order"):
        write_megatron(short, np.arange(num_samples), samples, about, tmp_path / "wrong")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--to", "megatron"], "a schedule of one dataset, for Megatron's cache"),
        (["--documents"], "a schedule of one dataset, for documents"),
        (["--to", "olmo"], "give --olmo.global-batch-size"),
        (["--to", "olmo", "--olmo.global-batch-size", "8", "--olmo.num-epochs", "2"], "holds its own epochs"),
        (["--ordering", "balance"], "--schedule or --ordering, found both"),
        (["--version", "7"], "version to be a whole number >= 1 and <= 4"),
    ],
)
def test_what_a_stack_cannot_hold_is_refused(
    run: jd.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], sentence: str
) -> None:
    target = tmp_path / "target"
    command = ["export", "--quiet", "--schedule", str(run.root), "--target", str(target)]
    assert sentence in refused(capsys, *command, *options)
    assert not [path for path in target.glob("*") if not path.name.startswith(".")]


def test_a_dataset_that_is_not_where_it_was_is_named(
    tinies: tuple[TinyDataset, TinyDataset], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = jd.create_schedule(tmp_path / "run", tinies[0].root, num_positions=10)
    (tmp_path / "away" / "deep").mkdir(parents=True)
    moved = run.root.rename(tmp_path / "away" / "deep" / "run")
    for verb in (["inspect"], ["measure"], ["export", "--to", "maxtext", "--target", str(tmp_path / "target")]):
        assert "A dataset of the schedule is not where it was" in refused(capsys, *verb, "--schedule", str(moved))


# Report


class Page(HTMLParser):
    """A page's elements, each of which has to be closed where it began, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found, self.open, self.text = [], list[str](), ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "link") and not (self.get_starttag_text() or "").endswith("/>"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_values_of_a_run_are_those_of_plain_counting(run: jd.Run) -> None:
    values = run_values(run, Progress(quiet=True), windows=(8, 32))
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    epochs, (dataset, _) = epochs_of(run), run.places(np.arange(len(run)))
    assert [each["positions"] for each in values["datasets"]] == np.bincount(dataset).tolist()
    assert [each["start"] for each in values["stretches"][1:]] == [each["stop"] for each in values["stretches"][:-1]]
    assert (values["stretches"][0]["start"], values["stretches"][-1]["stop"]) == (0, len(run))
    for each in values["stretches"]:
        own = slice(each["start"], each["stop"])
        for part in each["parts"]:
            share = np.mean((dataset[own] == part["dataset"]) & (epochs[own] == part["epoch"]))
            assert part["share"] == pytest.approx(share, abs=1e-5)
        assert sum(part["share"] for part in each["parts"]) == pytest.approx(1, abs=1e-5)
    chars = joined_characteristics(run.datasets)
    measured = jd.measure(chars, run, windows=(8, 32), targets=own_shares(chars, run))
    for row in values["measures"]:
        if row["order"] == "run":
            tv = measured.window_tv[row["family"]][row["window_size"]]
            assert (row["mean"], row["worst"]) == pytest.approx((tv.mean(), tv.max()), abs=1e-5)
    # Version 2 was changed at 40, version 4 skips from 48 on, where version 3's change at 130 is 16 earlier.
    assert values["changes"] == [{"version": 2, "position": 40}, {"version": 4, "position": 48}]


def test_the_page_of_a_run_is_whole_and_shows_names_as_text(run: jd.Run) -> None:
    values = run_values(run, Progress(quiet=True), windows=(8,))
    values["datasets"][0]["path"] = hostile = '../<script>alert("&amp;")</script>'
    page = Page(render_run(values))
    assert hostile in page.text
    assert not [tag for tag, _ in page.found if tag in ("script", "iframe", "img")]
    policy = next(about["content"] for tag, about in page.found if tag == "meta" and "content" in about)
    assert policy is not None
    assert "default-src 'none'" in policy
    assert len([tag for tag, _ in page.found if tag == "rect"]) >= len(values["stretches"])
    assert not re.search("nan|None|inf,", page.text)
    assert render_run(values) == render_run(values)


def test_report_draws_a_run(run: jd.Run, one: jd.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for each in (run, one):
        target = tmp_path / each.root.name
        command = ["report", "--schedule", str(each.root), "--windows", "8", "--quiet"]
        assert main([*command, "--target", str(target)]) == 0
        assert "report.html" in capsys.readouterr().out
        values = json.loads((target / "report.json").read_text(encoding="utf-8"))
        assert values["num_positions"] == len(each)
        assert render_run(values) == (target / "report.html").read_text(encoding="utf-8")
    command = ["report", "--schedule", str(run.root), "--windows", "8", "--quiet"]
    assert "has no option --out" in refused(capsys, *command, "--out", "elsewhere")
    assert "version to be a whole number" in refused(capsys, *command, "--version", "5")
    assert "no schedule.json" in refused(capsys, "report", "--schedule", str(tmp_path / "none"))
    assert not (run.root / "report.html").exists()
