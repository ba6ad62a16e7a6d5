"""Ordering methods of other work: shuffles, shuffle buffers, strata, spacing, and the worst case for plots."""
