"""The family `tokens`: counts of a sequence's own token ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.foundation.errors import UserError
from jax_diversity.schema import Segments
from jax_diversity.sequences.characteristics.counts import MOST_TOKEN_GROUPS, count_own_tokens, total_own_tokens
from jax_diversity.sequences.packing.base import pack
from jax_diversity.sequences.token_store.megatron import TokenStore, TokenWriter

LENGTH = 16


def stored_tokens(folder: Path, documents: list[np.ndarray]) -> TokenStore:
    with TokenWriter(folder / "t", documents[0].dtype) as writer:
        for document in documents:
            writer.add_document(document)
    return TokenStore([folder / "t"])


def documents_of(vocab_size: int, dtype: type, number: int = 40, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    # Frequent and rare tokens; the last token of each document is the end token 0.
    lengths = rng.integers(2, 60, number)
    return [
        np.append(np.minimum(rng.geometric(8 / vocab_size, n), vocab_size - 1), 0).astype(dtype) for n in lengths - 1
    ]


def slow_counts(segments: Segments, documents: list[np.ndarray], num_groups: int, end_id: int) -> np.ndarray:
    """Count token by token, in a dense array."""
    counts = np.zeros((segments.num_sequences, num_groups), np.int64)
    for row in range(len(segments)):
        document, offset = int(segments.document_index[row]), int(segments.document_offset[row])
        for place in range(int(segments.length[row])):
            is_last = place == segments.length[row] - 1
            inside = offset + place < len(documents[document])
            token = int(documents[document][offset + place]) if inside else end_id
            if is_last and segments.ends_with_eos[row]:
                token = end_id
            counts[segments.sequence_index[row], token % num_groups] += 1
    return counts


@pytest.mark.parametrize("method", ["concat", "pad", "first_fit", "best_fit", "megatron"])
@pytest.mark.parametrize(("vocab_size", "dtype"), [(50, np.uint16), (5000, np.uint16), (70_000, np.int32)])
def test_counts_equal_a_slow_reference(method: str, vocab_size: int, dtype: type, tmp_path: Path) -> None:
    documents = documents_of(vocab_size, dtype)
    store = stored_tokens(tmp_path, documents)
    segments = pack(store.document_lengths, LENGTH, method=method).segments
    counts = count_own_tokens(segments, store, vocab_size, end_id=0)
    num_groups = min(vocab_size, MOST_TOKEN_GROUPS)
    assert counts.shape == (segments.num_sequences, num_groups)
    expected = slow_counts(segments, documents, num_groups, end_id=0)
    np.testing.assert_array_equal(counts.toarray(), expected)
    assert counts.has_canonical_format
    assert (counts.data > 0).all()
    np.testing.assert_array_equal(total_own_tokens(segments, store, vocab_size, end_id=0), expected.sum(axis=0))


def test_blocks_do_not_change_the_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = stored_tokens(tmp_path, documents_of(300, np.uint16))
    segments = pack(store.document_lengths, LENGTH).segments
    whole = count_own_tokens(segments, store, 300, end_id=0)
    monkeypatch.setattr("jax_diversity.sequences.characteristics.counts._TOKENS_PER_BLOCK", 3 * LENGTH)
    parts = count_own_tokens(segments, store, 300, end_id=0)
    for one, other in zip(
        (whole.indptr, whole.indices, whole.data), (parts.indptr, parts.indices, parts.data), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_no_sequences_have_no_counts(tmp_path: Path) -> None:
    store = stored_tokens(tmp_path, documents_of(300, np.uint16))
    segments = pack(store.document_lengths, LENGTH, document_order=np.zeros(0, np.int64)).segments
    assert count_own_tokens(segments, store, 300, end_id=0).shape == (0, 300)


@pytest.mark.usefixtures("unchecked")
def test_documents_without_an_end_token_need_some_id(tmp_path: Path) -> None:
    store = stored_tokens(tmp_path, documents_of(300, np.uint16))
    with pytest.raises(UserError, match="Expected end_id to be a whole number"):
        count_own_tokens(pack(store.document_lengths, LENGTH).segments, store, 300, None)  # pyright: ignore[reportArgumentType]


def test_an_order_that_counts_tokens_spreads_a_vocabulary_that_no_document_family_shows(tmp_path: Path) -> None:
    """Sequences of one document differ in their words: only the family `tokens` can balance them."""
    rng = np.random.default_rng(0)
    # One document with chapters: chapter k uses only the tokens 50 k to 50 k + 49.
    document = np.concatenate([rng.integers(50 * chapter, 50 * chapter + 50, 64 * LENGTH) for chapter in range(8)])
    store = stored_tokens(tmp_path, [document.astype(np.uint16)])
    segments = pack(store.document_lengths, LENGTH).segments
    tokens = count_own_tokens(segments, store, 400, end_id=0)
    sources = np.full((segments.num_sequences, 1), LENGTH)
    both = jd.Characteristics.from_counts({"source": sources, "tokens": tokens}, weights={"tokens": 20.0})
    alone = jd.Characteristics.from_counts({"source": sources})

    def chapter_tv(order: jd.Ordering) -> float:
        chapters = np.repeat(np.arange(8), 64)[order.indices].reshape(-1, 32)
        shares = np.stack([(chapters == chapter).mean(axis=1) for chapter in range(8)], axis=1)
        return float(np.abs(shares - 1 / 8).sum(axis=1).mean() / 2)

    assert chapter_tv(jd.order(both)) < 0.4 * chapter_tv(jd.order(alone))
