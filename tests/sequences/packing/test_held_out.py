"""The balanced choice of validation documents: its mixture, its rules, and a corpus that grows."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import jax_diversity as jd
from jax_diversity.foundation.errors import UserError
from jax_diversity.pipeline.build import Build
from jax_diversity.pipeline.settings import BuildConfig, OrderConfig
from jax_diversity.preparation.passes.settings import PreparationConfig, StepConfig
from jax_diversity.sequences.packing import split
from jax_diversity.sequences.packing.held_out import choose
from jax_diversity.sequences.packing.split import hash_ids, validation_mask
from tests.support.tiny_corpus import tiny_config, write_corpus


def made_up(num_units: int, seed: int) -> tuple[dict[str, Any], np.ndarray]:
    """Units with a topic, a source and a log-normal number of tokens."""
    rng = np.random.default_rng(seed)
    tokens = np.maximum(rng.lognormal(5, 1, num_units), 1).astype(np.int64)
    rows = np.arange(num_units)
    counts = {
        family: sparse.csr_array((tokens, (rows, rng.zipf(1.5, num_units) % number)), shape=(num_units, number))
        for family, number in (("topic", 40), ("source", 6))
    }
    return counts, tokens


def distance(counts: Any, mask: np.ndarray) -> float:
    part, whole = (np.asarray(counts[rows].sum(axis=0), float).ravel() for rows in (np.flatnonzero(mask), slice(None)))
    return float(np.abs(part / part.sum() - whole / whole.sum()).sum() / 2)


@pytest.mark.parametrize("fraction", [0.02, 0.1, 0.6])
def test_the_chosen_units_have_the_mixture_of_all(fraction: float) -> None:
    counts, tokens = made_up(3000, 0)
    mask = choose(counts, tokens, fraction)
    assert tokens[mask].sum() / tokens.sum() == pytest.approx(fraction, rel=0.02)
    hashes = [
        validation_mask([f"{seed}/{unit}" for unit in range(3000)], np.arange(3000), fraction) for seed in range(5)
    ]
    for family in counts.values():
        assert distance(family, mask) < min(distance(family, other) for other in hashes) / 1.5


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 40), st.floats(0, 0.9), st.integers(0, 1000))
def test_rules_of_the_choice(num_units: int, fraction: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 50, num_units)
    counts = {"topic": np.eye(3, dtype=np.int64)[rng.integers(0, 3, num_units)] * tokens[:, None]}
    held, barred = rng.random(num_units) < 0.1, rng.random(num_units) < 0.2
    mask = choose(counts, tokens, fraction, seed, held=held, barred=barred)
    np.testing.assert_array_equal(mask, choose(counts, tokens, fraction, seed, held=held, barred=barred))
    assert mask[held].all()
    assert not mask[barred & ~held].any()
    goal = fraction * tokens.sum()
    added = mask & ~held
    assert (tokens[added] > 0).all()
    assert (tokens[added] <= 2 * goal).all()
    if tokens[held].sum() >= goal:
        assert not added.any()


def test_a_unit_that_is_larger_than_the_share_is_not_chosen() -> None:
    tokens = np.append(np.full(200, 10), 5000)
    counts = {"topic": tokens[:, None]}
    mask = choose(counts, tokens, 0.05)
    assert not mask[-1]
    assert tokens[mask].sum() == pytest.approx(350, abs=10)
    assert not choose({"topic": np.full((3, 1), 100)}, np.full(3, 100), 0.01).any()  # any of them is a third


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"fraction": 1.0}, r"a fraction in \[0, 1\), found 1.0"),
        ({"fraction": float("nan")}, r"a fraction in \[0, 1\)"),
        ({"counts": {"topic": np.ones((2, 1))}}, "topic of 3 units, found 2"),
        ({"tokens": [1.5, 2, 3]}, "tokens"),
        ({"held": np.zeros(2, bool)}, "held as a mask of 3 units"),
        ({"barred": np.zeros(3, int)}, "barred as a mask of 3 units"),
    ],
)
def test_bad_input_is_one_sentence(changed: dict[str, Any], sentence: str) -> None:
    arguments: dict[str, Any] = {"counts": {"topic": np.ones((3, 1))}, "tokens": [1, 2, 3], "fraction": 0.5}
    with pytest.raises(jd.UserError, match=sentence):
        choose(**(arguments | changed))


def config_of(corpus: Path, out: Path, **packing: Any) -> BuildConfig:
    config = dataclasses.replace(tiny_config(corpus, out), orders=())
    return dataclasses.replace(config, packing=dataclasses.replace(config.packing, **packing))


def packed(config: BuildConfig) -> jd.Dataset:
    for stage in ("prepare", "tokenize", "embed", "cluster", "pack"):
        Build(config).run_stage(stage)
    return jd.open_dataset(config.out)


def parts(dataset: jd.Dataset) -> tuple[set[str], set[str]]:
    """The ids of the validation and of the training documents."""
    ids = np.array(list(dataset.document_store.ids()))
    return set(ids[dataset.held_out]), set(ids[~dataset.held_out])


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 200 documents; 20 of them are copies."""
    folder = tmp_path_factory.mktemp("earlier")
    lines = (write_corpus(folder / "corpus", 200) / "part-0.jsonl").read_text(encoding="utf-8").splitlines()
    copies = [line.replace('"id": "doc-', '"id": "copy-') for line in lines[:20]]
    (folder / "corpus" / "copies.jsonl").write_text("\n".join(copies) + "\n", encoding="utf-8")
    packed(config_of(folder / "corpus", folder / "out"))
    return folder


def grown(earlier: Path, folder: Path) -> Path:
    """The corpus without some documents, with new ones, and with new copies of all that stay."""
    corpus = write_corpus(folder / "corpus", 400)
    path = corpus / "part-1.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()[30:]
    copies = [line.replace('"id": "doc-', '"id": "again-') for line in lines[:60]]
    path.write_text("\n".join(lines + copies) + "\n", encoding="utf-8")
    shutil.copy(earlier / "corpus" / "copies.jsonl", corpus)
    return corpus


def test_copies_stay_together_and_other_packings_hold_out_the_same(earlier: Path, tmp_path: Path) -> None:
    dataset = jd.open_dataset(earlier / "out")
    groups = dataset.duplicate_groups
    assert len(groups) > groups.max() + 1
    assert not np.intersect1d(groups[dataset.held_out], groups[~dataset.held_out]).size
    lengths = dataset.tokens.document_lengths
    assert lengths[dataset.held_out].sum() / lengths.sum() == pytest.approx(0.05, rel=0.1)
    assert (np.bincount(dataset.validation_segments.document_index, minlength=len(lengths)) > 0).tolist() == (
        dataset.held_out.tolist()
    )
    out = shutil.copytree(earlier / "out", tmp_path / "out")
    for changed in ({"sequence_length": 64, "seed": 3, "document_order": "corpus"}, {"weights": {"source=law": 0.0}}):
        Build(config_of(earlier / "corpus", out, **changed)).run_stage("pack")
        np.testing.assert_array_equal(jd.open_dataset(out).held_out, dataset.held_out)
    Build(config_of(earlier / "corpus", out, validation_choice="hash", keep_validation=False)).run_stage("pack")
    mask = validation_mask(dataset.document_store.ids(), groups, 0.05)
    np.testing.assert_array_equal(jd.open_dataset(out).held_out, mask)


def test_of_many_documents_a_part_are_candidates(
    earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = jd.open_dataset(earlier / "out")
    groups, lengths = np.asarray(dataset.duplicate_groups), dataset.tokens.document_lengths
    every, sums = split.unit_counts(dataset, groups, int(groups.max()) + 1)
    unit = np.where(groups % 3 == 0, groups // 3, int(groups.max()) // 3 + 1)  # two thirds are counted together
    counts, tokens = split.unit_counts(dataset, unit, int(groups.max()) // 3 + 1)
    for family, matrix in every.items():
        np.testing.assert_array_equal(counts[family][:-1].toarray(), matrix[::3].toarray())
        np.testing.assert_array_equal(counts[family].sum(axis=0), matrix.sum(axis=0))
    np.testing.assert_array_equal(tokens[:-1], sums[::3])
    assert tokens.sum() == sums.sum() == lengths.sum()

    monkeypatch.setattr(split, "_LEAST_CANDIDATES", 150)
    out = shutil.copytree(earlier / "out", tmp_path / "out")
    fraction = {"validation_fraction": 0.06, "keep_validation": False}
    Build(config_of(earlier / "corpus", out, **fraction)).run_stage("pack")
    held = jd.open_dataset(out).held_out
    assert lengths[held].sum() / lengths.sum() == pytest.approx(0.06, rel=0.1)
    assert not np.intersect1d(groups[held], groups[~held]).size
    units = np.isin(np.arange(len(sums)), groups[held])
    hashed = [
        validation_mask([f"{seed}-{n}" for n in range(len(sums))], np.arange(len(sums)), 0.06) for seed in range(9)
    ]
    found, random = (
        sum(distance(matrix, mask) for matrix in every.values() for mask in masks) / len(masks)
        for masks in ([units], hashed)
    )
    assert found < 0.7 * random  # seen: .61 with about 20 documents
    # The documents of the earlier build in this folder stay held out, and its training documents do not become so.
    held, trained = parts(dataset)
    dataset = packed(config_of(grown(earlier, tmp_path), tmp_path / "new", validation_from=str(earlier / "out")))
    now, training = parts(dataset)
    assert held & (now | training) <= now
    assert not trained & now


@pytest.mark.parametrize("choice", ["balanced", "hash"])
def test_a_corpus_that_grows_keeps_its_validation_documents(choice: Any, earlier: Path, tmp_path: Path) -> None:
    first = packed(config_of(earlier / "corpus", tmp_path / "first", validation_choice=choice))
    held, trained = parts(first)
    corpus = grown(earlier, tmp_path)
    # In a new folder that names the earlier dataset, in the same folder, and in the same folder after a kill.
    named = config_of(corpus, tmp_path / "new", validation_choice=choice, validation_from=str(first.root))
    new = packed(named)
    killed = shutil.copytree(first.root, tmp_path / "killed")
    Build(config_of(corpus, killed, validation_choice=choice)).run_stage("prepare")
    again = packed(config_of(corpus, killed, validation_choice=choice))
    same = packed(config_of(corpus, first.root, validation_choice=choice))
    assert (killed / "manifest.json").read_bytes() == (first.root / "manifest.json").read_bytes()
    np.testing.assert_array_equal(new.held_out, same.held_out)
    np.testing.assert_array_equal(again.held_out, same.held_out)
    now, training = parts(same)
    present = now | training
    assert held & present <= now
    assert len(held & present) > 2
    assert not trained & now
    assert len(now) > len(held & present)
    groups = same.duplicate_groups
    assert not np.intersect1d(groups[same.held_out], groups[~same.held_out]).size
    if choice == "balanced":
        lengths = same.tokens.document_lengths
        assert lengths[same.held_out].sum() / lengths.sum() == pytest.approx(0.05, rel=0.2)
    # Nothing changes when nothing is new.
    assert Build(config_of(corpus, same.root, validation_choice=choice)).run_stage("pack").kept


def share(dataset: jd.Dataset) -> float:
    lengths = dataset.tokens.document_lengths
    return lengths[dataset.held_out].sum() / lengths.sum()


@pytest.mark.parametrize("choices", [("balanced", "balanced"), ("hash", "hash"), ("balanced", "hash")])
def test_another_share_keeps_what_was_held_out(choices: Any, earlier: Path, tmp_path: Path) -> None:
    """A larger share adds to it, a smaller one keeps a part of it; both in one folder, several times."""
    first, other = choices
    tolerance = 0.15 if choices == ("balanced", "balanced") else 0.7  # by hash: of 200 documents
    before = packed(config_of(earlier / "corpus", tmp_path / "out", validation_choice=first, validation_fraction=0.2))
    for fraction in (0.1, 0.3, 0.3, 0.02, 0.02, 0.1):
        held = parts(before)[0]
        config = config_of(earlier / "corpus", tmp_path / "out", validation_choice=other, validation_fraction=fraction)
        dataset = packed(config)
        assert Build(config).run_stage("pack").kept
        now, _ = parts(dataset)
        assert now <= held or held <= now
        assert share(dataset) == pytest.approx(fraction, rel=tolerance)
        groups = dataset.duplicate_groups
        assert not np.intersect1d(groups[dataset.held_out], groups[~dataset.held_out]).size
        before = dataset


def test_the_choice_survives_other_settings_and_is_given_up_on_request(earlier: Path, tmp_path: Path) -> None:
    out = shutil.copytree(earlier / "out", tmp_path / "out")
    corpus = earlier / "corpus"
    held = parts(jd.open_dataset(out))[0]
    config = config_of(corpus, out)
    tokenizer = dataclasses.replace(config.tokenizer, vocab_size=280)
    clusters = dataclasses.replace(config.cluster, num_clusters=3)
    changed = dataclasses.replace(config, tokenizer=tokenizer, cluster=clusters)
    assert parts(packed(changed))[0] == held
    assert parts(packed(config_of(corpus, tmp_path / "new")))[0] == held  # as from nothing
    new = dataclasses.replace(changed, out=str(tmp_path / "changed"))
    assert parts(packed(new))[0] != held
    # The manifest says that the choice was given up, and the choice is that of a new folder.
    given_up = dataclasses.replace(changed, packing=dataclasses.replace(changed.packing, keep_validation=False))
    dataset = packed(given_up)
    assert parts(dataset)[0] == parts(jd.open_dataset(new.out))[0]
    assert dataset.manifest["stages"]["pack"]["config"]["packing"]["keep_validation"] is False
    # The new choice is the one that stays now.
    assert parts(packed(changed))[0] == parts(dataset)[0]


def test_a_change_that_was_not_finished_changes_nothing(
    earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, corpus = shutil.copytree(earlier / "out", tmp_path / "out"), earlier / "corpus"
    before = jd.open_dataset(out).held_out

    def killed(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(split, "_balanced", killed)
        with pytest.raises(KeyboardInterrupt):
            Build(config_of(corpus, out, validation_fraction=0.2)).run_stage("pack")
    assert Build(config_of(corpus, out)).run_stage("pack").kept
    for fraction in (0.2, 0.3):
        Build(config_of(corpus, out, validation_fraction=fraction)).run_stage("pack")
        assert jd.open_dataset(out).held_out[before].all()
        assert len([*(out / "earlier").iterdir()]) == 1  # older choices are removed


def test_a_build_that_no_longer_names_an_earlier_dataset_keeps_its_choice(earlier: Path, tmp_path: Path) -> None:
    other = packed(config_of(earlier / "corpus", tmp_path / "other", validation_choice="hash"))
    named = config_of(earlier / "corpus", tmp_path / "out", validation_from=str(other.root))
    held = parts(packed(named))[0]
    assert held == parts(other)[0]
    alone = config_of(earlier / "corpus", tmp_path / "out", sequence_length=64)
    assert parts(packed(alone))[0] == held
    assert Build(alone).run_stage("pack").kept


def without(corpus: Path, ids: set[str], folder: Path) -> Path:
    """A copy of a corpus without some documents."""
    shutil.copytree(corpus, folder)
    for path in sorted(folder.glob("*.jsonl")):
        lines = path.read_text(encoding="utf-8").splitlines()
        path.write_text("".join(line + "\n" for line in lines if json.loads(line)["id"] not in ids), encoding="utf-8")
    return folder


def test_held_out_documents_that_leave_the_corpus_are_counted(earlier: Path, tmp_path: Path) -> None:
    first = jd.open_dataset(earlier / "out")
    held = parts(first)[0]
    ids = list(first.document_store.ids())
    groups = first.duplicate_groups
    apart = min(name for name in held if (groups == groups[ids.index(name)]).sum() == 1)
    out = shutil.copytree(earlier / "out", tmp_path / "some")
    some = packed(config_of(without(earlier / "corpus", {apart}, tmp_path / "without-one"), out))
    assert some.counts("pack")["num_held_out_gone"] == 1
    summary = some.manifest["stages"]["pack"]["summary"]
    assert re.search(r"; 1 held-out document of the earlier build left the corpus(; \d+ tokens? left out)?$", summary)

    out = shutil.copytree(earlier / "out", tmp_path / "all")
    config = config_of(without(earlier / "corpus", held, tmp_path / "without"), out)
    none = packed(config)
    reason = f"{len(held)} held-out documents left the corpus, and the earlier build in this folder trains on every"
    assert f"0 for validation: {reason}" in none.manifest["stages"]["pack"]["summary"]
    with pytest.raises(jd.UserError, match=f"found none: {reason} document that is there"):
        _ = none.validation
    again = packed(dataclasses.replace(config, packing=dataclasses.replace(config.packing, keep_validation=False)))
    assert share(again) == pytest.approx(0.05, rel=0.2)


def test_no_validation_says_why(earlier: Path, tmp_path: Path) -> None:
    first = jd.open_dataset(earlier / "out")
    corpus = without(earlier / "corpus", parts(first)[0], tmp_path / "corpus")
    dataset = packed(config_of(corpus, tmp_path / "trained", validation_from=str(first.root)))
    with pytest.raises(jd.UserError, match="an earlier dataset trains on every document that is there"):
        _ = dataset.validation
    dataset = packed(config_of(earlier / "corpus", tmp_path / "tiny", validation_fraction=1e-6))
    with pytest.raises(jd.UserError, match=r"every document is too large for this share; build .* with a larger pack"):
        _ = dataset.validation
    dataset = packed(config_of(earlier / "corpus", tmp_path / "zero", validation_fraction=0.0))
    with pytest.raises(jd.UserError, match=r"found none; build the dataset with packing\.validation_fraction above 0"):
        _ = dataset.validation


def test_a_copy_of_an_earlier_validation_document_is_held_out(earlier: Path, tmp_path: Path) -> None:
    first = jd.open_dataset(earlier / "out")
    held, trained = parts(first)
    corpus = shutil.copytree(earlier / "corpus", tmp_path / "corpus")
    lines = [line for path in sorted(corpus.glob("*.jsonl")) for line in path.read_text(encoding="utf-8").splitlines()]
    renamed = [line.replace('{"id": "', '{"id": "new-') for line in lines]
    (corpus / "new.jsonl").write_text("\n".join(renamed) + "\n", encoding="utf-8")
    dataset = packed(config_of(corpus, tmp_path / "out", validation_from=str(first.root)))
    now, training = parts(dataset)
    assert now == held | {f"new-{name}" for name in held}
    assert training == trained | {f"new-{name}" for name in trained}


def changed(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Path:
    """Change every document of a corpus in a file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("".join(json.dumps(change(json.loads(line))) + "\n" for line in lines), encoding="utf-8")
    return path


def texts_of(dataset: jd.Dataset, mask: np.ndarray) -> set[str]:
    texts = np.array([text for group in dataset.document_store.texts() for text in group], object)
    return {"".join(text.casefold().split()) for text in texts[mask]}


@pytest.mark.parametrize("edit", [str, str.upper, lambda text: f"  {text}\n\n ", lambda text: text.replace(" ", "\t")])
def test_a_mirror_under_other_ids_trains_on_no_held_out_text(
    edit: Callable[[str], str], earlier: Path, tmp_path: Path
) -> None:
    first = jd.open_dataset(earlier / "out")
    corpus = shutil.copytree(earlier / "corpus", tmp_path / "corpus")
    for path in sorted(corpus.glob("*.jsonl")):
        changed(path, lambda each: each | {"id": f"mirror/{each['id']}", "text": edit(each["text"])})
    mirror = packed(config_of(corpus, tmp_path / "out", validation_from=str(first.root)))
    held, trained = texts_of(first, first.held_out), texts_of(first, ~first.held_out)
    assert held
    assert not held & texts_of(mirror, ~mirror.held_out)
    # What the first dataset trains on is not held out by the mirror.
    assert not trained & texts_of(mirror, mirror.held_out)


def test_copies_in_other_case_or_with_other_spaces_are_held_out_together(earlier: Path, tmp_path: Path) -> None:
    corpus = shutil.copytree(earlier / "corpus", tmp_path / "corpus")
    twins = changed(
        Path(shutil.copy(corpus / "part-0.jsonl", corpus / "twins.jsonl")),
        lambda each: each | {"id": f"twin-{each['id']}", "text": each["text"].title() + "  \n"},
    )
    assert twins.is_file()
    dataset = packed(config_of(corpus, tmp_path / "out"))
    assert dataset.held_out.any()
    assert not texts_of(dataset, dataset.held_out) & texts_of(dataset, ~dataset.held_out)


def test_a_training_document_that_gets_a_held_out_text_is_held_out(earlier: Path, tmp_path: Path) -> None:
    first = jd.open_dataset(earlier / "out")
    held, trained = parts(first)
    ids = list(first.document_store.ids())
    texts = [text for group in first.document_store.texts() for text in group]
    leaked, text = min(trained), texts[ids.index(min(held))]
    corpus = shutil.copytree(earlier / "corpus", tmp_path / "corpus")
    for path in sorted(corpus.glob("*.jsonl")):
        changed(path, lambda each: each | {"text": text if each["id"] == leaked else each["text"]})
    dataset = packed(config_of(corpus, tmp_path / "out", validation_from=str(first.root)))
    assert leaked in parts(dataset)[0]


def test_an_earlier_dataset_that_is_absent_is_one_sentence(earlier: Path, tmp_path: Path) -> None:
    config = config_of(earlier / "corpus", tmp_path / "out", validation_from=str(tmp_path / "gone"))
    for stage in ("prepare", "tokenize", "embed", "cluster"):
        Build(config).run_stage(stage)
    with pytest.raises(jd.UserError, match=r"packing\.validation_from: Expected a dataset at .*gone, found no such"):
        Build(config).run_stage("pack")


def test_a_damaged_record_of_the_earlier_build_is_one_sentence(earlier: Path, tmp_path: Path) -> None:
    out = shutil.copytree(earlier / "out", tmp_path / "out")
    config = config_of(grown(earlier, tmp_path), out)
    Build(config).run_stage("prepare")
    (path,) = (out / "earlier").iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"\7")
    with pytest.raises(jd.UserError, match=r"Expected the earlier validation documents in .*, found no such file or a"):
        packed(config)


def test_hashes_of_ids_differ() -> None:
    found = hash_ids(f"document {number}" for number in range(5000))
    assert len(np.unique(found)) == 5000
    assert len(hash_ids([])) == 0


def test_marked_near_copies_of_held_out_documents_are_held_out(earlier: Path, tmp_path: Path) -> None:
    """In a corpus that gets near copies and a step that marks them, and in a mirror of it."""
    first = jd.open_dataset(earlier / "out")
    held = parts(first)[0]
    corpus = shutil.copytree(earlier / "corpus", tmp_path / "corpus")
    changed(
        Path(shutil.copy(corpus / "part-0.jsonl", corpus / "near.jsonl")),
        lambda each: each | {"id": f"near-{each['id']}", "text": f"{each['text']} and another end"},
    )
    steps = PreparationConfig(steps=(StepConfig("minhash", {"mark": True, "bands": 28, "rows": 3, "run": 3}),))
    same = packed(
        dataclasses.replace(config_of(corpus, shutil.copytree(first.root, tmp_path / "same")), preparation=steps)
    )
    for path in sorted(corpus.glob("*.jsonl")):
        changed(path, lambda each: each | {"id": f"mirror-{each['id']}"})
    mirror = config_of(corpus, tmp_path / "mirror", validation_from=str(first.root))
    for dataset, start in ((same, ""), (packed(dataclasses.replace(mirror, preparation=steps)), "mirror-")):
        now = parts(dataset)[0]
        assert now >= {f"{start}{name}" for name in held}
        assert len([name for name in now if name.startswith(f"{start}near-")]) > 2
        groups = dataset.duplicate_groups
        assert not np.intersect1d(groups[dataset.held_out], groups[~dataset.held_out]).size


@pytest.mark.parametrize("method", ["concat", "best_fit", "pad", "partial_shuffle", "megatron"])
def test_a_dataset_for_evaluation_has_every_token_once(method: str, earlier: Path, tmp_path: Path) -> None:
    config = config_of(earlier / "corpus", tmp_path / "test", method=method, validation_fraction=1.0)
    results = Build(dataclasses.replace(config, batch_size=8)).run_all()  # the batch size of training is not needed
    dataset, segments = jd.open_dataset(tmp_path / "test"), jd.open_dataset(tmp_path / "test").validation_segments
    assert dataset.held_out.all()
    assert not dataset.num_sequences
    assert "none, because all documents are held out" in repr(dataset)
    assert not [result.stage for result in results if result.stage.startswith(("order/", "measure/", "report"))]
    assert next(each.summary for each in results if each.stage == "pack").endswith("all for validation")
    lengths = np.asarray(dataset.tokens.document_lengths)
    covered = [np.zeros(length, int) for length in lengths.tolist()]
    kept = segments.length - segments.inserted_ends(lengths)
    for document, start, length in zip(segments.document_index, segments.document_offset, kept, strict=True):
        covered[document][start : start + length] += 1
    shared = segments.overlap  # the last token of a sequence may be the first target of the next
    assert all((each >= 1).all() for each in covered)
    assert shared or all((each == 1).all() for each in covered)
    assert len(jd.make_loader(dataset, split="validation", global_batch_size=8)) == -(
        -dataset.validation.num_sequences // 8
    )
    with pytest.raises(UserError, match="found none: all its documents are held out"):
        jd.make_loader(dataset, global_batch_size=8)
    with pytest.raises(UserError, match="holds out all documents"):
        jd.repack(dataset, tmp_path / "again", seed=1)
    assert not (tmp_path / "again").exists()
    with pytest.raises(UserError, match="holds out all documents"):
        Build(config).run_orders([OrderConfig(method="greedy")])


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"validation_choice": "hash"}, "validation_choice"),
        ({"validation_from": "elsewhere"}, "validation_from"),
        ({"weights": {"source=law": 2.0}}, "weights"),
        ({"long_chats": "drop"}, "long_chats"),
    ],
)
def test_what_a_dataset_for_evaluation_cannot_have(settings: Any, name: str, earlier: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"Expected no packing\.{name} with packing\.validation_fraction=1"):
        Build(config_of(earlier / "corpus", tmp_path / "test", validation_fraction=1.0, **settings)).run_all()


def test_a_folder_becomes_one_for_evaluation_and_back(earlier: Path, tmp_path: Path) -> None:
    first = packed(config_of(earlier / "corpus", tmp_path / "out"))
    before, _ = parts(first)
    whole = packed(config_of(earlier / "corpus", tmp_path / "out", validation_fraction=1.0))
    assert whole.held_out.all()
    again, trained = parts(packed(config_of(earlier / "corpus", tmp_path / "out", keep_validation=False)))
    assert again == before
    assert trained
