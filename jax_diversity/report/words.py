"""Write the sentences of the report from its values; they also state negative results."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jax_diversity.foundation.figures.plain import clean_text
from jax_diversity.foundation.wording import against, counted, listing
from jax_diversity.ordering.measures.verdict import Verdict
from jax_diversity.sequences.packing.chats import left_out_answers

MAX_FIELDS = 8
"""The largest number of metadata fields in a sentence."""
_PLAIN_NAME = re.compile(r"[\w.-]+")
"""Names of folders that a command can contain as they are."""
_MOST_STEPS = 5
"""The largest number of steps in a sentence."""


def size_in_words(num_bytes: int) -> str:
    """Bytes in decimal units: `63.0 MB`."""
    if num_bytes < 1000:
        return counted(num_bytes, "byte")
    return _scaled(num_bytes / 1000, ("kB", "MB", "GB", "TB", "PB"))


def compact(number: int) -> str:
    """A short form of a number: `9,999,999`; from ten million on, units are used: `18.2 M`, then `B` and `T`."""
    if number < 10_000_000:
        return f"{number:,}"
    return _scaled(number / 1e6, ("M", "B", "T"))


def _scaled(size: float, units: Sequence[str]) -> str:
    """A size in the first unit in which it has at most three digits; each unit is 1,000 times the previous unit."""
    *units, largest = units
    for unit in units:
        if size < 999.95:
            return f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} {largest}"


def corpus_sentence(values: Mapping[str, Any]) -> str:
    """The corpus before and after the build: documents, text, tokens and sequences."""
    corpus, packing = values["corpus"], values["packing"]
    sequences = counted(packing["num_sequences"], "sequence")
    validation = packing["num_validation_sequences"]
    kept_apart = f", and {validation:,} more for validation" if validation else ""
    # A corpus of tokens has documents without a text.
    text = f" with {size_in_words(corpus['text_bytes'])} of text" if corpus["text_bytes"] else ""
    return (
        f"{counted(corpus['num_documents'], 'document')}{text} became "
        f"{counted(corpus['num_tokens'], 'token')} and {sequences} of {packing['sequence_length']:,} "
        f"tokens to train on{kept_apart}.{_weights_sentence(packing)}{_chats_sentence(packing)}"
    )


def _weights_sentence(packing: Mapping[str, Any]) -> str:
    if "num_appearances" not in packing:
        return ""
    repeated, left_out = packing["num_documents_repeated"], packing["num_documents_left_out"]
    never = f", and {left_out:,} never" if left_out else ""
    appear = "appears" if repeated == 1 else "appear"
    return f" By weight, {counted(repeated, 'document')} {appear} several times{never}."


def _chats_sentence(packing: Mapping[str, Any]) -> str:
    if "num_chats" not in packing:
        return ""
    apart = packing["num_answer_tokens_apart"] / max(packing["num_answer_tokens"], 1)
    dropped, answers = packing["num_chats_dropped"], left_out_answers(packing)
    lost = f" Packing leaves out {counted(packing['num_tokens_dropped'], 'token')}, {answers}." if answers else ""
    return (
        f" Of {counted(packing['num_chats'], 'chat')}, {packing['num_chats_whole']:,} are whole in a sequence, "
        f"{packing['num_chats_cut']:,} are cut{f', and {dropped:,} are left out' if dropped else ''}; "
        f"{percent(apart)} of the tokens of answers stand without their question.{lost}"
    )


def families_sentence(characterized: Mapping[str, Any]) -> str:
    """The families that the orderings balance, from the counts of `characterize`."""
    return f"The orderings balance {listing([f'`{clean_text(family)}`' for family in characterized['families']])}."


def unbalanced_sentence(characterized: Mapping[str, Any]) -> str:
    """The families and metadata fields that the orderings do not balance, with the reason; empty if there are none."""
    groups = {clean_text(family): number for family, number in characterized["num_groups"].items()}
    balanced = [clean_text(family) for family in characterized["families"]]
    # A family of one group is balanced in any order.
    ignored = [family for family in sorted(groups) if family not in balanced and groups[family] > 1]
    unbalanced = [f"`{family}` ({counted(groups[family], 'group')})" for family in ignored]
    fields = [f"`{clean_text(field, 60)}`" for field in characterized["other_fields"]]
    if fields:
        more = [f"{len(fields) - MAX_FIELDS} more"] if len(fields) > MAX_FIELDS else []
        unbalanced.append(
            f"the metadata field{'' if len(fields) == 1 else 's'} {listing([*fields[:MAX_FIELDS], *more])}"
        )
    if not unbalanced:
        return ""
    return (
        f"They do not balance {listing(unbalanced, 'or')}: each further family makes the others less even. List a "
        "family in `characteristics.families` if it matters for your model."
    )


def purity_sentence(counts: Mapping[str, Any], embedding: str) -> str:
    """The share of documents with the majority label of their cluster, and the share that one cluster would give."""
    label = counts["label_field"]
    if counts["num_labels"] < 2:
        return f"The documents have fewer than two values of `{label}`, so clusters cannot be compared with it."
    shares = [(counts["purity"][family], number) for family, number in counts["clusterings"].items()]
    (share, number), *rest = shares
    further = [f"{percent(part)} with {counted(count, 'cluster')}" for part, count in rest]
    among = f"; {listing(further)}" if further else ""
    return (
        f"{percent(share)} of documents are in a cluster whose majority {label} is their own, with "
        f"{counted(number, 'cluster')} of `{embedding}` vectors{among}. One cluster of all documents would give "
        f"{percent(counts['largest_label'])}."
    )


def verdict_sentence(verdict: Mapping[str, Any]) -> str:
    """Compare one ordering with the baseline, by one family, at one window size."""
    worst, baseline_worst = against(verdict["worst"], verdict["baseline_worst"])
    mean, baseline_mean = against(verdict["mean"], verdict["baseline_mean"])
    text = (
        f"By {verdict['family']}, windows of {counted(verdict['window_size'], 'sequence')} have a mean TV of {mean} "
        f"with `{verdict['ordering']}` and {baseline_mean} with {_shuffle(verdict)}; the worst windows have {worst} "
        f"and {baseline_worst}."
    )
    if verdict["holds"]:
        worst, best = against(verdict["worst"], verdict["baseline_best"])
        text += f" The worst window ({worst}) is better than the best of {_shuffle(verdict)} ({best})."
    return text


def _shuffle(verdict: Mapping[str, Any]) -> str:
    name = verdict["baseline"]
    return "the shuffle" if "shuffle" in name else f"`{name}`"


def percent(share: float | int) -> str:
    """A share in whole per cent, small shares with a decimal; 100 % only for exactly 1."""
    if 0.995 <= share < 1:
        return "over 99 %"
    digits = 1 if abs(share) < 0.005 else 0
    return f"{round(100 * share, digits) + 0.0:.{digits}f} %"


def targeted_sentence(name: str, families: Sequence[str]) -> str:
    """The families in which the page does not judge an order, because it follows targets there."""
    return (
        f"By {listing(families)}, `{name}` follows targets or weights of its own. The figures show its distance from "
        "the corpus's mixture; it is neither judged by these families nor recommended."
    )


def nothing_to_compare(values: Mapping[str, Any]) -> str:
    """The reason for the absence of verdicts."""
    ordering = values["ordering"]
    if not ordering["orders"]:
        return "No ordering was measured."
    if ordering["baseline"] is None:
        return "There is no shuffle to compare with; add an ordering with the method `uniform_shuffle`."
    if all(order["is_baseline"] for order in ordering["orders"]):
        return "Only shuffles were measured: there is nothing to compare them with."
    number = values["run"]["num_positions"] if values.get("run") else values["packing"]["num_sequences"]
    return (
        "A comparison needs at least two windows of a size; there are too few sequences "
        f"({number:,}) for that at any measured size."
    )


def left_out_sentence(ordering: str) -> str:
    """Return the sentence that explains why a training run is not on the page."""
    return (
        f"Left out: the log in `training/{ordering}` is of another dataset or ordering, which was replaced since; "
        "build with the settings of that run to see it again."
    )


def _has_loss_family(verdicts: Sequence[Verdict]) -> bool:
    """Return whether orderings were judged by the family `loss`, which only datasets of chats have."""
    return any(family == "loss" for verdict in verdicts for means in verdict.means.values() for family, _ in means)


def next_sentences(
    values: Mapping[str, Any], verdicts: Sequence[Verdict], batch_size: int | None, best: str | None, share: float
) -> list[str]:
    """What to do with the orderings: which one to train on, what to expect of a model, and how to measure it.

    Args:
        values: the values of the page, without the summary.
        verdicts: one for every ordering that is not the shuffle.
        batch_size: the global batch size of training; None if it is unknown.
        best: the recommended ordering; None if there is nothing to compare.
        share: the closed share of the gap of this ordering, over all families, window sizes and offsets.
    """
    is_run, folder = bool(values.get("run")), values["title"]
    if not _PLAIN_NAME.fullmatch(folder):
        folder = "RUN" if is_run else "DATASET"
    size = "" if batch_size is None else f", global_batch_size={batch_size}"
    if "num_chats" in (values.get("packing") or {}) or _has_loss_family(verdicts):
        size += ', loss_mask="answers"'
    sentences = []
    if best is not None:
        if share <= 0:
            sentences.append(
                "Train on the shuffle: no order of this page is better over all families and window sizes."
            )
        elif is_run:
            sentences.append(f'Train on this run: `jd.make_loader("{folder}"{size})`.')
        else:
            sentences.append(
                f"Train on `{best}`, which closes {percent(share)} of the gap between a shuffle and the floor over all "
                f'families, window sizes and offsets: `jd.make_loader("{folder}", ordering="{best}"{size})`.'
            )
    elif is_run:
        sentences.append(f'Train on this run: `jd.make_loader("{folder}"{size})`.')
    elif not verdicts:
        orders = values.get("ordering", {}).get("orders", [])
        names = [order["name"] for order in orders if not order["is_baseline"]]
        if names == ["corpus_order"]:
            sentences.append(f'Train on `corpus_order`: `jd.make_loader("{folder}", ordering="corpus_order"{size})`.')
        else:
            sentences.append(f"Make an order: `jax-diversity order --out {folder}`.")
    if batch_size is None and best is not None and not is_run:
        sentences.append(
            "Build with `--batch-size N`, the number of sequences in a batch of your training: the order is then made "
            "for windows of this size, and this page judges it there."
        )
    if best is None:
        return sentences
    expected = (
        "Expect a better sample in every batch: training losses that you log, and evaluations on a part of the data, "
        "vary less than with a shuffle. A better model at the end was found only for tiny models and small batches."
    )
    if any(run["explained"] for run in values["training"]):
        expected += " The section on training says what a sequence of the order is worth for the gradients of a model."
    elif not is_run:
        explain = f"`jax-diversity lab explain --out {folder}`"
        train = f"`jax-diversity train --out {folder}`"
        command = f"{explain} measures" if values["training"] else f"{train} and then {explain} measure"
        expected += f" {command} how many shuffled sequences a sequence of the order is worth for a model's gradients."
    return [*sentences, expected]


def training_sentence(run: Mapping[str, Any]) -> str:
    """The first and last losses of a training run."""
    curves = (("training", run["loss"]), ("validation", run["validation_loss"]))
    parts = [_course(f"the {word} loss", curve) for word, curve in curves if curve["number"]]
    lost = run["num_nonfinite"]
    warning = f" {lost:,} of its losses {'was' if lost == 1 else 'were'} not finite." if lost else ""
    if not parts:
        return f"The run on `{run['ordering']}` has no finite loss.{warning}"
    steps = counted(run["num_steps"], "step")
    if number := run["num_more_groups"]:
        warning += (
            f" {counted(number, 'more group')} of the validation loss {'is' if number == 1 else 'are'} in its log."
        )
    more = f"{warning}{_noise_words(run['noise'])}{_outlier_words(run)}"
    return f"In {steps} on `{run['ordering']}`, {listing(parts)} nats per token.{more}"


def _noise_words(noise: Sequence[Mapping[str, Any]]) -> str:
    """What the noise of a training loss means for a comparison of two runs."""
    if not noise:
        return ""
    differences = [f"{row['difference']:.3f} from {counted(row['steps'], 'step')}" for row in noise]
    return (
        f" In its second half the noise of the training loss had a standard deviation of {noise[0]['deviation']:.3f}. "
        "Four of five comparisons with a run of other batches would show a difference of "
        f"{listing(differences)}."
    )


def _outlier_words(run: Mapping[str, Any]) -> str:
    """The steps whose loss was far above the course of the losses."""
    spikes, hard = run["spikes"], run["hard_batches"]
    words = ""
    if spikes and hard is None:
        words = f" The loss was far above its course at {_some_steps(spikes)}: spikes, or batches that are hard."
    elif spikes:
        words = f" The loss had spikes at {_some_steps(spikes)}, which the content of the batches does not explain."
    if hard:
        words += f" The loss was high at {_some_steps(hard)}, as the content of the batches explains."
    return words


def _some_steps(steps: Sequence[int]) -> str:
    named = [f"{step:,}" for step in steps[:_MOST_STEPS]]
    rest = len(steps) - len(named)
    return f"step{'' if len(steps) == 1 else 's'} {listing([*named, f'{rest:,} more'] if rest else named)}"


def _course(name: str, curve: Mapping[str, Any]) -> str:
    first, last = (f"{curve[end]:.3f}" for end in ("first", "last"))
    if curve["number"] == 1:
        return f"{name}, measured once, was {first}"
    return f"{name} stayed at {first}" if first == last else f"{name} went from {first} to {last}"
