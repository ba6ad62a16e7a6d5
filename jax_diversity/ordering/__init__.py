"""Orderings: permutations of a corpus's sequences, made by methods of one signature (`base.Method`).

A *family* is a kind of characteristics, such as topic clusters, document lengths or sources. A *group* is one value of
a family, such as one cluster. Methods read only the sequences' token counts per group.

`balance` first makes a balanced stream (halving). It then places the best of a few thousand candidates at every step
(pool). The selectors `greedy` and `pool` are compiled programs that update a `deviation`, on one device or on a `mesh`.
`running` runs them through the phases of a `plan`. `literature` contains the methods of other work. `composition` makes
orderings from other orderings.
"""
