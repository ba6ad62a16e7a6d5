"""Chats stay whole: pieces of whole turns, the three rules for long chats, and corpora of chats and other documents."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jax_diversity as jd
from jax_diversity.foundation.errors import UserError
from jax_diversity.pipeline.build import Build
from jax_diversity.schema.documents import ROLES
from jax_diversity.sequences.packing.chats import count_chats, turn_pieces
from jax_diversity.sequences.packing.settings import PackingConfig
from jax_diversity.sequences.packing.stage import summary
from jax_diversity.sequences.token_store.megatron import Turns
from jax_diversity.streaming.run.inspection import chat_turns
from jax_diversity.streaming.run.inspection_text import turns_text
from tests.support.chats import config_of, packed, write_corpus

CHATS = st.lists(
    st.lists(st.tuples(st.sampled_from(ROLES), st.integers(1, 12)), min_size=1, max_size=8), min_size=1, max_size=5
)
L = 10


def plain_pieces(chat: list[tuple[str, int]], limit: int) -> list[tuple[int, int]]:
    """Offset and length of the pieces of a chat, one turn at a time."""
    if sum(size for _, size in chat) <= limit:
        return [(0, sum(size for _, size in chat))]
    pieces, first = list[tuple[int, int]](), 0
    while first < len(chat):
        fits = [stop for stop in range(first + 1, len(chat) + 1) if sum(s for _, s in chat[first:stop]) <= limit]
        asked = [stop for stop in fits if stop == len(chat) or chat[stop][0] == "user"]
        stop = max(asked or fits or [first + 1])
        is_half = 2 * sum(size for _, size in chat[first:stop]) <= limit
        if is_half and stop < len(chat) and chat[stop][1] > limit:
            stop += 1
        offset = sum(size for _, size in chat[:first])
        pieces.append((offset, min(sum(size for _, size in chat[first:stop]), limit)))
        first = stop
    return pieces


@given(chats=CHATS, limit=st.integers(2, 30))
def test_pieces_are_whole_turns(chats: list[list[tuple[str, int]]], limit: int) -> None:
    lengths = np.array([sum(size for _, size in chat) for chat in chats])
    rows = [
        (number, sum(size for _, size in chat[:turn]), ROLES.index(role))
        for number, chat in enumerate(chats)
        for turn, (role, _) in enumerate(chat)
    ]
    turns, documents = Turns(*np.array(rows).T), np.arange(len(chats))
    everyone = np.ones(len(chats), bool)
    cut = turn_pieces(lengths, documents, everyone, turns, limit, "cut")
    held_out = turn_pieces(lengths, documents, everyone, turns, limit, None)
    assert held_out.document_offset.tolist() == cut.document_offset.tolist()
    assert (np.minimum(held_out.length, limit) == cut.length).all()
    assert (np.bincount(held_out.document_index, held_out.length) == lengths).all()
    expected = [(number, *piece) for number, chat in enumerate(chats) for piece in plain_pieces(chat, limit)]
    assert list(zip(*(column.tolist() for column in cut[:3]), strict=True)) == expected
    assert (cut.closes == (cut.document_offset + cut.length == lengths[cut.document_index])).all()
    dropped = turn_pieces(lengths, documents, everyone, turns, limit, "drop")
    assert dropped.document_index.tolist() == np.flatnonzero(lengths <= limit).tolist()
    truncated = turn_pieces(lengths, documents, everyone, turns, limit, "truncate")
    assert truncated.length.tolist() == np.minimum(lengths, limit).tolist()
    nobody = turn_pieces(lengths, documents, ~everyone, turns, limit, "cut")
    assert nobody.length.tolist() == lengths.tolist()


def test_a_rule_that_the_method_cannot_follow() -> None:
    with pytest.raises(UserError, match=r"auto, best_fit, first_fit, pad with packing\.long_chats=drop, found concat"):
        PackingConfig(method="concat", long_chats="drop").check()


def test_turns_are_stored_with_the_tokens(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    dataset = packed(tmp_path)
    turns, tokens, tokenizer = dataset.tokens.turns, dataset.tokens, dataset.tokenizer
    assert tokenizer is not None
    assert dataset.is_chat.all()
    for document, offset, role in zip(*(column.tolist() for column in turns), strict=True):
        assert tokenizer.decode(tokens.document(document)[offset:]).startswith(f"<|im_start|>{ROLES[role]}\n")
    text = "".join(text for texts in dataset.document_store.texts() for text in texts)
    assert len(turns.role) == text.count("<|im_start|>")


@pytest.mark.parametrize("method", ["auto", "first_fit", "pad"])
def test_every_segment_is_whole_turns(tmp_path: Path, method: str) -> None:
    write_corpus(tmp_path)
    dataset = packed(tmp_path, method=method)
    tokens, turns, lengths = dataset.tokens, dataset.tokens.turns, dataset.tokens.document_lengths
    begins = {*zip(turns.document_index.tolist(), turns.offset.tolist(), strict=True)}
    begins |= {*enumerate(lengths.tolist())}
    num_truncated = 0
    counts = dataset.counts("pack")
    for segments in (dataset.segments, dataset.validation_segments):
        stop = segments.document_offset + segments.length
        assert {*zip(segments.document_index.tolist(), segments.document_offset.tolist(), strict=True)} <= begins
        is_whole = [pair in begins for pair in zip(segments.document_index.tolist(), stop.tolist(), strict=True)]
        num_truncated += is_whole.count(False)
        assert (segments.ends_with_eos == (stop == lengths[segments.document_index])).all()
    assert num_truncated == 1  # the answer that is longer than a sequence
    # The counts of chats are those of training: held-out chats keep every token.
    segments = dataset.segments
    assert counts["num_chats_whole"] == int((lengths[segments.document_index] == segments.length).sum())
    assert counts["num_chats_whole"] + counts["num_chats_cut"] == counts["num_chats"]
    assert counts["num_chats"] == 61 - counts["num_validation_documents"] == len(np.unique(segments.document_index))
    assert counts["num_chats_cut"] > 3
    kept = sum(int(each.length.sum()) for each in (segments, dataset.validation_segments))
    assert counts["num_tokens_dropped"] == lengths.sum() - kept > 0
    # Against the loss mask: the long answer is the only one of which tokens are left out.
    trained = np.unique(segments.document_index)
    num_answer_tokens = tokens.num_loss_tokens_of(trained, np.zeros(len(trained), int), lengths[trained]).sum()
    num_kept = tokens.loss_mask(segments.document_index, segments.document_offset, segments.length).sum()
    assert counts["num_answer_tokens_kept"] == num_kept
    assert counts["num_answer_tokens_left_out"] == num_answer_tokens - num_kept > 0
    assert counts["num_answers_left_out"] == 1
    assert (counts["enough_sequence_length"], counts["num_left_out_then"]) == (800, 0)
    assert f", {num_answer_tokens - num_kept} of them from 1 answer (" in summary({**counts})
    assert "; sequences of 800 tokens leave out none" in summary({**counts})


@pytest.mark.parametrize("method", ["auto", "pad"])
@pytest.mark.parametrize(("long_chats", "length"), [("cut", 40), ("drop", 120), ("truncate", 40)])
def test_held_out_chats_keep_every_token(tmp_path: Path, method: str, long_chats: str, length: int) -> None:
    """A turn that is longer than a sequence continues in the next one, and so does its loss."""
    write_corpus(tmp_path)
    dataset = packed(tmp_path, method=method, long_chats=long_chats, sequence_length=length, validation_fraction=0.4)
    segments, tokens = dataset.validation_segments, dataset.tokens
    lengths = segments.length - segments.inserted_ends(tokens.document_lengths)
    runs = sorted(
        zip(segments.document_index.tolist(), segments.document_offset.tolist(), lengths.tolist(), strict=True)
    )
    held_out = np.unique(segments.document_index)
    places = [(document, place) for document, offset, length in runs for place in range(offset, offset + length)]
    assert places == [(d, p) for d in held_out.tolist() for p in range(tokens.document_lengths[d])]
    whole = tokens.num_loss_tokens_of(held_out, np.zeros_like(held_out), tokens.document_lengths[held_out])
    kept = tokens.num_loss_tokens_of(segments.document_index, segments.document_offset, lengths)
    assert kept.sum() == whole.sum() > 0
    assert len(held_out) == dataset.counts("pack")["num_validation_documents"]


@pytest.mark.parametrize("method", ["auto", "pad"])
def test_the_view_of_a_chat_says_which_tokens_are_in_no_sequence(tmp_path: Path, method: str) -> None:
    write_corpus(tmp_path)
    dataset = packed(tmp_path, method=method, sequence_length=64, validation_fraction=0.4)
    ids, num_left_out = list(dataset.document_store.ids()), 0
    lengths, segments = dataset.tokens.document_lengths, dataset.segments
    for number in np.unique(segments.document_index).tolist():
        turns = chat_turns(dataset, ids[number])
        own = segments.document_index == number
        missing = lengths[number] - (segments.length - segments.inserted_ends(lengths))[own].sum()
        assert sum(turn.num_left_out for turn in turns) == missing
        shown = turns_text(turns).replace("\n", " ")
        assert [f"{t.num_left_out} of them in no sequence)" in shown for t in turns if t.num_left_out] == [True] * sum(
            t.num_left_out > 0 for t in turns
        )
        num_left_out += missing
    assert num_left_out == dataset.counts("pack")["num_tokens_dropped"] > 0
    for number in np.unique(dataset.validation_segments.document_index).tolist():
        turns = chat_turns(dataset, ids[number])
        assert not any(turn.num_left_out for turn in turns)


def test_many_tokens_of_answers_left_out_give_a_warning(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    with pytest.warns(
        UserWarning, match=r"% of the tokens of the answers, because packing\.sequence_length=40 is too short for"
    ):
        packed(tmp_path, sequence_length=40)
    ways: list[dict[str, Any]] = [{"sequence_length": 800}, {"sequence_length": 40, "long_chats": "truncate"}]
    for options in ways:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            packed(tmp_path, **options)


@pytest.mark.parametrize("rule", ["drop", "truncate"])
def test_long_chats_are_dropped_or_truncated(tmp_path: Path, rule: str) -> None:
    write_corpus(tmp_path)
    dataset = packed(tmp_path, long_chats=rule, validation_fraction=0.0)
    lengths, counts = dataset.tokens.document_lengths, dataset.counts("pack")
    num_long = int((lengths > 200).sum())
    assert (dataset.segments.document_offset == 0).all()
    assert counts["num_chats_whole"] == 61 - num_long
    assert (counts["num_chats_dropped"], counts["num_chats_cut"]) == (
        (num_long, 0) if rule == "drop" else (0, num_long)
    )


def test_answers_without_their_questions_are_counted(tmp_path: Path) -> None:
    """Against a count of one token at a time, where chats are cut anywhere."""
    write_corpus(tmp_path)
    dataset = packed(tmp_path, method="concat", sequence_length=64, validation_fraction=0.0)
    segments, tokens = dataset.segments, dataset.tokens
    num_answer, num_apart = 0, 0
    for row in range(len(segments)):
        document, first = int(segments.document_index[row]), int(segments.document_offset[row])
        of_chat = tokens.turns.document_index == document
        asked = tokens.turns.offset[of_chat & (tokens.turns.role == ROLES.index("user"))]
        one = np.array([document])
        for place in range(first, first + int(segments.length[row])):
            if tokens.loss_mask(one, np.array([place]), np.array([1]))[0]:
                num_answer += 1
                num_apart += asked[asked <= place].max() < first
    counts = dataset.counts("pack")
    assert counts["num_answer_tokens"] == num_answer
    assert counts["num_answer_tokens_apart"] == num_apart > 0
    again = count_chats(segments, dataset.is_chat, tokens)
    assert again.num_answer_tokens_apart == num_apart


def test_chats_and_texts_are_packed_by_their_own_rules(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    (tmp_path / "text.txt").write_text("The keel of a sloop is long. " * 200, encoding="utf-8")
    dataset = packed(tmp_path, ("chats.jsonl", "text.txt", "python-environment"), validation_fraction=0.05)
    segments, is_chat = dataset.segments, dataset.is_chat
    assert 0 < is_chat.sum() < len(is_chat)
    of_chats = np.zeros(dataset.num_sequences, bool)
    of_chats[segments.sequence_index[is_chat[segments.document_index]]] = True
    of_texts = np.zeros(dataset.num_sequences, bool)
    of_texts[segments.sequence_index[~is_chat[segments.document_index]]] = True
    assert not (of_chats & of_texts).any()
    assert (of_chats | of_texts).all()
    filled = np.bincount(segments.sequence_index, segments.length, dataset.num_sequences)
    assert (filled[of_texts] == 200).all()  # `concat` fills every sequence
    table = pq.read_table(tmp_path / "out" / "sequences" / "segments.parquet")
    assert table["sequence_index"].to_pylist() == sorted(table["sequence_index"].to_pylist())
    counts = dataset.counts("pack")
    places = (counts["num_sequences"] + counts["num_validation_sequences"]) * 200
    assert places == counts["num_tokens_kept"] + counts["num_padding_tokens"] + counts["num_inserted_ends"]


def test_sequences_without_a_target_are_counted_and_left_out(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    options: dict[str, Any] = {"sequence_length": 40, "validation_fraction": 0.0}
    dataset = packed(tmp_path, **options)
    segments, tokens = dataset.segments, dataset.tokens
    targets = np.zeros(dataset.num_sequences, int)
    for row in range(len(segments)):
        one = (
            np.array([segments.document_index[row]]),
            segments.document_offset[row : row + 1],
            segments.length[row : row + 1],
        )
        targets[segments.sequence_index[row]] += tokens.loss_mask(*one)[1:].sum()
    number = dataset.counts("pack")["num_sequences_without_targets"]
    assert number == (targets == 0).sum() > 10
    fewer = packed(tmp_path, **options, drop_without_targets=True)
    assert fewer.num_sequences == dataset.num_sequences - number
    assert fewer.counts("pack")["num_sequences_without_targets"] == 0
    kept = segments.take(np.flatnonzero(targets > 0))
    np.testing.assert_array_equal(kept.document_offset, fewer.segments.document_offset)
    counts = fewer.counts("pack")
    assert counts["num_tokens_kept"] == kept.length.sum()
    assert counts["num_chats"] == counts["num_chats_whole"] + counts["num_chats_cut"] + counts["num_chats_dropped"]


def test_loaders_of_chats_warn(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    build = packed(tmp_path, sequence_length=40, validation_fraction=0.1)
    Build(config_of(tmp_path, sequence_length=40, validation_fraction=0.1)).run_stage("write")
    dataset = jd.open_dataset(build.root)
    order = np.arange(dataset.num_sequences)
    options: dict[str, Any] = {"ordering": order}
    with pytest.warns(UserWarning, match="pass loss_mask='answers'"):
        jd.make_loader(dataset, **options, global_batch_size=4)
    with pytest.warns(UserWarning, match="pass loss_mask='answers'"):
        jd.make_loader(dataset, split="validation", global_batch_size=4)
    with pytest.warns(UserWarning, match="Batches of 2 without a target are likely"):
        jd.make_loader(dataset, **options, global_batch_size=2, loss_mask="answers")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jd.make_loader(dataset, **options, global_batch_size=4, loss_mask="all")
        jd.make_loader(dataset, **options, global_batch_size=32, loss_mask="answers")
        jd.make_loader(dataset, split="validation", global_batch_size=1, loss_mask="answers")


def test_options_of_other_documents_are_refused_if_there_are_none(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    with pytest.raises(
        UserError, match=r"Expected no packing\.options with packing\.method=auto and a corpus of chats"
    ):
        packed(tmp_path, options={"atom_size": 100})
