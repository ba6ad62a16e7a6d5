"""Chats stay whole: a chat that is longer than a sequence is cut between turns, dropped, or truncated at its end.

Before a method packs chats, `turn_pieces` divides each chat into pieces. The method packs these pieces as if they were
documents. A method that never cuts a document of at most L tokens thus cuts no piece of at most L tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Bool, Int64

from jax_diversity.foundation.checks import check_one_of
from jax_diversity.foundation.wording import counted
from jax_diversity.schema.documents import ROLES
from jax_diversity.sequences.packing.pieces import Pieces, expand, whole_documents
from jax_diversity.sequences.packing.report import Runs, distinct_runs

if TYPE_CHECKING:
    from jax_diversity.schema import Segments
    from jax_diversity.sequences.token_store.megatron import TokenStore, Turns

LongChats = Literal["cut", "drop", "truncate"]
"""What happens to chats that are longer than a sequence."""
_USER = ROLES.index("user")
_FEW_LEFT_OUT = 0.01
"""The share of the answers' tokens that a sufficient sequence length may leave out."""


def turn_pieces(
    document_lengths: Int64[np.ndarray, " document"],
    documents: Int64[np.ndarray, " chosen"],
    is_chat: Bool[np.ndarray, " document"],
    turns: Turns,
    sequence_length: int,
    long_chats: LongChats | None,
) -> Pieces:
    """Divide chats into pieces of at most `sequence_length` tokens. Other documents are one piece each.

    With `cut`, each piece is a whole number of turns. A piece ends before a turn of the user, so that answers stay with
    their questions. If no such piece fits, it ends before another turn. A turn that is longer than a sequence is
    truncated. It stays with the turns before it if these fill at most half of a sequence.

    Without a rule (None) no token is lost: chats are cut as with `cut`, but a turn that is longer than a sequence is
    not truncated. Its piece is longer than a sequence, and the method continues it in the next sequences.

    Args:
        document_lengths: tokens of every document of the corpus.
        documents: the documents to pack, ascending.
        is_chat: whether each document of the corpus is a chat.
        turns: the turns of all chats.
        sequence_length: L, tokens per sequence.
        long_chats: `cut`, `drop` or `truncate`; None keeps every token.

    Returns:
        The pieces, in the order of `documents`; a piece closes if it contains the last token of its document.

    Example:
        >>> turns = Turns(np.zeros(4, int), np.array([0, 3, 5, 8]), np.array([1, 2, 1, 2]))
        >>> turn_pieces(np.array([12]), np.array([0]), np.array([True]), turns, 8, "cut").length.tolist()
        [5, 7]
    """
    if long_chats is not None:
        check_one_of("packing.long_chats", long_chats, get_args(LongChats))
    pieces = whole_documents(document_lengths, documents)
    is_long = is_chat[documents] & (pieces.length > sequence_length)
    if not is_long.any():
        return pieces
    rows = [pieces.take(np.flatnonzero(~is_long))]
    if long_chats == "truncate":
        long = documents[is_long]
        length = np.full(len(long), sequence_length)
        rows.append(Pieces(long, np.zeros_like(long), length, np.zeros(len(long), bool)))
    elif long_chats != "drop":
        first = np.searchsorted(turns.document_index, documents[is_long])
        stop = np.searchsorted(turns.document_index, documents[is_long], "right")
        for chat, begin, end in zip(documents[is_long].tolist(), first.tolist(), stop.tolist(), strict=True):
            length = int(document_lengths[chat])
            offset, sizes = _cuts(turns.offset[begin:end], turns.role[begin:end], length, sequence_length)
            if long_chats == "cut":
                sizes = np.minimum(sizes, sequence_length)
            rows.append(Pieces(np.full(len(offset), chat), offset, sizes, offset + sizes == length))
    joined = Pieces(*(np.concatenate(columns) for columns in zip(*rows, strict=True)))
    return joined.take(np.lexsort((joined.document_offset, joined.document_index)))


def _cuts(
    offset: Int64[np.ndarray, " turn"], role: Int64[np.ndarray, " turn"], length: int, sequence_length: int
) -> tuple[Int64[np.ndarray, " piece"], Int64[np.ndarray, " piece"]]:
    """Return where the pieces of one chat begin, and their lengths, which only a long turn makes longer than L."""
    bounds, is_asked = np.append(offset, length), np.append(role == _USER, True)
    begins, sizes, turn = list[int](), list[int](), 0
    while turn < len(offset):
        start = int(bounds[turn])
        # The turns up to `last` fit into a sequence.
        last = int(np.searchsorted(bounds, start + sequence_length, "right")) - 1
        before_users = np.flatnonzero(is_asked[turn + 1 : last + 1])
        following = turn + 1 + int(before_users[-1]) if len(before_users) else max(last, turn + 1)
        is_half = bounds[following] - start <= sequence_length / 2
        if is_half and following < len(offset) and bounds[following + 1] - bounds[following] > sequence_length:
            following += 1
        begins.append(start)
        sizes.append(int(bounds[following]) - start)
        turn = following
    return np.array(begins), np.array(sizes)


@dataclass(frozen=True)
class ChatCounts:
    """How the chats of a packing were divided.

    Attributes:
        num_chats_whole: chats that are whole in a sequence.
        num_chats_cut: chats of which sequences contain only parts.
        num_answer_tokens: places with tokens of answers.
        num_answer_tokens_apart: such places in a piece that does not contain the beginning of their question, the
            nearest earlier turn of the user.
        num_answer_tokens_kept: tokens of answers in a sequence, each counted once.
        num_answers_whole: answers of which every token is in a sequence.
    """

    num_chats_whole: int = 0
    num_chats_cut: int = 0
    num_answer_tokens: int = 0
    num_answer_tokens_apart: int = 0
    num_answer_tokens_kept: int = 0
    num_answers_whole: int = 0


def count_chats(segments: Segments, is_chat: Bool[np.ndarray, " document"], tokens: TokenStore) -> ChatCounts:
    """Count the chats of a block of a packing.

    Args:
        segments: the block; it has all segments of its documents.
        is_chat: whether each document of the corpus is a chat.
        tokens: the tokens of the documents.
    """
    rows = np.flatnonzero(is_chat[segments.document_index])
    document, start = segments.document_index[rows], segments.document_offset[rows]
    lengths = tokens.document_lengths
    stop = start + segments.length[rows] - segments.inserted_ends(lengths)[rows]
    placed, whole = (np.zeros(len(is_chat), bool) for _ in range(2))
    placed[document] = True
    whole[document[stop - start == lengths[document]]] = True
    # The turns of users on one axis, with the documents one after another.
    of_users = tokens.turns.role == _USER
    axis = np.cumsum(lengths) - lengths
    users = axis[tokens.turns.document_index[of_users]] + tokens.turns.offset[of_users]
    next_user = np.searchsorted(users, axis[document] + start)
    has_earlier = np.zeros(len(rows), bool)
    has_earlier[next_user > 0] = users[next_user[next_user > 0] - 1] >= axis[document][next_user > 0]
    following = np.append(users, np.iinfo(np.int64).max)[next_user]
    apart = np.where(has_earlier, np.minimum(following - axis[document], stop) - start, 0)
    kept = distinct_runs(Runs(document, start, stop - start), lengths)
    answers = answers_of(tokens, placed & is_chat)
    # The kept tokens of the corpus before each place: those of the earlier runs, and of the run that contains it.
    begins, before = axis[kept.document_index] + kept.document_offset, np.append(0, np.cumsum(kept.length))

    def num_kept_before(place: Int64[np.ndarray, " answer"]) -> Int64[np.ndarray, " answer"]:
        run = np.searchsorted(begins, place, "right") - 1
        inside = np.minimum(place - begins[run], kept.length[run])
        return np.where(run < 0, 0, before[run] + inside)

    begin = axis[answers.document_index] + answers.document_offset
    num_kept = num_kept_before(begin + answers.length) - num_kept_before(begin) if len(begins) else np.zeros_like(begin)
    return ChatCounts(
        num_chats_whole=int(whole.sum()),
        num_chats_cut=int(placed.sum() - whole.sum()),
        num_answer_tokens=int(tokens.num_loss_tokens_of(document, start, stop - start).sum()),
        num_answer_tokens_apart=int(tokens.num_loss_tokens_of(document, start, apart).sum()),
        num_answer_tokens_kept=int(tokens.num_loss_tokens_of(*kept).sum()),
        num_answers_whole=int((num_kept == answers.length).sum()),
    )


def answers_of(tokens: TokenStore, documents: Bool[np.ndarray, " document"]) -> Runs:
    """Return the turns with tokens that count towards the loss, of some documents."""
    turns = tokens.turns
    stop = np.append(turns.offset[1:], 0)
    is_last = np.append(np.diff(turns.document_index) != 0, True)[: len(stop)]
    stop = np.where(is_last, tokens.document_lengths[turns.document_index], stop[: len(is_last)])
    rows = np.flatnonzero(documents[turns.document_index])
    runs = Runs(turns.document_index[rows], turns.offset[rows], (stop - turns.offset)[rows])
    counts = tokens.num_loss_tokens_of(*runs) > 0
    return Runs(*(column[counts] for column in runs))


class EnoughTokens(NamedTuple):
    """A sequence length at which few tokens of answers are left out.

    Attributes:
        sequence_length: the sequence length.
        num_left_out: tokens of answers that are left out at this length.
    """

    sequence_length: int
    num_left_out: int


def enough_tokens(
    tokens: TokenStore,
    documents: Int64[np.ndarray, " chosen"],
    is_chat: Bool[np.ndarray, " document"],
    sequence_length: int,
    long_chats: LongChats,
) -> EnoughTokens:
    """Double the sequence length until packing leaves out at most 1 % of the answers' tokens.

    The method of packing is one that keeps documents whole.

    Args:
        tokens: the tokens of the documents.
        documents: the documents of the training part, ascending.
        is_chat: whether each document of the corpus is a chat.
        sequence_length: the sequence length to double.
        long_chats: as in `turn_pieces`.
    """
    chats, lengths = documents[is_chat[documents]], tokens.document_lengths
    num_tokens = int(tokens.num_loss_tokens_of(chats, np.zeros_like(chats), lengths[chats]).sum())
    while True:
        sequence_length *= 2
        pieces = turn_pieces(lengths, chats, is_chat, tokens.turns, sequence_length, long_chats)
        left_out = num_tokens - int(tokens.num_loss_tokens_of(*pieces[:3]).sum())
        if left_out <= _FEW_LEFT_OUT * num_tokens:
            return EnoughTokens(sequence_length, left_out)


def num_targets(segments: Segments, tokens: TokenStore) -> Int64[np.ndarray, " sequence"]:
    """Count the targets of every sequence: tokens of answers that follow another token of their segment."""
    following = np.maximum(segments.length - segments.inserted_ends(tokens.document_lengths) - 1, 0)
    offset = segments.document_offset + (following > 0)
    counted = tokens.num_loss_tokens_of(segments.document_index, offset, following)
    return np.bincount(segments.sequence_index, counted, segments.num_sequences).astype(np.int64)


def rows_of(pieces: Pieces, order: Int64[np.ndarray, " appearance"]) -> Int64[np.ndarray, " row"]:
    """Return the rows of the pieces of each document, in the order of the documents.

    `pieces` are sorted by document; the pieces of a document that was dropped are absent.
    """
    first = np.searchsorted(pieces.document_index, order)
    count = np.searchsorted(pieces.document_index, order, "right") - first
    row, number = expand(count)
    return first[row] + number


def of_documents(segments: Segments, pieces: Pieces, document_lengths: Int64[np.ndarray, " document"]) -> Segments:
    """Return the segments of documents for a packing of pieces: segments whose documents are the rows of `pieces`."""
    row = segments.document_index
    document, offset = pieces.document_index[row], pieces.document_offset[row] + segments.document_offset
    at_end = segments.document_offset + segments.length >= pieces.length[row]
    closes = segments.ends_with_eos & (pieces.closes[row] | ~at_end)  # not at a cut between turns
    return replace(segments, document_index=document, document_offset=offset, ends_with_eos=closes)


def left_out_answers(counts: Mapping[str, Any]) -> str:
    """Return in words how many tokens of answers are in no sequence, and at which sequence length few are.

    Empty if there are none. `counts` are those of the stage `pack`.
    """
    if not (number := counts["num_answer_tokens_left_out"]):
        return ""
    total = number + counts["num_answer_tokens_kept"]
    text = f"{number:,} of them from {counted(counts['num_answers_left_out'], 'answer')}"
    text += f" ({number / total:.1%} of all answer tokens)"
    if "enough_sequence_length" in counts:
        then = share_left_out(counts["num_left_out_then"], total)
        text += f"; sequences of {counts['enough_sequence_length']:,} tokens leave out {then}"
    return text


def share_left_out(number: int, total: int) -> str:
    """Return a share of tokens that are left out as a percentage, or `none`."""
    return f"{number / total:.1%}" if number else "none"
