"""Batches in an ordering's order, as a Grain dataset that resumes by one integer.

The window contract: the global batch at position p is the sequences `order[p : p + B]`, row j of it at row j,
however many hosts, threads or epochs there are; host h of H holds the rows h*B/H .. (h + 1)*B/H - 1. Positions run
on from epoch to epoch, so a batch may begin in one epoch and end in the next, and no sequence is left out between.
"""
