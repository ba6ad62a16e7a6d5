"""Language models of fastText (Joulin et al. 2017): `lid.176.bin`, `lid.176.ftz` or the user's own.

The library does not check the length of a file: a truncated file makes it hang or crash. Therefore this module checks
the file's structure first.
"""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path
from typing import IO, Any

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.libraries import optional

_MAGIC, _VERSIONS = 793712314, (11, 12)
_SUPERVISED = 3
_LABEL = "__label__"
_MOST_BYTES_PER_WORD = 2**16


class FastText:
    """A loaded fastText model that detects the language of a text."""

    def __init__(self, path: str) -> None:
        fasttext = optional("fasttext", None, install="fasttext-predict")
        self.labels = labels(Path(path).expanduser())
        self._model: Any = fasttext.load_model(str(Path(path).expanduser())).f

    def ranked(self, text: str, number: int) -> list[tuple[str, float]]:
        """The most probable languages in descending order; empty if no part of the text is in the model."""
        # The library reads up to the first newline. Lone surrogates cannot be encoded as UTF-8: they are replaced.
        line = " ".join(text.split()).encode(errors="replace").decode()
        predictions = self._model.predict(f"{line}\n", number, 0.0, "strict")
        return [(label.removeprefix(_LABEL), min(float(share), 1.0)) for share, label in predictions]


@cache
def fasttext_model(path: str) -> FastText:
    """Load a model; each process loads a file only once.

    Raises:
        UserError: the library is missing, or the file is damaged or not a model that detects languages.
    """
    return FastText(path)


def labels(path: Path) -> list[str]:
    """Read the labels of a model file, and check that the file is complete.

    Raises:
        UserError: the file is damaged, or it is another kind of file.
    """
    try:
        with path.open("rb") as file:
            labels = _read_labels(file)
            size = path.stat().st_size
            if file.tell() == size:
                return labels
            reason = f"{size} bytes instead of {file.tell()}"
    except OSError as error:
        reason = error.strerror or str(error)
    except (struct.error, ValueError) as error:
        reason = str(error) if isinstance(error, ValueError) else "a truncated file"
    raise UserError(
        f"Expected a supervised model of fastText, such as lid.176.bin, at {path}, found {reason}; check the path."
    )


def _numbers(file: IO[bytes], form: str) -> tuple[Any, ...]:
    return struct.unpack(f"<{form}", file.read(struct.calcsize(f"<{form}")))


def _read_labels(file: IO[bytes]) -> list[str]:
    magic, version = _numbers(file, "2i")
    if magic != _MAGIC or version not in _VERSIONS:
        raise ValueError("a file of another kind")
    arguments = _numbers(file, "12id")
    if arguments[7] != _SUPERVISED:
        raise ValueError("a model that contains only word vectors")
    size, _, num_labels, _, num_kept = _numbers(file, "3i2q")
    labels = []
    for _ in range(size):
        word = _word(file)
        _, kind = _numbers(file, "qb")
        if kind == 1:
            labels.append(word.removeprefix(_LABEL))
    if len(labels) != num_labels or not labels:
        raise ValueError(f"{len(labels)} labels")
    file.seek(8 * max(num_kept, 0), 1)
    (is_quantised,) = _numbers(file, "?")
    _skip_matrix(file, is_quantised)
    (output_is_quantised,) = _numbers(file, "?")
    _skip_matrix(file, is_quantised and output_is_quantised)
    return labels


def _word(file: IO[bytes]) -> str:
    word = bytearray()
    while (byte := file.read(1)) != b"\0":
        if not byte or len(word) == _MOST_BYTES_PER_WORD:
            raise ValueError("a truncated file")
        word += byte
    return word.decode(errors="replace")


def _skip_matrix(file: IO[bytes], is_quantised: bool) -> None:
    if not is_quantised:
        rows, columns = _numbers(file, "2q")
        file.seek(_size(4 * rows * columns), 1)
        return
    (has_norms,) = _numbers(file, "?")
    rows, _, num_codes = _numbers(file, "2qi")
    file.seek(_size(num_codes), 1)
    _skip_quantiser(file)
    if has_norms:
        file.seek(_size(rows), 1)
        _skip_quantiser(file)


def _skip_quantiser(file: IO[bytes]) -> None:
    dimensions, *_ = _numbers(file, "4i")
    file.seek(_size(4 * 256 * dimensions), 1)


def _size(number: int) -> int:
    if number < 0:
        raise ValueError("a part of negative size")
    return number
