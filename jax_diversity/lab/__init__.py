"""A small laboratory: train a GPT on an ordering, resume it exactly, look at its losses.

Names are imported when first used, so that reading a run's log (`jax_diversity.lab.log`) costs nothing.
"""
