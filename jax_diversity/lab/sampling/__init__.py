"""Samples that stand for all sequences or documents, and losses with error bars.

The first sequences of a balanced order hold nearly the mixture of all sequences, so their mean loss is nearly the mean
loss of all. `sample` takes them. `estimate` says how near.
"""
