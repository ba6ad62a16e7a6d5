"""Orderings: permutations of a corpus's sequences, all made under one contract.

    characteristics --(objective)--> features --(method)--> permutation -> Ordering

Every method is a function of one signature (`base.Method`) and is found by name in `base.METHODS`. No method sees text
or tokens, only the sequences' token counts.

    balance           halving (a balanced stream) + pool (the best of some thousand at every step)
    greedy, pool      selectors: compiled steps over a `deviation`, on one device or a `mesh`;
                      `running` drives them along a `plan`
    literature        orders that others use
    composition       orderings made of orderings
"""
