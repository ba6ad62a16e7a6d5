"""Orderings: permutations of a corpus's sequences, made by methods of one signature (`base.Method`).

Methods see token counts only. `balance` makes a balanced stream (halving) and places the best of a few thousand
candidates at every step (pool). The selectors `greedy` and `pool` are compiled steps over a `deviation`, on one device
or a `mesh`; `running` drives them along a `plan`. `literature` holds the orders of other work, `composition` makes
orderings of orderings.
"""
