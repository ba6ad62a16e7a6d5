"""Runs of several datasets never train on what one of them holds out, unless told so."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Progress
from jax_diversity.pipeline.build import Build
from jax_diversity.pipeline.settings import BuildConfig
from jax_diversity.preparation.passes.settings import PreparationConfig, StepConfig
from jax_diversity.report.run import run_values
from jax_diversity.streaming.run.leaks import find_leaks
from tests.support.tiny_corpus import TOPICS, tiny_config, write_corpus

STAGES = ("prepare", "tokenize", "embed", "cluster", "pack", "characterize", "write")


def built(
    folder: Path, name: str, lines: list[dict[str, Any]], features: str = "", steps: Any = (), **packing: Any
) -> Path:
    corpus = folder / f"{name}-corpus"
    corpus.mkdir()
    (corpus / "texts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    config = replace(tiny_config(corpus, folder / name), preparation=PreparationConfig(steps=steps))
    if features:
        config = BuildConfig(out=config.out, corpus=config.corpus, packing=config.packing, features_from=features)
    settings = {"validation_fraction": 0.1} | packing
    build = Build(replace(config, packing=replace(config.packing, **settings)))
    for stage in STAGES:
        build.run_stage(stage)
    return folder / name


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset, a mirror of it in capitals under other ids, a mirror that follows its split, other texts, and more."""
    folder = tmp_path_factory.mktemp("leaks")
    path = write_corpus(folder / "written", 160) / "part-0.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    first, others = lines[: len(lines) // 2], lines[len(lines) // 2 :]
    mirror = [each | {"id": f"mirror-{each['id']}", "text": each["text"].upper() + "\n"} for each in first]
    built(folder, "first", first)
    built(folder, "mirror", mirror[::-1] + others)
    built(folder, "follower", mirror, validation_from=str(folder / "first"))
    built(folder, "others", others)
    features = {"features": str(folder / "first")}
    # A part of the mirror among other texts, in the feature space of the first dataset, so that joint orders work.
    built(folder, "companion", mirror[::4] + others, **features)
    dataset = jd.open_dataset(folder / "first")
    held = {name for name, out in zip(dataset.document_store.ids(), dataset.held_out.tolist(), strict=True) if out}
    leaked = [each for each in mirror if each["id"].removeprefix("mirror-") in held]
    built(folder, "leaked", leaked, validation_fraction=0.0, **features)
    near = [each | {"id": f"near-{each['id']}", "text": f"{each['text'].strip()} and another end"} for each in leaked]
    benchmark = folder / "benchmark.jsonl"
    benchmark.write_text(
        '{"question": "nine words of a question that no document here has at all"}\n', encoding="utf-8"
    )
    marks = StepConfig("minhash", {"mark": True, "bands": 28, "rows": 3, "run": 3})
    steps = (marks, StepConfig("decontaminate", {"files": (str(benchmark),)}))
    built(folder, "near", near + leaked + others, steps=steps)
    return folder


def words_of(text: str) -> str:
    return " ".join(text.casefold().split())


def trained_texts(run: jd.StoredRun, first: int = 0) -> set[str]:
    """The normalised texts of all documents that the positions from `first` on read, one document after another."""
    found = set()
    for number, dataset in enumerate(run.datasets):
        texts = [words_of(text) for group in dataset.document_store.texts() for text in group]
        owner, sequence = run.places(np.arange(first, len(run)))
        read = set(sequence[owner == number].tolist())
        segments = dataset.segments
        for index, document in zip(segments.sequence_index.tolist(), segments.document_index.tolist(), strict=True):
            if index in read:
                found.add(texts[document])
    return found


def held_out_texts(run: jd.StoredRun) -> set[str]:
    found = set()
    for dataset in run.datasets:
        texts = [words_of(text) for group in dataset.document_store.texts() for text in group]
        found |= {text for text, held in zip(texts, dataset.held_out.tolist(), strict=True) if held}
    return found


def test_a_run_that_would_train_on_held_out_texts_is_refused(place: Path, tmp_path: Path) -> None:
    both = [place / "first", place / "mirror"]
    number = find_leaks([jd.open_dataset(each) for each in both]).numbers["first", "mirror"]
    assert number > 0
    with pytest.raises(UserError, match=rf"mirror trains on {number} held-out texts? of first.*held_out=skip.*=keep"):
        jd.create_schedule(tmp_path / "run", both, num_positions=8)
    assert not (tmp_path / "run" / "schedule.json").exists()
    run = jd.create_schedule(tmp_path / "run", both, num_epochs=1, held_out="keep")
    assert f", mirror trains on {number} held-out text" in run.content.versions[-1].change
    assert len(trained_texts(run) & held_out_texts(run)) >= number


def test_an_addition_is_refused_too(place: Path, tmp_path: Path) -> None:
    run = jd.create_schedule(tmp_path / "run", place / "first", num_positions=8)
    with pytest.raises(UserError, match="held-out"):
        jd.extend_schedule(run, datasets=[place / "mirror"], num_positions=8)
    assert len(jd.open_schedule(tmp_path / "run")) == 8


@pytest.mark.parametrize("names", [("first", "follower"), ("first", "others"), ("first", "first")])
@pytest.mark.parametrize("held_out", ["refuse", "skip"])
def test_datasets_with_one_split_or_other_texts_are_mixed(
    names: tuple[str, str], held_out: str, place: Path, tmp_path: Path
) -> None:
    assert not find_leaks([jd.open_dataset(place / name) for name in names]).numbers
    run = jd.create_schedule(tmp_path / "run", [place / name for name in names], held_out=held_out)
    assert len(run) == run.num_sequences
    assert not trained_texts(run) & held_out_texts(run)
    assert "held-out" not in run.content.versions[-1].change


@pytest.mark.parametrize(
    "mixture",
    [
        {"num_epochs": 2},
        {"weights": [1, 3], "num_epochs": 1.5},
        {"consecutive": True, "num_epochs": 2},
        {"joint": True, "num_epochs": 2},
        {"joint": True, "weights": [1, 1], "num_epochs": 1},
        {"temperature": 3, "max_repeats": 2},
    ],
    ids=str,
)
def test_sequences_with_held_out_texts_are_left_out(mixture: dict[str, Any], place: Path, tmp_path: Path) -> None:
    both = [place / "first", place / "companion"]
    run = jd.create_schedule(tmp_path / "run", both, held_out="skip", **mixture)
    assert not trained_texts(run) & held_out_texts(run)
    with_texts = jd.create_schedule(tmp_path / "kept", both, held_out="keep")
    allowed = [  # the sequences without a held-out text, one by one
        number
        for number in range(run.num_sequences)
        if not trained_texts(one_position(with_texts, number)) & held_out_texts(run)
    ]
    num_left_out = run.num_sequences - len(allowed)
    assert 0 < num_left_out < run.num_sequences / 2
    numbers = [int(word) for word in re.findall(r"without (\d+) sequences? of", run.content.versions[-1].change)]
    assert sum(numbers) == num_left_out
    times = np.bincount(run.indices, minlength=run.num_sequences)
    assert set(np.flatnonzero(times)) <= set(allowed)
    if "weights" not in mixture and "temperature" not in mixture:
        assert len(run) == mixture["num_epochs"] * len(allowed)
        assert (times[allowed] == mixture["num_epochs"]).all()
    assert f"without {numbers[0]} sequence" in " ".join(str(run).split())


def one_position(run: jd.StoredRun, number: int) -> Any:
    return jd.make_run(run.datasets, positions=[number], held_out="keep")


def test_own_positions_and_orderings_are_checked(place: Path, tmp_path: Path) -> None:
    both = [place / "first", place / "companion"]
    run = jd.create_schedule(tmp_path / "run", both, held_out="skip")
    left_out = np.setdiff1d(np.arange(run.num_sequences), run.indices)
    jd.make_run(both, positions=run.indices)
    for given in ({"positions": np.append(run.indices, left_out[:2])}, {"ordering": np.arange(run.num_sequences)}):
        number = 2 if "positions" in given else len(left_out)
        with pytest.raises(UserError, match=rf"found that {number} positions read some: companion trains on"):
            jd.make_run(both, **given)
        assert len(jd.make_run(both, **given, held_out="keep")) > len(run)
    with pytest.raises(UserError, match="companion trains on"):
        jd.make_loader(both, ordering=np.arange(run.num_sequences), global_batch_size=4)
    jd.make_loader(both, split="validation", global_batch_size=4)


def test_an_order_that_leaves_out_sequences_is_as_balanced_as_one_of_the_others(place: Path, tmp_path: Path) -> None:
    run = jd.create_schedule(tmp_path / "run", [place / "first", place / "companion"], held_out="skip", joint=True)
    counts = run.characteristics.take(np.sort(run.indices))
    places = np.argsort(np.argsort(run.indices))
    own, shuffled = (
        jd.measure(counts, order, windows=(16,)).window_tv["cluster"][16].mean()
        for order in (jd.Ordering(places), jd.order(counts, "uniform_shuffle"))
    )
    assert own < shuffled


def test_a_change_leaves_out_what_an_added_dataset_holds_out(place: Path, tmp_path: Path) -> None:
    run = jd.create_schedule(tmp_path / "run", place / "companion", num_epochs=0.5)
    start = len(run)
    longer = jd.extend_schedule(run, datasets=[place / "first"], held_out="skip", num_epochs=1)
    np.testing.assert_array_equal(longer.indices[:start], run.indices)
    assert not trained_texts(longer, start) & held_out_texts(longer)
    assert "sequences of companion with" in longer.content.versions[-1].change
    # What was read before the change is not read again before the epoch of its dataset ends.
    dataset, sequence = longer.places(np.arange(len(longer)))
    times = np.bincount(sequence[dataset == 0])
    assert times.max() <= 2
    kept = jd.create_schedule(tmp_path / "kept", [place / "first", place / "companion"], held_out="keep", num_epochs=1)
    then = jd.extend_schedule(kept, held_out="skip", num_epochs=1)
    assert not trained_texts(then, len(kept)) & held_out_texts(then)


def test_loaders_of_such_a_run_resume_and_share_it_between_hosts(place: Path, tmp_path: Path) -> None:
    run = jd.create_schedule(tmp_path / "run", [place / "first", place / "companion"], held_out="skip")
    whole = [batch["inputs"] for batch in jd.make_loader(run, global_batch_size=8)]
    halves = [
        [batch["inputs"] for batch in jd.make_loader(run, global_batch_size=8, host_index=host, num_hosts=2)]
        for host in range(2)
    ]
    for step, batch in enumerate(whole):
        np.testing.assert_array_equal(np.concatenate([half[step] for half in halves]), batch)
    stream = iter(jd.make_loader(run, global_batch_size=8))
    next(stream)
    again = iter(jd.make_loader(jd.open_schedule(run.root), global_batch_size=8))
    again.set_state(stream.get_state())
    np.testing.assert_array_equal(next(again)["inputs"], whole[1])


def test_validation_texts_that_another_dataset_trains_on_are_a_warning(place: Path) -> None:
    first, leaked, others = (place / name for name in ("first", "leaked", "others"))
    companion, number = (
        jd.open_dataset(place / "companion"),
        find_leaks([jd.open_dataset(first), jd.open_dataset(place / "companion")]),
    )
    assert number.numbers
    read = {"split": "validation", "global_batch_size": 4}
    with pytest.warns(UserWarning, match="companion trains on .* held-out text.* of first"):
        loaders = jd.make_loader({"first": first, "companion": companion}, **read)
    assert {*loaders} == {"first", "companion"}
    with pytest.warns(UserWarning, match="Some texts are read for validation that another dataset trains on"):
        jd.make_loader([first, companion], **read)
    # A dataset that is for evaluation alone, read as a run: all its texts count.
    sequences = jd.open_dataset(leaked).num_sequences
    alone = jd.make_run(leaked, np.arange(sequences))
    with pytest.warns(UserWarning, match=r"companion trains on [\d,]+ held-out texts? of leaked"):
        jd.make_loader({"companion": companion, "leaked": alone}, **read)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jd.make_loader({"first": first, "leaked": alone}, **read)  # `first` holds these texts out itself
        jd.make_loader([first, others], **read)
        jd.make_loader([first], **read)


def test_a_dataset_for_evaluation_keeps_its_texts_out_of_a_run(place: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in (place / "first-corpus" / "texts.jsonl").read_text().splitlines()][:7]
    mirrored = [each | {"id": f"test-{each['id']}", "text": each["text"].title()} for each in lines]
    test = built(tmp_path, "test", mirrored, str(place / "first"), validation_fraction=1.0)
    dataset = jd.open_dataset(test)
    assert dataset.held_out.all()
    assert dataset.num_sequences == 0
    with pytest.raises(UserError, match=r"first trains on [4-7] held-out texts of test"):
        jd.create_schedule(tmp_path / "refused", [place / "first", test], num_epochs=1)
    run = jd.create_schedule(tmp_path / "run", [place / "first", test], held_out="skip")
    assert not trained_texts(run) & {words_of(each["text"]) for each in lines}
    # A build that follows it holds its texts out.
    again = [json.loads(line) for line in (place / "first-corpus" / "texts.jsonl").read_text().splitlines()]
    follower = jd.open_dataset(built(tmp_path, "follower", again, validation_from=str(test)))
    assert follower.held_out.sum() >= len(lines)
    assert not find_leaks([dataset, follower]).numbers


def test_texts_of_weight_zero_are_not_trained_on(place: Path, tmp_path: Path) -> None:
    lines = (place / "leaked-corpus" / "texts.jsonl").read_text(encoding="utf-8").splitlines()
    others = (place / "others-corpus" / "texts.jsonl").read_text(encoding="utf-8").splitlines()
    marked = [json.loads(line) | {"year": 1} for line in lines] + [json.loads(line) for line in others]
    weighed = built(tmp_path, "weighed", marked, weights={"year=1": 0.0}, validation_fraction=0.0)
    assert not find_leaks([jd.open_dataset(place / "first"), jd.open_dataset(weighed)]).numbers
    jd.create_schedule(tmp_path / "run", [place / "first", weighed], num_positions=8)


def test_a_dataset_that_is_left_out_as_a_whole_is_named(place: Path, tmp_path: Path) -> None:
    leaked = [place / "first", place / "leaked"]
    with pytest.warns(UserWarning, match="No position of the run at .* reads the dataset 'leaked'"):
        run = jd.create_schedule(tmp_path / "run", leaked, held_out="skip")
    assert len(run) == run.sizes[0]
    with pytest.raises(UserError, match=r"Expected sequences in a dataset of weight 1\.0, found none in dataset 1"):
        jd.create_schedule(tmp_path / "other", leaked, held_out="skip", weights=[1, 1])
    with pytest.raises((UserError, TypeError), match="held_out"):  # the type hook's own error
        jd.create_schedule(tmp_path / "other", leaked, held_out="leave")


def test_marked_near_copies_of_held_out_texts_are_left_out(place: Path, tmp_path: Path) -> None:
    run = jd.create_schedule(tmp_path / "run", [place / "first", place / "near"], held_out="skip")
    held = held_out_texts(jd.create_schedule(tmp_path / "alone", place / "first"))
    trained = trained_texts(run)
    assert not trained & held
    assert not trained & {f"{text} and another end" for text in held}


def test_a_run_says_which_datasets_were_checked_against_which_lists(place: Path, tmp_path: Path) -> None:
    run = jd.create_schedule(tmp_path / "run", [place / "others", place / "near"], held_out="skip")
    path = place / "benchmark.jsonl"
    benchmark = f"{path} ({hashlib.sha256(path.read_bytes()).hexdigest()[:8]})"
    assert [list(each.checked_against) for each in jd.open_schedule(run.root).members] == [[], [benchmark]]
    words = "".join(str(run).split())
    assert "checkedagainst:others:nonenear:" in words
    assert f"near:{benchmark.replace(' ', '')}version" in words
    assert "checked against" not in str(jd.create_schedule(tmp_path / "one", place / "others"))
    values = run_values(run, Progress(quiet=True), windows=(8,))["run"]
    assert [each["checked_against"] for each in values["datasets"]] == [[], [benchmark]]
    assert "held-out text" in values["versions"][0]["change"]


NUM_RUNS = 200


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Datasets with parts of the same 60 texts: with the same or other ids, in other case, with other spaces, repacked.

    Some hold out what another one does.
    """
    folder, rng = tmp_path_factory.mktemp("pool"), np.random.default_rng(0)
    words = [word for topic in TOPICS.values() for word in topic.split()]
    universe = [" ".join(rng.choice(words, int(rng.integers(3, 12)))) for _ in range(60)]
    edits = (str, str.upper, lambda text: text.replace(" ", "\n  "), lambda text: f" {text.title()}\t")
    made: list[Path] = []
    for number in range(24):
        if made and rng.random() < 0.2:
            source = made[int(rng.integers(len(made)))]
            made.append(jd.repack(source, folder / f"repacked-{number}", seed=100 + number).root)
            continue
        chosen = rng.choice(60, int(rng.integers(20, 40)), replace=False).tolist()
        start = "" if rng.random() < 0.5 else f"{number}/"
        edit = edits[int(rng.integers(4))]
        lines = [
            {"id": f"{start}{index}", "text": edit(universe[index]), "source": f"s{index % 3}"} for index in chosen
        ]
        follows = {"validation_from": str(made[int(rng.integers(len(made)))])} if made and rng.random() < 0.5 else {}
        choice = {"validation_choice": ("hash", "balanced")[int(rng.integers(2))]}
        fraction = {"validation_fraction": float(rng.choice([0, 0, 0.1, 0.3]))}
        made.append(built(folder, f"dataset-{number}", lines, **choice, **fraction, **follows))
    return made


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore:No position of the run")
@pytest.mark.parametrize("part", range(4))
def test_random_runs_train_on_no_held_out_text(part: int, pool: list[Path], tmp_path: Path) -> None:
    """Pairs and triples, some with a dataset that is added later: 0 held-out texts are trained on, or the error."""
    seen = {"refused": 0, "left out": 0, "free": 0}
    for case in range(part * NUM_RUNS // 4, (part + 1) * NUM_RUNS // 4):
        rng = np.random.default_rng(case)
        chosen = [pool[index] for index in rng.choice(len(pool), int(rng.integers(2, 4)), replace=False)]
        held_out = ("refuse", "skip")[case % 2]
        later = chosen[-1:] if rng.random() < 0.3 else []
        first = chosen[: len(chosen) - len(later)]
        about: dict[str, Any] = {"method": "greedy" if later else "uniform_shuffle", "held_out": held_out}
        about |= {"num_epochs": float(rng.choice([0.5, 1, 2]))}
        mixture = {"consecutive": True} if rng.random() < 0.2 and not later else {}
        start, reason = 0, ""
        try:
            run = jd.create_schedule(tmp_path / f"{case}", first, **about, **mixture)
            if later:
                start = int(rng.integers(1, len(run) + 1))
                run = jd.extend_schedule(run, position=start, datasets=later, **about)
        except UserError as error:
            reason = str(error)
        assert not reason or (held_out == "refuse" and "held-out texts" in reason), reason
        opened = [jd.open_dataset(each) for each in chosen]
        kept = [text for dataset in opened for text in texts_in(dataset, dataset.held_out)]
        trained = [text for dataset in opened for text in texts_in(dataset, ~dataset.held_out)]
        is_leaky = bool({*kept} & {*trained})
        if held_out == "refuse":
            assert bool(reason) == is_leaky, case
        if not reason:
            assert not trained_texts(run, start) & {*kept}, case
        seen["refused" if reason else "left out" if is_leaky else "free"] += 1
    assert min(seen.values()) > 1, seen  # all three happen


def texts_in(dataset: jd.Dataset, mask: np.ndarray) -> list[str]:
    texts = [words_of(text) for group in dataset.document_store.texts() for text in group]
    return [text for text, chosen in zip(texts, mask.tolist(), strict=True) if chosen]
