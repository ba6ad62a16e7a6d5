"""Packing: an index that lists the runs of documents' tokens in every sequence. Each method has its own file.

A method is a pure function from the documents' lengths (and an order of the documents) to `Segments`. Tokens are not
read: they are gathered through the index when records are written. `base.pack` calls a method by its name.
"""
