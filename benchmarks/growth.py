"""Measure how time and memory of every preparation step and every reader grow with the length of a document.

    python -m benchmarks.growth [NAME ...] [--all]

Each text repeats one unit (`tests/support/pumped.py`): the units that once took quadratic time, or all of them.
Linear code takes 4 times as long for 80,000 characters as for 20,000, quadratic code 16 times. The command prints the
largest ratio of every step and reader, and every text whose ratio is 9 or more or that takes more than 300 MB.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from tests.support.growing import Use, readers, steps
from tests.support.limits import peak_bytes
from tests.support.pumped import PUMPED, SHARP, Pumped

SMALL, LARGE = 20_000, 80_000
MOST_GROWTH, MOST_BYTES = 9.0, 300 * 2**20
LEAST_SECONDS = 0.05
"""A shorter time says nothing."""


def seconds_of(use: Use, text: str) -> float:
    start = time.process_time()
    use(text)
    return time.process_time() - start


def growth(use: Use, pumped: Pumped) -> tuple[float, float, int]:
    """Ratio of the times of both lengths (0 if they are too short), seconds and bytes of the longer text."""
    text = pumped.text(LARGE)
    peak_bytes()
    before = peak_bytes()
    large = seconds_of(use, text)
    taken = peak_bytes() - before
    ratio, small = 0.0, 0.0
    for _ in range(3 if large >= LEAST_SECONDS else 0):  # another program may disturb a measurement
        small = max(small, seconds_of(use, pumped.text(SMALL)))
        ratio = large / small
        if ratio < MOST_GROWTH:
            break
        large = min(large, seconds_of(use, text))
    return ratio, large, taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="steps and readers, such as html or 'read jsonl'; default: all")
    parser.add_argument("--all", action="store_true", help="all texts, in place of the few that were once quadratic")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        uses = steps(Path(folder)) | readers(Path(folder))
        print(f"{'step or reader':32}{'ratio':>7}{'seconds':>9}{'MB':>6}  text with the largest ratio")
        for name in args.names or uses:
            uses[name]("warm up")
            rows = {unit: growth(uses[name], PUMPED[unit]) for unit in (PUMPED if args.all else SHARP)}
            for unit, (ratio, seconds, taken) in rows.items():
                if ratio >= MOST_GROWTH or taken > MOST_BYTES:
                    print(f"{name:32}{ratio:7.1f}{seconds:9.2f}{taken >> 20:6}  {unit}  <- too much")
            unit = max(rows, key=lambda unit: rows[unit])
            ratio, seconds, taken = rows[unit]
            print(f"{name:32}{ratio:7.1f}{seconds:9.2f}{taken >> 20:6}  {unit}")


if __name__ == "__main__":
    main()
