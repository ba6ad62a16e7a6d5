"""Exports of a built dataset: what each stack's writer asks for, gathered from the dataset and its settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from jax_diversity.dataset import Dataset, open_dataset
from jax_diversity.export import megatron, olmo
from jax_diversity.export.files import Written
from jax_diversity.export.maxtext import write_maxtext
from jax_diversity.export.permutation import document_order, write_permutation
from jax_diversity.export.rows import OrderedSequences, Sequences, read_ordering
from jax_diversity.export.settings import ExportConfig, MegatronExportConfig
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Progress
from jax_diversity.packing.megatron import MegatronIndices, megatron_indices
from jax_diversity.packing.split import validation_mask


def export(out: str | Path, config: ExportConfig, progress: Progress) -> list[str]:
    """Write an ordering of a dataset for another stack.

    Returns:
        A line for everything that was written.

    Raises:
        UserError: no such dataset or ordering; settings that do not fit it; another ordering's files in the way.
    """
    writers = {"npy": _npy, "megatron": _megatron, "olmo": _olmo, "maxtext": _maxtext}
    return [written.line for written in writers[config.to](open_dataset(out), config, progress)]


def _npy(dataset: Dataset, config: ExportConfig, progress: Progress) -> list[Written]:
    ordering, target = read_ordering(dataset, config.ordering), Path(config.target)
    name = Path(config.ordering).stem
    written = [write_permutation(ordering.indices, target / f"{name}.npy", overwrite=config.overwrite)]
    if config.documents:
        segments = dataset.segments
        documents = document_order(segments.sequence_index, segments.document_index, ordering)
        written.append(write_permutation(documents, target / f"{name}-documents.npy", overwrite=config.overwrite))
    return written


def _maxtext(dataset: Dataset, config: ExportConfig, progress: Progress) -> list[Written]:
    sequences = OrderedSequences(dataset.root, config.ordering)
    with progress.task("export records", len(sequences), "sequences") as advance:
        written = write_maxtext(
            sequences,
            Path(config.target),
            sequences_per_file=config.maxtext.sequences_per_file,
            overwrite=config.overwrite,
            advance=advance,
        )
    settings = written.files[-1].read_text(encoding="utf-8")
    return [Written(written.files, f"{written.line}\n\n{settings.rstrip()}")]


def _olmo(dataset: Dataset, config: ExportConfig, progress: Progress) -> list[Written]:
    ordering, target = read_ordering(dataset, config.ordering), Path(config.target)
    written = [
        olmo.write_olmo(
            ordering,
            target,
            config.olmo,
            sequence_length=dataset.sequence_length,
            overwrite=config.overwrite,
        )
    ]
    if config.olmo.tokens:
        sequences = Sequences(dataset.root)
        with progress.task("export tokens", len(sequences), "sequences") as advance:
            path = target / "sequences.npy"
            written.append(olmo.write_olmo_tokens(sequences, path, overwrite=config.overwrite, advance=advance))
    return written


def _megatron(dataset: Dataset, config: ExportConfig, progress: Progress) -> list[Written]:
    ordering, target, options = read_ordering(dataset, config.ordering), Path(config.target), config.megatron
    indices = _packed_indices(dataset)
    written = []
    if options.description is not None:
        about = megatron.read_description(
            Path(options.description),
            sequence_length=dataset.sequence_length,
            num_sequences=dataset.num_sequences,
        )
        megatron.check_prefix(str(json.loads(about).get("dataset_path")), dataset.tokens.document_lengths)
    else:
        tokenizer, prefix = _identifiers(options.tokenizer), options.prefix
        if prefix is not None:
            megatron.check_prefix(prefix, dataset.tokens.document_lengths)
        elif len(dataset.tokens.files) == 1:
            prefix = str(dataset.tokens.files[0].prefix.resolve())
        else:
            prefix = str((target / "tokens").resolve())
            with progress.task("export tokens", dataset.tokens.num_tokens, "tokens") as advance:
                written.append(
                    megatron.write_tokens(dataset.tokens, Path(prefix), overwrite=config.overwrite, advance=advance)
                )
        about = _description(dataset, options, prefix, tokenizer).text
    arrays = indices.document_index, indices.sample_index
    return [*written, megatron.write_megatron(ordering, *arrays, about, target, overwrite=config.overwrite)]


def _description(
    dataset: Dataset, options: MegatronExportConfig, prefix: str, tokenizer: Mapping[str, Any]
) -> megatron.Description:
    seed = dataset.settings["packing"]["seed"] if options.seed is None else options.seed
    return megatron.Description(
        dataset_path=prefix,
        num_samples=options.num_samples,
        random_seed=seed,
        sequence_length=dataset.sequence_length,
        split=options.split,
        tokenizer=tokenizer,
    )


def _identifiers(tokenizer: str | None) -> Mapping[str, Any]:
    """The tokenizer's `unique_identifiers` from JSON or a file of it."""
    hint = (
        'give what its `unique_identifiers` holds, such as \'{"class": "...", "tokenizer_path": "..."}\', or the '
        "description that a run of yours left, --megatron.description"
    )
    if tokenizer is None:
        raise UserError(f"Expected --megatron.tokenizer, which decides the cache's name, found nothing; {hint}.")
    try:
        is_file = tokenizer.endswith(".json")
        found = json.loads(Path(tokenizer).read_text(encoding="utf-8") if is_file else tokenizer)
    except (OSError, ValueError) as error:
        raise UserError(f"Expected JSON in --megatron.tokenizer, found {tokenizer!r} ({error}); {hint}.") from None
    if not isinstance(found, dict):
        raise UserError(f"Expected a JSON object in --megatron.tokenizer, found {found!r}; {hint}.")
    return found


def _packed_indices(dataset: Dataset) -> MegatronIndices:
    """The document and sample indices that the sequences were packed by, computed again and compared."""
    packing = dataset.settings["packing"]
    if packing["method"] != "megatron":
        raise UserError(
            f"Expected a dataset packed with packing.method=megatron in {dataset.root}, found {packing['method']}: "
            "only Megatron's own samples can be told to it by their indices; pack again with that method."
        )
    validation = validation_mask(dataset.document_store.ids(), dataset.duplicate_groups, packing["validation_fraction"])
    indices = megatron_indices(
        dataset.tokens.document_lengths,
        np.flatnonzero(~validation),
        packing["sequence_length"],
        seed=packing["seed"],
        **packing["options"],
    )
    if not _fit(dataset, indices):
        raise UserError(
            f"Expected the sequences that packing.seed={packing['seed']} gives in {dataset.root}, found others: the "
            "settings were changed after packing; run `jax-diversity pack` and what follows it again."
        )
    return indices


def _fit(dataset: Dataset, indices: MegatronIndices) -> bool:
    """Whether the stored sequences begin where the samples do; the first may begin with an empty document."""
    segments = dataset.segments
    if segments.num_sequences != len(indices.sample_index) - 1:
        return False
    first: Int64[np.ndarray, " sequence"] = np.searchsorted(
        segments.sequence_index, np.arange(1, segments.num_sequences)
    )
    place, offset = indices.sample_index[1:-1].T
    documents = indices.document_index[place]
    return np.array_equal(segments.document_index[first], documents) and np.array_equal(
        segments.document_offset[first], offset
    )
