"""The orders that others use: shuffles, buffers, strata, spacing, and the worst case for plots."""
