"""A tokenizer's settings beside its file, so that a dataset's folder is enough to make the same tokenizer again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jax_diversity.foundation.artifacts import atomic_path, write_json
from jax_diversity.foundation.errors import UserError

SETTINGS_NAME = "tokenizer.meta.json"


def write_bytes(path: Path, content: bytes) -> None:
    """Write a tokenizer's file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def write_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Write `tokenizer.meta.json`: how the tokenizer's file is read, and which library made the tokens.

    It is written once, after the tokenizer's file: where it stands, all of the tokenizer does.
    """
    write_json(folder / SETTINGS_NAME, settings)


def read_settings(folder: Path) -> dict[str, Any] | None:
    """What `write_settings` wrote; None where there is no such file.

    Raises:
        UserError: it cannot be read.
    """
    path = folder / SETTINGS_NAME
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} does not hold a tokenizer's settings ({error}); tokenize again.") from None
    if not isinstance(settings, dict) or not isinstance(settings.get("kind"), str):
        raise UserError(f"{path} does not hold a tokenizer's settings (no kind); tokenize again.")
    return settings
