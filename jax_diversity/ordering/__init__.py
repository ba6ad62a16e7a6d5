"""Orderings: permutations of a corpus's sequences, made by methods of one signature (`base.Method`).

Methods see token counts only. `balance` is halving (a balanced stream), then pool (the best of some thousand at every
step). The selectors `greedy` and `pool` are compiled steps over a `deviation`, on one device or a `mesh`; `running`
drives them along a `plan`. `literature` holds orders that others use, `composition` orderings made of orderings.
"""
