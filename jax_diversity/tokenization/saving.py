"""A tokenizer's settings beside its file, so that a dataset's folder is enough to make the same tokenizer again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jax_diversity.artifacts import atomic_path, write_json
from jax_diversity.errors import UserError

if TYPE_CHECKING:
    from jax_diversity.tokenization.base import Tokenizer

SETTINGS_NAME = "tokenizer.meta.json"


def write_bytes(path: Path, content: bytes) -> None:
    """Write a tokenizer's file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def write_settings(folder: Path, kind: str, tokenizer: Tokenizer, **more: Any) -> None:
    """Write `tokenizer.meta.json`: how the tokenizer's file is read, and which library made the tokens."""
    settings = {
        "kind": kind,
        "end_token": tokenizer.end_token,
        "implementation": tokenizer.implementation,
        "normalization": "none",
    }
    write_json(folder / SETTINGS_NAME, settings | more)


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


def recorded_implementation(folder: Path) -> str | None:
    """The library, with its version, that a stored tokenizer made tokens with; None where none is stored.

    Raises:
        UserError: the settings cannot be read.
    """
    return (read_settings(folder) or {}).get("implementation")


def update_settings(folder: Path, **changes: Any) -> None:
    """Change some of the settings that stand in the folder."""
    write_json(folder / SETTINGS_NAME, (read_settings(folder) or {}) | changes)
