"""Compute the values of the report from a dataset: plain JSON, small for any size of the corpus.

A *family* is one kind of characteristics, such as topic clusters, lengths or sources. A *group* is one value of a
family, such as one cluster. *TV* is the total variation, half the L1 distance between two mixtures of groups. This is
the content of `report.json`, which the page draws. `?` marks values that may be null, `[...]` is a list, `{name:
...}` is an object with such keys. FORMAT_VERSION increases when programs for earlier files would misread the file. A
*curve* has `position`, `mean`, `min` and `max`, lists of one length: a point of a curve combines neighbouring values.
Units: deviations in sequence lengths; TV, shares and targets between 0 and 1; losses in nats per token; positions and
window sizes in sequences. Steps count from 0. Numbers have six significant digits. Each text is one clean line.

    format_version, title
    run?         see `report.run`: only for a stored run, which has no corpus, preparation, clusters and packing
    summary      main_ordering?, main_window?, main_family?, verdict (a sentence with `names`), table [[cell]] (the
                 first row is the head; empty without a verdict), gaps_closed [{ordering, mean}] in the main
                 window, sentences and next [text with `names`],
                 cards [{label, value, detail}], batch_size?
    verdicts     [{ordering, baseline, family, window_size, num_windows, holds, worst, baseline_best, baseline_worst,
                   mean, baseline_mean, gap_closed?, sentence}]
    corpus       num_documents, text_bytes, num_tokens, num_empty, num_duplicates, num_duplicate_groups,
                 largest_duplicate_group, skipped [{reason, records}],
                 length_summary {shortest?, median?, nine_tenths?, longest?}, lengths {edges, documents, tokens},
                 sources? and languages? {rows [{name, documents, tokens, share}],
                                          rest {groups, documents, tokens, share}, num_groups}
    preparation? read, kept, steps [name],
                 places [{kind, name, documents [number], words [number], bytes [number]}], of `all`, of a `source` or
                     of a `language`: the numbers read, then the numbers left after every step,
                 rules [{step, rule, phrase (why it removes; maybe empty), removed, share,
                         examples [{id, source, language?, value?, threshold?, text [line]}]}],
                 found [{step, kinds [{kind, number}], num_more}],
                 edited [{step, documents, examples [{id, source, lines [[mark, line]]}]}]; a mark is `-`, `+`, a
                     space, or `…` for lines that are left out
    clusters     num_clusters, num_empty, rows [{cluster, documents, tokens, share, terms, titles}], rest,
                 share_by_rank curve, map {labels, rows [{x, y, name, share, documents, label}]}, purity;
                 a map's label is an index into labels, -1 for another label
    packing      method, the numbers that `pack` counted (some only where documents have weights),
                 clusters_per_sequence?, largest_cluster_share?, mean_segments?,
                 segments_per_sequence {edges, frequency}
    ordering     baseline?, families, balanced and unbalanced (sentences, maybe empty), window_sizes,
      references           [{family, window_size, floor, ideal_token_tv}]
      profile_references   {family: {sizes, floor, ideal, shuffle {num_seeds, offset: {sizes, mean, mean_low,
                            mean_high, worst_low, worst_high, best_low}}}}; offset is `0` or `half`
      orders               [{name, method, is_baseline, targeted [family] (with targets of its own), info,
                             prefix [{family, max, curve}],
                             windows [{family, window_size, num_windows, mean, best, worst, worst_position,
                                       window_max, curve}],
                             profile {family: {offset: {sizes, num_windows, mean, best, worst}}},
                             heat_map {family: {num_bins, bin_size, groups [{name, target}], share [[bin] group]}};
                                 only groups that are large enough for a bin,
                             norm_drift {max, curve},
                             documents? {windows [{window_size, repeats_mean, repeats_worst, repeats_floor}],
                                         gap_low?, gap_median?, gap_smallest?, place_correlation?},
                             copies? (as documents)}]
      batches?             batch_size, orders {ordering: {family: {best [batch], worst [batch]}}}
        batch              step, position, tv, differences [{name, share, target}], rows [row], num_more_rows
        row                row, sequence_index, segments [segment], num_more_segments
        segment            document (its id), title, source, language?, cluster, tokens
    training     [{ordering, num_steps, num_nonfinite, sentence,
                   loss and validation_loss {first?, last?, best?, curve},
                   validation_interval? {low curve, high curve}, groups {FAMILY/GROUP: {first?, last?, curve}} of the
                   validation loss, num_more_groups,
                   noise [{steps, deviation, difference}] of means of the training loss, spikes [step],
                   hard_batches? [step],
                   gradient_diversity?, stable_rank?, input_wait? {first?, last?, curve},
                   explained [{num_steps, sentence, num_sequences, batch_size, noise_scale?,
                               shares [{of, family, num_groups, value, low?, high?, by_chance?}],
                               windows [{of, order, window_size, value, low?, high?, by_chance?}]}]}];
                 what `lab explain` found at checkpoints: adjusted R² of families, variances of windows (shuffle = 1);
                 `of` names the explained values
    settings     nested as they were given;  fingerprints  {stage: hash}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jax_diversity.foundation.figures.plain import as_json, clean_text, round_value
from jax_diversity.foundation.stage import Context
from jax_diversity.foundation.wording import against
from jax_diversity.ordering.measures.verdict import Means, WindowTV, judge, too_few
from jax_diversity.ordering.measures.windows import usable_windows
from jax_diversity.report import words
from jax_diversity.report.batches import batches_values, segment_blocks
from jax_diversity.report.corpus import DOCUMENT_COLUMNS, cluster_values, corpus_values, packing_values
from jax_diversity.report.orderings import Shown, main_verdicts, mean_gaps_closed, orders_values, recommended_ordering
from jax_diversity.report.preparation import stored_preparation
from jax_diversity.report.training import explanations, logs_of_others, training_runs, training_values
from jax_diversity.sequences.characteristics.stored import DOCUMENTS
from jax_diversity.streaming.dataset.calls import known_measures
from jax_diversity.streaming.dataset.dataset import Dataset

FORMAT_VERSION = 2


def report_values(context: Context, title: str, names: Sequence[str]) -> dict[str, Any]:
    """Return the values that the docstring of the module lists, for a dataset with orderings.

    Equal datasets give equal values.
    """
    import pyarrow.parquet as pq

    dataset, stages = context.dataset, context.folder.stages
    clusters, assignments = dataset.clusters(), dataset.assignments()
    tokens = np.bincount(assignments, weights=dataset.tokens.document_lengths, minlength=len(clusters)).astype(np.int64)
    documents = DOCUMENTS.path(dataset.stored)
    table = pq.read_table(documents, columns=list(DOCUMENT_COLUMNS))
    prepared, clustered, packed = map(context.counts, ("prepare", "cluster", "pack"))
    embedding, packing = (stages[stage]["config"][of] for stage, of in (("embed", "embedding"), ("pack", "packing")))
    main_ordering = context.config.train.ordering or "balance"
    ordering, verdicts = ordering_values(context, dataset, names)
    segments = (block for _, block in segment_blocks(dataset))
    shown = {name: entry for name, entry in sorted(stages.items()) if name != "report"}
    values = {
        "format_version": FORMAT_VERSION,
        "title": clean_text(title) or "Untitled dataset",
        "run": None,
        "corpus": corpus_values(table, prepared, packed["num_duplicate_documents"]),
        "preparation": stored_preparation(dataset),
        "clusters": cluster_values(clusters, tokens, clustered, embedding["method"]),
        "packing": packing_values(packed, packing["method"], segments, assignments),
        "ordering": ordering,
        "verdicts": verdicts,
        "training": [
            training_values(name, steps, explanations(context, name))
            for name, steps in training_runs(context, names).items()
        ],
        "settings": as_json({name: entry["config"] for name, entry in shown.items()}),
        "fingerprints": {name: entry["fingerprint"] for name, entry in shown.items()},
    }
    left_out = [words.left_out_sentence(clean_text(name)) for name in logs_of_others(context, names)]
    main = main_ordering if main_ordering in names else None
    return with_summary(values, main, context.config.batch_size, left_out)


def ordering_values(
    context: Context, dataset: Dataset, names: Sequence[str]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Compare the orderings of a dataset with its first shuffle, by their stored measures: values and verdicts.

    An ordering that was not measured in these windows is measured.
    """
    family_counts = context.counts("characterize")
    sentences = {
        "balanced": words.families_sentence(family_counts),
        "unbalanced": words.unbalanced_sentence(family_counts),
    }
    counts, batch_size = dataset.token_counts(), context.config.batch_size
    windows = usable_windows(context.config.windows, counts.num_sequences, batch_size)
    measures = known_measures(dataset, {name: name for name in names}, windows)
    group_names = dataset.shown_groups
    # Steps that may fail on damaged files come first. Measuring comes last: it takes most of the time.
    batches = batches_values(dataset, names, group_names, batch_size or context.config.train.batch_size)
    shown = [
        Shown(dataset.orderings[name], {**context.counts(f"order/{name}"), "name": name}, measures.get(name))
        for name in names
    ]
    values, verdicts = orders_values(counts, shown, windows, group_names, context.progress)
    return {**values, **sentences, "batches": batches}, verdicts


def with_summary(
    values: dict[str, Any], main_ordering: str | None, batch_size: int | None = None, left_out: Sequence[str] = ()
) -> dict[str, Any]:
    """Add the head of the page to the values; it judges one ordering at one window size.

    `left_out` are sentences about runs that the page does not show.
    """
    corpus, packing, clusters = values["corpus"], values["packing"], values["clusters"]
    documents, tokens = words.compact(corpus["num_documents"]), words.compact(corpus["num_tokens"])
    documents_per_cluster = round(corpus["num_documents"] / max(clusters["num_clusters"], 1))
    sequences, length = words.compact(packing["num_sequences"]), packing["sequence_length"]
    text = f"{words.size_in_words(corpus['text_bytes'])} of text" if corpus["text_bytes"] else "read as tokens"
    cards = [
        ("Documents", documents, text),
        ("Tokens", tokens, f"{packing['num_tokens_kept']:,} in sequences"),
        ("Sequences", sequences, f"of {length:,} tokens, for training"),
        ("Clusters", f"{clusters['num_clusters']:,}", f"of similar documents, about {documents_per_cluster:,} in each"),
    ]
    sentences = [words.corpus_sentence(values), values["ordering"]["balanced"], *left_out]
    return {**values, "summary": summary_values(values, sentences, cards, main_ordering, batch_size)}


def _means(ordering: Mapping[str, Any]) -> dict[str, Means]:
    """Ordering -> TV of the windows, by family and window size, of sizes with at least two windows."""
    floors = {(row["family"], row["window_size"]): row["floor"] for row in ordering["references"]}
    means = {}
    for order in ordering["orders"]:
        keys = {(row["family"], row["window_size"]): row for row in order["windows"] if row["num_windows"] >= 2}
        means[order["name"]] = {
            key: WindowTV(row["mean"], floors[key], row["best"], row["worst"]) for key, row in keys.items()
        }
    return means


def summary_values(
    values: Mapping[str, Any],
    sentences: Sequence[str],
    cards: Sequence[tuple[str, str, str]],
    main_ordering: str | None,
    batch_size: int | None,
) -> dict[str, Any]:
    """Return the head of a page: sentences and key numbers (label, number, detail), including the verdict."""
    main = main_verdicts(values["verdicts"], main_ordering, batch_size or 256)
    means, baseline = _means(values["ordering"]), values["ordering"]["baseline"]
    orders = values["ordering"]["orders"]
    targeted = {order["name"]: order["targeted"] for order in orders if order["targeted"]}
    has_verdict = bool(main or (targeted and baseline))
    verdict = judge(means, baseline, batch_size, clean_text(main_ordering or ""), targeted) if has_verdict else None
    compared = [order["name"] for order in orders if has_verdict and not order["is_baseline"]]
    verdicts = [judge(means, baseline, batch_size, name, targeted) for name in compared]
    closed_by_all = mean_gaps_closed(values["ordering"]) if main else {}
    recommended = recommended_ordering(closed_by_all, None if verdict is None else verdict.ordering)
    judged = []
    # A family of one group has nothing to draw: the page begins with the first family that a shuffle does not balance.
    first = next((row for row in main if row["gap_closed"] is not None), main[0] if main else None)
    if first is not None:
        if verdict is not None and (closed := verdict.mean_gap_closed) is not None:
            where = f"mean of the families, windows of {verdict.window:,}"
            judged.append(("Gap closed", words.percent(closed), f"from shuffle to floor, {where}"))
        worst, baseline_worst = against(first["worst"], first["baseline_worst"])
        detail = f"TV by {first['family']}; worst window of {first['baseline']}: {baseline_worst}; smaller is better"
        judged.append((f"Worst window of {first['ordering']}", worst, detail))
    number = values["run"]["num_positions"] if values.get("run") else values["packing"]["num_sequences"]
    few = "" if verdict is None else too_few(number, verdict.window)
    return {
        "main_ordering": main[0]["ordering"] if main else None,
        "main_window": main[0]["window_size"] if main else None,
        "main_family": first["family"] if first is not None else next(iter(values["ordering"]["families"]), None),
        "verdict": words.nothing_to_compare(values) if verdict is None else verdict.sentence,
        "table": [] if verdict is None or verdict.window is None else verdict.cells,
        "gaps_closed": [
            {"ordering": judged.ordering, "mean": round_value(judged.mean_gap_closed)}
            for judged in verdicts
            if judged.mean_gap_closed is not None
        ],
        "sentences": [
            *([few] if few else []),
            *sentences,
            *(words.targeted_sentence(name, families) for name, families in targeted.items()),
        ],
        "next": words.next_sentences(
            values, verdicts, batch_size, recommended, closed_by_all.get(recommended or "", 0.0)
        ),
        "batch_size": batch_size,
        "cards": [{"label": label, "value": value, "detail": detail} for label, value, detail in [*cards, *judged]],
    }
