"""The orders that others use: chance, buffers, strata, spacing, and the worst case for plots."""
