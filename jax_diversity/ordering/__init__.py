"""Orderings: permutations of a corpus's sequences, all made under one contract.

    characteristics --(objective)--> features --(method)--> permutation -> Ordering

Every method is a function of one signature (`base.Method`) in a file of its own and is found by name in
`base.METHODS`. No method ever sees text or tokens, only the sequences' token counts.

    balance = halving (a balanced stream) + pool (the best of some thousand at every step)
    greedy, pool      selectors: compiled steps over a `deviation`, driven by `running` along a `plan`
    sharded, mesh     the same steps over many devices and hosts
    refinement        exchanges between near windows for a known batch size
    literature        what others do
    composition       orderings made of orderings
"""
