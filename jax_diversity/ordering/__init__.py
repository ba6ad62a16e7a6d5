"""Orderings: permutations of a corpus's sequences, all made under one contract.

    characteristics --(objective)--> features --(method)--> permutation -> Ordering

Every method is a function of one signature (`base.Method`) in a file of its own and is found by name in
`base.METHODS`. No method ever sees text or tokens, only the sequences' token counts.
"""

from jax_diversity.ordering.base import METHODS, Method, find_method, order
from jax_diversity.ordering.objective import Features, Objective

__all__ = ["METHODS", "Features", "Method", "Objective", "find_method", "order"]
