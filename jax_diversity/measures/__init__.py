"""How evenly an ordering spreads the corpus's groups: pure functions of counts and an ordering.

`measure` measures one ordering, `compare` several; `run.measuring` does both for runs and a dataset's orderings.
docs/measures.md has the formulas and units of all measures. Counts stay sparse: the cost of every running sum grows
with the non-zeros, not with positions times groups.
"""
