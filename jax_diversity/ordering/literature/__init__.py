"""Orders of other work: shuffles, buffers, strata, spacing, and the worst case for plots."""
