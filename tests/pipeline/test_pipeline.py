"""Whole builds: what is skipped, what is made again, what survives a kill, what verification finds."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.foundation.artifacts import OutputFolder, signed
from jax_diversity.foundation.progress import Advance, Progress, ignore
from jax_diversity.lab.settings import TrainConfig
from jax_diversity.ordering import running
from jax_diversity.ordering.objective import Objective
from jax_diversity.ordering.settings import OrderConfig
from jax_diversity.pipeline.build import Build, _changes, flat, recorded_config
from jax_diversity.pipeline.settings import BuildConfig
from jax_diversity.sequences.characteristics.settings import CharacteristicsConfig
from jax_diversity.sequences.embedding.settings import EmbeddingConfig
from jax_diversity.sequences.tokenization.settings import TokenizerConfig
from jax_diversity.streaming.records.settings import RecordsConfig
from tests.support.tiny_corpus import tiny_config


@pytest.fixture(scope="module")
def corpus(tiny_dataset: Path) -> Path:
    return tiny_dataset.parent / "corpus"


@pytest.fixture(scope="module")
def built(tiny_dataset: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset that tests may add orderings to."""
    out = copy_of(tiny_dataset, tmp_path_factory.mktemp("built"))
    Build(tiny_config(corpus, out)).run_stage("report")  # it names the folder
    return out


@pytest.fixture
def config(tiny_dataset: Path, corpus: Path, tmp_path: Path) -> BuildConfig:
    """The settings of a dataset that is built already, in a folder of the test's own."""
    return tiny_config(corpus, copy_of(tiny_dataset, tmp_path))


def copy_of(tiny_dataset: Path, folder: Path) -> Path:
    return shutil.copytree(tiny_dataset, folder / "out")


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Callable[[BuildConfig], dict[str, bytes]]:
    """The artifacts of a build from nothing; each once for the module."""
    made: dict[str, dict[str, bytes]] = {}

    def artifacts_of(config: BuildConfig) -> dict[str, bytes]:
        out = tmp_path_factory.mktemp("fresh") / "out"
        fresh_config = dataclasses.replace(config, out=str(out))
        key = repr(dataclasses.replace(config, out=""))
        if key not in made:
            Build(fresh_config).run_all()
            made[key] = artifacts(out)
        return made[key]

    return artifacts_of


def artifacts(out: Path) -> dict[str, bytes]:
    """Every stored byte but logs and caches."""
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file() and path.name not in (".lock", "build.log") and ".cache" not in path.parts
    }


def test_the_whole_chain(built: Path) -> None:
    dataset = jd.open_dataset(built)
    assert dataset.verify() == []
    assert {"uniform_shuffle", "balance"} <= set(dataset.orderings)
    assert (built / "report.html").stat().st_size > 100_000
    loader = jd.make_loader(built, ordering="balance", global_batch_size=8)
    first = next(iter(loader))
    indices = dataset.orderings["balance"].indices
    segments = dataset.segments
    for row in range(8):
        mine = segments.sequence_index == indices[row]
        tokens = dataset.tokens.gather(
            segments.document_index[mine], segments.document_offset[mine], segments.length[mine]
        )
        np.testing.assert_array_equal(first["inputs"][row], tokens)


def test_counts_agree_through_the_stages(built: Path) -> None:
    dataset = jd.open_dataset(built)
    stages = OutputFolder(built).stages
    lengths = dataset.tokens.document_lengths
    assert lengths.sum() == stages["tokenize"]["counts"]["num_tokens"]
    assert stages["prepare"]["counts"]["num_documents"] == len(lengths)
    assert (dataset.characteristics.tokens == dataset.sequence_length).all()
    training = set(dataset.segments.document_index.tolist())
    validation = set(dataset.validation_segments.document_index.tolist())
    assert validation
    assert not training & validation


def test_clusters_find_the_topics(built: Path) -> None:
    import pyarrow.parquet as pq

    table = pq.read_table(built / "characteristics" / "documents.parquet")
    clusters, sources = np.array(table["cluster"]), np.array(table["source"])
    agreeing = sum(np.unique(sources[clusters == cluster], return_counts=True)[1].max() for cluster in set(clusters))
    assert agreeing / len(clusters) > 0.9


def test_all_metadata_is_kept(built: Path) -> None:
    row = jd.open_dataset(built).documents.head(1).to_pylist()[0]
    assert json.loads(row["metadata"]) == {"year": 1990}


def test_a_second_build_keeps_everything(built: Path, corpus: Path) -> None:
    before = artifacts(built)
    results = Build(tiny_config(corpus, built)).run_all()
    assert all(result.kept for result in results)
    assert artifacts(built) == before


def test_builds_in_other_folders_are_the_same_bytes(built: Path, corpus: Path, fresh: Any) -> None:
    assert fresh(tiny_config(corpus, built)) == artifacts(built)


CHANGES = {
    "corpus": ({"file_bytes": 10**6}, {"documents/documents-00001.parquet", "tokens/tokens-00001.bin"}),
    "tokenizer": ({"vocab_size": 290}, set()),
    "embedding": ({"options": {"dimensions": 6}}, set()),
    "cluster": ({"seed": 1}, set()),
    "packing": ({"seed": 9}, set()),
    "characteristics": ({"length_bins": 3}, set()),
    "records": ({"sequences_per_file": 100}, set()),
}


@pytest.mark.first(1)
@pytest.mark.parametrize("section", CHANGES)
def test_changed_settings_end_like_a_fresh_build(section: str, config: BuildConfig, tmp_path: Path, fresh: Any) -> None:
    values, gone = CHANGES[section]
    assert gone <= artifacts(tmp_path / "out").keys()
    changed = dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **values)})
    if section in ("corpus", "tokenizer", "embedding", "cluster"):  # a fresh build does not know the earlier split
        changed = dataclasses.replace(changed, packing=dataclasses.replace(changed.packing, keep_validation=False))
    Build(changed).run_all()
    assert artifacts(tmp_path / "out") == fresh(changed)
    assert not gone & artifacts(tmp_path / "out").keys()


def test_only_what_depends_on_a_setting_is_made_again(config: BuildConfig, tmp_path: Path) -> None:
    Build(recorded_config(config.out)).run_orders([OrderConfig("greedy", name="by_topic", objective=Objective.f1())])
    measured = dataclasses.replace(config, windows=(16,))
    made = {result.stage for result in Build(measured).run_all() if not result.kept}
    assert made == {"measure/uniform_shuffle", "measure/balance", "report"}
    changed = dataclasses.replace(measured, packing=dataclasses.replace(config.packing, seed=9))
    kept = {result.stage for result in Build(changed).run_all() if result.kept}
    assert kept == {"prepare", "tokenize", "embed", "cluster"}
    # The ordering by hand was made for other sequences: it is no longer part of the dataset.
    assert "by_topic" not in jd.open_dataset(config.out).orderings
    assert not (tmp_path / "out" / "orderings" / "by_topic.npy").exists()


def test_a_stage_by_itself_removes_what_was_made_from_its_former_output(config: BuildConfig, tmp_path: Path) -> None:
    changed = dataclasses.replace(config, embedding=dataclasses.replace(config.embedding, options={"dimensions": 5}))
    Build(changed).run_stage("embed")
    finished = set(OutputFolder(config.out).stages)
    assert finished == {"prepare", "tokenize", "embed"}
    assert vars(recorded_config(config.out)) == vars(changed)
    with pytest.raises(jd.UserError, match="needs 'cluster'"):
        Build(recorded_config(config.out)).run_stage("characterize")


def config_packing(corpus: Path, out: Path, document_order: str, num_clusters: int = 4) -> BuildConfig:
    """Documents in some order, none of their tokens dropped."""
    config = tiny_config(corpus, out)
    packing = dataclasses.replace(
        config.packing, document_order=document_order, options={"last_sequence": "pad"}, validation_choice="hash"
    )
    return dataclasses.replace(
        config, packing=packing, cluster=dataclasses.replace(config.cluster, num_clusters=num_clusters)
    )


def packed_documents(out: str) -> np.ndarray:
    """The training documents in the order in which they are packed."""
    document_index = jd.open_dataset(out).segments.document_index
    return document_index[np.diff(document_index, prepend=-1) != 0]


def test_documents_are_packed_spaced_by_topic(corpus: Path, tmp_path: Path) -> None:
    config = config_packing(corpus, tmp_path / "out", "spacing")
    for stage in ("prepare", "tokenize"):
        Build(config).run_stage(stage)
    with pytest.raises(jd.UserError, match="Stage 'pack' needs 'cluster'"):
        Build(config).run_stage("pack")
    Build(config).run_all()
    assert all(result.kept for result in Build(config).run_all())
    dataset = jd.open_dataset(config.out)
    assert dataset.verify() == []
    packed = packed_documents(config.out)
    training = np.sort(packed)
    assert not np.intersect1d(training, dataset.validation_segments.document_index).size
    clusters = np.load(tmp_path / "out" / "clusters" / "assignments.npy")[training]
    counts = np.zeros((len(training), 4), np.int64)
    counts[np.arange(len(training)), clusters] = dataset.tokens.document_lengths[training]
    spaced = jd.order(jd.Characteristics.from_counts({"cluster": counts}), "document_spacing")
    np.testing.assert_array_equal(packed, training[spaced.indices])


def test_packing_depends_on_clusters_only_where_it_spaces_by_them(corpus: Path, tmp_path: Path) -> None:
    def pack_is_kept(document_order: str, num_clusters: int) -> bool:
        build = Build(config_packing(corpus, tmp_path / "out", document_order, num_clusters))
        stages = ("prepare", "tokenize", "embed", "cluster", "pack")
        return [build.run_stage(stage).kept for stage in stages][-1]

    assert not pack_is_kept("corpus", 4)
    packed = packed_documents(str(tmp_path / "out"))
    np.testing.assert_array_equal(packed, np.sort(packed))
    assert pack_is_kept("corpus", 3)
    assert not pack_is_kept("spacing", 3)
    assert pack_is_kept("spacing", 3)
    assert not pack_is_kept("spacing", 2)


def test_a_predecessors_missing_file_is_named(config: BuildConfig, tmp_path: Path) -> None:
    (tmp_path / "out" / "documents" / "documents-00001.parquet").unlink()
    changed = dataclasses.replace(config, tokenizer=dataclasses.replace(config.tokenizer, vocab_size=290))
    with pytest.raises(jd.UserError, match=r"documents/documents-00001\.parquet: expected .* found no such file"):
        Build(changed).run_stage("tokenize")
    Build(config).run_all()
    assert jd.open_dataset(config.out).verify() == []


def test_what_other_tries_left_is_removed(corpus: Path, tmp_path: Path) -> None:
    config = tiny_config(corpus, tmp_path / "out")
    leftover = tmp_path / "out" / ".partial" / f"tokenize-{16 * '0'}"
    leftover.mkdir(parents=True)
    (leftover / "tokens-00000.bin").write_bytes(b"of other settings")
    for stage in ("prepare", "tokenize"):
        Build(config).run_stage(stage)
    assert not (tmp_path / "out" / ".partial").exists()


FAMILIES = ("cluster", "length", "source", "language", "tokens")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"method": "gredy"}, "did you mean 'greedy'"),
        ({"name": "../x"}, "plain file name"),
        (
            {"objective": Objective(family_weights=dict.fromkeys((*FAMILIES, "loss"), 0.0))},
            "Ordering 'balance': Expected family_weights with a weight above zero, found only zeros",
        ),
        (
            {"options": {"pool_sise": 64}},
            "Ordering 'balance': Method 'balance' has no option 'pool_sise': .* did you mean 'pool_size'",
        ),
        ({"options": {"seed": 1}}, "Method 'balance' has no option 'seed'"),
        ({"method": "cluster_sorted", "options": {"pool_size": 64}}, "has no option 'pool_size': it takes none"),
        ({"name": "mine", "options": {"pool_size": 8.5}}, "Ordering 'mine': .* 'pool_size' to be a whole number"),
        ({"options": {"pool_size": True}}, "the option 'pool_size' to be a whole number or None, found True"),
        ({"method": "greedy_pool", "options": {"shuffle": "no"}}, "'shuffle' to be True or False, found 'no'"),
        ({"method": "greedy", "options": {"mesh": 4}}, "'mesh' of method 'greedy' can only be given in Python"),
    ],
)
def test_bad_orders_are_refused_before_any_work(change: dict, sentence: str, corpus: Path, tmp_path: Path) -> None:
    config = dataclasses.replace(tiny_config(corpus, tmp_path / "out"), orders=(OrderConfig(**change),))
    with pytest.raises(jd.UserError, match=sentence):
        Build(config).run_all()
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_an_objective_of_more_families_than_there_are(corpus: Path, tmp_path: Path) -> None:
    config = dataclasses.replace(
        tiny_config(corpus, tmp_path / "out"),
        characteristics=CharacteristicsConfig(families=("cluster",)),
        orders=(OrderConfig("greedy", objective=Objective.f3()),),
    )
    with pytest.raises(jd.UserError, match=r"Ordering 'greedy': .* weighs 2 families"):
        Build(config).run_all()
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.campaign
def test_options_reach_the_method_and_tell_orderings_apart(built: Path) -> None:
    def fingerprint_of(pool_size: int) -> str:
        build = Build(recorded_config(built))
        made, _ = build.run_orders([OrderConfig("greedy_pool", name="pool", options={"pool_size": pool_size})])
        assert not made.kept
        assert made.counts["options"] == {"pool_size": pool_size, "shuffle": True, "ties": "random"}
        again = Build(recorded_config(built)).run_orders([build.config.orders[-1]])
        assert all(result.kept for result in again)
        return jd.open_dataset(built).orderings["pool"].fingerprint

    expected = [
        jd.order(jd.open_dataset(built).characteristics, "greedy_pool", pool_size=size).fingerprint
        for size in (16, 256)
    ]
    assert [fingerprint_of(size) for size in (16, 256)] == expected


def test_objective_settings_reach_the_selector(built: Path) -> None:
    build = Build(recorded_config(built))
    build.run_orders([OrderConfig("greedy", name="aware", objective=Objective(0.5, windows=(8,), window_weight=1.0))])
    about = json.loads((built / "orderings" / "aware.json").read_text())["objective"]
    assert (about["windows"], about["window_weight"], about["norm_weight"]) == ([8], 1.0, 0.5)
    assert about["self_weight"] == 0.5


def test_orderings_are_added_and_reported(built: Path) -> None:
    build = Build(recorded_config(built))
    results = build.run_orders([OrderConfig("greedy", name="published", objective=Objective.f3())])
    assert [(made.stage, made.kept) for made in results] == [
        ("order/published", False),
        ("measure/published", False),
    ]
    assert all(
        made.kept for made in build.run_orders([OrderConfig("greedy", name="published", objective=Objective.f3())])
    )
    assert "published" in jd.open_dataset(built).orderings
    build.run_stage("report")
    assert "published" in (built / "report.json").read_text()


def test_recorded_settings_are_those_of_the_build(built: Path, corpus: Path) -> None:
    recorded, given = recorded_config(built), tiny_config(corpus, built)
    assert vars(dataclasses.replace(recorded, orders=given.orders)) == vars(given)


def test_recorded_settings_that_this_version_does_not_know(built: Path, tmp_path: Path) -> None:
    manifest = json.loads((built / "manifest.json").read_text())
    manifest["settings"]["packing"]["shuffle_pages"] = True
    (tmp_path / "manifest.json").write_text(json.dumps(signed(manifest)))
    with pytest.raises(jd.UserError, match=r"manifest\.json: Unknown setting packing\.shuffle_pages"):
        recorded_config(tmp_path)


def test_files_of_finished_stages_may_be_gone(built: Path, tmp_path: Path) -> None:
    """A tokenizer and vectors from files, which are not needed once the stages that read them are finished."""
    out = shutil.copytree(built, tmp_path / "out")
    vectors = EmbeddingConfig("precomputed", {"path": str(tmp_path / "gone.npy")})
    without_vectors = dataclasses.replace(recorded_config(out), embedding=vectors)
    tokenizer = TokenizerConfig(kind="file", path=str(tmp_path / "gone.json"))
    config = dataclasses.replace(without_vectors, tokenizer=tokenizer)
    made, _ = Build(config).run_orders([OrderConfig("greedy", name="later")])
    assert not made.kept
    assert recorded_config(out).embedding == config.embedding
    with pytest.raises(jd.UserError, match=r"gone\.npy"):
        Build(without_vectors).run_stage("embed")
    for run in (Build(config).run_all, lambda: Build(config).run_stage("tokenize")):
        with pytest.raises(jd.UserError, match=r"gone\.json"):
            run()
    with pytest.raises(jd.UserError, match=r"tokenizer\.kind=stored"):
        Build(dataclasses.replace(config, tokenizer=TokenizerConfig(kind="stored"))).run_orders([OrderConfig(name="x")])


def test_the_report_judges_what_training_reads(built: Path, tmp_path: Path) -> None:
    out = shutil.copytree(built, tmp_path / "out")

    def judged(config: BuildConfig) -> str:
        Build(config).run_stage("report")
        return json.loads((out / "report.json").read_text())["summary"]["main_ordering"]

    config = recorded_config(out)
    Build(config).run_orders([OrderConfig("cluster_sorted")])
    config = dataclasses.replace(config, orders=(OrderConfig("cluster_sorted"), *config.orders))
    assert judged(config) == "balance"
    sorted_one, absent = TrainConfig(ordering="cluster_sorted"), TrainConfig(ordering="absent")
    assert judged(dataclasses.replace(config, train=sorted_one)) == "cluster_sorted"
    assert judged(dataclasses.replace(config, train=absent)) == "cluster_sorted"


def test_ordered_layout_holds_the_ordering(config: BuildConfig, built: Path) -> None:
    records = RecordsConfig(layout="ordered", sequences_per_file=50)
    Build(dataclasses.replace(config, records=records)).run_stage("write")
    for ordering in ("balance", "uniform_shuffle"):
        batches = [
            [batch["inputs"] for batch in jd.make_loader(out, ordering=ordering, global_batch_size=16)]
            for out in (built, config.out)
        ]
        np.testing.assert_array_equal(np.concatenate(batches[0]), np.concatenate(batches[1]))


def test_a_stage_without_its_predecessor(corpus: Path, tmp_path: Path) -> None:
    build = Build(tiny_config(corpus, tmp_path / "out"))
    build.run_stage("prepare")
    with pytest.raises(jd.UserError, match=r"needs 'tokenize', which .* does not have; run `jax-diversity tokenize`"):
        build.run_stage("pack")


def test_verification_names_what_was_changed(config: BuildConfig) -> None:
    out = Path(config.out)
    path = out / "tokens" / "tokens-00000.bin"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    (out / "orderings" / "balance.json").unlink()
    faults = {fault.file: fault for fault in jd.open_dataset(out).verify()}
    assert set(faults) == {"tokens/tokens-00000.bin", "orderings/balance.json"}
    assert "sha256" in str(faults["tokens/tokens-00000.bin"])
    assert faults["orderings/balance.json"].found == "no such file"


def test_two_builds_of_one_folder(corpus: Path, tmp_path: Path) -> None:
    config = tiny_config(corpus, tmp_path / "out")
    with OutputFolder(config.out).lock(), pytest.raises(jd.UserError, match=f"this process .id {os.getpid()}"):
        Build(config).run_all()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"cluster": {"num_clusters": 10_000}}, "clusters"),
        ({"packing": {"sequence_length": 2**24}}, "at least one training sequence"),
        ({"packing": {"sequence_length": 1}}, "packing.sequence_length >= 2, found 1"),
        ({"corpus": {"paths": ("absent/*.jsonl",)}}, "absent"),
        ({"corpus": {"paths": ()}}, "corpus.paths"),
        ({"tokenizer": {"kind": "file", "path": "absent.json", "vocab_size": 16_384}}, "absent.json"),
    ],
)
def test_bad_settings_leave_what_was_finished(change: dict, sentence: str, config: BuildConfig, tmp_path: Path) -> None:
    before = OutputFolder(config.out).manifest
    ((section, values),) = change.items()
    broken = dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **values)})
    with pytest.raises(jd.UserError, match=sentence):
        Build(broken).run_all()
    finished = OutputFolder(config.out).manifest["stages"]
    assert {name: entry["fingerprint"] for name, entry in finished.items()} == {
        name: entry["fingerprint"] for name, entry in before["stages"].items()
    }
    assert jd.open_dataset(config.out).verify() == []


def test_a_manifest_of_the_future_and_one_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"format_version": 99, "stages": {}}')
    with pytest.raises(jd.UserError, match="written in format 99"):
        OutputFolder(tmp_path)
    for broken in (
        "[1, 2",
        '{"format_version": "x", "stages": {}}',
        '{"format_version": 1, "stages": {"pack": 3}}',
    ):
        (tmp_path / "manifest.json").write_text(broken)
        with pytest.raises(jd.UserError, match="is not a dataset's manifest"):
            OutputFolder(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(jd.UserError, match="found a file"):
        OutputFolder(tmp_path / "file")
    with (
        pytest.raises(jd.UserError, match="Expected a folder that can be written"),
        OutputFolder(tmp_path / "file" / "below").lock(),
    ):
        pass


def run_build(config: BuildConfig, kill_after: str | None) -> int:
    """Build in its own process; SIGKILL it as soon as a stage is finished, that is in the middle of the next one."""
    program = (
        "import json, sys\n"
        "from jax_diversity.foundation.settings import settings_from_plain\n"
        "from jax_diversity.pipeline.build import Build\n"
        "from jax_diversity.pipeline.settings import BuildConfig\n"
        "Build(settings_from_plain(BuildConfig, json.load(sys.stdin))).run_all()"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, text=True)
    assert process.stdin is not None
    process.stdin.write(json.dumps(dataclasses.asdict(config)))
    process.stdin.close()
    if kill_after is not None:
        manifest = Path(config.out, "manifest.json")
        while process.poll() is None and not (manifest.exists() and f'"{kill_after}"' in manifest.read_text()):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    return process.wait()


@pytest.mark.campaign
def test_killed_builds_end_byte_for_byte_the_same(corpus: Path, tmp_path: Path, fresh: Any) -> None:
    config = tiny_config(corpus, tmp_path / "out")
    for finished in ("prepare", "embed", "characterize"):
        assert run_build(config, finished) == -signal.SIGKILL
    assert run_build(config, None) == 0
    assert artifacts(tmp_path / "out") == fresh(config)
    assert jd.open_dataset(config.out).verify() == []


class Stopping(Progress):
    """Raises something when an ordering has placed so many sequences; keeps what it was told."""

    def __init__(self, error: type[BaseException] | None = None, after: int = 0) -> None:
        super().__init__(quiet=True)
        self.told: list[int] = []
        self._error, self._after = error, after

    @contextmanager
    def task(self, name: str, total: int | None, unit: str) -> Iterator[Advance]:
        yield self._advance if name.startswith("order: ") else ignore

    def _advance(self, amount: int) -> None:
        self.told.append(amount)
        if self._error is not None and sum(self.told) >= self._after:
            raise self._error


class Killed(BaseException):
    """Nothing catches it, as nothing catches SIGKILL."""


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("method", "error"), [("balance", Killed), ("greedy", KeyboardInterrupt), ("greedy_pool", KeyboardInterrupt)]
)
def test_an_ordering_that_was_cut_off_goes_on(
    method: str, error: type[BaseException], built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = OrderConfig(method, name="long", objective=Objective(windows=(8,)))
    whole, cut = (shutil.copytree(built, tmp_path / name / "out") for name in ("whole", "cut"))
    # For both: a pool computes its scores again at the beginning of a call, and near-ties may fall in another way.
    monkeypatch.setattr(running, "STEPS_PER_CALL", 64)
    monkeypatch.setattr(running, "_SECONDS_BETWEEN_SAVES", 0.0)
    Build(recorded_config(whole)).run_orders([order])
    for after in (200, 1000):
        with pytest.raises(error):
            Build(recorded_config(cut), Stopping(error, after)).run_orders([order])
        (checkpoint,) = (cut / ".partial").glob("order-long-*/state/*")
        assert checkpoint.name == "checkpoint"
    last = Stopping()
    Build(recorded_config(cut), last).run_orders([order])
    assert last.told[0] >= 1000 - 64
    assert sum(last.told) == jd.open_dataset(cut).num_sequences
    assert artifacts(cut) == artifacts(whole)
    assert not (cut / ".partial").exists()


@pytest.mark.campaign
def test_another_ordering_does_not_go_on_from_the_checkpoint(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = shutil.copytree(built, tmp_path / "out")
    monkeypatch.setattr(running, "STEPS_PER_CALL", 64)
    with pytest.raises(KeyboardInterrupt):
        Build(recorded_config(out), Stopping(KeyboardInterrupt, 200)).run_orders([OrderConfig(name="long")])
    other = OrderConfig(name="long", options={"pool_size": 100})
    fresh = Stopping()
    Build(recorded_config(out), fresh).run_orders([other])
    assert fresh.told[0] == 64
    expected = jd.order(jd.open_dataset(out).characteristics, pool_size=100)
    assert jd.open_dataset(out).orderings["long"].fingerprint == expected.fingerprint


@pytest.mark.first(1)
@pytest.mark.parametrize("moment", [0, 1, 2, 5, 13, 20])
def test_a_kill_at_any_step_of_publishing(
    moment: int, config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: Any
) -> None:
    """Replacing a stage's files renames one after another: stop after each and build again."""
    changed = dataclasses.replace(config, packing=dataclasses.replace(config.packing, seed=1))
    replace, calls = os.replace, iter(range(100))

    def failing(source, target) -> None:
        if next(calls) == moment:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(KeyboardInterrupt):
        Build(changed).run_all()
    monkeypatch.undo()
    Build(changed).run_all()
    assert artifacts(tmp_path / "out") == fresh(changed)


def test_changed_settings_of_steps_are_named_by_their_values() -> None:
    before, after = (
        {"preparation": {"steps": [{"step": "gopher", "options": {"thresholds": {"a": value, "b": 2}}}]}, "seed": 1}
        for value in (0.7, 0.6)
    )
    assert [*_changes(flat(before), flat(after))] == ["preparation.steps[0].options.thresholds.a 0.6 (it was 0.7)"]
    longer = {**before, "preparation": {"steps": [*before["preparation"]["steps"], {"step": "words"}]}}
    assert [*_changes(flat(before), flat(longer))] == ["preparation.steps[1].step words (it was absent)"]


@pytest.mark.campaign
def test_the_report_draws_the_runs_of_this_dataset_alone(config: BuildConfig, tmp_path: Path) -> None:
    dataset = jd.open_dataset(config.out)
    log = tmp_path / "out" / "training" / "balance" / "log.jsonl"
    log.parent.mkdir(parents=True)
    header = {"dataset": dataset.fingerprint, "ordering": dataset.orderings["balance"].fingerprint, "settings": {}}
    steps = [{"step": 1, "loss": 5.4321, "step_seconds": 1.0}, {"step": 2, "loss": 5.1234, "validation_loss": 5.3}]
    lines = [json.dumps(line) for line in (header, *steps)]
    log.write_text("\n".join(lines) + '\n{"step": 3, "lo')  # as a run leaves it that was killed
    assert not Build(config).run_stage("report").kept
    assert "5.4321" in (tmp_path / "out" / "report.json").read_text()
    changed = dataclasses.replace(config, packing=dataclasses.replace(config.packing, seed=3))
    before = artifacts(tmp_path / "out")
    for refused, found in (
        (changed, "packing.seed 3 (it was 0)"),
        (dataclasses.replace(config, batch_size=12), "order.objective.windows [12] (it was [])"),
    ):
        # The ordering of a run is not replaced: the refusal comes before any work.
        with pytest.raises(
            jd.UserError, match=re.escape(f"balance (3 steps) follows it, found {found}: the run could")
        ):
            Build(refused).run_all()
    assert artifacts(tmp_path / "out") == before
    old = log.read_text()
    log.unlink()
    with pytest.warns(UserWarning, match="The sequences of .* are made again: states of loaders, stored runs"):
        Build(changed).run_all()
    log.write_text(old)
    Build(changed).run_stage("report")
    page = (tmp_path / "out" / "report.json").read_text()
    assert "5.4321" not in page
    assert "Left out: the log in `training/balance` is of another dataset or ordering" in page
