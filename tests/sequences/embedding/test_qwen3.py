"""Qwen3 embeddings equal the mathematics, on any number of devices; broken checkpoints are named."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_diversity import UserError
from jax_diversity.sequences.embedding.qwen3 import BatchPlan, Qwen3Embedder, padded, qwen3
from jax_diversity.sequences.embedding.qwen3_checkpoint import open_tensors
from tests.support.programs import answers, start
from tests.support.tiny_qwen3 import (
    CONFIG,
    END_TOKEN,
    TEXTS,
    byte_tokenizer,
    make_checkpoint,
    random_tensors,
    reference_vectors,
    write_safetensors,
)

SETTINGS: Any = {"max_tokens": 80, "batch_tokens": 1_000, "dtype": "float32"}
END = 256
# Of unit vectors of 48 features: float32 came within 3e-7 of float64, bfloat16 within 1e-2.
FLOAT32_TOLERANCE = 2e-6
BFLOAT16_TOLERANCE = 3e-2


def token_ids(text: str, max_tokens: int = SETTINGS["max_tokens"]) -> list[int]:
    """What the tokenizer gives, spelt out: letters of bytes in sorted order, the end token last."""
    letters = sorted(_letters().values())
    return [letters.index(_letters()[byte]) for byte in text.encode()[: max_tokens - 1]] + [END]


def _letters() -> dict[int, str]:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(hidden)}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3") / "tiny"
    make_checkpoint(folder)
    return folder


@pytest.fixture(scope="module")
def embedder(checkpoint: Path) -> Qwen3Embedder:
    return qwen3(path=str(checkpoint), **SETTINGS)


@pytest.fixture
def broken(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(checkpoint, tmp_path / "broken"))


def test_vectors_equal_the_mathematics_in_float64(embedder: Qwen3Embedder) -> None:
    vectors = embedder.embed(TEXTS)
    expected = reference_vectors(random_tensors(), [token_ids(text) for text in TEXTS])
    assert vectors.shape == (len(TEXTS), embedder.dimensions) == (len(TEXTS), 48)
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=FLOAT32_TOLERANCE)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert np.abs(expected[0] - expected[2]).max() > 0.1  # the weights tell texts apart


def test_bfloat16_comes_near_from_any_form_of_checkpoint(tmp_path: Path) -> None:
    # A language model's names, an untied head, several files, bfloat16 on disk, θ where newer files have it.
    tensors = make_checkpoint(
        tmp_path / "several",
        seed=3,
        prefix="model.",
        num_files=3,
        dtype=jnp.bfloat16,
        rope_theta=None,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=False,
    )
    vectors = qwen3(path=str(tmp_path / "several"), max_tokens=80, batch_tokens=1_000).embed(TEXTS)
    changed = {**CONFIG, "rope_theta": 10_000.0}
    expected = reference_vectors(tensors, [token_ids(text) for text in TEXTS], changed)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=BFLOAT16_TOLERANCE)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert ((vectors * expected).sum(axis=1) > 0.999).all()


def test_a_text_has_one_vector_whatever_stands_beside_it(embedder: Qwen3Embedder) -> None:
    texts = [TEXTS[index % len(TEXTS)] + "!" * (index % 11) for index in range(60)]
    together = embedder.embed(texts)
    order = np.random.default_rng(5).permutation(len(texts))
    np.testing.assert_allclose(embedder.embed([texts[i] for i in order]), together[order], rtol=0, atol=1e-6)
    np.testing.assert_allclose(embedder.embed(texts[7:9]), together[7:9], rtol=0, atol=1e-6)
    np.testing.assert_array_equal(embedder.embed(texts), together)


def test_texts_without_tokens_and_no_texts(embedder: Qwen3Embedder) -> None:
    empty, blank = embedder.embed(["", " "])
    assert np.isfinite(empty).all()
    np.testing.assert_allclose(empty, reference_vectors(random_tensors(), [[END]])[0], atol=FLOAT32_TOLERANCE)
    assert np.abs(empty - blank).max() > 1e-3
    assert embedder.embed([]).shape == (0, 48)


def test_only_the_first_tokens_are_read(embedder: Qwen3Embedder) -> None:
    first, second, shorter = embedder.embed(["wind " * 15 + "aaaaX", "wind " * 15 + "aaaaY" * 10**5, "wind " * 15])
    np.testing.assert_array_equal(first, second)
    assert np.abs(first - shorter).max() > 1e-3


def test_a_tokenizer_that_appends_no_end_is_helped(broken: Path, embedder: Qwen3Embedder) -> None:
    byte_tokenizer(appends_end=False).save(str(broken / "tokenizer.json"))
    np.testing.assert_array_equal(qwen3(path=str(broken), **SETTINGS).embed(TEXTS), embedder.embed(TEXTS))


@pytest.mark.campaign
def test_many_devices_give_one_devices_vectors(checkpoint: Path) -> None:
    [answer] = answers(start("many_devices_qwen3", str(checkpoint), num_devices=4))
    assert set(answer["differences"]) == {"2", "4"}
    assert max(answer["differences"].values()) < 1e-5
    assert answer["by_default"] == 4
    assert answer["largest_share"] < 0.27  # norms alone are whole on every device
    assert answer["platforms"] == ["tpu"]
    # A block's weights are gathered when its turn comes; never a stack of all blocks, nor the table of tokens.
    shapes = [list(map(int, re.findall(r"\d+", shape.split("[")[1].split("]")[0]))) for shape in answer["gathered"]]
    assert [1, 96, 48] in shapes
    assert not [shape for shape in shapes if shape[0] == CONFIG["num_hidden_layers"] or 300 in shape]
    assert "all-reduce" not in answer["collectives"]


# ---- batches


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 300), max_size=400),
    batch_tokens=st.integers(1, 5_000),
    num_devices=st.sampled_from([1, 3, 4]),
)
def test_every_text_is_in_one_batch_of_few_shapes(lengths: list[int], batch_tokens: int, num_devices: int) -> None:
    plan = BatchPlan(300, batch_tokens, num_devices)
    seen, shapes, padded_to = [], set(), {}
    for documents, num_rows, padded_length in plan.batches(np.array(lengths, np.int64)):
        assert 0 < len(documents) <= num_rows
        assert num_rows % num_devices == 0
        assert num_rows * padded_length <= batch_tokens or num_rows == num_devices
        assert max(lengths[document] for document in documents) <= padded_length
        seen += documents.tolist()
        shapes.add((num_rows, padded_length))
        padded_to |= {lengths[document]: padded_length for document in documents}
    assert sorted(seen) == list(range(len(lengths)))
    assert len(shapes) <= 2 * len(plan.padded_lengths)
    for length, padded_length in padded_to.items():
        assert padded_length == min(each for each in plan.padded_lengths if each >= length)
        assert padded_length <= max(64, 1.5 * length)


def test_padded_lengths_and_the_waste_of_a_usual_corpus() -> None:
    assert BatchPlan(1024, 16_384).padded_lengths == (64, 96, 128, 192, 256, 384, 512, 768, 1024)
    assert BatchPlan(1000, 16_384).padded_lengths[-2:] == (768, 1000)
    assert BatchPlan(2, 16_384).padded_lengths == (2,)
    lengths = np.minimum(np.random.default_rng(0).lognormal(5.8, 1.0, 2_000).astype(np.int64) + 1, 1024)
    spent = sum(rows * length for _, rows, length in BatchPlan(1024, 16_384).batches(lengths))
    assert spent < 1.25 * lengths.sum()


def test_padding_stands_at_the_end() -> None:
    tokens, lengths = padded([[5, 6, 7], [8]], 3, 4)
    np.testing.assert_array_equal(tokens, [[5, 6, 7, 0], [8, 0, 0, 0], [0, 0, 0, 0]])
    np.testing.assert_array_equal(lengths, [3, 1, 1])


# ---- broken checkpoints


def config_with(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))

    return change


def tensors_with(**changes: Any) -> Callable[[Path], None]:
    """Weights with some replaced, or left out where None; `__` stands for a dot."""

    def change(folder: Path) -> None:
        tensors: dict[str, Any] = random_tensors() | {
            name.replace("__", "."): tensor for name, tensor in changes.items()
        }
        kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        write_safetensors(folder / "model.safetensors", kept)

    return change


def weights_of(content: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(content(path.read_bytes()))

    return change


def header_of(change_header: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def change(content: bytes) -> bytes:
        end = 8 + int.from_bytes(content[:8], "little")
        header = json.dumps(change_header(json.loads(content[8:end]))).encode()
        return len(header).to_bytes(8, "little") + header + content[end:]

    return weights_of(change)


def index_of(value: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(json.dumps(value))

    return change


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def tokenizer_of(text: str) -> Callable[[Path], int]:
    return lambda folder: (folder / "tokenizer.json").write_text(text)


def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


NORM = {"norm.weight": {"dtype": "F32", "shape": [48], "data_offsets": [0, 192]}}

BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no folder": (shutil.rmtree, "found no files in"),
    "no config": (without("config.json"), r"Expected config\.json .* found none"),
    "config no JSON": (lambda folder: (folder / "config.json").write_text("{"), "Expected JSON in"),
    "config no object": (lambda folder: (folder / "config.json").write_text("[]"), "found list"),
    "another architecture": (config_with(model_type="llama"), "found model_type 'llama'"),
    "experts": (config_with(model_type="qwen3_moe"), "found model_type 'qwen3_moe'"),
    "no size": (config_with(hidden_size=None), "hidden_size in .* to be a whole number >= 1, found None"),
    "a size of zero": (config_with(num_hidden_layers=0), "num_hidden_layers in .* found 0"),
    "heads": (config_with(num_key_value_heads=4), "multiple of num_key_value_heads"),
    "no theta": (config_with(rope_theta=None), "positive number for rope_theta in .* found None"),
    "bias": (config_with(attention_bias=True), "attention_bias to be False"),
    "windows": (config_with(use_sliding_window=True), "use_sliding_window"),
    "quantised": (config_with(quantization_config={"bits": 4}), "quantization_config"),
    "older yarn": (config_with(rope_scaling={"type": "yarn", "factor": 4}), "found 'yarn'"),
    "yarn": (config_with(rope_parameters={"rope_type": "yarn", "rope_theta": 1}), "found 'yarn'"),
    "few positions": (config_with(max_position_embeddings=79), "max_tokens from 2 to 79, .* found 80"),
    "no weights": (without("model.safetensors"), "found neither in"),
    "cut off": (weights_of(lambda content: content[:-1]), "of tensors, norm.weight cut off; download it again"),
    "cut off in the header": (weights_of(lambda content: content[:100]), "a header of"),
    "almost empty": (weights_of(lambda content: content[:5]), "found 5 bytes"),
    "no header": (weights_of(lambda content: b"\xff" * 8 + content[8:]), "a header of"),
    "header no JSON": (weights_of(lambda content: content[:8] + b"x" + content[9:]), "a header that is not a JSON"),
    "header no object": (header_of(lambda header: [1]), "a header that is not a JSON object"),
    "entry of nothing": (header_of(lambda header: {"norm.weight": None}), "the entry None for norm.weight"),
    "entry of text": (header_of(lambda h: {"a": {**NORM["norm.weight"], "shape": ["4"]}}), "the entry .* for a"),
    "negative": (
        header_of(lambda h: {"a": {**NORM["norm.weight"], "data_offsets": [-192, 0]}}),
        "the entry .* for a",
    ),
    "offsets": (
        header_of(lambda h: {"a": {**NORM["norm.weight"], "shape": [47]}}),
        r"192 bytes for a, which is F32 \[47\]",
    ),
    "integers": (tensors_with(norm__weight=zeros(48, dtype=np.int8)), "found I8; quantised"),
    "missing tensor": (
        tensors_with(layers__1__mlp__up_proj__weight=None),
        r"the tensor layers\.1\.mlp\.up_proj\.weight of the shape \[80, 48\].*found no such tensor",
    ),
    "misshapen tensor": (
        tensors_with(layers__2__self_attn__k_proj__weight=zeros(48, 32)),
        r"layers\.2\.self_attn\.k_proj\.weight of the shape \[32, 48\].*found the shape \[48, 32\]",
    ),
    "another vocabulary": (tensors_with(embed_tokens__weight=zeros(299, 48)), r"found the shape \[299, 48\]"),
    "another tensor": (tensors_with(layers__0__self_attn__q_proj__bias=zeros(96)), r"q_proj\.bias besides them"),
    "more layers": (config_with(num_hidden_layers=2), r"found layers\.2\..* besides them"),
    "index of nothing": (index_of({}), "under weight_map"),
    "index elsewhere": (index_of({"weight_map": {"norm.weight": "../model.safetensors"}}), "in the same folder"),
    "index of no file": (index_of({"weight_map": {"norm.weight": "a.safetensors"}}), r"found no a\.safetensors"),
    "no tokenizer": (without("tokenizer.json"), r"Expected tokenizer\.json .* found none"),
    "tokenizer broken": (tokenizer_of("{}"), "Expected a tokenizer of the `tokenizers` library"),
    "tokenizer without end": (
        tokenizer_of(byte_tokenizer(appends_end=False, knows_end=False).to_str()),
        re.escape(f"append an end token or to have {END_TOKEN}, found neither"),
    ),
    "tokenizer too large": (config_with(vocab_size=256), "token ids below 256, .* found 256"),
}


@pytest.mark.parametrize(("damage", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_checkpoints_are_named(broken: Path, damage: Callable[[Path], Any], message: str) -> None:
    damage(broken)
    with pytest.raises(UserError, match=message) as caught:
        qwen3(path=str(broken), **SETTINGS)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_tokens": 257}, "max_tokens from 2 to 256, .* found 257"),
        ({"max_tokens": 1}, "max_tokens from 2 to 256, .* found 1"),
        ({"batch_tokens": 0}, "batch_tokens to be a whole number >= 1, found 0"),
        ({"dtype": "float16"}, "float16"),
    ],
)
def test_settings_that_fit_no_checkpoint_are_refused(checkpoint: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises((UserError, TypeError), match=message):  # the tests' checker of types may come first
        qwen3(path=str(checkpoint), **{**SETTINGS, **changes})


@given(position=st.integers(0, 10**6), byte=st.integers(0, 255), cut=st.booleans())
def test_damaged_bytes_are_refused_or_read_as_other_numbers(
    tmp_path_factory: pytest.TempPathFactory, position: int, byte: int, cut: bool
) -> None:
    """Whatever one byte of a small file becomes, and wherever it ends, nothing but a `UserError` comes out."""
    folder = tmp_path_factory.mktemp("damaged")
    tensors = {"norm.weight": zeros(3), "embed_tokens.weight": zeros(2, 3)}
    write_safetensors(folder / "model.safetensors", tensors)
    content = bytearray((folder / "model.safetensors").read_bytes())
    position %= len(content)
    content = content[:position] if cut else content[:position] + bytes([byte]) + content[position + 1 :]
    (folder / "model.safetensors").write_bytes(content)
    opened, message = None, ""
    try:
        opened = open_tensors(folder)
    except UserError as error:
        message = str(error)
    if opened is None:
        assert "model.safetensors" in message
    else:
        assert not cut
        assert sum(tensor.size for tensor in opened.values()) <= 9
