"""Sequences as stored bytes: ArrayRecord files whose every record holds all that one sequence needs.

`writing.write_records` gathers sequences from the tokens of their segments; `reading.RecordReader` reads them back
and decodes whole batches into the arrays that training takes.
"""
