"""Run tests, and print the processor seconds of every folder and of the slowest cases: `python -m tests.durations`.

Further arguments go to pytest, for example `python -m tests.durations -n 2 -m core`.
"""

from __future__ import annotations

import sys

import pytest

if __name__ == "__main__":
    sys.exit(pytest.main(["-p", "tests.support.durations", *sys.argv[1:]]))
