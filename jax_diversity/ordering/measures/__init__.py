"""Measures of how evenly an ordering spreads the groups of the corpus: pure functions of counts and an ordering.

A *family* is a characteristic of tokens, such as topic cluster, length or source. A *group* is one value of a family,
such as one cluster. A *position* is a place in the ordering. `measure` measures one ordering, `compare` compares
several; `run.measuring` does both for runs and for the orderings of a dataset. docs/measures.md has the formulas and
units of all measures. Counts stay sparse: the cost of every running sum grows with the number of non-zeros, not with
positions times groups.
"""
