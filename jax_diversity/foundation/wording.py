"""Numbers in sentences."""

from __future__ import annotations


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
