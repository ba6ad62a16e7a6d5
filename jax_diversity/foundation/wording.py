"""Numbers in sentences."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, noun: str) -> str:
    """Return a number with its noun in the right form.

    Example:
        >>> counted(1, "document"), counted(22_727, "document"), counted(2, "batch"), counted(3, "copy")
        ('1 document', '22,727 documents', '2 batches', '3 copies')
    """
    return f"{number:,} {in_number(number, noun)}"


def in_number(number: float, noun: str) -> str:
    """Return a noun in the singular for 1, and in the plural for every other number."""
    if number == 1:
        return noun
    if noun.endswith(("s", "x", "ch")):
        return f"{noun}es"
    return f"{noun[:-1]}ies" if noun.endswith(("copy", "family")) else f"{noun}s"


def against(first: float | int, second: float | int) -> tuple[str, str]:
    """Format two numbers with the fewest decimals (three to six) that distinguish them."""
    pairs = [(f"{first:.{digits}f}", f"{second:.{digits}f}") for digits in range(3, 7)]
    return next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])


def listing(parts: Sequence[str], word: str = "and") -> str:
    """Parts joined as in a sentence: `a`, `a and b`, `a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} {word} {parts[-1]}"
