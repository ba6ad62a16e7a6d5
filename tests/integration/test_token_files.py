"""The same texts in the token files of six programs: equal documents, equal orders, and a training step on each."""

from __future__ import annotations

import csv
import dataclasses
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.pipeline.build import Build
from jax_diversity.preparation.settings import CorpusConfig
from jax_diversity.sequences.characteristics.counts import count_own_tokens
from jax_diversity.sequences.packing.settings import PackingConfig
from jax_diversity.sequences.token_store.megatron import TokenStore, TokenWriter
from jax_diversity.sequences.tokenization.settings import TokenizerConfig
from tests.support.documented_model import train_on
from tests.support.tiny_corpus import tiny_config

END = 50_256
Documents = list[list[int]]


def bare(path: Path, tokens: list[int], header: list[int] | None = None, dtype: str = "<u2") -> None:
    words = np.zeros(0 if header is None else 256, "<i4")
    words[:3] = [*header, len(tokens)] if header is not None else []
    path.write_bytes(words.tobytes() + np.array(tokens, dtype).tobytes())


def joined(documents: Documents, before: list[int], behind: list[int]) -> list[int]:
    return [token for document in documents for token in (*before, *document, *behind)]


def ends_of(documents: Documents) -> np.ndarray:
    return np.cumsum([len(document) + 1 for document in documents])


def write_nanogpt(prefix: Path, documents: Documents) -> None:
    bare(prefix.with_suffix(".bin"), joined(documents, [], [END]))


def write_llm_c(prefix: Path, documents: Documents) -> None:
    bare(prefix.with_suffix(".bin"), joined(documents, [END], []), [20240801, 7], "<u4")


def write_modded_nanogpt(prefix: Path, documents: Documents) -> None:
    bare(prefix.with_suffix(".bin"), joined(documents, [END], []), [20240520, 1])


def write_nanochat(prefix: Path, documents: Documents) -> None:
    bare(prefix.with_suffix(".bin"), joined(documents, [END], []))


def write_datatrove(prefix: Path, documents: Documents) -> None:
    bare(prefix.with_suffix(".ds"), joined(documents, [], [END]), dtype="<u4")
    prefix.with_suffix(".ds.index").write_bytes(ends_of(documents).astype("<u8").tobytes())
    prefix.with_suffix(".ds.metadata").write_text("tokenizer.json|4\n", encoding="utf-8")


def write_dolma(prefix: Path, documents: Documents) -> None:
    bare(prefix.with_suffix(".npy"), joined(documents, [], [END]))
    ends = ends_of(documents).tolist()
    with gzip.open(prefix.with_suffix(".csv.gz"), "wt", newline="") as file:
        csv.writer(file).writerows([begin, end, "id"] for begin, end in zip([0, *ends], ends, strict=False))


def write_megatron(prefix: Path, documents: Documents) -> None:
    with TokenWriter(prefix, np.dtype(np.int32)) as writer:
        writer.add_documents([np.array([*document, END]) for document in documents])


PROGRAMS: dict[str, tuple[Callable[[Path, Documents], None], dict[str, Any]]] = {
    "megatron": (write_megatron, {}),
    "nanogpt": (write_nanogpt, {"end_id": END}),
    "modded-nanogpt": (write_modded_nanogpt, {}),
    "llm.c": (write_llm_c, {"start_id": END}),
    "nanochat": (write_nanochat, {"start_id": END}),
    "datatrove": (write_datatrove, {}),
    "dolma": (write_dolma, {}),
}


@pytest.fixture(scope="module")
def texts() -> dict[str, Documents]:
    """Two sources; the first has two files."""
    rng = np.random.default_rng(0)
    return {
        name: [rng.integers(first, first + 300, int(rng.integers(5, 90))).tolist() for _ in range(100)]
        for name, first in (("web-00000", 0), ("web-00001", 0), ("books", 200))
    }


@pytest.mark.campaign
def test_builds_of_equal_texts_are_equal(
    tmp_path: Path, texts: dict[str, Documents], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [np.array([*document, END]) for name in sorted(texts) for document in texts[name]]
    orders, batches = [], []
    for program, (write, options) in PROGRAMS.items():
        folder = tmp_path / program
        folder.mkdir()
        for name, documents in texts.items():
            write(folder / name, documents)
        config = dataclasses.replace(
            tiny_config(tmp_path, tmp_path / f"{program}-out"),
            corpus=CorpusConfig(
                paths=(str(folder),), format="megatron" if program == "megatron" else "tokens", **options
            ),
            tokenizer=TokenizerConfig(kind="stored"),
            packing=PackingConfig(sequence_length=64, validation_fraction=0.05),
        )
        Build(config).run_all(report=False)
        dataset = jd.open_dataset(tmp_path / f"{program}-out")
        assert dataset.tokens.num_documents == len(expected), program
        for number, tokens in enumerate(expected):
            np.testing.assert_array_equal(dataset.tokens.document(number), tokens, program)
        assert sorted(dataset.group_names["source"]) == ["books", "web"], program
        orders.append(dataset.orderings["balance"].indices)
        batches.append(next(iter(jd.make_loader(dataset, ordering="balance", global_batch_size=8))))
        monkeypatch.chdir(folder)
        Path("dataset").symlink_to(tmp_path / f"{program}-out")  # the model has this dataset's vocabulary
        train_on(batches[-1])
    for order, batch in zip(orders, batches, strict=True):
        np.testing.assert_array_equal(order, orders[0])
        np.testing.assert_array_equal(batch["inputs"], batches[0]["inputs"])


def test_links_of_equal_texts_have_equal_orders(tmp_path: Path, texts: dict[str, Documents]) -> None:
    orders = []
    for program, (write, options) in PROGRAMS.items():
        folder = tmp_path / program
        folder.mkdir()
        prefixes = []
        for name, documents in texts.items():
            write(folder / name, documents)
            prefixes.append(folder / name)
            if program != "megatron":
                (file,) = (path for path in folder.glob(f"{name}.*") if path.suffix in (".bin", ".ds", ".npy"))
                prefixes[-1] = tmp_path / "linked" / program / name
                jd.link_tokens(file, prefixes[-1], **options)
        store = TokenStore(prefixes)
        segments = jd.pack(store.document_lengths, 65).segments
        counts = count_own_tokens(segments, store, END + 1, END)
        chars = jd.Characteristics.from_counts({"tokens": counts}, batch_size=8)
        orders.append(jd.order(chars).indices)
        tokens = store.gather(segments.document_index, segments.document_offset, segments.length)
        at_beginning = program in ("modded-nanogpt", "llm.c", "nanochat")
        assert (int(tokens[0]) == END) == at_beginning
    ended, begun = orders[:2], orders[2:5]
    ended += orders[5:]
    for group in (ended, begun):
        for order in group:
            np.testing.assert_array_equal(order, group[0])
