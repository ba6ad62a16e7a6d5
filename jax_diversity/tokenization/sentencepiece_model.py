"""Text -> token ids by the sentencepiece package, from a .model file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jax_diversity.foundation.errors import UserError
from jax_diversity.tokenization.base import PiecewiseTokenizer
from jax_diversity.tokenization.cutting import blanks
from jax_diversity.tokenization.model_file import FILE_NAME, SentencePieceModel
from jax_diversity.tokenization.saving import write_bytes

KIND = "sentencepiece"
# A BPE model holds some hundred bytes a character while it merges.
PIECE_CHARACTERS = 2**18


class ModelTokenizer(PiecewiseTokenizer):
    """What both libraries that read .model files share.

    Texts of more than 262,144 characters are encoded in pieces, cut before a single blank, or else at a line's end.
    A model that puts a blank before every text is not given the blank of the cut again: the ids are then those of
    the whole, for all models whose tokens do not reach over a blank (the trainer's default). A text without any
    such place gets a blank's mark at the cut.

    Args:
        model: the .model file.
        kind: the setting that asks for the library.
        implementation: library and version.
        cut: gives a text's pieces; None cuts at blanks.
    """

    def __init__(
        self,
        model: SentencePieceModel,
        kind: str,
        implementation: str,
        cut: Callable[[str, int], Iterable[str]] | None = None,
    ) -> None:
        super().__init__(kind, len(model.pieces), model.end_token, model.end_id, model.unknown_id, implementation)
        self.model, self._cutter = model, cut or blanks
        self._text_may_hold_end = model.end_may_be_text

    @property
    def fingerprint(self) -> str:
        """Hash of the model, the end token and the library's name."""
        return self.model.fingerprint(self.kind)

    @property
    def settings(self) -> dict[str, Any]:
        """The content of `tokenizer.meta.json`, with where long texts are cut."""
        return super().settings | {"cut_at": "blanks" if self._cutter is blanks else "sentences"}

    def save_file(self, folder: Path) -> None:
        """Write the model, a file that any reader of SentencePiece models takes."""
        write_bytes(folder / FILE_NAME, self.model.content)

    def _cut(self, text: str) -> Iterator[str]:
        for index, piece in enumerate(self._cutter(text, PIECE_CHARACTERS)):
            yield piece[1:] if index and self.model.adds_blank and piece.startswith(" ") else piece


class SentencePieceTokenizer(ModelTokenizer):
    """A .model file read by the sentencepiece package.

    Args:
        model: the .model file.
        num_threads: threads that encode side by side; None takes as many as there are cores.
        cut: gives a text's pieces; None cuts at blanks.

    Raises:
        UserError: the package is not installed, or cannot read the model.
    """

    def __init__(
        self,
        model: SentencePieceModel,
        num_threads: int | None = None,
        cut: Callable[[str, int], Iterable[str]] | None = None,
    ) -> None:
        library = _library()
        super().__init__(model, KIND, f"sentencepiece {library.__version__}", cut)
        self._num_threads = num_threads or -1
        try:
            self._processor = library.SentencePieceProcessor(model_proto=model.content)
        except (RuntimeError, ValueError) as error:
            what = " ".join(str(error).split())
            raise UserError(f"{model.name} is no SentencePiece model that can be read: {what}.") from None

    def _encode(self, pieces: list[str]) -> Iterable[np.ndarray]:
        return self._processor.encode(
            pieces, return_type="numpy", num_threads=self._num_threads, add_bos=False, add_eos=False
        )

    def _decode(self, ids: list[int]) -> str:
        return self._processor.decode(ids)


def _library() -> Any:
    try:
        import sentencepiece
    except ImportError:
        raise UserError(
            "Expected the sentencepiece package for tokenizer.kind=sentencepiece, found none; install it with "
            "`pip install 'jax-diversity[sentencepiece]'`."
        ) from None
    return sentencepiece
