"""The corpora that benchmarks order: what they promise, at small sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import corpora
from jax_diversity import UserError, open_dataset
from jax_diversity.characteristics import length_bins
from tests.tiny_dataset import write_tiny_dataset


def test_the_synthetic_corpus_has_the_promised_shape() -> None:
    chars = corpora.synthetic(6000)
    assert chars.num_sequences == 6000
    assert chars.sequence_length == 2048
    assert chars.families == ("cluster", "length")
    assert [chars.counts[family].shape for family in chars.families] == [(6000, 1000), (6000, 100)]
    assert (chars.tokens == 2048).all()
    assert sum(len(matrix.data) for matrix in chars.counts.values()) / 6000 == pytest.approx(5.7, abs=0.1)
    for matrix in chars.counts.values():
        assert matrix.indices.dtype == matrix.indptr.dtype == np.int32


def test_clusters_are_zipf() -> None:
    shares = corpora.synthetic(20_000, sequence_length=512, num_clusters=50).target_share("cluster")
    expected = 1 / np.arange(1, 51)
    np.testing.assert_allclose(shares[:3], expected[:3] / expected.sum(), rtol=0.1)
    assert shares[:5].min() > shares[-5:].max()


def test_the_same_seed_gives_the_same_corpus() -> None:
    first, again, other = (corpora.synthetic(300, seed=seed).fingerprint for seed in (0, 0, 1))
    assert first == again != other


@pytest.mark.parametrize("chunk", [1, 7, 200])
def test_chunks_change_nothing(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = corpora.synthetic(200, num_clusters=20, num_bins=10).fingerprint
    monkeypatch.setattr(corpora, "SEQUENCES_PER_CHUNK", chunk)
    assert corpora.synthetic(200, num_clusters=20, num_bins=10).fingerprint == whole


def test_counts_are_those_of_documents_laid_back_to_back() -> None:
    chars = corpora.synthetic(60, sequence_length=700, num_clusters=9, num_bins=5, seed=4)
    lengths, clusters = corpora.draw_documents(60 * 700, 9, seed=4)
    assert lengths[:-1].sum() < 60 * 700 <= lengths.sum()
    assert lengths.min() >= corpora.SHORTEST
    for family, codes in {"cluster": clusters, "length": length_bins(lengths, 5).group}.items():
        tokens = np.repeat(codes, lengths)[: 60 * 700].reshape(60, 700)
        expected = [np.bincount(row, minlength=chars.counts[family].shape[1]) for row in tokens]
        np.testing.assert_array_equal(chars.counts[family].toarray(), expected)


def test_a_dataset_gives_its_own_characteristics(tmp_path: Path) -> None:
    root = write_tiny_dataset(tmp_path / "out").root
    assert corpora.from_dataset(root).fingerprint == open_dataset(root).characteristics.fingerprint
    with pytest.raises(UserError, match="nowhere"):
        corpora.from_dataset(tmp_path / "nowhere")
