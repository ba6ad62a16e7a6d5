"""The stage `tokenize` compared with the bare libraries: MB of text per second, and the ratio.

    python benchmarks/tokenization.py [FILES.jsonl.gz ...] [--megabytes 64] [--kinds bpe unigram] [--write]

Without files, the corpus is the text of the installed Python packages. The models are trained on a part of it.

*bare* is the library alone on texts that are in memory already, without keeping the ids: once with its own threads in
one process (`encode_batch_fast`; `encode(..., return_type="numpy", num_threads=...)`; `tokenize`, which has none;
`encode` of strings for bytes), once in a pool of processes over lists of texts, without the start of the pool; the
stage is compared with the faster of the two. *stage* is the work of the build: read the Parquet files, encode, write
.bin and .idx and flush them to the disk; once in one process, and once in several, with their start. The best of some
runs is used. For `bytes` there is no library: the bare rate is the rate of Python's conversion.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import results_file

from jax_diversity.foundation.executors import Executor, Here, Processes
from jax_diversity.foundation.jobs import Job, work
from jax_diversity.foundation.processes import num_cores
from jax_diversity.preparation.readers.reading import read_documents
from jax_diversity.preparation.readers.records import ReadReport
from jax_diversity.preparation.settings import PYTHON_ENVIRONMENT, CorpusConfig
from jax_diversity.schema.document_store import DocumentStore, write_documents
from jax_diversity.sequences.tokenization.encoding import encode, encode_file, saved_tokenizer
from jax_diversity.sequences.tokenization.factory import make_tokenizer
from jax_diversity.sequences.tokenization.settings import TokenizerConfig
from jax_diversity.sequences.tokenization.tokenizer_json import spread_texts

KINDS = ("bytes", "bpe", "unigram", "sentencepiece-bpe", "tensorflow-unigram", "tensorflow-bpe")
VOCAB_SIZE = 16_384
TRAIN_BYTES = 4 * 2**20
CHUNK_CHARACTERS = 2**20  # size of a list of texts that a worker of the pool encodes in one call
Encode = Callable[[list[str]], object]


def prepare(paths: Sequence[str], num_bytes: int, folder: Path) -> None:
    """Store the corpus as the build does, in files of 4 MB, so that the last file hardly affects the time."""
    config = CorpusConfig(paths=tuple(paths) or (PYTHON_ENVIRONMENT,), max_bytes=num_bytes, duplicate_ids="rename")
    write_documents(read_documents(config, ReadReport()), folder, 4 * 2**20)


def chunks(folder: Path) -> list[list[str]]:
    """The stored texts in lists of about a million characters."""
    found: list[list[str]] = [[]]
    num_characters = 0
    for text in chain.from_iterable(DocumentStore.of_folder(folder).texts()):
        if num_characters > CHUNK_CHARACTERS:
            found.append([])
            num_characters = 0
        found[-1].append(text)
        num_characters += len(text)
    return found


def train_model(texts: Sequence[str], model_type: str, path: Path) -> None:
    """Train a SentencePiece model with the trainer's defaults."""
    import sentencepiece

    lines = [line for text in texts for line in text.splitlines() if 0 < len(line) < 4000]
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=file,
            model_type=model_type,
            vocab_size=VOCAB_SIZE // 2,
            hard_vocab_limit=False,
            minloglevel=2,
        )


def save_tokenizer(kind: str, folder: Path, texts: Sequence[str]) -> None:
    """Make the tokenizer of one of `KINDS` and save it in `folder / kind`."""
    if kind in ("bytes", "bpe"):
        config = TokenizerConfig(vocab_size=VOCAB_SIZE) if kind == "bpe" else TokenizerConfig(kind="bytes")
        made = make_tokenizer(config, texts)
    else:
        library, _, model_type = kind.rpartition("-")
        path = folder / f"{model_type}.model"
        if not path.exists():
            train_model(texts, model_type, path)
        name = "tensorflow-text" if library == "tensorflow" else "sentencepiece"
        made = make_tokenizer(TokenizerConfig(kind=name, path=str(path)))  # type: ignore[arg-type]
    (folder / kind).mkdir(exist_ok=True)
    made.save(folder / kind)


def bare(kind: str, folder: Path, num_threads: int) -> Encode:
    """The library's call that encodes a list of texts."""
    if kind == "bytes":
        return lambda texts: [np.frombuffer(text.encode(), np.uint8) for text in texts]
    if kind == "bpe":
        import tokenizers

        library = tokenizers.Tokenizer.from_file(str(folder / kind / "tokenizer.json"))
        return functools.partial(library.encode_batch_fast, add_special_tokens=False)
    model = (folder / kind / "tokenizer.model").read_bytes()
    if kind.startswith("tensorflow"):
        import tensorflow
        import tensorflow_text

        return tensorflow_text.SentencepieceTokenizer(model=model, out_type=tensorflow.int32).tokenize  # pyright: ignore[reportArgumentType]
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return functools.partial(processor.encode, return_type="numpy", num_threads=num_threads)


_worker: tuple[Encode, list[list[str]]]


def start_worker(kind: str, folder: Path) -> None:
    """Load the library and all texts."""
    global _worker
    os.environ["RAYON_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _worker = bare(kind, folder, num_threads=1), chunks(folder / "documents")


def encode_chunk(index: int) -> None:
    """Encode one list of texts and discard the ids."""
    encode, texts = _worker
    encode(texts[index])


def best_seconds(run: Callable[[], object], repeats: int) -> float:
    """The least time of some runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


@work("tokenizing", at_a_time=encode_file.at_a_time)
def encode_documents(name: Path, folder: str, path: str) -> dict[str, Any]:
    """The work of the stage's job, for a file of documents without a dataset."""
    return encode(name, saved_tokenizer(folder), DocumentStore((Path(path),)), False)


def encode_files(folder: Path, kind: str, executor: Executor) -> None:
    """Encode all files of documents; no file is finished yet."""
    shutil.rmtree(folder / "tokens", ignore_errors=True)
    (folder / "tokens").mkdir()
    paths = DocumentStore.of_folder(folder / "documents").paths
    jobs: list[Job] = [(str(folder / "tokens" / path.stem), (str(folder / kind), str(path))) for path in paths]
    for _ in executor.map(encode_documents, jobs):
        pass


def measure(kind: str, folder: Path, texts: list[list[str]], cores: int, repeats: int) -> dict[str, float]:
    """MB/s of the bare library and of the stage, each in one process and in several."""
    num_bytes = sum(len(text.encode()) for chunk in texts for text in chunk)
    encode = bare(kind, folder, num_threads=cores)
    encode(texts[0][:10])
    seconds = {"bare threads": best_seconds(lambda: [encode(chunk) for chunk in texts], repeats)}
    context = multiprocessing.get_context("spawn")
    with context.Pool(cores, start_worker, (kind, folder)) as pool:
        pool.map(encode_chunk, [0] * cores, chunksize=1)
        seconds["bare pool"] = best_seconds(lambda: pool.map(encode_chunk, range(len(texts)), chunksize=1), repeats)
    for name, executor in (("threads", Here()), ("processes", Processes(cores))):
        seconds[f"stage {name}"] = best_seconds(lambda executor=executor: encode_files(folder, kind, executor), repeats)
    rates = {name: round(num_bytes / 1e6 / value, 2) for name, value in seconds.items()}
    fastest = max(rates["bare threads"], rates["bare pool"])
    return rates | {"ratio": round(max(rates["stage threads"], rates["stage processes"]) / fastest, 3)}


def main() -> None:
    """Measure all kinds and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", help="JSONL files; default: texts of the installed Python packages")
    parser.add_argument("--megabytes", type=float, default=64)
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=KINDS)
    parser.add_argument("--processes", type=int, default=num_cores())
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="write results/tokenization.json")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="tokenization-"))
    try:
        prepare(arguments.paths, int(arguments.megabytes * 1e6), folder / "documents")
        texts = chunks(folder / "documents")
        megabytes = sum(len(text.encode()) for chunk in texts for text in chunk) / 1e6
        spread = list(spread_texts((text for chunk in texts for text in chunk), int(megabytes * 1e6), TRAIN_BYTES))
        print(f"{megabytes:.1f} MB, {sum(map(len, texts)):,} documents, {arguments.processes} processes or threads")
        names = ("bare threads", "bare pool", "stage threads", "stage processes", "ratio")
        print(f"{'MB/s':<20}" + "".join(f"{name:>17}" for name in names))
        rates: dict[str, Any] = {}
        for kind in arguments.kinds:
            save_tokenizer(kind, folder, spread)
            rates[kind] = measure(kind, folder, texts, arguments.processes, arguments.repeats)
            print(f"{kind:<20}" + "".join(f"{rates[kind][name]:>17}" for name in names), flush=True)
        if arguments.write:
            packages = [name for name in ("tokenizers", "sentencepiece", "tensorflow-text") if _is_installed(name)]
            about = results_file.environment(*packages)
            corpus_of = [Path(path).name for path in arguments.paths] or [PYTHON_ENVIRONMENT]
            values = {"corpus": corpus_of, "megabytes": round(megabytes, 1), "processes": arguments.processes}
            results_file.write("tokenization", about | values | {"megabytes_a_second": rates})
        else:
            print(json.dumps(rates))
    finally:
        shutil.rmtree(folder)


def _is_installed(package: str) -> bool:
    try:
        return bool(version(package))
    except ModuleNotFoundError:
        return False


if __name__ == "__main__":
    main()
