"""The length of a run by the epochs of its members."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.cli.main import main
from jax_diversity.foundation.errors import UserError
from jax_diversity.pipeline.build import Build
from tests.support.chats import config_of, packed, write_corpus
from tests.support.tiny_dataset import write_tiny_dataset


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> list[jd.Dataset]:
    folder = tmp_path_factory.mktemp("members")
    for seed, (name, size) in enumerate((("web", 40), ("wiki", 20))):
        write_tiny_dataset(folder / name, num_documents=size, seed=seed)
    return [jd.open_dataset(folder / name) for name in ("web", "wiki")]


def reads(run: jd.StoredRun) -> list[int]:
    """The number of positions that read each dataset."""
    return np.bincount(run.places(np.arange(len(run)))[0], minlength=len(run.datasets)).tolist()


@pytest.mark.parametrize("epochs", [1, 2, 2.5])
def test_two_epochs_of_one_dataset_at_its_share(epochs: float, datasets: list[jd.Dataset], tmp_path: Path) -> None:
    _, wiki = datasets
    run = jd.create_schedule(tmp_path / "run", datasets, num_epochs={"wiki": epochs}, weights={"web": 0.7, "wiki": 0.3})
    assert len(run) == round(epochs * wiki.num_sequences / 0.3)
    assert abs(reads(run)[1] - epochs * wiki.num_sequences) <= 1
    assert f"{epochs:g} epoch" in str(run)
    if epochs == 2:
        numbers, sequences = run.places(np.arange(len(run)))
        times = np.bincount(sequences[numbers == 1], minlength=wiki.num_sequences)
        assert abs(times.sum() - 2 * wiki.num_sequences) <= 1
        assert set(times.tolist()) <= {1, 2, 3}
        longer = jd.extend_schedule(run, num_epochs={"wiki": 1}, weights={"web": 0.5, "wiki": 0.5})
        assert len(longer) - len(run) == 2 * wiki.num_sequences


def test_the_epochs_of_every_dataset(datasets: list[jd.Dataset], tmp_path: Path) -> None:
    run = jd.create_schedule(tmp_path / "run", datasets, num_epochs={"wiki": 3, "web": 0.5})
    web, wiki = (dataset.num_sequences for dataset in datasets)
    assert len(run) == round(0.5 * web + 3 * wiki)
    np.testing.assert_allclose(reads(run), [0.5 * web, 3 * wiki], atol=1)


def test_the_command_line_takes_them(datasets: list[jd.Dataset], tmp_path: Path) -> None:
    web, wiki = (str(dataset.root) for dataset in datasets)
    common = ["schedule", "--datasets", web, wiki, "--quiet"]
    for name, options, length in (
        ("named", ["--num-epochs", "wiki", "2", "--weights", "1", "web", "1", "wiki"], 4 * datasets[1].num_sequences),
        ("plain", ["--num-epochs", "2"], 2 * sum(dataset.num_sequences for dataset in datasets)),
    ):
        main([*common, "--path", str(tmp_path / name), *options])
        assert len(jd.open_schedule(tmp_path / name)) == length


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_epochs": {"wikj": 2}, "weights": [1, 1]}, "found 'wikj'; there are web, wiki; did you mean 'wiki'?"),
        ({"num_epochs": {"wiki": 2}}, "found none for web"),
        ({"num_epochs": {"wiki": 2, "web": 1}, "weights": [1, 1]}, "of one dataset with weights, found 2"),
        ({"num_epochs": {"wiki": 2}, "weights": {"web": 1}}, "found weight 0"),
        ({"num_epochs": {"wiki": -2}, "weights": [1, 1]}, "num_epochs of wiki to be finite and >= 0"),
        ({"num_epochs": {"wiki": 0}, "weights": [1, 1]}, "at least one position"),
        ({"num_epochs": {}, "weights": [1, 1]}, "found 0"),
        ({"num_epochs": {"wiki": 2}, "num_positions": 10, "weights": [1, 1]}, "found both"),
        ({"num_epochs": {"wiki": 2}, "weights": [1, 1], "joint": True}, "mixed by position"),
        ({"num_epochs": {"wiki": 2}, "consecutive": True}, "mixed by position"),
    ],
)
def test_epochs_that_set_no_length_are_refused(
    settings: dict[str, Any], message: str, datasets: list[jd.Dataset], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        jd.create_schedule(tmp_path / "run", datasets, **settings)
    assert not (tmp_path / "run").exists()


def test_the_text_of_a_run_has_the_shares_of_the_targets(tmp_path: Path) -> None:
    """Chats have fewer targets than texts: the table compares sums over the tokens that count."""
    write_corpus(tmp_path)
    packed(tmp_path)
    for stage in ("characterize", "write"):
        Build(config_of(tmp_path)).run_stage(stage)
    chats = jd.open_dataset(tmp_path / "out")
    store, segments = chats.tokens, chats.segments
    kept = segments.length - segments.inserted_ends(store.document_lengths)
    counted = int(store.num_loss_tokens_of(segments.document_index, segments.document_offset, kept).sum())
    assert chats.num_loss_tokens == counted < int(segments.length.sum())
    write_tiny_dataset(tmp_path / "texts", num_documents=40, sequence_length=200)
    texts = jd.open_dataset(tmp_path / "texts")
    assert texts.num_loss_tokens == int(texts.segments.length.sum())
    run = jd.create_schedule(tmp_path / "run", [chats, texts], weights=[0.5, 0.5], num_positions=40)
    targets = np.array(reads(run)) * [counted / chats.num_sequences, texts.num_loss_tokens / texts.num_sequences]
    row = next(line for line in str(run).splitlines() if line.split()[:1] == ["out"])
    assert f"{targets[0] / targets.sum():.1%}" in row.split()
