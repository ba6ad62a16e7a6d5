"""The documents that a step is applied to: the documents of some sources and languages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jax_diversity.foundation.errors import UserError, quoted
from jax_diversity.foundation.settings import parse_yaml
from jax_diversity.foundation.text.languages import main_language
from jax_diversity.preparation.steps.base import Candidate
from jax_diversity.schema.weights import fits

Scope = Mapping[str, Sequence[str]]
"""`source` or `language` -> names and patterns. A document must match one of each, and none that begins with `!`."""
_FIELDS = ("source", "language")


def parse_scope(value: Any, step: str) -> Scope:
    """Check the option `only` of a step; every step has this option.

    Raises:
        UserError: the value does not name sources or languages.

    Example:
        >>> parse_scope("{language: [en, de], source: web-*}", "gopher")
        {'language': ('en', 'de'), 'source': ('web-*',)}
    """
    fields = parse_yaml(value) if isinstance(value, str) else value
    scope = {}
    for name, listed in fields.items() if isinstance(fields, Mapping) else ():
        texts = (listed,) if isinstance(listed, str) else tuple(listed) if isinstance(listed, list | tuple) else ()
        if name not in _FIELDS or not texts or not all(isinstance(text, str) for text in texts):
            break
        scope[name] = texts
    if not scope or len(scope) < len(fields):
        raise UserError(
            f"Expected the option 'only' of the step {step} to list sources or languages as texts, such as "
            f"{{source: [web-*], language: [en, de]}}, found {quoted(value)}."
        )
    return scope


def is_in_scope(candidate: Candidate, scope: Scope) -> bool:
    """Tell whether a step is applied to a document.

    `en` also matches `en-US` and `eng`; `*` matches any characters. `!law*` excludes what `law*` matches.
    """
    language = candidate.language or ""
    names = {"source": (candidate.document.source,), "language": (language, main_language(language))}

    def matches(field: str, patterns: Sequence[str]) -> bool:
        return any(fits(name, pattern) for name in names[field] for pattern in patterns)

    for field, listed in scope.items():
        wanted_patterns = [pattern for pattern in listed if not pattern.startswith("!")]
        if (wanted_patterns and not matches(field, wanted_patterns)) or matches(
            field, [pattern[1:] for pattern in listed if pattern[:1] == "!"]
        ):
            return False
    return True
