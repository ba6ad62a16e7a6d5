"""Compare measures of one order that were computed in two ways."""

from __future__ import annotations

from typing import Any

import pytest


def check_among(ours: Any, theirs: Any) -> None:
    """Check that all our values are among theirs, and equal up to rounding."""
    for name, value in ours.items():
        if isinstance(value, dict):
            check_among(value, theirs[name])
        elif value is None or theirs[name] is None:
            assert value is theirs[name], name
        else:
            assert value == pytest.approx(theirs[name], rel=1e-9, abs=1e-9), name
