"""The stage `pack`: turns documents' tokens into segments, separately for training and validation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Int64

from jax_diversity.foundation.artifacts import write_array
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance
from jax_diversity.foundation.spacing import space_groups
from jax_diversity.foundation.stage import Context, Counts, Stage
from jax_diversity.foundation.warned import warn
from jax_diversity.foundation.wording import counted
from jax_diversity.sequences.packing.settings import PackingConfig
from jax_diversity.sequences.packing.stored import (
    SEGMENTS,
    SEQUENCES,
    SHUFFLE_INDEX,
    SPLIT,
    PackingArtifacts,
    write_segments,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from jax_diversity.sequences.packing.base import Packed
    from jax_diversity.sequences.packing.chats import ChatCounts
    from jax_diversity.sequences.packing.report import PackingReport

_COUNTED = (
    "num_tokens_kept",
    "num_tokens_dropped",
    "num_tokens_repeated",
    "num_inserted_ends",
    "num_padding_tokens",
    "num_documents_cut",
)
"""Counts of the packing report that are added up over training and validation."""
_VALIDATION_OPTIONS = {"num_epochs": 1, "num_samples": None, "num_rows": 1}
"""Options for validation documents, which are packed once and in one row."""
_LAST_SEQUENCE = "last_sequence"
_MANY_LEFT_OUT = 0.05
"""The share of the answers' tokens from which on a warning says that they are left out."""


def pack_documents(context: Context, partial: Path) -> Counts:
    """Set validation documents aside and pack both parts into sequences."""
    from jax_diversity.sequences.packing.appearances import draw_appearances
    from jax_diversity.sequences.packing.split import hash_ids, origin_mark, split_documents
    from jax_diversity.sequences.packing.weighing import weigh_documents

    config: PackingConfig = context.config.packing
    dataset = context.dataset
    lengths, groups = dataset.tokens.document_lengths, dataset.duplicate_groups
    records = np.empty(len(lengths), SPLIT)
    records["id"] = hash_ids(dataset.document_store.ids())
    records["text"] = dataset.document_store.text_hashes()[:, 0]
    split = split_documents(context, records)
    records["held_out"] = validation = split.validation
    write_array(partial / PackingArtifacts.document_hashes.name, records)
    del records
    chosen, appearances = ~validation, None
    if not config.holds_out_all and (weights := weigh_documents(context)) is not None:
        appearances = draw_appearances(weights, dataset.document_store.ids(), config.seed)
        appearances[validation] = 0
        # Validation documents appear once; documents that never appear are left out of both parts.
        chosen, validation = appearances > 0, validation & (weights > 0)
        write_array(partial / PackingArtifacts.appearances.name, appearances)
    # Both parts are packed separately, so with any method no sequence contains tokens of training and validation
    # documents.
    with context.progress.task("pack documents", len(lengths), "document") as advance:
        packings = _packings(context, dataset, chosen, advance, appearances)
        training, chats, num_empty, overlap, num_loss_tokens = _store(
            dataset, partial / SEGMENTS["train"].name, packings
        )
        packings = _packings(context, dataset, validation, advance, once=True)
        apart, chats_apart, _, _, num_loss_tokens_apart = _store(
            dataset, partial / SEGMENTS["validation"].name, packings
        )
    if not (apart if config.holds_out_all else training).num_sequences:
        kind = "sequence" if config.holds_out_all else "training sequence"
        raise UserError(
            f"Expected a corpus of at least one {kind}, packing.sequence_length="
            f"{config.sequence_length} tokens for packing.method={config.method}, found "
            f"{training.num_tokens} tokens; choose shorter sequences or add text."
        )
    if (
        config.method == "megatron" and chosen.any()
    ):  # store the order in which Megatron would read the sequences, to measure it later
        from jax_diversity.sequences.packing.megatron import megatron_indices

        options: dict[str, Any] = {"seed": config.seed, **config.options}
        documents = np.flatnonzero(chosen) if appearances is None else np.repeat(np.arange(len(lengths)), appearances)
        indices = megatron_indices(lengths, documents, config.sequence_length, **options)
        write_array(partial / SHUFFLE_INDEX, indices.shuffle_index)
    return {
        "sequence_length": config.sequence_length,
        "overlap": overlap,
        **({"num_rows": num_rows} if (num_rows := _num_rows(context)) else {}),
        "num_sequences": training.num_sequences,
        "num_validation_sequences": apart.num_sequences,
        "num_loss_tokens": num_loss_tokens,
        "num_validation_loss_tokens": num_loss_tokens_apart,
        "num_validation_documents": int(validation.sum()),
        "num_duplicate_documents": len(groups) - int(groups.max(initial=-1)) - 1,
        "num_held_out_gone": split.num_gone,
        "no_validation": split.nothing,
        "validation_from": origin_mark(context),
        **{name: getattr(training, name) + getattr(apart, name) for name in _COUNTED},
        **_appearance_counts(context, appearances, validation),
        **({"num_sequences_without_targets": num_empty} if dataset.has_loss_mask else {}),
        # Held-out chats keep every token, so counts with them would hide what training loses.
        **_chat_counts(config, dataset, *((validation, chats_apart) if config.holds_out_all else (chosen, chats))),
    }


def _store(
    dataset: Any, path: Path, packings: Iterable[Iterator[Packed]]
) -> tuple[PackingReport, ChatCounts, int, int, int]:
    """Write the segments of packings, one after another.

    Returns the report, the counts of chats, the number of sequences without a target, the overlap, and the number of
    tokens that count towards the loss.
    """
    import pyarrow as pa

    from jax_diversity.sequences.packing.chats import ChatCounts, count_chats, num_targets
    from jax_diversity.sequences.packing.report import PackingReport

    lengths, is_chat = dataset.tokens.document_lengths, dataset.is_chat
    total, chats, overlap, num_loss_tokens = PackingReport(*[0] * 10), ChatCounts(), 0, 0
    targets = np.zeros(0, np.int64)  # of every sequence

    def tables() -> Iterator[pa.Table]:
        nonlocal total, chats, overlap, num_loss_tokens, targets
        for blocks in packings:
            report = None
            for block in blocks:
                segments, report = block.segments, block.report
                columns = {column: getattr(segments, column) for column in segments.COLUMNS}
                columns["sequence_index"] = segments.sequence_index + total.num_sequences
                if dataset.has_loss_mask:
                    kept = segments.length - segments.inserted_ends(lengths)  # an inserted end token does not count
                    columns["num_loss_tokens"] = dataset.tokens.num_loss_tokens_of(
                        segments.document_index, segments.document_offset, kept
                    )
                    of_block = num_targets(segments, dataset.tokens)
                    targets = np.pad(targets, (0, total.num_sequences + len(of_block) - len(targets)))
                    targets[total.num_sequences :] += of_block
                    chats = _sum(chats, count_chats(segments, is_chat, dataset.tokens))
                num_loss_tokens += int(columns.get("num_loss_tokens", segments.length).sum())
                overlap = segments.overlap
                yield pa.table(columns)
            assert report is not None  # a packing has at least one block
            total = _sum(total, report)

    write_segments(path, tables())
    return total, chats, int((targets == 0).sum()), overlap, num_loss_tokens


def _sum(first: Any, second: Any) -> Any:
    """Add the counts of two reports; values that are None stay None."""
    names = [field.name for field in dataclasses.fields(first) if getattr(first, field.name) is not None]
    return dataclasses.replace(first, **{name: getattr(first, name) + getattr(second, name) for name in names})


def _chat_counts(
    config: PackingConfig,
    dataset: Any,
    packed: Bool[np.ndarray, " document"],
    chats: ChatCounts,
) -> Counts:
    """Return the counts of whole, cut and dropped chats, and of their answers; empty if no document is a chat.

    They are those of training, or of a dataset for evaluation alone.

    Warns:
        UserWarning: long answers are truncated, and more than a twentieth of the answers' tokens is left out.
    """
    from jax_diversity.sequences.packing.base import KEEP_WHOLE
    from jax_diversity.sequences.packing.chats import answers_of, enough_tokens, share_left_out

    if not dataset.is_chat.any():
        return {}
    tokens, is_packed = dataset.tokens, dataset.is_chat & packed
    answers = answers_of(tokens, is_packed)
    num_tokens = int(tokens.num_loss_tokens_of(*answers).sum())
    counts: dict[str, Any] = dataclasses.asdict(chats) | {
        "num_chats": int(is_packed.sum()),
        "num_chats_dropped": int(is_packed.sum()) - chats.num_chats_whole - chats.num_chats_cut,
        "num_answer_tokens_left_out": num_tokens - chats.num_answer_tokens_kept,
        "num_answers_left_out": len(answers.length) - chats.num_answers_whole,
    }
    if counts["num_answer_tokens_left_out"] and config.methods[0] in KEEP_WHOLE:
        enough = enough_tokens(
            tokens, np.flatnonzero(packed), dataset.is_chat, config.sequence_length, config.long_chats
        )
        counts |= {"enough_sequence_length": enough.sequence_length, "num_left_out_then": enough.num_left_out}
        share = counts["num_answer_tokens_left_out"] / num_tokens
        if config.long_chats == "cut" and share > _MANY_LEFT_OUT:
            warn(
                f"Packing leaves out {share:.1%} of the tokens of the answers, because packing.sequence_length="
                f"{config.sequence_length} is too short for {counted(counts['num_answers_left_out'], 'answer')}; a "
                f"length of {enough.sequence_length} leaves out {share_left_out(enough.num_left_out, num_tokens)}."
            )
    return counts


def _appearance_counts(
    context: Context,
    appearances: Int64[np.ndarray, " document"] | None,
    validation: Bool[np.ndarray, " document"],
) -> Counts:
    """Return the counts of appearances by weight, and whether a metadata field named `weight` is not used."""
    from jax_diversity.sequences.packing.weighing import is_field_unused

    unused = {"unused_weight_field": True} if is_field_unused(context) else {}
    if appearances is None:
        return unused
    return unused | {
        "num_appearances": int(appearances.sum()),
        "num_documents_repeated": int((appearances > 1).sum()),
        "num_documents_left_out": int(((appearances == 0) & ~validation).sum()),
    }


def _packings(
    context: Context,
    dataset: Any,
    chosen: Bool[np.ndarray, " document"],
    advance: Advance,
    appearances: Int64[np.ndarray, " document"] | None = None,
    *,
    once: bool = False,
) -> Iterator[Iterator[Packed]]:
    """Pack the chosen documents in their order with the methods and options of the settings, in blocks.

    If chats have another method than other documents, there are two packings: that of the chats, and that of the rest.
    """
    from jax_diversity.sequences.packing.base import KEEP_WHOLE, METHODS, pack_in_blocks
    from jax_diversity.sequences.packing.chats import num_targets, turn_pieces

    config: PackingConfig = context.config.packing.for_batches(context.config.batch_size)
    lengths = dataset.tokens.document_lengths
    if config.document_order == "shuffle":
        # All documents are shuffled, not only the chosen ones: their order does not depend on the other documents.
        # The numbers have no more bytes than they need; their type does not change the shuffle.
        order = np.arange(len(chosen), dtype=np.min_scalar_type(-len(chosen)))
        np.random.default_rng(config.seed).shuffle(order)
        order = order[chosen[order]]
    else:
        order = np.flatnonzero(chosen)
    if config.document_order == "spacing":
        _, group = np.unique(dataset.assignments("cluster")[order], return_inverse=True)
        with context.progress.task("space documents", len(order), "document") as spaced:
            tokens = lengths[order].astype(np.int64)
            times = 1 if appearances is None else appearances[order]
            order = order[space_groups(group, tokens * times, spaced)]
    is_chat, (of_chats, of_text) = dataset.is_chat, config.methods
    if config.options and of_chats != of_text and is_chat.all():
        raise UserError(
            f"Expected no packing.options with packing.method=auto and a corpus of chats, found "
            f"{', '.join(config.options)}, which are for other documents; leave them out, or name a method."
        )
    parts = [(of_text, order)]
    if is_chat.any() and of_chats != of_text:
        parts = [(of_chats, order[is_chat[order]]), (of_text, order[~is_chat[order]])]
    for method, documents in parts:
        arguments: dict[str, Any] = {"seed": config.seed}
        if method == of_text:
            arguments |= config.options
        if once:
            options = dict(_VALIDATION_OPTIONS)
            if config.validation_choice == "balanced":  # `hash` packs as earlier versions did
                options[_LAST_SEQUENCE] = "pad"
            arguments |= {name: value for name, value in options.items() if METHODS.takes(method, name)}
        if METHODS.takes(method, "clusters"):
            arguments["clusters"] = dataset.assignments("cluster")
        if METHODS.takes(method, "vectors"):
            arguments["vectors"] = np.asarray(dataset.embeddings)  # in memory if it has several files
        if method in KEEP_WHOLE and is_chat[documents].any():
            ascending = np.sort(documents).astype(np.int64)
            arguments["pieces"] = turn_pieces(
                lengths,
                ascending,
                is_chat,
                dataset.tokens.turns,
                config.sequence_length,
                None if once else config.long_chats,
            )
        if config.drop_without_targets and dataset.has_loss_mask and not once:
            arguments["chosen_sequences"] = lambda segments: num_targets(segments, dataset.tokens) > 0
        yield pack_in_blocks(
            lengths,
            config.sequence_length,
            method=method,
            document_order=documents,
            appearances=appearances,
            advance=advance,
            **arguments,
        )


def _inputs(context: Context) -> tuple[str, ...]:
    from jax_diversity.sequences.packing.base import METHODS
    from jax_diversity.sequences.packing.weighing import needs_clusters

    config: PackingConfig = context.config.packing
    _, method = config.methods  # the method of chats alone needs neither
    by_vectors = METHODS.takes(method, "vectors")
    by_clusters = METHODS.takes(method, "clusters") or config.document_order == "spacing"
    by_clusters = by_clusters or needs_clusters(context)
    by_clusters = by_clusters or (config.validation_choice == "balanced" and config.validation_fraction > 0)
    return ("prepare", "tokenize", *["embed"] * by_vectors, *["cluster"] * by_clusters)


def summary(counts: Counts) -> str:
    """Summarize the counts in one line: number and length of sequences, documents repeated or left out by weight."""
    number, held_out = counts["num_sequences"], counts["num_validation_sequences"]
    text = f"{counted(number or held_out, 'sequence')} of {counted(counts['sequence_length'], 'token')}, "
    text += f"{held_out:,} for validation" if number else "all for validation"
    if counts["no_validation"]:
        text += f": {counts['no_validation']}"
    elif counts["num_held_out_gone"]:
        text += f"; {counted(counts['num_held_out_gone'], 'held-out document')} of the earlier build left the corpus"
    if "num_appearances" in counts:
        text += f"; {counted(counts['num_documents_repeated'], 'document')} several times by weight"
        text += f", {counts['num_documents_left_out']:,} never" if counts["num_documents_left_out"] else ""
    if "num_chats" not in counts and (lost := counts["num_tokens_dropped"]):
        text += f"; {counted(lost, 'token')} left out"
    text += chat_summary(counts)
    if "unused_weight_field" in counts:
        text += "; the field weight is not used (packing.weight_field)"
    return text


def chat_summary(counts: Counts) -> str:
    """Return how many chats are whole, cut and dropped, as the end of a line; empty without chats."""
    from jax_diversity.sequences.packing.chats import left_out_answers

    if "num_chats" not in counts:
        return ""
    empty = counts["num_sequences_without_targets"]
    cut = "cut" if counts["num_sequences"] else "in several sequences"  # held-out chats lose nothing
    text = f"; {counted(counts['num_chats_whole'], 'chat')} whole, {counts['num_chats_cut']:,} {cut}"
    text += f", {counts['num_chats_dropped']:,} dropped"
    if lost := counts["num_tokens_dropped"]:
        text += f"; {counted(lost, 'token')} left out"
    if answers := left_out_answers(counts):
        text += f", {answers}"
    share = counts["num_answer_tokens_apart"] / max(counts["num_answer_tokens"], 1)
    text += f"; {share:.1%} of the answer tokens stand without their question"
    return text + (f"; {counted(empty, 'sequence')} without a target" if empty else "")


def _check_weights(context: Context) -> None:
    from jax_diversity.sequences.packing.weighing import weigh_documents

    weigh_documents(context, with_clusters=False)


def _num_rows(context: Context) -> int:
    """Return the number of rows whose text goes on from batch to batch; 0 if batches do not continue each other."""
    from jax_diversity.sequences.packing.base import METHODS

    config: PackingConfig = context.config.packing.for_batches(context.config.batch_size)
    return int(METHODS.complete(config.method, config.options)["num_rows"]) if config.continues_rows else 0


def _settings(config: Any) -> dict[str, Any]:
    # The place of the earlier dataset is left out: `outside` has a fingerprint of its choice.
    packing = dataclasses.asdict(config.packing.for_batches(config.batch_size))
    del packing["validation_from"]
    return {"packing": packing}


def _must_remember(context: Context, entry: Mapping[str, Any] | None) -> bool:
    from jax_diversity.sequences.packing.split import is_other_choice

    return context.config.packing.keep_validation and (entry is None or is_other_choice(context, entry))


def _earlier(context: Context) -> str:
    from jax_diversity.sequences.packing.split import earlier_split

    return earlier_split(context)


PACK = Stage(
    "pack",
    help="Set validation documents aside, pack sequences.",
    section="packing",
    destination=SEQUENCES,
    run=pack_documents,
    summary=summary,
    settings=_settings,
    inputs=_inputs,
    outside=_earlier,
    check=_check_weights,
    remembered=PackingArtifacts.document_hashes.file,
    must_remember=_must_remember,
    methods="sequences.packing.base",
    version=6,
)
