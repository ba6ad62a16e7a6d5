"""An embedder of the user's own: what its code raises becomes one sentence that names the line it comes from."""

from __future__ import annotations

import importlib
import textwrap
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jax_diversity.foundation.errors import UserError

_NOT_THEIRS = (str(Path(__file__).parents[1]), str(Path(importlib.__file__).parent), "<")
"""How files' names begin whose lines are not the user's: this package's, the import system's, generated ones."""
_MOST_CHARACTERS = 400
_REMEDIES = {
    "import": "repair the module; is its folder in PYTHONPATH, and what it needs installed?",
    "construction": "repair it; it has to take the settings (an EmbeddingConfig) and give an embedder.",
}


@contextmanager
def own_code(method: str, step: str) -> Iterator[None]:
    """Run a step of an embedder; of one that is the user's own, whatever it raises becomes a `UserError`.

    The methods that come with the package are let through: what they raise is a bug, or a `UserError` already.

    Args:
        method: `embedding.method`; it is the user's own where it is a `module:name`.
        step: `import`, `construction`, or the name of the embedder's method that runs.

    Raises:
        UserError: names the method, the step, the exception and the line; made `from` the exception.
    """
    if ":" not in method:
        yield
        return
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # a module that is a script may end the process when it is imported
        what = step if step in _REMEDIES else f"`{step}`"
        raise UserError(
            f"Expected the {what} of embedding.method={method} to end without an error, found {_described(error)}; "
            f"{_REMEDIES.get(step, 'repair it.')}"
        ) from error


def _described(error: BaseException) -> str:
    """The exception's type and text, and where in the user's code it was."""
    text = textwrap.shorten(str(error), _MOST_CHARACTERS, placeholder=" ...")
    theirs = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_NOT_THEIRS)
    ]
    # The deepest line of the file that was entered first: libraries that it calls may lie below.
    lines = [frame.lineno for frame in theirs if frame.filename == theirs[0].filename]
    where = f" in line {lines[-1]} of {theirs[0].filename}" if theirs else ""
    return type(error).__name__ + (f": {text}" if text else "") + where
